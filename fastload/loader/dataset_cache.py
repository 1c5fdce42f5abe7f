"""Cache of the plan and the core's table of a dataset, valid while the dataset is unchanged."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastload import _core
from fastload.batch.plan import BatchPlan
from fastload.datasets.file_datasets import Dataset
from fastload.formats.columns import Bounds, Column, Group, MemorySource, Source
from fastload.formats.extents import Extents
from fastload.formats.structure import skeleton
from fastload.loader.plan_settings import PlanSettings


class DatasetCache:
    """The plan and the table of the dataset as it was last read.

    A table has open files and belongs to the process that built it.
    """

    def __init__(self) -> None:
        self._compiled: tuple[Extents, PlanSettings, BatchPlan] | None = None
        self._built: tuple[int, str, BatchPlan, _core.Table] | None = None

    def plan(self, extents: Extents, settings: PlanSettings) -> BatchPlan:
        """Returns the plan of a dataset; compiles it if data or settings have changed.

        Args:
            extents: Location of the samples, read from the dataset just now.
            settings: Current settings of the loader.

        Raises:
            ValueError: a setting does not fit the data.
        """
        compiled = self._compiled
        if compiled is not None:
            last_extents, last_settings, plan = compiled
            if last_settings == settings and _same_extents(last_extents, extents):
                return plan
        plan = settings.compile(extents)
        self._compiled = extents, settings, plan
        return plan

    def table(self, dataset: Any, plan: BatchPlan, io: str | None) -> _core.Table:
        """Returns the core's table over the samples of a plan.

        Args:
            dataset: The dataset of the plan.
            plan: As returned by `plan`.
            io: How files are read; None: as the dataset does.
        """
        extents = plan.extents
        if isinstance(dataset, Dataset) and dataset.extents is extents and io in (None, dataset.io):
            return dataset.table
        key, built = (os.getpid(), io or "auto"), self._built
        if built is not None and built[:2] == key and built[2] is plan:
            return built[3]
        table = extents.build(key[1])
        self._built = *key, plan, table
        return table


def _same_extents(a: Extents, b: Extents) -> bool:
    return a is b or (
        a.mixed is b.mixed
        and a.structure == b.structure
        and skeleton(a.structure) == skeleton(b.structure)  # other containers may be equal
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
        and _same_sources(a.sources, b.sources)
        and _same_bounds(a.bounds, b.bounds)
    )


def _same_bounds(a: Bounds | None, b: Bounds | None) -> bool:
    if a is None or b is None:
        return a is b
    return (
        np.array_equal(a.offsets, b.offsets)
        and np.array_equal(a.totals, b.totals)
        and _same_sources(a.sources, b.sources)
    )


def _same_sources(a: tuple[Source, ...], b: tuple[Source, ...]) -> bool:
    return a is b or list(map(_identity, a)) == list(map(_identity, b))


def _identity(source: Source) -> tuple[Any, ...]:
    # Equal addresses are the same memory: the cached extents keep it alive.
    if isinstance(source, MemorySource):
        return source.address, source.size_bytes
    return source
