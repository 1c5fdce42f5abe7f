"""Keeps the core's table of a dataset for as long as the dataset stays the same."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastload import _core
from fastload.datasets.file_datasets import Dataset
from fastload.formats.columns import Bounds, Column, Group, MemorySource, Source
from fastload.formats.extents import Extents


class TableCache:
    """The last table, with its open files; it belongs to the process that made it."""

    def __init__(self) -> None:
        self._made: tuple[int, str, Extents, _core.Table] | None = None

    def get(self, dataset: Any, extents: Extents, io: str | None) -> _core.Table:
        """The table over `extents`, which were read from `dataset` just now."""
        if isinstance(dataset, Dataset) and dataset.extents is extents and io in (None, dataset.io):
            return dataset.table
        made, key = self._made, (os.getpid(), io or "auto")
        if made is not None and made[:2] == key and _same_extents(made[2], extents):
            return made[3]
        table = extents.build(key[1])
        self._made = *key, extents, table
        return table


def _same_extents(a: Extents, b: Extents) -> bool:
    return a is b or (
        a.mixed is b.mixed
        and a.structure == b.structure
        and len(a.groups) == len(b.groups)
        and all(map(_same_group, a.groups, b.groups))
    )


def _same_group(a: Group, b: Group) -> bool:
    if (a.index_map is None) != (b.index_map is None):
        return False
    return (
        np.array_equal(a.shard_rows, b.shard_rows)
        and (a.index_map is b.index_map or np.array_equal(a.index_map, b.index_map))  # type: ignore[arg-type]
        and len(a.columns) == len(b.columns)
        and all(map(_same_column, a.columns, b.columns))
    )


def _same_column(a: Column, b: Column) -> bool:
    return (
        a.field == b.field
        and a.row_stride == b.row_stride
        and (a.strides is None) == (b.strides is None)
        and (a.strides is None or np.array_equal(a.strides, b.strides))  # type: ignore[arg-type]
        and a.stored == b.stored
        and np.array_equal(a.offsets, b.offsets)
        and _same_places(a.sources, b.sources)
        and _same_bounds(a.bounds, b.bounds)
    )


def _same_bounds(a: Bounds | None, b: Bounds | None) -> bool:
    if a is None or b is None:
        return a is b
    return (
        np.array_equal(a.offsets, b.offsets)
        and np.array_equal(a.totals, b.totals)
        and _same_places(a.sources, b.sources)
    )


def _same_places(a: tuple[Source, ...], b: tuple[Source, ...]) -> bool:
    return a is b or list(map(_place, a)) == list(map(_place, b))


def _place(source: Source) -> tuple[Any, ...]:
    # Memory at one address is one memory, because the table that is kept keeps it alive.
    if isinstance(source, MemorySource):
        return source.address, source.size_bytes
    return source
