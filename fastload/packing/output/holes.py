"""Closes the holes of skipped samples, so that all shards but the last have equally many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fastload.formats.fields import Field
from fastload.formats.shard import shard_layout
from fastload.packing.columns import AnyColumn, Ragged
from fastload.packing.output.writer import read_columns, totals_of, write_shard

Columns = list[AnyColumn]


@dataclass(frozen=True)
class Rewritten:
    """A rewritten shard: its position in `paths` and its manifest entries."""

    shard: int
    file_bytes: int
    crc32c: int
    totals: tuple[int, ...]


def close_holes(
    paths: Sequence[str],
    shard_rows: Sequence[int],
    totals: Sequence[tuple[int, ...]],
    rows_each: int,
    fields: Sequence[Field],
    dataset: str,
    number: int = 0,
) -> list[Rewritten]:
    """Moves rows forward, starting at the first shard with too few rows.

    Args:
        paths: Paths of all shards, including those that have no file because they have no rows.
        shard_rows: Current number of rows of each shard; 0 if there is no file.
        totals: Number of elements of each ragged field, per shard.
        rows_each: Rows of each shard except the last, afterwards.
        fields: Fields of the columns.
        dataset: Id of the dataset, stored in each shard.
        number: Number of the shard at `paths[0]`.

    Returns:
        The rewritten shards. The caller removes files that have no rows any more.
    """
    first = next(i for i, rows in enumerate(shard_rows) if rows < rows_each)
    pieces = _mapped(paths[first:], shard_rows[first:], totals[first:], fields)
    left = sum(shard_rows[first:])
    carried: Columns = [_empty(field) for field in fields]
    written = []
    for shard in range(first, first + -(-left // rows_each)):
        rows = min(rows_each, left)
        left -= rows
        # Memory maps stay valid when their file is replaced, and each file is mapped before that.
        parts = [carried]
        while sum(len(part[0]) for part in parts) < rows:
            parts.append(next(pieces))
        joined = [_joined(column) for column in zip(*parts, strict=True)]
        columns = [column[:rows] for column in joined]
        # A copy, so that the memory of the written rows is released.
        carried = [_joined([column[rows:]]) for column in joined]
        layout = shard_layout(fields, rows, totals_of(columns))
        crc = write_shard(paths[shard], layout, dataset, number + shard, columns)
        written.append(Rewritten(shard, layout.file_bytes, crc, layout.totals))
    return written


def _empty(field: Field) -> AnyColumn:
    values = np.empty((0, *field.shape), field.storage)
    return Ragged(values, np.zeros(1, np.int64)) if field.ragged else values


def _joined(parts: Sequence[AnyColumn]) -> AnyColumn:
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if ragged:
        return Ragged.concatenate(ragged)
    return np.concatenate([part for part in parts if not isinstance(part, Ragged)])


def _mapped(
    paths: Sequence[str],
    shard_rows: Sequence[int],
    totals: Sequence[tuple[int, ...]],
    fields: Sequence[Field],
) -> Iterator[Columns]:
    for path, rows, elements in zip(paths, shard_rows, totals, strict=True):
        if rows:
            yield read_columns(path, shard_layout(fields, rows, elements))
