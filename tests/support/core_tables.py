"""Small tables and engines for the tests of `fastload._core`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fastload import _core

FIELD = (
    tuple[np.dtype, tuple[int, ...]] | tuple[np.dtype, tuple[int, ...], tuple[int, bytes] | None]
)


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


class RaggedData:
    """Ragged samples, written shard by shard: what a table of them must deliver."""

    def __init__(self, shards: list[list[np.ndarray]]) -> None:
        self.shards = shards
        self.samples = [sample for shard in shards for sample in shard]

    @classmethod
    def random(
        cls, rng: np.random.Generator, rows: list[int], longest: int, dtype: str, *shape: int
    ) -> RaggedData:
        """Shards of `rows` samples of up to `longest` elements, about a fifth of them empty."""
        lengths = [rng.integers(0, longest + 1, n) * (rng.random(n) > 0.2) for n in rows]
        return cls([[_random(rng, dtype, (n, *shape)) for n in shard] for shard in lengths])

    def add_to(
        self,
        builder: _core.TableBuilder,
        group: int,
        name: str,
        folder: Path | None,
        gap: int = 3,
        stored: bool = False,
    ) -> None:
        """Adds the column, in files if a folder is given, `gap` bytes before each part.

        `stored`: its numbers are to become int64.
        """
        first = self.samples[0]
        sources, totals = [], []
        for number, shard in enumerate(self.shards):
            ends = np.cumsum([0, *map(len, shard)])
            values = b"".join(sample.tobytes() for sample in shard)
            for part, data in (("values", values), ("bounds", ends.astype(np.int64).tobytes())):
                content = np.frombuffer(b"\xee" * gap + data, np.uint8)
                if folder is None:
                    sources.append(builder.add_memory(content, content.ctypes.data, content.nbytes))
                    continue
                path = folder / f"{name} {part} {number}"
                content.tofile(path)
                sources.append(builder.add_file(str(path), content.nbytes))
            totals.append(ends[-1])
        gaps = np.full(len(self.shards), gap, np.int64)
        builder.add_ragged_column(
            group,
            name,
            first.itemsize * int(np.prod(first.shape[1:])),
            int64(*sources[::2]),
            gaps,
            int64(*sources[1::2]),
            gaps,
            int64(*totals),
            first.dtype == bool,
            first.dtype.name if stored else "",
        )

    @property
    def rows(self) -> np.ndarray:
        return int64(*map(len, self.shards))

    @property
    def field(self) -> tuple[np.dtype, tuple[int, ...]]:
        return self.samples[0].dtype, self.samples[0].shape[1:]

    def values(self, indices: np.ndarray) -> np.ndarray:
        """What a batch without padding holds."""
        return np.concatenate([self.samples[0][:0], *(self.samples[i] for i in indices)])

    def offsets(self, indices: np.ndarray) -> np.ndarray:
        return np.cumsum([0, *(len(self.samples[i]) for i in indices)])

    def padded(self, indices: np.ndarray, multiple: int, element: np.ndarray) -> np.ndarray:
        longest = max((len(self.samples[i]) for i in indices), default=0)
        dtype, shape = self.field
        out = np.empty((len(indices), -(-longest // multiple) * multiple, *shape), dtype)
        out[:] = element
        for row, i in zip(out, indices):
            row[: len(self.samples[i])] = self.samples[i]
        return out


def _random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return rng.integers(0, 256, count, np.uint8).view(dtype).reshape(shape)


def ragged_table(
    *columns: RaggedData,
    folder: Path | None = None,
    io: str = "auto",
    index_map: np.ndarray | None = None,
) -> _core.Table:
    """A table of ragged columns with equal shards, in files if a folder is given."""
    builder = _core.TableBuilder(io)
    group = builder.add_group(columns[0].rows, index_map)
    for number, column in enumerate(columns):
        column.add_to(builder, group, f"r{number}", folder)
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
