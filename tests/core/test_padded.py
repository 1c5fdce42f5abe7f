"""Ragged columns made equally long: padded batches against plain numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from core_tables import RaggedData, batches_of, engine_over, int64, memory_table, ragged_table

from fastload import _core

# Elements whose bytes are equal, and those whose bytes differ.
PADDINGS = {
    "uint8": [0, 7],
    "bool": [False, True],
    "int64": [0, -1, -100],
    "float32": [0.0, 1.5],
    "int16": [0, -2],
    "complex128": [1 + 2j],
}


def element_of(ragged: RaggedData, value: complex) -> np.ndarray:
    dtype, shape = ragged.field
    return np.broadcast_to(np.array(value, dtype), shape)


def check(
    table: _core.Table,
    data: RaggedData,
    batches: list[np.ndarray],
    multiple: int,
    value: complex,
    workers: int = 2,
) -> None:
    element = element_of(data, value)
    order = _core.PushedOrder()
    padding = (multiple, element.tobytes())
    engine = engine_over(table, [(*data.field, padding)], order, workers, depth=3)
    for indices in batches:
        order.push(indices)
    order.finish()
    for indices, batch in zip(batches, batches_of(engine)):
        values, lengths = batch
        expected = data.padded(indices, multiple, element)
        assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(values, expected)
        assert (lengths.dtype, lengths.shape) == (np.int64, (len(indices),))
        np.testing.assert_array_equal(lengths, np.diff(data.offsets(indices)))
    assert engine.next() is None


@pytest.mark.parametrize("io", ["memory", "mmap", "pread"])
@pytest.mark.parametrize("dtype", PADDINGS)
@pytest.mark.parametrize("shape", [(), (3,)])
# numpy 1.24's own, in its comparison of complex numbers that are not finite.
@pytest.mark.filterwarnings("ignore:elementwise comparison failed:DeprecationWarning")
def test_padded_batches_equal_numpy(
    tmp_path: Path, io: str, dtype: str, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    data = RaggedData.random(rng, [30, 0, 12, 9], 33, dtype, *shape)
    folder, io = (None, "auto") if io == "memory" else (tmp_path, io)
    table = ragged_table(data, folder=folder, io=io)
    batches = [rng.integers(0, 51, n) for n in (1, 2, 40)]
    batches += [np.arange(51), int64(), int64(3)]
    for value in PADDINGS[dtype]:
        for multiple in (1, 2, 8, 64):
            for workers in (0, 2):
                check(table, data, batches, multiple, value, workers)


def test_empty_samples_and_zero_width_elements() -> None:
    nothing = np.zeros((0, 2), np.float32)
    data = RaggedData([[nothing] * 3])
    check(ragged_table(data), data, [np.arange(3), int64(1), int64()], 8, 1.0)
    wide = RaggedData([[np.zeros((n, 0), np.float32) for n in (3, 0, 5)]])
    check(ragged_table(wide), wide, [np.arange(3), int64(1), int64()], 4, 1.0)


def test_samples_of_equal_length_are_copied_as_they_lie() -> None:
    rng = np.random.default_rng(1)
    data = RaggedData([[rng.integers(0, 9, 16) for _ in range(20)]])
    check(ragged_table(data), data, [np.arange(20), np.arange(19, -1, -1), int64(3, 4, 4, 5)], 8, 7)


def test_padded_batches_larger_than_a_piece() -> None:
    rng = np.random.default_rng(2)
    data = RaggedData.random(rng, [200, 100], 20_000, "int64")
    check(ragged_table(data), data, [rng.integers(0, 300, n) for n in (128, 1, 64)], 64, -100, 3)
    one = np.arange(1_000_000)
    huge = RaggedData([[one[:3], one, one[:0], one[:1]]])
    check(ragged_table(huge), huge, [np.arange(4), int64(0, 3)], 1, 5, 3)


def test_padded_plain_and_fixed_columns_in_one_batch() -> None:
    rng = np.random.default_rng(3)
    text, boxes = (RaggedData.random(rng, [25], 9, t, *s) for t, s in (("uint8", ()), ("f4", (4,))))
    labels = np.arange(25)
    builder = _core.TableBuilder()
    group = builder.add_group(int64(25))
    text.add_to(builder, group, "text", None)
    source = builder.add_memory(labels, labels.ctypes.data, labels.nbytes)
    builder.add_column(group, "label", 8, 8, int64(source), int64(0))
    boxes.add_to(builder, group, "boxes", None)
    fields = [text.field, (labels.dtype, (), None), (*boxes.field, (4, np.ones(4, "f4").tobytes()))]
    order = _core.ArrayOrder(np.arange(25), 10, False)
    engine = engine_over(builder.build(), fields, order)
    for k, batch in enumerate(batches_of(engine)):
        indices = np.arange(25)[10 * k :][:10]
        expected = [
            text.values(indices),
            text.offsets(indices),
            indices,
            boxes.padded(indices, 4, np.ones(4, "f4")),
            np.diff(boxes.offsets(indices)),
        ]
        assert len(batch) == len(expected)
        for got, right in zip(batch, expected):
            np.testing.assert_array_equal(got, right)


def test_impossible_paddings_are_refused() -> None:
    data = RaggedData([[np.arange(3, dtype=np.int32)]])
    table, order = ragged_table(data), _core.PushedOrder()
    for padding in [(0, bytes(4)), (-1, bytes(4)), (1, bytes(3)), (1, b"")]:
        with pytest.raises(ValueError, match="'r0'"):
            engine_over(table, [(*data.field, padding)], order)
    with pytest.raises(ValueError, match="only ragged"):
        engine_over(memory_table(np.arange(3)), [(np.dtype(np.int64), (), (1, bytes(8)))], order)
    with pytest.raises(OverflowError):
        engine = engine_over(table, [(*data.field, (2**62, bytes(4)))], order)
        order.push(int64(0))
        engine.next()
