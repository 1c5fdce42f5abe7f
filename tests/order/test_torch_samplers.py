"""torch's orders as arrays: the same indices and the same draws; and what counts as an index."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastload import KeyedSampler
from fastload.order.torch_samplers import (
    as_indices,
    draw_at_exhaustion,
    draw_order,
    is_stock,
    wrap_negative,
)

Sampler = Any


def stock_samplers(generator: torch.Generator | None) -> list[Sampler]:
    data = range(10)
    weights = [0.1, 0.9, 0.0, 3.0, 0.6]
    return [
        SequentialSampler(data),
        RandomSampler(data, generator=generator),
        SubsetRandomSampler([5, 3, 9, 0, 0], generator=generator),
        SubsetRandomSampler(range(4, 20, 3), generator=generator),
        WeightedRandomSampler(weights, 70, generator=generator),
        WeightedRandomSampler(weights, 4, replacement=False, generator=generator),
    ]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("number", range(6))
def test_stock_orders_and_draws_are_torchs(given: bool, number: int) -> None:
    def both() -> tuple[Sampler, torch.Generator | None]:
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(6) if given else None
        return stock_samplers(generator)[number], generator

    theirs, generator = both()
    want = list(theirs), list(theirs), oracle.random_states(generator)
    ours, generator = both()
    assert is_stock(ours)
    got = []
    for _ in range(2):
        order, draw = draw_order(ours)
        indices = list(order) if isinstance(order, range) else order.tolist()
        if isinstance(ours, SubsetRandomSampler):
            indices = [ours.indices[place] for place in indices]
        got.append(indices)
        if exhaust := draw_at_exhaustion(ours):
            exhaust()
    assert (*got, oracle.random_states(generator)) == want
    before = oracle.random_states(None)
    again = draw_order(ours, draw)[0]
    assert np.array_equal(again, order)
    assert oracle.random_states(None) == before


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("count", [1, 9, 10, 11, 25, 31, 32, 33, 100])
def test_random_sampler_with_a_count(replacement: bool, count: int) -> None:
    ours = RandomSampler(range(10), replacement, num_samples=count)
    torch.manual_seed(1)
    want = list(ours)
    torch.manual_seed(1)
    assert draw_order(ours)[0].tolist() == want


def test_what_is_not_stock_is_left_to_python() -> None:
    generator = torch.Generator()

    class Own(RandomSampler):
        pass

    assert not is_stock(Own(range(3)))
    assert not is_stock(RandomSampler(range(3), True, generator=generator))
    assert not is_stock(RandomSampler(range(3), num_samples=2, generator=generator))
    assert not is_stock(range(3))
    assert not is_stock(KeyedSampler(range(3)))
    assert not is_stock(RandomSampler(range(0), num_samples=2))


@pytest.mark.parametrize("n", [1, 3, 8, 10, 1000])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_distributed_sampler(n: int, world: int) -> None:
    for shuffle, drop_last, epoch in itertools.product((False, True), (False, True), (0, 3)):
        for rank in range(world):
            ours = DistributedSampler(
                range(n),  # type: ignore[arg-type]
                world,
                rank,
                shuffle=shuffle,
                seed=2,
                drop_last=drop_last,
            )
            ours.set_epoch(epoch)
            assert draw_order(ours)[0].tolist() == list(ours)


def test_distributed_sampler_over_data_that_grew() -> None:
    data = list(range(5))
    ours = DistributedSampler(data, 2, 0)  # type: ignore[arg-type]
    data += range(5)
    said = r"Number of indices .* does not match total_size \(6\)"
    with pytest.raises(AssertionError, match=rf"^$|{said}"):  # older torch says nothing
        list(ours)
    with pytest.raises(AssertionError, match=said):
        draw_order(ours)


# --- Indices -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [
        [1, 0, 1],
        (1, 0, 1),
        [np.int64(1), np.uint8(0), 1],
        [True, False, True],
        [torch.tensor(1), torch.tensor(0), torch.tensor(1)],
        torch.tensor([1, 0, 1]),
        torch.tensor([1, 0, 1], dtype=torch.uint8),
        np.array([1, 0, 1], np.uint64),
        np.array([1, 9, 0, 9, 1, 9])[::2],
        iter([1, 0, 1]),
    ],
)
def test_indices_of_any_integers(items: Any) -> None:
    indices = as_indices(items)
    assert indices.dtype == np.int64
    assert indices.flags.c_contiguous
    assert indices.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("items", "error", "text"),
    [
        ([1, 2.0], TypeError, "float"),
        (["a"], TypeError, "str"),
        ([(1, 2), (3, 4)], TypeError, "tuple"),
        ([1, None], TypeError, "None"),
        ([torch.tensor(1.0)], TypeError, "integer"),
        ([slice(0, 2)], TypeError, "slice"),
        ([2**63], IndexError, "64 bits"),
        (np.array([2**64 - 1], np.uint64), IndexError, "64 bits"),
    ],
)
def test_what_is_no_index(items: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        as_indices(items)


def test_empty_and_negative_indices() -> None:
    assert as_indices([]).dtype == np.int64
    assert wrap_negative(as_indices([-1, 0, -5, -6, 5]), 5).tolist() == [4, 0, 0, -6, 5]
    assert wrap_negative(as_indices([]), 5).tolist() == []


def test_what_is_drawn_elsewhere_is_left_to_the_sampler() -> None:
    weights = torch.ones(4, device="meta", dtype=torch.float64)
    assert not is_stock(WeightedRandomSampler(weights, 4))
    samplers = stock_samplers(None)
    assert all(map(is_stock, samplers))
    with torch.device("meta"):  # where randperm, say, gives tensors that way
        assert [is_stock(sampler) for sampler in samplers] == [True] + [False] * 5
