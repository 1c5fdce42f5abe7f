"""JSON as samples: lists of numbers are arrays, nothing is changed on the way."""

from __future__ import annotations

import collections
import json
import re
from typing import Any

from fastload.packing.inputs.exact import ChangedNumber
from fastload.packing.inputs.images import BadRecordError
from fastload.packing.inputs.leaves import read_leaf
from fastload.packing.inputs.wanted import ALL, Wanted

# All numbers that float64 may not hold have an exponent of three digits, 16 digits in front of the
# point, or very many behind it.
_SUSPECT = re.compile(
    rb"[0-9](?:[eE][-+]?[0-9]{3}|(?<![0-9.][0-9])[0-9]{15}|[0-9]{299})",
)


def parse_json(content: bytes, wanted: Wanted = ALL, name: str = "") -> Any:
    """The value of a text in JSON, lists of numbers as leaves.

    Args:
        content: The text.
        wanted: The fields that are read.
        name: Of the value, if it is a member of a larger sample.

    Raises:
        BadRecordError: it is not JSON.
        ValueError, TypeError: a list is none of numbers of one kind and shape, or a number is none
            that float64 holds.
        KeyError: a wanted field is not there.
    """
    parse = ChangedNumber.parsed if _SUSPECT.search(content) else None
    try:
        text = content.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_unique, parse_float=parse)
    except (ValueError, RecursionError) as error:
        what = str(error)
        if isinstance(error, json.JSONDecodeError):  # its line would be that in this text
            what = f"{error.msg} (character {error.pos})"
        raise BadRecordError(f"not JSON: {what}") from error
    return _with_arrays(wanted.prune(value, name), name or "data")


_REPEATED = object()
"""The value of a key that appears twice, which is an error if it is wanted."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = collections.Counter(key for key, _ in pairs)
        made |= {key: _REPEATED for key, count in counts.items() if count > 1}
    return made


def _with_arrays(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _with_arrays(member, key) for key, member in value.items()}
    if value is _REPEATED:
        raise BadRecordError(f"not JSON: the key {name!r} appears twice")
    if isinstance(value, ChangedNumber):
        raise ValueError(f"field {name!r}: {value.text} {value.reason}")
    if not isinstance(value, list):
        return value
    if dict in set(map(type, value)):
        return [_with_arrays(member, name) for member in value]
    return read_leaf(value, name)
