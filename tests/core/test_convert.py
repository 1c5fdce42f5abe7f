"""Columns of small integers that become int64 on the way, against numpy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from core_tables import RaggedData, batches_of, engine_over, int64

from fastload import _core

STORED = ["uint8", "int8", "uint16", "int16", "uint32", "int32"]
INT64 = np.dtype(np.int64)


def windows_table(
    data: np.ndarray, width: int, stride: int, path: Path | None = None, io: str = "auto"
) -> tuple[_core.Table, np.ndarray]:
    """Windows over numbers that begin at an odd byte, and what they must be."""
    content = np.frombuffer(b"\xee" * 3 + data.tobytes(), np.uint8)
    builder = _core.TableBuilder(io)
    if path is None:
        source = builder.add_memory(content, content.ctypes.data, content.nbytes)
    else:
        content.tofile(path)
        source = builder.add_file(str(path), content.nbytes)
    expected = np.lib.stride_tricks.sliding_window_view(data, width)[::stride].astype(np.int64)
    size = data.itemsize
    group = builder.add_group(int64(len(expected)))
    builder.add_column(
        group, "x", width * size, stride * size, int64(source), int64(3), stored=data.dtype.name
    )
    return builder.build(), expected


def random_numbers(dtype: str, count: int) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    return np.random.default_rng(0).integers(0, 256, count * size, np.uint8).view(dtype)


@pytest.mark.parametrize("io", ["memory", "mmap", "pread"])
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize(("width", "stride"), [(1, 1), (7, 7), (33, 5), (1024, 1024), (1025, 64)])
def test_windows_equal_astype(tmp_path: Path, io: str, dtype: str, width: int, stride: int) -> None:
    data = random_numbers(dtype, 20_000)
    path, io = (None, "auto") if io == "memory" else (tmp_path / "x", io)
    table, expected = windows_table(data, width, stride, path, io)
    rows = len(expected)
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, rows, 50), np.arange(min(rows, 9)), int64(rows - 1), int64()]
    for indices in batches:
        out = np.zeros((len(indices), width), np.int64)
        table.gather(indices, [out])
        np.testing.assert_array_equal(out, expected[indices])
    for workers in (0, 2):
        order = _core.PushedOrder()
        engine = engine_over(table, [(INT64, (width,))], order, workers)
        for indices in batches:
            order.push(indices)
        order.finish()
        for indices, (got,) in zip(batches, batches_of(engine)):
            assert got.dtype == INT64
            np.testing.assert_array_equal(got, expected[indices])


def test_every_kernel_gives_the_same_batch() -> None:
    try:
        for dtype in STORED:
            table, expected = windows_table(random_numbers(dtype, 9000), 300, 11)
            for kernel in _core.copy_kernels():
                _core.set_copy_kernel(kernel)
                out = np.zeros(expected.shape, np.int64)
                table.gather(np.arange(len(expected)), [out])
                np.testing.assert_array_equal(out, expected)
    finally:
        _core.set_copy_kernel("auto")


def test_input_and_target_are_two_columns_over_the_same_tokens(tmp_path: Path) -> None:
    tokens = np.arange(5000, dtype=np.uint16) * 13
    tokens.tofile(tmp_path / "tokens.bin")
    builder = _core.TableBuilder()
    source = builder.add_file(str(tmp_path / "tokens.bin"), tokens.nbytes)
    group = builder.add_group(int64(39))
    for name, offset in (("x", 0), ("y", 2)):
        builder.add_column(group, name, 256, 256, int64(source), int64(offset), stored="uint16")
    plan = _core.EpochPlan(rows=39, batch=16, seed=1)
    engine = engine_over(builder.build(), [(INT64, (128,))] * 2, plan)
    for k, (x, y) in enumerate(batches_of(engine)):
        for row, index in enumerate(plan.indices(k)):
            np.testing.assert_array_equal(x[row], tokens[128 * index :][:128])
            np.testing.assert_array_equal(y[row], tokens[128 * index + 1 :][:128])


@pytest.mark.parametrize("io", ["memory", "mmap", "pread"])
@pytest.mark.parametrize("dtype", STORED)
def test_ragged_values_are_converted_plain_and_padded(tmp_path: Path, io: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    data = RaggedData.random(rng, [20, 0, 13], 3000, dtype, *((2,) if dtype == "int8" else ()))
    shape = data.field[1]
    folder, io = (None, "auto") if io == "memory" else (tmp_path, io)
    builder = _core.TableBuilder(io)
    data.add_to(builder, builder.add_group(data.rows), "t", folder, stored=True)
    table = builder.build()
    for indices in (rng.integers(0, 33, 40), np.arange(33), int64()):
        expected = data.values(indices).astype(np.int64)
        out = np.zeros(expected.shape, np.int64)
        table.gather(indices, [out])
        np.testing.assert_array_equal(out, expected)
        order = _core.ArrayOrder(indices, max(1, len(indices)), False)
        if not len(indices):
            continue
        values, offsets = engine_over(table, [(INT64, shape)], order).next()
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(offsets, data.offsets(indices))
        element = np.full(shape, -100, np.int64)
        padding = (64, element.tobytes())
        order = _core.ArrayOrder(indices, len(indices), False)
        values, lengths = engine_over(table, [(INT64, shape, padding)], order).next()
        wide = RaggedData([[sample.astype(np.int64) for sample in data.samples]])
        np.testing.assert_array_equal(values, wide.padded(indices, 64, element))
        np.testing.assert_array_equal(lengths, np.diff(data.offsets(indices)))


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_file_of_tokens_cut_short_in_use_names_the_sample(tmp_path: Path, io: str) -> None:
    path = tmp_path / "x"
    table, expected = windows_table(random_numbers("uint16", 64 * 1024), 1024, 1024, path, io)
    out = np.zeros((3, 1024), np.int64)
    table.gather(int64(63, 0, 5), [out])
    np.testing.assert_array_equal(out, expected[[63, 0, 5]])
    os.truncate(path, 65536)
    for indices in (int64(1, 50, 2), int64(33, 34, 35)):
        lost = 50 if 50 in indices else 33
        with pytest.raises(OSError, match=f"'x' of sample {lost}.*cut to 65536") as caught:
            table.gather(indices, [out])
        assert caught.value.filename == str(path)


def test_what_cannot_be_converted_is_refused() -> None:
    data = np.zeros(12, np.uint8)

    def build(stored: str, row_bytes: int, boolean: bool = False) -> None:
        builder = _core.TableBuilder()
        source = builder.add_memory(data, data.ctypes.data, 12)
        args = (builder.add_group(int64(1)), "x", row_bytes, row_bytes, int64(source), int64(0))
        builder.add_column(*args, boolean, stored)
        builder.build()

    for stored in ("float32", "int64", "u1"):
        with pytest.raises(ValueError, match=f"'{stored}'"):
            build(stored, 8)
    with pytest.raises(ValueError, match=r"'x': row_bytes .* multiple of 2.* got 3"):
        build("uint16", 3)
    with pytest.raises(ValueError, match="'x': booleans"):
        build("uint8", 1, True)
    table, _ = windows_table(np.zeros(12, np.uint16), 3, 3)
    with pytest.raises(ValueError, match="must have 24 bytes, got 6"):
        engine_over(table, [(np.dtype(np.uint16), (3,))], _core.PushedOrder())
    with pytest.raises(ValueError, match="24 bytes"):
        table.gather(int64(0), [np.zeros(3, np.uint16)])


def test_measure_gather_counts_the_bytes_of_int64(tmp_path: Path) -> None:
    table, _ = windows_table(random_numbers("uint16", 256 * 1024), 1024, 1024, tmp_path / "x")
    indices = np.random.default_rng(0).permutation(256)
    assert _core.measure_gather(table, indices, 32, 2, 0.05) > 1e8
    ragged = RaggedData.random(np.random.default_rng(0), [50, 100], 2000, "int32")
    builder = _core.TableBuilder()
    group = builder.add_group(ragged.rows)
    ragged.add_to(builder, group, "a", tmp_path)
    ragged.add_to(builder, group, "b", None, stored=True)
    assert _core.measure_gather(builder.build(), np.arange(150), 32, 2, 0.05) > 1e8
    table, _ = windows_table(random_numbers("uint16", 4096), 1024, 1024, tmp_path / "y", "pread")
    with pytest.raises(ValueError, match="pread"):
        _core.measure_gather(table, int64(0, 1), 2, 1, 0.01)
