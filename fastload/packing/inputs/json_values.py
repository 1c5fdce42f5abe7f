"""Parses JSON samples; lists of numbers become arrays, and no value changes."""

from __future__ import annotations

import collections
import json
import re
from typing import Any

from fastload.packing.inputs.exact import ChangedNumber
from fastload.packing.inputs.images import BadRecordError
from fastload.packing.inputs.leaves import read_leaf
from fastload.packing.inputs.wanted import ALL, Wanted

# Every number that float64 may not represent has an exponent of three digits, 16 digits before the
# point, or hundreds after it.
_SUSPECT = re.compile(
    rb"[0-9](?:[eE][-+]?[0-9]{3}|(?<![0-9.][0-9])[0-9]{15}|[0-9]{299})",
)


def parse_json(content: bytes, wanted: Wanted = ALL, name: str = "") -> Any:
    """Parses a JSON text; lists of numbers become leaves.

    Args:
        content: JSON text in UTF-8.
        wanted: Fields to read.
        name: Name of the value, if it is a member of a larger sample.

    Raises:
        BadRecordError: the content is not JSON.
        ValueError, TypeError: a list does not hold numbers of one type and shape, or float64 cannot
            represent a number.
        KeyError: a wanted field does not exist.
    """
    parse = ChangedNumber.parsed if _SUSPECT.search(content) else None
    try:
        text = content.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_unique, parse_float=parse)
    except (ValueError, RecursionError) as error:
        what = str(error)
        if isinstance(error, json.JSONDecodeError):  # its line number counts within this text only
            what = f"{error.msg} (character {error.pos})"
        raise BadRecordError(f"not JSON: {what}") from error
    return _with_arrays(wanted.prune(value, name), name or "data")


_REPEATED = object()
"""Value of a key that appears twice, which raises if the key is wanted."""


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
