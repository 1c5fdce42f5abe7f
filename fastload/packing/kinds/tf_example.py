"""`tf.train.Example` messages: features of bytes, float32 and int64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fastload.packing.columns import Array
from fastload.packing.inputs.wanted import ALL, Wanted

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3

Value = list[bytes] | Array | None
"""None of a feature without a kind: it is missing."""


def parse_example(content: bytes, wanted: Wanted = ALL) -> dict[str, Value]:
    """Parses the requested features of a message: lists of bytes, float32 or int64, by name.

    Raises:
        ValueError: it is no such message; a feature has no values, or appears twice.
    """
    found: dict[str, Value] = {}
    for number, value in _fields(content):
        if number == 2:
            raise ValueError("a SequenceExample, which is not read")
        if number != 1 or not isinstance(value, bytes):
            raise ValueError(f"no Example: it has a field {number}")
        for inner, entry in _fields(value):
            if inner != 1 or not isinstance(entry, bytes):
                raise ValueError(f"no Example: its features have a field {inner}")
            name, feature = _entry(entry)
            if not wanted.takes(name):
                continue
            if name in found:
                raise ValueError(f"the feature {name!r} appears twice")
            found[name] = _values(name, feature)
    return found


def _entry(content: bytes) -> tuple[str, bytes]:
    name, feature = b"", b""
    for number, value in _fields(content):
        if not isinstance(value, bytes) or number not in (1, 2):
            raise ValueError("no Example: a feature is not a name and a value")
        name, feature = (value, feature) if number == 1 else (name, value)
    return name.decode("utf-8"), feature


def _values(text: str, feature: bytes) -> Value:
    lists = list(_fields(feature))
    if not lists:
        return None
    if len(lists) != 1 or not isinstance(lists[0][1], bytes):
        raise ValueError(f"the feature {text!r} has no values of one kind")
    kind, content = lists[0][0], lists[0][1]
    if kind == _BYTES_LIST:
        return [value for _, value in _fields(content) if isinstance(value, bytes)]
    if kind == _FLOAT_LIST:
        pieces = [value for _, value in _fields(content) if isinstance(value, bytes)]
        joined = b"".join(pieces)
        if len(joined) % 4:
            raise ValueError(f"the feature {text!r} has {len(joined)} bytes of floats")
        return np.frombuffer(joined, "<f4")
    if kind == _INT64_LIST:
        numbers: list[int] = []
        for _, value in _fields(content):
            if isinstance(value, bytes):  # packed
                numbers += _varints(value)
            else:
                numbers.append(value)
        return np.array(numbers, np.uint64).view(np.int64)
    raise ValueError(f"the feature {text!r} is of an unknown kind {kind}")


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yields the fields of a message: their numbers, and their bytes or integers."""
    place, end = 0, len(content)
    while place < end:
        key, place = _varint(content, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(content, place)
            yield number, value
            continue
        if wire == _BYTES:
            size, place = _varint(content, place)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"no protobuf message: wire type {wire}")
        if place + size > end:
            raise ValueError("a protobuf message that is truncated")
        yield number, content[place : place + size]
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            raise ValueError("a protobuf message that is truncated")
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), place
    raise ValueError("a protobuf integer of more than 10 bytes")


def _varints(content: bytes) -> list[int]:
    place, numbers = 0, []
    while place < len(content):
        number, place = _varint(content, place)
        numbers.append(number)
    return numbers
