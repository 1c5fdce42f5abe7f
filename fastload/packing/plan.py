"""What will be written, before it is: how the samples are divided, and from which inputs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fastload import _core
from fastload.formats.fields import Field, as_written, schema
from fastload.formats.shard import PROFILE, shard_layout
from fastload.formats.structure import Structure, to_json
from fastload.packing.columns import Ragged
from fastload.packing.inputs.source import Source, probed

SHARD_BYTES = 256 << 20
"""What a shard is meant to hold."""

_LARGEST_SHARD_ROWS = 1 << 30
MOST_STAMPS = 1000
_SPLIT_TOLERANCE = Fraction(1, 10**6)

Splits = tuple[tuple[str, str], ...]
"""Names, and the fractions of the rows as decimal numbers."""


@dataclass(frozen=True)
class Plan:
    """How the samples of a source are divided into shards of one group.

    Attributes:
        fields: Of the columns.
        structure: Of a sample.
        rows: To be read.
        rows_each: Of all shards but the last.
        file_name: Of a shard.
        source: Kind and options.
        inputs: What is read.
        sample_bytes: The mean size of a sample.
        splits: Names and fractions.
    """

    fields: tuple[Field, ...]
    structure: Structure
    rows: int
    rows_each: int
    file_name: str
    source: dict[str, Any]
    inputs: Any
    sample_bytes: int
    splits: Splits = ()

    @classmethod
    def of(
        cls,
        source: Source,
        shard_bytes: int,
        file_name: str,
        splits: Splits = (),
        fields: Sequence[Field] | None = None,
    ) -> Plan:
        """The plan for a source and shards of about that size.

        Args:
            source: Of the samples.
            shard_bytes: What a shard is meant to hold.
            file_name: Of a shard.
            splits: Names and fractions.
            fields: Those of the source as they are written; None as in new datasets.
        """
        fitting = min(max(shard_bytes // max(source.sample_bytes, 1), 1), _LARGEST_SHARD_ROWS)
        return cls(
            fields=as_written(source.fields) if fields is None else tuple(fields),
            structure=source.structure,
            rows=source.rows,
            rows_each=1 << (fitting.bit_length() - 1),
            file_name=file_name,
            source={"kind": source.kind, **source.options()},
            inputs=source.inputs(),
            sample_bytes=source.sample_bytes,
            splits=splits,
        )

    @property
    def shards(self) -> int:
        """How many there will be if nothing is skipped."""
        return -(-self.rows // self.rows_each)

    @property
    def file_bytes(self) -> int:
        """The size of all shards if nothing is skipped; estimated where fields are ragged."""
        if any(field.ragged for field in self.fields):
            return self.rows * self.sample_bytes
        full, rest = divmod(self.rows, self.rows_each)
        size = full * shard_layout(self.fields, self.rows_each).file_bytes if full else 0
        return size + (shard_layout(self.fields, rest).file_bytes if rest else 0)

    def describe(self) -> dict[str, Any]:
        """The plan in JSON's types."""
        described = {
            "profile": PROFILE,
            "fields": schema(self.fields),
            "structure": to_json(self.structure),
            "rows": self.rows,
            "rows_each": self.rows_each,
            "shards": self.shards,
            "file": self.file_name,
            "source": self.source,
            "inputs": self.inputs,
        }
        return described | ({"splits": list(map(list, self.splits))} if self.splits else {})


def digest(described: Any) -> str:
    """The id of a dataset: a hash of its plan in JSON's types."""
    text = json.dumps(described, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def parse_splits(split: Mapping[str, float] | None) -> Splits:
    """Checks names and fractions.

    Raises:
        ValueError: a name is empty, a fraction is not between 0 and 1, or their sum is not 1.
    """
    splits = tuple((name, str(fraction)) for name, fraction in (split or {}).items())
    fractions = []
    for name, text in splits:
        if not name or not isinstance(name, str):
            raise ValueError(f"split: a name is needed, not {name!r}")
        try:
            fractions.append(Fraction(text))
            fits = 0 < fractions[-1] <= 1
        except (ValueError, ZeroDivisionError):
            fits = False
        if not fits:
            raise ValueError(f"split: {name}={text} is not a fraction of the rows, such as 0.9")
    if splits and abs(sum(fractions, Fraction(0)) - 1) > _SPLIT_TOLERANCE:
        raise ValueError(f"split: the fractions must sum to 1, not {float(sum(fractions)):g}")
    return splits


def split_rows(splits: Splits, rows: int) -> dict[str, tuple[int, int]]:
    """The rows [start, stop) of each split.

    A split ends where the sum of the fractions up to it, times the rows, lies, rounded to the
    nearest row (up from the middle); the last one ends with the rows.
    """
    ends, total = [0], Fraction(0)
    for _, fraction in splits:
        total += Fraction(fraction)
        ends.append(min(int(total * rows + Fraction(1, 2)), rows))
    ends[-1] = rows
    return {name: (ends[n], ends[n + 1]) for n, (name, _) in enumerate(splits)}


def stamp_of(source: Source) -> dict[str, Any]:
    """What tells whether an input has changed between two runs; no part of the dataset's id.

    Of files their sizes and times, of other inputs a checksum of some samples.
    """
    if paths := source.paths():
        return stamp(paths)
    crc = 0
    for row in probed(source.rows):
        for column in source.part(row, row + 1).read(lambda _: None).columns:
            parts = (column.values, column.offsets) if isinstance(column, Ragged) else (column,)
            for part in parts:
                crc = _core.crc32c(np.ascontiguousarray(part).tobytes(), crc)
    return {"samples": crc}


def stamp(paths: Sequence[str]) -> dict[str, Any]:
    """Sizes and times of files by name; many files are summed up, folder by folder."""
    if len(paths) <= MOST_STAMPS:
        return {path: list(_size_and_time(path)) for path in paths}
    folders: dict[str, Any] = {}
    for path in paths:
        name = os.path.dirname(path)
        if name not in folders:
            folders[name] = [0, 0, hashlib.sha256()]
        size, time = _size_and_time(path)
        folders[name][0] += 1
        folders[name][1] += size
        folders[name][2].update(os.fsencode(f"{path}\0{size}\0{time}\0"))
    return {name: [count, size, sums.hexdigest()] for name, (count, size, sums) in folders.items()}


def changed_since(before: Mapping[str, Any], paths: Sequence[str]) -> list[str]:
    """A notice of files that are not what they were when they were first looked at.

    Of many files, to ask for which takes long, each holds few samples.

    Args:
        before: What `stamp` gave of them.
        paths: Of the files.
    """
    if not 0 < len(paths) <= MOST_STAMPS:
        return []
    try:
        now = stamp(paths)
        changed = [name for name, seen in before.items() if now.get(name) != seen]
    except OSError as error:
        changed = [error.filename]
    if not changed:
        return []
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    what = "changed while it was packed, and samples may be of before and after"
    return [f"{changed[0]}{more} {what}; --overwrite (overwrite=True) packs anew"]


def _size_and_time(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
