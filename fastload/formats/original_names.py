"""Names of the files that samples were packed from, in files of their own next to the shards."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

NAMES_FILE = "names-{:06d}.txt"
"""The names of such files. A line is a JSON string: the original file of a sample."""

_NAME = re.compile(r"names-([0-9]{6,})\.txt")


class Names(NamedTuple):
    """The original files of consecutive samples.

    Attributes:
        rows: How many samples.
        file: With a line for each, next to the shards; None: they are not known.
    """

    rows: int
    file: str | None


def read_names(entries: Any, rows: int) -> tuple[Names, ...]:
    """Reads the entries of a manifest; () if no names are known.

    Raises:
        ValueError: they are damaged.
    """
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise ValueError(f"'names' must be list, not {entries!r:.50}")
    found = []
    for entry in entries:
        count, file = entry
        if type(count) is not int or count < 0:
            raise ValueError(f"'names' must hold counts and files, not {entry!r:.50}")
        if file is not None and not (isinstance(file, str) and _NAME.fullmatch(file)):
            raise ValueError(f"'names' must hold files named {NAMES_FILE}, not {file!r:.50}")
        found.append(Names(count, file))
    if sum(of.rows for of in found) != rows:
        raise ValueError(f"'names' must be those of {rows} rows")
    return tuple(found)


def joined_names(parts: Iterable[tuple[int, tuple[Names, ...]]]) -> tuple[Names, ...]:
    """Concatenates the names of several datasets.

    Args:
        parts: The rows of each, and its names; () where they are not known.
    """
    joined: list[Names] = []
    for rows, names in parts:
        joined += names or ([Names(rows, None)] if rows else [])
    return tuple(joined) if any(of.file for of in joined) else ()


def next_number(names: Iterable[Names]) -> int:
    """Returns the number of the next file of names."""
    found = (_NAME.fullmatch(of.file) for of in names if of.file)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def original_name(folder: str, names: Iterable[Names], row: int) -> str | None:
    """Returns the original file of the sample at a row of the dataset, or None if unknown.

    Raises:
        OSError, ValueError: the file of names cannot be read, or is damaged.
    """
    for rows, file in names:
        if row >= rows:
            row -= rows
        elif file is None:
            return None
        else:
            with open(os.path.join(folder, file), encoding="ascii") as lines:
                line = next(itertools.islice(lines, row, None), None)
            return None if line is None else str(json.loads(line))
    return None
