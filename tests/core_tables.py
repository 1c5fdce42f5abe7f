"""Small tables and engines for the tests of `fastload._core`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fastload import _core

FIELD = tuple[np.dtype, tuple[int, ...]]


class Owner:
    """Memory whose end can be watched: `np.asarray(owner)` keeps it alive."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def memory_table(*arrays: np.ndarray, index_map: np.ndarray | None = None) -> _core.Table:
    """A table whose columns are C-contiguous arrays with equal first axes."""
    builder = _core.TableBuilder()
    group = builder.add_group(int64(len(arrays[0])), index_map)
    for number, array in enumerate(arrays):
        source = builder.add_memory(array, array.ctypes.data, array.nbytes)
        row_bytes = array.nbytes // len(array)
        builder.add_column(
            group, f"f{number}", row_bytes, row_bytes, int64(source), int64(0), array.dtype == bool
        )
    return builder.build()


def file_table(paths: list[Path], rows: int, row_bytes: int, io: str = "auto") -> _core.Table:
    """A table of one column "x" over raw files of `rows` rows each."""
    builder = _core.TableBuilder(io)
    group = builder.add_group(np.full(len(paths), rows, np.int64))
    sources = [builder.add_file(str(path), rows * row_bytes) for path in paths]
    zeros = np.zeros(len(paths), np.int64)
    builder.add_column(group, "x", row_bytes, row_bytes, np.array(sources, np.int64), zeros)
    return builder.build()


def engine_over(
    table: _core.Table, fields: list[FIELD], order: object, workers: int = 1, depth: int = 2
) -> _core.Engine:
    return _core.Engine(table, _core.SlotPool(), fields, order, workers, depth)


def counting(rows: int, batch: int) -> tuple[_core.Table, list[FIELD], _core.EpochPlan]:
    """Rows 0, 1, 2, ... in order: what `engine_over` needs."""
    table = memory_table(np.arange(rows, dtype=np.int64))
    plan = _core.EpochPlan(rows=rows, batch=batch, order="sequential")
    return table, [(np.dtype(np.int64), ())], plan


def batches_of(engine: _core.Engine) -> Iterator[list[np.ndarray]]:
    while (batch := engine.next()) is not None:
        yield batch
