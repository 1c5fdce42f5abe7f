"""Closes the gaps that skipped inputs leave, so that all shards but the last have equal rows."""

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
    """A shard that was written again: its place in the paths, and what the manifest says of it."""

    shard: int
    file_bytes: int
    crc32c: int
    totals: tuple[int, ...]


def close_gaps(
    paths: Sequence[str],
    shard_rows: Sequence[int],
    totals: Sequence[tuple[int, ...]],
    rows_each: int,
    fields: Sequence[Field],
    dataset: str,
    number: int = 0,
) -> list[Rewritten]:
    """Moves rows forward from the first shard on that has too few.

    Args:
        paths: Of all shards, also where none was written for want of rows.
        shard_rows: What they hold now; 0 where there is no file.
        totals: The elements of their ragged fields.
        rows_each: What all but the last shall hold.
        fields: Of the columns.
        dataset: The id that the shards carry.
        number: Of the shard at the first of the paths.

    Returns:
        The shards that were written again. Files behind the last row are left for the caller to
        remove.
    """
    first = next(i for i, rows in enumerate(shard_rows) if rows < rows_each)
    pieces = _mapped(paths[first:], shard_rows[first:], totals[first:], fields)
    left = sum(shard_rows[first:])
    held: Columns = [_empty(field) for field in fields]
    written = []
    for shard in range(first, first + -(-left // rows_each)):
        rows = min(rows_each, left)
        left -= rows
        # Maps stay valid when their file is replaced, and no file is before its rows are held.
        parts = [held]
        while sum(len(part[0]) for part in parts) < rows:
            parts.append(next(pieces))
        joined = [_joined(column) for column in zip(*parts, strict=True)]
        columns = [column[:rows] for column in joined]
        # Copied, so that what was written can go.
        held = [_joined([column[rows:]]) for column in joined]
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
