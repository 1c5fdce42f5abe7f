"""Hashes of what extents hold, independent of paths, times and the machine."""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.formats.columns import Column, Group, Int64Array, MemorySource, Source
from fastload.formats.fields import Field
from fastload.formats.structure import Structure, children, is_leaf, to_json

_SAMPLE_BYTES = 4096  # of either end of an extent


def fingerprint(
    groups: Sequence[Group], structure: Structure, rows: int, content: str | None
) -> str:
    """See `Extents.fingerprint`; the arguments are members of the extents."""
    if content is not None and all(group.index_map is None for group in groups):
        return content
    described = [
        [_described(column.field, column.stored) for group in groups for column in group.columns],
        _containers(structure),
        rows,
        content,
    ]
    digest = hashlib.sha256(json.dumps(described).encode())
    for group in groups:
        if content is None:
            digest.update(group.shard_rows.tobytes())
            for column in group.columns:
                _update_with_column(digest, column, group.shard_rows)
        if group.index_map is not None:
            digest.update(hashlib.sha256(group.index_map.data).digest())
    return f"sha256:{digest.hexdigest()}"


def _containers(structure: Structure) -> object:
    try:
        return to_json(structure)
    except TypeError:  # keys that are neither str nor int
        if is_leaf(structure):
            return structure
        keys = list(map(repr, structure)) if isinstance(structure, dict) else []
        return [type(structure).__name__, keys, list(map(_containers, children(structure)))]


def _described(field: Field, stored: str | None) -> tuple[object, ...]:
    special = (field.ragged, field.logical, stored)
    return (field.name, field.dtype, field.shape, *(special if any(special) else ()))


def _update_with_column(digest: hashlib._Hash, column: Column, shard_rows: Int64Array) -> None:
    bounds = column.bounds
    for shard, rows in enumerate(shard_rows.tolist()):
        if rows == 0:
            continue
        source, start = column.sources[shard], int(column.offsets[shard])
        if column.strides is not None:
            _update_with_strided(digest, column, shard, rows)
            continue
        if bounds is None:
            size = (rows - 1) * column.row_stride + column.row_bytes
        else:
            where, at = bounds.sources[shard], int(bounds.offsets[shard])
            _update(digest, where, at, 8 * (rows + 1))
            first, last = (
                int.from_bytes(where.read(at + 8 * row, 8), "little") for row in (0, rows)
            )
            # The bounds are not checked yet.
            last = min(last, int(bounds.totals[shard]))
            first = min(first, last)
            start, size = start + first * column.row_bytes, (last - first) * column.row_bytes
        _update(digest, source, start, size)


def _update_with_strided(digest: hashlib._Hash, column: Column, shard: int, rows: int) -> None:
    """Updates the digest as for a contiguous array with the same content."""
    row_bytes, size = column.row_bytes, rows * column.row_bytes
    digest.update(size.to_bytes(8, "little"))
    some = min(rows, -(-_SAMPLE_BYTES // max(row_bytes, 1)))
    array = _memory_array(column, shard, rows)
    digest.update(np.ascontiguousarray(array[:some]).tobytes()[:_SAMPLE_BYTES])
    if size > _SAMPLE_BYTES:
        digest.update(np.ascontiguousarray(array[rows - some :]).tobytes()[-_SAMPLE_BYTES:])


def _memory_array(column: Column, shard: int, rows: int) -> npt.NDArray[Any]:
    """The rows of one shard that lies in memory, as an array over that memory."""
    source = column.sources[shard]
    assert isinstance(source, MemorySource)
    lent = (ctypes.c_uint8 * source.size_bytes).from_address(source.address)
    return np.ndarray(
        (rows, *column.field.shape),
        column.field.storage,
        np.frombuffer(memoryview(lent), np.uint8),
        int(column.offsets[shard]),
        column.shard_strides(shard),
    )


def _update(digest: hashlib._Hash, source: Source, start: int, size: int) -> None:
    digest.update(size.to_bytes(8, "little"))
    digest.update(source.read(start, min(size, _SAMPLE_BYTES)))
    if size > _SAMPLE_BYTES:
        digest.update(source.read(start + size - _SAMPLE_BYTES, _SAMPLE_BYTES))
