"""The core's table over the bytes that extents describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastload import _core
from fastload.formats.columns import Column, Group, Int64Array, MemorySource, Source


def build_table(groups: Sequence[Group], mixed: _core.Mixture | None, io: str) -> _core.Table:
    """See `Extents.build`."""
    builder = _core.TableBuilder(io)
    numbers: dict[Source, int] = {}
    seen: dict[int, Int64Array] = {}  # most columns have the very same sources

    def numbered(sources: tuple[Source, ...]) -> Int64Array:
        if id(sources) not in seen:
            for source in sources:
                if source not in numbers:
                    numbers[source] = _add_source(builder, source)
            seen[id(sources)] = np.array([numbers[source] for source in sources], np.int64)
        return seen[id(sources)]

    for group_ in groups:
        group = builder.add_group(group_.shard_rows, group_.index_map)
        for column in group_.columns:
            _add_column(builder, group, column, numbered)
    return builder.build(mixed)


def _add_source(builder: _core.TableBuilder, source: Source) -> int:
    if isinstance(source, MemorySource):
        return builder.add_memory(source.array, source.address, source.size_bytes)
    number = builder.add_file(source.path, source.size_bytes, source.identity)
    if source.blocks is not None and source.blocks.lazy:
        builder.add_checksums(number, *source.blocks[:4])
    return number


def _add_column(
    builder: Any,
    group: int,
    column: Column,
    numbered: Callable[[tuple[Source, ...]], Int64Array],
) -> None:
    name, size, bounds = column.field.name, column.row_bytes, column.bounds
    rest: tuple[object, ...] = (column.field.dtype == "bool",)
    if column.stored is not None:
        rest += (column.stored,)
    sources = numbered(column.sources)
    if column.strides is not None:
        of = column.field
        shape = np.array(of.shape, np.int64)
        where = np.ascontiguousarray(column.strides), sources, column.offsets
        builder.add_strided_column(group, name, shape, of.storage.itemsize, *where, *rest)
    elif bounds is None:
        builder.add_column(group, name, size, column.row_stride, sources, column.offsets, *rest)
    else:
        where = numbered(bounds.sources), bounds.offsets, bounds.totals
        builder.add_ragged_column(group, name, size, sources, column.offsets, *where, *rest)
