"""Orders as the core gives them: values, arguments, errors. The algebra is in tests/cpp."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from core_tables import Owner, engine_over, int64, memory_table

from fastload import _core

EPOCHS: list[dict[str, Any]] = [
    {"order": "sequential"},
    {"order": "full", "seed": 3, "epoch": 5},
    {"order": "block", "seed": 3, "block_rows": 7, "window_blocks": 3},
]


def whole(**spec: Any) -> np.ndarray:
    plan = _core.EpochPlan(**spec)
    parts = [plan.indices(k) for k in range(plan.batch_count)]
    return np.concatenate([*parts, int64()])


def test_orders_never_change() -> None:
    assert _core.Permutation(10, 0, 0).indices(0, 10).tolist() == [6, 9, 3, 7, 5, 2, 1, 4, 0, 8]
    first = _core.Permutation(1281167, seed=1, epoch=0).indices(0, 4)
    assert first.tolist() == [283929, 106414, 387459, 247998]
    plan = _core.EpochPlan(rows=1281167, batch=4, seed=1)
    np.testing.assert_array_equal(plan.indices(0), first)
    block = whole(rows=10, batch=10, order="block", block_rows=3, window_blocks=2)
    assert block.tolist() == [5, 8, 3, 7, 6, 4, 1, 2, 9, 0]


def test_permutation_single_positions_equal_runs() -> None:
    permutation = _core.Permutation(1000, 2**64 - 1, 2**64 - 1)
    assert len(permutation) == 1000
    run = permutation.indices(0, 1000)
    assert run.dtype == np.int64
    assert sorted(run.tolist()) == list(range(1000))
    assert [permutation.at(i) for i in range(1000)] == run.tolist()
    np.testing.assert_array_equal(permutation.indices(990, 10), run[990:])
    assert permutation.indices(1000, 0).shape == (0,)


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1])
def test_permutation_refuses_impossible_sizes(n: int) -> None:
    with pytest.raises(ValueError, match="permutation"):
        _core.Permutation(n, 0, 0)


def test_permutation_refuses_positions_outside() -> None:
    permutation = _core.Permutation(10, 0, 0)
    for position in (-1, 10, 2**62):
        with pytest.raises(IndexError):
            permutation.at(position)
    for first, count in [(-1, 2), (5, 6), (0, -1), (2**62, 2**62), (10, 1)]:
        with pytest.raises(IndexError):
            permutation.indices(first, count)


@pytest.mark.parametrize("epoch", EPOCHS)
@pytest.mark.parametrize("rows", [0, 1, 40, 101])
def test_ranks_and_resumes_make_up_the_epoch(epoch: dict[str, Any], rows: int) -> None:
    order = whole(rows=rows, batch=max(rows, 1), **epoch)
    assert sorted(order.tolist()) == list(range(rows))
    for first in range(0, rows + 1, 9):
        rest = whole(rows=rows, batch=6, first_position=first, **epoch)
        np.testing.assert_array_equal(rest, order[first:])
    plans = [_core.EpochPlan(rows=rows, batch=3, rank=r, world=2, **epoch) for r in range(2)]
    steps = range(plans[0].batch_count)
    both = [plan.indices(k) for k in steps for plan in plans if k < plan.batch_count]
    np.testing.assert_array_equal(np.concatenate([*both, int64()]), order)


def test_padded_ranks_are_equally_long() -> None:
    plans = [
        _core.EpochPlan(rows=10, batch=3, rank=r, world=4, tail="pad", order="sequential")
        for r in range(4)
    ]
    assert [p.indices(0).tolist() for p in plans] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]
    assert [p.batch_size(0) for p in plans] == [3, 3, 3, 3]
    assert [p.real_count(0) for p in plans] == [3, 3, 3, 1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rows": -1}, "rows"),
        ({"batch": 0}, "batch"),
        ({"rank": 2, "world": 2}, "rank"),
        ({"world": 0}, "world"),
        ({"first_position": 11}, "first_position"),
        ({"tail": "wrap"}, "'drop', 'pad', 'short'"),
        ({"order": "random"}, "'sequential', 'full', 'block'"),
        ({"order": "block"}, "block_rows"),
    ],
)
def test_plan_names_the_wrong_argument(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _core.EpochPlan(**{"rows": 10, "batch": 2} | wrong)


def test_plan_refuses_batches_it_does_not_have() -> None:
    plan = _core.EpochPlan(rows=10, batch=4)
    for batch in (-1, 3):
        for ask in (plan.indices, plan.batch_size, plan.real_count):
            with pytest.raises(IndexError):
                ask(batch)


@pytest.mark.parametrize(
    "indices",
    [
        np.arange(4, dtype=np.int32),
        np.arange(4, dtype=np.float64),
        np.arange(4, dtype=">i8"),
        np.arange(8, dtype=np.int64)[::2],
        [0, 1],
    ],
)
def test_indices_of_another_type_are_refused_not_converted(indices: Any) -> None:
    with pytest.raises(TypeError):
        _core.ArrayOrder(indices, 2, False)
    with pytest.raises(TypeError):
        _core.PushedOrder().push(indices)
    with pytest.raises(TypeError):
        memory_table(np.zeros((4, 2))).gather(indices, [np.zeros((4, 2))])


def test_array_order_checks_its_arguments() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        _core.ArrayOrder(int64(1), 0, False)
    with pytest.raises(ValueError, match="dimension"):
        _core.ArrayOrder(np.zeros((2, 2), np.int64), 1, False)


def test_array_order_keeps_its_array_alive() -> None:
    table = memory_table(np.arange(100, dtype=np.int64))
    owner = Owner(np.arange(100, dtype=np.int64)[::-1].copy())
    indices, held = np.asarray(owner), weakref.ref(owner)
    order = _core.ArrayOrder(indices, 30, True)
    engine = engine_over(table, [(np.dtype(np.int64), ())], order, workers=2)
    del owner, indices, order
    gc.collect()
    assert held() is not None
    batches = []
    while (batch := engine.next()) is not None:
        batches.append(batch[0])
    assert [len(batch) for batch in batches] == [30, 30, 30]
    np.testing.assert_array_equal(np.concatenate(batches), np.arange(99, 9, -1))
    del engine
    gc.collect()
    assert held() is None


def test_push_after_finish_is_an_error() -> None:
    order = _core.PushedOrder()
    order.push(int64(1, 2))
    order.finish()
    order.finish()
    with pytest.raises(ValueError, match="finish"):
        order.push(int64(3))


def test_only_orders_are_orders() -> None:
    table = memory_table(np.arange(4, dtype=np.int64))
    with pytest.raises(TypeError, match="EpochPlan"):
        engine_over(table, [(np.dtype(np.int64), ())], [0, 1, 2, 3])
