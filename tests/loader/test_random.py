"""Order and random draws are torch's, after every single step.

The whole grid, which takes minutes because torch's worker processes are slow to start:
`FASTLOAD_GRID=1 pytest tests/loader/test_random.py`.
"""

from __future__ import annotations

import itertools
import os
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fastload import FastLoader

STOPS: tuple[list[int | None], ...] = ([None, None], [1, None, None], [2, 0, None])
WHOLE_GRID = "FASTLOAD_GRID" in os.environ


class Unwrapped:
    """A loader over a dataset of one tensor, without the list around each batch."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        self.batches = iter(self.loader)
        return self

    def __next__(self) -> torch.Tensor:
        (batch,) = next(self.batches)
        return batch


def traced(kind: Any, n: int, stops: list[int | None], given: bool, **options: Any) -> list[Any]:
    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(3) if given else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the epoch has no batches")
        loader = kind(TensorDataset(torch.arange(n)), generator=generator, **options)
        return oracle.trace(Unwrapped(loader), generator, stops)


def compare(ns: tuple[int, ...], stops: Any, workers: Any, batches: Any, **options: Any) -> None:
    for n, size, drop_last, shuffle, given in itertools.product(
        ns, batches, (False, True), (False, True), (False, True)
    ):
        if shuffle and n == 0:
            continue
        options |= {"batch_size": size, "drop_last": drop_last, "shuffle": shuffle}
        for stop, (ours, theirs) in itertools.product(stops, workers):
            got = traced(FastLoader, n, stop, given, num_workers=ours, **options)
            want = traced(DataLoader, n, stop, given, num_workers=theirs, **options)
            assert got == want, (n, stop, given, options, ours)


def test_without_workers() -> None:
    compare((0, 1, 2, 8, 9), STOPS, ((None, 0), (0, 0)), (1, 3, 4, 20))


def test_with_workers() -> None:
    if WHOLE_GRID:
        compare((0, 8, 9), STOPS, ((2, 2), (1, 1)), (1, 3, 4, 20))
    else:
        compare((8,), STOPS[1:2], ((2, 2),), (3, 4))


def test_prefetch_factor() -> None:
    stops, ns = (STOPS, (8, 9)) if WHOLE_GRID else (STOPS[2:], (9,))
    compare(ns, stops, ((1, 1),), (3,), prefetch_factor=1)


def test_persistent_workers() -> None:
    stops, ns = (STOPS, (8, 9)) if WHOLE_GRID else (STOPS[1:2], (9,))
    compare(ns, stops, ((1, 1),), (4,), persistent_workers=True)


def samplers(generator: torch.Generator | None) -> dict[str, Any]:
    data = range(9)
    return {
        "count": RandomSampler(data, num_samples=20, generator=generator),
        "replacement": RandomSampler(data, True, num_samples=40, generator=generator),
        "subset": SubsetRandomSampler([8, 1, 5, 3, -2], generator=generator),
        "weighted": WeightedRandomSampler([1.0, 2.0, 3.0], 7, generator=generator),
    }


@pytest.mark.parametrize("name", ["count", "replacement", "subset", "weighted"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("workers", [0, pytest.param(2, id="two")])
def test_stock_samplers(name: str, given: bool, workers: int) -> None:
    def run(kind: Any) -> list[Any]:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2) if given else None
        sampler = samplers(generator)[name]
        data = TensorDataset(torch.arange(9))
        loader = kind(data, batch_size=4, sampler=sampler, num_workers=workers)
        return oracle.trace(Unwrapped(loader), generator, [1, None])

    assert run(FastLoader) == run(DataLoader)


def test_batch_sampler_over_a_stock_sampler() -> None:
    def run(kind: Any) -> list[Any]:
        torch.manual_seed(1)
        data = TensorDataset(torch.arange(9))
        batches = BatchSampler(RandomSampler(data), 2, True)
        return oracle.trace(Unwrapped(kind(data, batch_sampler=batches)), None, [None, None])

    assert run(FastLoader) == run(DataLoader)


class Drawing:
    """A sampler that draws from the default generator as it goes along."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[int]:
        self.calls.append("iter")

        def indices() -> Iterator[int]:
            for _ in range(7):
                self.calls.append("draw")
                yield int(torch.randint(9, ()))

        return indices()


@pytest.mark.parametrize("workers", [None, 0, 1])
def test_a_samplers_own_draws_happen_when_torch_makes_them(workers: int | None) -> None:
    def run(kind: Any, workers: int | None) -> list[Any]:
        torch.manual_seed(1)
        calls: list[str] = []
        data = TensorDataset(torch.arange(9))
        options = {} if workers is None else {"num_workers": workers}
        loader = kind(data, batch_size=2, sampler=Drawing(calls), **options)
        seen = oracle.trace(Unwrapped(loader), None, [1, None])
        return [*seen, calls]

    assert run(FastLoader, workers) == run(DataLoader, workers or 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_sampler_is_asked_as_often_as_torch_asks(workers: int) -> None:
    def run(kind: Any) -> list[int]:
        asked: list[int] = []

        class Batches:
            def __len__(self) -> int:
                return 9

            def __iter__(self) -> Iterator[list[int]]:
                asked.append(-1)
                return ([asked.append(i) or i] for i in range(9))  # type: ignore[func-returns-value]

        data = TensorDataset(torch.arange(9))
        batches = iter(kind(data, batch_sampler=Batches(), num_workers=workers))
        counts = [len(asked)]
        for _ in batches:
            counts.append(len(asked))
        return counts + asked

    assert run(FastLoader) == run(DataLoader)


def test_native_loading_touches_no_other_generator() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    list(FastLoader(TensorDataset(torch.arange(9)), shuffle=True, num_workers=1))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # noqa: NPY002


class Squares(Dataset[int]):
    """Only Python can load this."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        return index * index


@pytest.mark.parametrize("workers", [0, pytest.param(1, id="one")])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("size", [2, 3, None])
def test_torchs_own_iterators_draw_the_same(workers: int, given: bool, size: int | None) -> None:
    def run(kind: Any) -> list[Any]:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2) if given else None
        options: dict[str, Any] = {"batch_size": size, "num_workers": workers}
        loader = kind(Squares(), shuffle=True, generator=generator, **options)
        if size is None:
            return [list(loader), list(loader), oracle.random_states(generator)]
        return oracle.trace(loader, generator, [1, None, None])

    assert run(FastLoader) == run(DataLoader)


def test_keyed_order_touches_no_generator() -> None:
    before = oracle.random_states(None)
    for data in (TensorDataset(torch.arange(9)), Squares()):
        loader = FastLoader(data, batch_size=2, shuffle=True, seed=0)
        assert len(list(loader)) == len(list(loader)) == 5
    assert oracle.random_states(None) == before


def test_a_validation_pass_leaves_the_keyed_training_order_alone() -> None:
    data = TensorDataset(torch.arange(20))

    def epochs(validate: bool) -> list[Any]:
        train = FastLoader(data, batch_size=4, shuffle=True, seed=1)
        seen = []
        for _ in range(3):
            seen.append([batch.tolist() for (batch,) in train])
            if validate:
                list(FastLoader(data, batch_size=4))
        return seen

    assert epochs(False) == epochs(True)
