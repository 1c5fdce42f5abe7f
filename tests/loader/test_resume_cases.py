"""Resuming: a batch sampler of the user, huge data, batches out of order, worker seeds."""

from __future__ import annotations

import inspect
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import flat, numbers, values
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

import fastload
from fastload import FastLoader, KeyedSampler

N, SIZE = 23, 4
STEPS = -(-N // SIZE)


class Batches(BatchSampler):
    """A type of which only the user knows what it makes of its sampler."""


@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}])
def test_a_keyed_sampler_in_a_batch_sampler_of_the_user(
    options: dict[str, Any], epochs: int
) -> None:
    def made() -> FastLoader[Any]:
        sampler = KeyedSampler(range(N), batch_size=SIZE, seed=1)
        return FastLoader(numbers(N), batch_sampler=Batches(sampler, SIZE, False), **options)

    loader, between, inside = made(), made(), made()
    for _ in range(epochs):
        values(loader)
    between.load_state_dict(loader.state_dict())
    batches = iter(loader)
    taken = [next(batches).tolist() for _ in range(2)]
    inside.load_state_dict(loader.state_dict())
    rest, later = [batch.tolist() for batch in batches], values(loader)
    assert values(between) == taken + rest
    assert [values(inside), values(inside)] == [rest, later]


def test_resumes_in_the_middle_of_a_huge_dataset(tmp_path: Path) -> None:
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(8 * 10**9)

    def huge() -> FastLoader[Any]:
        data = fastload.open(path, dtype="int64", shape=())
        return FastLoader(data, 256, shuffle=True, seed=0)

    state = huge().state_dict() | {"samples": 5 * 10**8}
    loader = huge()
    loader.load_state_dict(state)
    batches = iter(loader)
    assert len(next(batches)) == 256
    assert loader.state_dict()["samples"] == 5 * 10**8 + 256


class OneWaits:
    """Sample 0 arrives when `go` is set."""

    def __init__(self) -> None:
        self.go = multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 0:
            self.go.wait(60)
        return index


@pytest.mark.skipif(
    "in_order" not in inspect.signature(DataLoader).parameters, reason="this torch has no in_order"
)
@pytest.mark.parametrize("options", [{}, {"seed": 1}])
def test_a_batch_that_was_overtaken_is_not_left_out(options: dict[str, Any]) -> None:
    data = OneWaits()

    def make() -> FastLoader[Any]:
        workers: dict[str, Any] = {"multiprocessing_context": "fork", "num_workers": 2}
        return FastLoader(data, in_order=False, **workers, **options)

    loader = make()
    batches = iter(loader)
    seen = [int(next(batches)) for _ in range(3)]
    assert 0 not in seen
    state = loader.state_dict()
    data.go.set()
    assert len(values(batches)) == 7
    resumed = make()
    resumed.load_state_dict(state)
    assert set(seen) | set(flat(values(resumed))) == set(range(10))
    assert loader.state_dict()["epoch"] == 1


class Seeds:
    """The seed of the worker that loads a sample."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return torch.initial_seed()


def test_workers_of_a_resumed_epoch_are_seeded_by_program_and_epoch() -> None:
    found = []
    for seed, epoch in [(1, 0), (1, 0), (2, 0), (1, 1)]:
        torch.manual_seed(seed)
        loader = FastLoader(Seeds(), num_workers=1, multiprocessing_context="fork")
        for _ in range(epoch):
            list(loader)
        batches = iter(loader)
        next(batches)
        resumed = FastLoader(Seeds(), num_workers=1, multiprocessing_context="fork")
        resumed.load_state_dict(loader.state_dict())
        found.append(flat(values(resumed)))
    assert found[0] == found[1]
    assert len({seeds[0] for seeds in found}) == 3


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("data", "workers"),
    [(numbers(N), None), (numbers(N), 2), (list(range(N)), 0)],
    ids=["native", "threads", "foreign"],
)
def test_set_epoch_of_the_next_epoch_skips_the_end_of_a_loaded_one(
    data: Any, workers: int | None, drop_last: bool
) -> None:
    def made() -> FastLoader[Any]:
        sampler = DistributedSampler(data, 2, 1, seed=5, drop_last=drop_last)
        return FastLoader(data, SIZE, sampler=sampler, drop_last=drop_last, num_workers=workers)

    loader, epochs = made(), []
    for epoch in range(2):
        loader.set_epoch(epoch)
        epochs.append(values(loader))
    loader.set_epoch(0)
    batches = iter(loader)
    for _batch in epochs[0]:
        next(batches)
    state = loader.state_dict()
    moved, waiting = made(), made()
    for resumed in (moved, waiting):
        resumed.load_state_dict(state)
    batches = iter(moved)
    moved.set_epoch(1)  # also between iter() and next()
    assert values(batches) == epochs[1]
    waiting.set_epoch(0)
    assert values(waiting) == []
    waiting.set_epoch(1)
    assert values(waiting) == epochs[1]


@pytest.mark.parametrize("options", [{"seed": 1}, {}, {"sampler": list(range(N))}])
def test_a_state_names_its_epoch(options: dict[str, Any]) -> None:
    loader = FastLoader(numbers(N), SIZE, **options)
    for epoch in range(3):
        assert loader.state_dict()["epoch"] == epoch
        batches = iter(loader)
        next(batches)
        assert loader.state_dict()["epoch"] == epoch
        values(batches)


def test_distributed_sampler_state() -> None:
    def make(rank: int, world: int = 2) -> FastLoader[Any]:
        sampler = DistributedSampler(range(N), world, rank)  # type: ignore[arg-type]
        return FastLoader(numbers(N), SIZE, sampler=sampler)

    first, second = make(0), make(1)
    states = []
    for loader in (first, second):
        loader.set_epoch(2)
        next(iter(loader))
        states.append(loader.state_dict())
    assert states[0] == states[1]
    resumed = make(1)
    resumed.load_state_dict(states[0])
    batches = iter(resumed)
    resumed.sampler.set_epoch(0)  # type: ignore[union-attr]
    assert values(batches) == values(second)[1:]
    with pytest.raises(ValueError, match="another world size: 2, here it is 3"):
        make(1, 3).load_state_dict(states[0])
