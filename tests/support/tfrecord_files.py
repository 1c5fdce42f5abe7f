"""Writes TFRecord files and their examples byte by byte."""

from __future__ import annotations

import struct
from typing import Any

from oracle import crc32c


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(value: Any, packed: bool = True) -> bytes:
    if isinstance(value, bytes):
        return field(1, field(1, value))
    if isinstance(value[0], float):
        numbers = [struct.pack("<f", number) for number in value]
        unpacked = b"".join(varint(1 << 3 | 5) + number for number in numbers)
        return field(2, field(1, b"".join(numbers)) if packed else unpacked)
    unpacked = b"".join(varint(1 << 3) + varint(number) for number in value)
    return field(3, field(1, b"".join(map(varint, value))) if packed else unpacked)


def example(features: dict[str, Any], packed: bool = True) -> bytes:
    entries = [
        field(1, field(1, name.encode()) + field(2, feature(value, packed)))
        for name, value in features.items()
    ]
    return field(1, b"".join(entries))
