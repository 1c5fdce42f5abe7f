"""Whole batches made by the core: tensors over its memory, in the containers of a sample."""

from __future__ import annotations

import collections
import gc
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from core_tables import counting, memory_table

from fastload import ArrayDataset, _core
from fastload.batch.plan import BatchPlan
from fastload.datasets.native import native_extents
from fastload.formats.structure import batch_builder, container_maker

INT64 = (0, 64)


class Pair(NamedTuple):
    first: Any
    second: Any


def builder(*tensors: Any, structure: Any = 0, make: Any = torch._C._from_dlpack) -> Any:
    return _core.BatchBuilder(make, list(tensors), structure, container_maker)


def engine_with(made: _core.BatchBuilder, pool: _core.SlotPool | None = None) -> _core.Engine:
    """The numbers 0 to 9 in batches of 4."""
    table, fields, plan = counting(10, 4)
    return _core.Engine(table, pool or _core.SlotPool(), fields, plan, 0, 2, builder=made)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "int16", "int32", "int64", "uint8"]
    + ["float16", "float32", "float64", "complex64", "complex128"],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_tensors_are_those_of_from_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    rows = random.integers(0, 2, (10, *shape)).astype(dtype)
    made = BatchPlan.compile(native_extents(ArrayDataset(rows))).core_builder  # type: ignore[arg-type]
    assert made is not None
    fields = [(rows.dtype, shape)]
    plan = _core.EpochPlan(rows=10, batch=4, seed=1)
    engine = _core.Engine(memory_table(rows), _core.SlotPool(), fields, plan, 1, 2, builder=made)
    for k in range(3):
        batch, expected = engine.next_batch(), torch.from_numpy(rows[plan.indices(k)])
        assert (batch.dtype, batch.shape) == (expected.dtype, expected.shape)
        assert batch.is_contiguous()
        assert torch.equal(batch, expected)
        assert batch.data_ptr() % 64 == 0
        assert not batch.requires_grad
    assert engine.next_batch() is None


def test_dtypes_that_old_torches_do_not_take_are_left_to_python() -> None:
    rows = np.zeros(4, np.uint16)
    assert BatchPlan.compile(native_extents(ArrayDataset(rows))).core_builder is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "structure",
    [
        0,
        {"x": 0, "y": 1},
        (0, 1),
        [1, 0],
        Pair(0, 1),
        {"a": (0, {1: 1}), 2: [2]},
        collections.OrderedDict(b=0, a=1),
        (collections.OrderedDict(b=Pair(0, [1])), 2),
        {"twice": 0, "none": {}},
    ],
)
def test_containers_are_those_of_default_collate(structure: Any) -> None:
    columns = [np.arange(4) + 10 * k for k in range(3)]
    plan = _core.EpochPlan(rows=4, batch=4, order="sequential")
    fields = [(column.dtype, ()) for column in columns]
    made = builder(*[(*INT64, [], False)] * 3, structure=structure)
    pool = _core.SlotPool()
    batch = _core.Engine(memory_table(*columns), pool, fields, plan, 0, 2, builder=made)
    expected = batch_builder(structure)([torch.from_numpy(column) for column in columns])
    assert str(batch.next_batch()) == str(expected)  # types, keys and numbers


def test_images_with_channels_last_are_views_with_channels_first() -> None:
    images = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    plan = _core.EpochPlan(rows=2, batch=2, order="sequential")
    made = builder((*INT64, [3, 4, 5], True))
    fields = [(images.dtype, images.shape[1:])]
    engine = _core.Engine(memory_table(images), _core.SlotPool(), fields, plan, 0, 2, builder=made)
    batch, expected = engine.next_batch(), torch.from_numpy(images).permute(0, 3, 1, 2)
    assert torch.equal(batch, expected)
    assert batch.stride() == expected.stride()


def test_a_batch_belongs_to_the_caller() -> None:
    pool = _core.SlotPool()
    engine = engine_with(builder((*INT64, [], False)), pool)
    kept = [engine.next_batch() for _ in range(3)]
    assert engine.next_batch() is None
    views = [batch.mul_(-1)[1:].numpy() for batch in kept]
    used = pool.used_bytes
    del engine, kept
    gc.collect()
    assert [view.tolist() for view in views] == [[-1, -2, -3], [-5, -6, -7], [-9]]
    assert pool.used_bytes == used
    del views
    assert pool.used_bytes == 0


def test_a_tensor_that_cannot_be_made_is_an_error_and_returns_its_memory() -> None:
    def refuse(capsule: Any) -> None:
        raise MemoryError("no tensor")

    pool = _core.SlotPool()
    engine = engine_with(builder((*INT64, [], False), make=refuse), pool)
    with pytest.raises(MemoryError, match="no tensor"):
        engine.next_batch()
    assert pool.used_bytes == 0


@pytest.mark.parametrize(
    ("tensors", "structure", "message"),
    [
        ([(*INT64, [-1], False)], 0, "negative, got -1"),
        ([(*INT64, [2**40, 2**40], False)], 0, "exceeds"),
        ([(*INT64, [], False)], 1, "names tensor 1 of 1"),
        ([(*INT64, [], False)], {"x": (0, 1)}, "names tensor 1 of 1"),
    ],
)
def test_impossible_tensors_and_structures_are_refused(
    tensors: Any, structure: Any, message: str
) -> None:
    with pytest.raises((ValueError, OverflowError), match=message):
        builder(*tensors, structure=structure)


@pytest.mark.parametrize("tensors", [[], [(*INT64, [2], False)], [(*INT64, [], False)] * 2])
def test_tensors_that_are_not_the_columns_are_refused(tensors: Any) -> None:
    structure = list(range(len(tensors)))
    with pytest.raises(ValueError, match="tensor"):
        engine_with(builder(*tensors, structure=structure))


def test_without_a_builder_there_are_no_batches() -> None:
    table, fields, plan = counting(10, 4)
    engine = _core.Engine(table, _core.SlotPool(), fields, plan, 0, 2)
    with pytest.raises(TypeError, match="builder"):
        engine.next_batch()
