"""Ragged columns: samples of any number of elements, against plain numpy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from core_tables import RaggedData, batches_of, engine_over, int64, ragged_table

import fastload
from fastload import _core

KINDS = [("uint8", ()), ("bool", ()), ("int64", ()), ("float32", (3,)), ("int16", (2, 5))]


def data_of(rows: list[int], longest: int, seed: int = 0) -> list[RaggedData]:
    rng = np.random.default_rng(seed)
    return [RaggedData.random(rng, rows, longest, dtype, *shape) for dtype, shape in KINDS]


def gathered(table: _core.Table, data: list[RaggedData], indices: np.ndarray) -> list[np.ndarray]:
    out = []
    for column, ragged in enumerate(data):
        dtype, shape = ragged.field
        total = int(table.lengths(column, indices).sum())
        out.append(np.full((total, *shape), 1, dtype))
    table.gather(indices, out)
    return out


def check_gather(table: _core.Table, data: list[RaggedData], indices: np.ndarray) -> None:
    for column, (got, ragged) in enumerate(zip(gathered(table, data, indices), data)):
        np.testing.assert_array_equal(got, ragged.values(indices))
        lengths = table.lengths(column, indices)
        assert lengths.dtype == np.int64
        np.testing.assert_array_equal(np.cumsum([0, *lengths]), ragged.offsets(indices))


def check_engine(
    table: _core.Table, data: list[RaggedData], batches: list[np.ndarray], workers: int
) -> None:
    order = _core.PushedOrder()
    engine = engine_over(table, [ragged.field for ragged in data], order, workers, depth=3)
    for indices in batches:
        order.push(indices)
    order.finish()
    for indices, batch in zip(batches, batches_of(engine)):
        assert len(batch) == 2 * len(data)
        for ragged, values, offsets in zip(data, batch[::2], batch[1::2]):
            expected = ragged.values(indices)
            assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(values, expected)
            assert offsets.dtype == np.int64
            np.testing.assert_array_equal(offsets, ragged.offsets(indices))
    assert engine.next() is None


def batches_over(rows: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Random samples, neighbours, all of them, one, none."""
    random = [rng.integers(0, rows, n) for n in (1, 7, 64, 300)]
    return [*random, np.arange(rows), np.arange(rows)[::-1].copy(), int64(rows - 1), int64()]


@pytest.mark.parametrize("io", ["memory", "mmap", "pread"])
@pytest.mark.parametrize("rows", [[50], [10, 10, 10, 4], [0, 7, 0, 0, 30, 1, 0], [1] * 9])
def test_batches_equal_numpy_for_any_shards_and_workers(
    tmp_path: Path, io: str, rows: list[int]
) -> None:
    data = data_of(rows, 40)
    folder, io = (None, "auto") if io == "memory" else (tmp_path, io)
    table = ragged_table(*data, folder=folder, io=io)
    batches = batches_over(sum(rows), np.random.default_rng(1))
    for indices in batches:
        check_gather(table, data, indices)
    for workers in (0, 2):
        check_engine(table, data, batches, workers)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_all_samples_empty_and_one_huge_among_them(tmp_path: Path, io: str) -> None:
    rng = np.random.default_rng(2)
    nothing = np.zeros((0, 3), np.float32)
    (tmp_path / "empty").mkdir()
    empty = RaggedData([[nothing] * 5, [nothing] * 2])
    table = ragged_table(empty, folder=tmp_path / "empty", io=io)
    check_engine(table, [empty], [np.arange(7), int64(3), int64()], 2)
    huge = rng.random((1_100_000, 3), np.float32)  # 13 MB: several times a piece
    data = RaggedData([[nothing, huge, nothing], [rng.random((n, 3), np.float32) for n in (1, 9)]])
    table = ragged_table(data, folder=tmp_path, io=io)
    for workers in (0, 3):
        check_engine(table, [data], [np.arange(5), int64(4, 1, 1, 3), int64(0, 2)], workers)


def test_batches_larger_than_a_piece_are_shared_by_the_workers() -> None:
    data = data_of([40, 300], 40_000, seed=3)[:3]
    table = ragged_table(*data)
    check_engine(table, data, batches_over(340, np.random.default_rng(4))[:4], 3)


def test_index_map_reorders_and_repeats(tmp_path: Path) -> None:
    data = data_of([4, 6], 9, seed=5)
    index_map = int64(9, 9, 0, 4, 3)
    table = ragged_table(*data, folder=tmp_path, index_map=index_map)
    for indices in (np.arange(5), int64(2, 0, 1)):
        for got, ragged in zip(gathered(table, data, indices), data):
            np.testing.assert_array_equal(got, ragged.values(index_map[indices]))


def test_fixed_and_ragged_columns_in_one_table() -> None:
    ragged = RaggedData.random(np.random.default_rng(6), [20, 30], 12, "int32")
    labels = np.arange(50, dtype=np.int64)
    builder = _core.TableBuilder()
    ragged.add_to(builder, builder.add_group(ragged.rows), "text", None)
    source = builder.add_memory(labels, labels.ctypes.data, labels.nbytes)
    builder.add_column(builder.add_group(int64(50)), "label", 8, 8, int64(source), int64(0))
    table, plan = builder.build(), _core.EpochPlan(rows=50, batch=8, seed=7)
    engine = engine_over(table, [ragged.field, (labels.dtype, ())], plan, 2)
    for k, (values, offsets, label) in enumerate(batches_of(engine)):
        indices = plan.indices(k)
        np.testing.assert_array_equal(values, ragged.values(indices))
        np.testing.assert_array_equal(offsets, ragged.offsets(indices))
        np.testing.assert_array_equal(label, indices)
    with pytest.raises(ValueError, match="'label' is not ragged"):
        table.lengths(1, int64(0))
    for wrong in (-1, 2):
        with pytest.raises(IndexError):
            table.lengths(wrong, int64(0))
    with pytest.raises(IndexError, match="index 50 "):
        table.lengths(0, int64(50))


def test_bytes_of_ragged_booleans_are_normalised() -> None:
    raw = np.array([0, 1, 2, 255], np.uint8).view(bool)
    data = RaggedData([[raw, raw[:0], raw[1:]]])
    (got,) = gathered(ragged_table(data), [data], int64(2, 1, 0))
    assert got.view(np.uint8).tolist() == [1, 1, 1, 0, 1, 1, 1]


# --- Files that are not what they say ----------------------------------------------------------


def table_of_bounds(
    bounds: list[int], total: int, folder: Path | None, io: str = "auto"
) -> _core.Table:
    """One shard with a field "t" of uint16, whatever its bounds are."""
    builder = _core.TableBuilder(io)
    parts = [np.arange(total, dtype=np.uint16), int64(*bounds)]
    if folder is None:
        sources = [builder.add_memory(p, p.ctypes.data, p.nbytes) for p in parts]
    else:
        paths = [folder / "values.bin", folder / "bounds.bin"]
        for part, path in zip(parts, paths):
            part.tofile(path)
        sources = [builder.add_file(str(p), a.nbytes) for p, a in zip(paths, parts)]
    values, ends = (int64(source) for source in sources)
    group = builder.add_group(int64(len(bounds) - 1))
    builder.add_ragged_column(group, "t", 2, values, int64(0), ends, int64(0), int64(total))
    return builder.build()


def test_the_bounds_of_a_slice_need_not_begin_at_0() -> None:
    table = table_of_bounds([2, 5, 5, 9], 10, None)
    out = np.zeros(7, np.uint16)
    table.gather(int64(2, 1, 0), [out])
    assert out.tolist() == [5, 6, 7, 8, 2, 3, 4]
    order = _core.ArrayOrder(int64(0, 1, 2), 3, False)
    values, offsets = engine_over(table, [(np.dtype(np.uint16), ())], order).next()
    assert (values.tolist(), offsets.tolist()) == ([2, 3, 4, 5, 6, 7, 8], [0, 3, 3, 7])


@pytest.mark.parametrize("bad", [-1, 2, 11, 2**62, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("io", ["memory", "mmap", "pread"])
def test_bounds_that_leave_the_values_or_decrease_are_named(
    tmp_path: Path, io: str, bad: int
) -> None:
    in_files = io != "memory"
    args = (tmp_path, io) if in_files else (None,)
    table = table_of_bounds([0, 3, 3, bad, 10], 10, *args)
    where = str(tmp_path / "bounds.bin") if in_files else "memory"
    for call in (table.lengths, lambda c, i: table.gather(i, [np.zeros(3, np.uint16)])):
        with pytest.raises(fastload.FormatError, match=f"'t' of sample 2.*{bad}") as caught:
            call(0, int64(0, 2))
        assert where in str(caught.value)
    order = _core.PushedOrder()
    engine = engine_over(table, [(np.dtype(np.uint16), ())], order, 1)
    for i in range(3):
        order.push(int64(i))
    order.finish()
    assert [a.tolist() for a in engine.next()] == [[0, 1, 2], [0, 3]]
    assert [a.tolist() for a in engine.next()] == [[], [0, 0]]
    with pytest.raises(fastload.FormatError, match="'t' of sample 2"):
        engine.next()
    assert engine.next() is None


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("part", ["values", "bounds"])
def test_a_file_cut_short_in_use_raises_for_its_lost_samples(
    tmp_path: Path, io: str, part: str
) -> None:
    lengths = np.full(8192, 4)
    table = table_of_bounds(np.cumsum([0, *lengths]).tolist(), 4 * 8192, tmp_path, io)
    order = _core.PushedOrder()
    engine = engine_over(table, [(np.dtype(np.uint16), ())], order, 2)
    order.push(int64(8191, 0))
    assert engine.next()[0].tolist() == [32764, 32765, 32766, 32767, 0, 1, 2, 3]
    path = tmp_path / f"{part}.bin"
    os.truncate(path, 8192)
    for indices in (int64(1, 8000, 2), np.arange(8100, 8190)):
        order.push(indices)
        lost = 8000 if len(indices) == 3 else 8100
        with pytest.raises(OSError, match=f"'t' of sample {lost}.*cut to 8192 bytes") as caught:
            engine.next()
        assert caught.value.filename == str(path)
        with pytest.raises(OSError, match=f"'t' of sample {lost}"):
            table.gather(indices, [np.zeros(4 * len(indices), np.uint16)])
        order.push(int64(5, 6))
        assert engine.next()[1].tolist() == [0, 4, 8]


def test_extents_are_checked_against_their_sources() -> None:
    def build(rows: int, values: int, bounds: int, total: int, element: int = 4) -> int:
        builder = _core.TableBuilder()
        group = builder.add_group(int64(rows))
        sources = [builder.add_file(name, n) for name, n in (("/v", values), ("/b", bounds))]
        builder.add_ragged_column(
            group,
            "t",
            element,
            int64(sources[0]),
            int64(8),
            int64(sources[1]),
            int64(16),
            int64(total),
        )
        return builder.build().rows

    assert build(3, 48, 48, 10) == 3
    assert build(0, 8, 16, 0) == 0
    assert build(0, 8, 16, 99) == 0  # nothing is read from a shard without rows
    assert build(3, 8, 48, 10, 0) == 3
    with pytest.raises(fastload.FormatError, match=r"'t': 10 elements.*48.*'/v', which has 47"):
        build(3, 47, 48, 10)
    with pytest.raises(fastload.FormatError, match=r"'t': 3 rows.*48.*'/b', which has 47"):
        build(3, 48, 47, 10)
    with pytest.raises(ValueError, match="negative"):
        build(3, 48, 48, -1)
    with pytest.raises(OverflowError):
        build(3, 48, 48, 2**62)
    with pytest.raises(OverflowError):
        build(2**61, 48, 48, 1)


def test_totals_beyond_4_gib_and_2_31_elements(tmp_path: Path) -> None:
    total = 2**32 + 7
    with open(tmp_path / "values", "wb") as file:
        file.truncate(total)
        for at in (0, 2**31, total - 4):
            file.seek(at)
            file.write(bytes([1, 2, 3, 4]))
    ends = int64(0, 4, 2**31, 2**31 + 4, total - 4, total)
    for io in ("mmap", "pread"):
        builder = _core.TableBuilder(io)
        sources = [
            builder.add_file(str(tmp_path / "values"), total),
            builder.add_memory(ends, ends.ctypes.data, ends.nbytes),
        ]
        builder.add_ragged_column(
            builder.add_group(int64(5)),
            "t",
            1,
            int64(sources[0]),
            int64(0),
            int64(sources[1]),
            int64(0),
            int64(total),
        )
        table = builder.build()
        indices = int64(4, 2, 0)
        lengths = table.lengths(0, np.arange(5))
        assert lengths.tolist() == [4, 2**31 - 4, 4, 2**31 - 1, 4]
        out = np.zeros(12, np.uint8)
        table.gather(indices, [out])
        assert out.tolist() == [1, 2, 3, 4] * 3
        order = _core.ArrayOrder(indices, 3, False)
        (values, offsets) = engine_over(table, [(np.dtype(np.uint8), ())], order).next()
        assert (values.tolist(), offsets.tolist()) == ([1, 2, 3, 4] * 3, [0, 4, 8, 12])
        with pytest.raises(ValueError, match=str(2**31 - 4)):
            table.gather(int64(1), [out])


def test_gather_refuses_arrays_of_another_size() -> None:
    data = RaggedData([[np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32)]])
    table = ragged_table(data)
    for out in ([], [np.zeros(4, np.int32)], [np.zeros(6, np.int32)], [np.zeros(5, np.int64)]):
        with pytest.raises(ValueError):
            table.gather(int64(0, 1), out)
    with pytest.raises(ValueError, match="must have 4 bytes, got 8"):
        engine_over(table, [(np.dtype(np.int64), ())], _core.PushedOrder())
