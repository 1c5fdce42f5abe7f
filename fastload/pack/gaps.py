"""Closes the gaps that skipped inputs leave, so that all shards but the last have equal rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fastload.formats.extents import Field
from fastload.formats.shard import shard_layout
from fastload.pack.sources.base import Array
from fastload.pack.writer import write_shard

Columns = list[Array]


def close_gaps(
    paths: Sequence[str],
    shard_rows: Sequence[int],
    rows_each: int,
    fields: Sequence[Field],
    dataset: str,
) -> list[tuple[int, int, int]]:
    """Moves rows forward from the first shard on that has too few.

    Args:
        paths: Of all shards, also where none was written for want of rows.
        shard_rows: What they hold now; 0 where there is no file.
        rows_each: What all but the last shall hold.
        fields: Of the columns.
        dataset: The id that the shards carry.

    Returns:
        (shard, size of the file, its CRC) of those that were written again. Files behind the last
        row are left for the caller to remove.
    """
    first = next(i for i, rows in enumerate(shard_rows) if rows < rows_each)
    pieces = _mapped(paths[first:], shard_rows[first:], fields)
    left = sum(shard_rows[first:])
    held: Columns = [np.empty((0, *field.shape), field.storage) for field in fields]
    written = []
    for shard in range(first, first + -(-left // rows_each)):
        rows = min(rows_each, left)
        left -= rows
        # Maps stay valid when their file is replaced, and no file is before its rows are held.
        parts = [held]
        while sum(len(part[0]) for part in parts) < rows:
            parts.append(next(pieces))
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
        held = [column[rows:].copy() for column in joined]
        layout = shard_layout(fields, rows)
        crc = write_shard(paths[shard], layout, dataset, shard, [c[:rows] for c in joined])
        written.append((shard, layout.file_bytes, crc))
    return written


def _mapped(
    paths: Sequence[str], shard_rows: Sequence[int], fields: Sequence[Field]
) -> Iterator[Columns]:
    for path, rows in zip(paths, shard_rows, strict=True):
        if rows:
            layout = shard_layout(fields, rows)
            content = np.memmap(path, np.uint8, "r")
            yield [
                content[start : start + rows * field.row_bytes]
                .view(field.storage)
                .reshape(rows, *field.shape)
                for field, start in zip(fields, layout.columns, strict=True)
            ]
