"""Plan of a pack: how the samples are divided into shards and splits, and from which inputs."""

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
"""Default target size of a shard in bytes."""

_MAX_SHARD_ROWS = 1 << 30
MAX_STAMPED_FILES = 1000
_SPLIT_TOLERANCE = Fraction(1, 10**6)

Splits = tuple[tuple[str, str], ...]
"""Pairs of a split's name and its fraction of the rows, as decimal text."""


@dataclass(frozen=True)
class Plan:
    """Division of the samples of a source into the shards of one column set.

    Attributes:
        fields: Fields of the columns.
        structure: Structure of a sample.
        rows: Number of samples to read.
        rows_each: Rows of each shard except the last.
        file_name: File name of a shard, with `{:06d}` for its number.
        source: Kind and options of the input.
        inputs: Description of the input in JSON types.
        sample_bytes: Mean size of a sample in bytes.
        splits: Names and fractions of the splits.
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
        """Returns the plan for a source and a target shard size.

        Args:
            source: Source of the samples.
            shard_bytes: Target size of a shard in bytes.
            file_name: File name of a shard, with `{:06d}` for its number.
            splits: Names and fractions of the splits.
            fields: Fields of the source as they are stored; None for those of a new dataset.
        """
        fitting = min(max(shard_bytes // max(source.sample_bytes, 1), 1), _MAX_SHARD_ROWS)
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
        """Number of shards if no sample is skipped."""
        return -(-self.rows // self.rows_each)

    @property
    def file_bytes(self) -> int:
        """Total size of the shards in bytes if none is skipped; estimated for ragged fields."""
        if any(field.ragged for field in self.fields):
            return self.rows * self.sample_bytes
        full, rest = divmod(self.rows, self.rows_each)
        size = full * shard_layout(self.fields, self.rows_each).file_bytes if full else 0
        return size + (shard_layout(self.fields, rest).file_bytes if rest else 0)

    def describe(self) -> dict[str, Any]:
        """Returns the plan in JSON types."""
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
    """Returns the id of a dataset: a SHA-256 of its plan in JSON types."""
    text = json.dumps(described, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def parse_splits(split: Mapping[str, float] | None) -> Splits:
    """Checks and returns the names and fractions of splits.

    Raises:
        ValueError: a name is empty, a fraction is not between 0 and 1, or their sum is not 1.
    """
    splits = tuple((name, str(fraction)) for name, fraction in (split or {}).items())
    fractions = []
    for name, text in splits:
        if not name or not isinstance(name, str):
            raise ValueError(f"split: names must be text that is not empty, got {name!r}")
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
    """Returns the rows [start, stop) of each split.

    A split ends at the cumulative sum of the fractions times the rows, rounded to the nearest row,
    half up; the last split ends with the last row.
    """
    ends, total = [0], Fraction(0)
    for _, fraction in splits:
        total += Fraction(fraction)
        ends.append(min(int(total * rows + Fraction(1, 2)), rows))
    ends[-1] = rows
    return {name: (ends[n], ends[n + 1]) for n, (name, _) in enumerate(splits)}


def stamp_of(source: Source) -> dict[str, Any]:
    """Returns a stamp that shows whether an input changed; not part of the dataset's id.

    Sizes and times of files, or a checksum of some samples of other inputs.
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
    """Returns sizes and modification times of files; of many files, a summary per folder."""
    if len(paths) <= MAX_STAMPED_FILES:
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
    """Returns a notice about files that changed since the stamp was taken.

    More than 1,000 files are not checked: that takes long, and each file holds few samples.

    Args:
        before: Earlier result of `stamp` for these files.
        paths: Paths of the files.
    """
    if not 0 < len(paths) <= MAX_STAMPED_FILES:
        return []
    try:
        now = stamp(paths)
        changed = [name for name, seen in before.items() if now.get(name) != seen]
    except OSError as error:
        changed = [error.filename]
    if not changed:
        return []
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    what = "changed while it was packed, so samples may be from before and after the change"
    return [f"{changed[0]}{more} {what}; --overwrite (overwrite=True) packs it again"]


def _size_and_time(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
