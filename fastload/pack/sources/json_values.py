"""JSON as samples: lists of numbers are arrays, nothing is changed on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastload.pack.sources.images import BadRecordError
from fastload.pack.sources.leaves import read_leaf
from fastload.pack.sources.wanted import ALL, Wanted


def parse_json(content: bytes, wanted: Wanted = ALL, name: str = "") -> Any:
    """The value of a text in JSON, lists of numbers as leaves.

    Args:
        content: The text.
        wanted: The fields that are read.
        name: Of the value, if it is a member of a larger sample.

    Raises:
        BadRecordError: it is no JSON.
        ValueError, TypeError: a list is none of numbers of one kind and shape.
        KeyError: a wanted field is not there.
    """
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BadRecordError(f"no JSON: {error}") from error
    return _with_arrays(wanted.prune(value, name), name or "data")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key appears twice")
    return made


def _with_arrays(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _with_arrays(member, key) for key, member in value.items()}
    if not isinstance(value, list):
        return value
    kinds = set(map(type, value))
    if dict in kinds:
        return [_with_arrays(member, name) for member in value]
    numbers = list(_flat(value)) if list in kinds else value
    kinds = set(map(type, numbers))
    if bool in kinds and len(kinds) > 1:
        raise ValueError(f"field {name!r}: true and false among numbers")
    leaf = read_leaf(value, name, 0)
    if leaf.dtype == "float64" and int in kinds and not _are_exact(numbers):
        raise ValueError(f"field {name!r}: an integer among floats that float64 does not hold")
    return leaf


def _flat(value: list[Any]) -> Iterator[Any]:
    """The members of lists in lists."""
    for member in value:
        if isinstance(member, list):
            yield from _flat(member)
        else:
            yield member


def _are_exact(numbers: list[Any]) -> bool:
    return all(type(number) is not int or int(float(number)) == number for number in numbers)
