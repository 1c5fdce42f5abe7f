"""Resuming elsewhere: with other ranks and batches, and what is refused."""

from __future__ import annotations

import inspect
import itertools
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import flat, numbers, values
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

import fastload
from fastload import ArrayDataset, FastLoader, KeyedSampler

N, SIZE = 23, 4
STEPS = -(-N // SIZE)


def make(name: str, data: Any = None) -> FastLoader[Any]:
    options: dict[str, Any] = {"keyed": {"seed": 1}, "shuffled": {}}[name]
    return FastLoader(numbers(N) if data is None else data, SIZE, shuffle=True, **options)


def ranks(world: int, size: int, n: int, **options: Any) -> list[FastLoader[Any]]:
    made = []
    for rank in range(world):
        options |= {"seed": 3, "shuffle": True, "shard": (rank, world)}
        made.append(FastLoader(numbers(n), size, **options))
    return made


@pytest.mark.parametrize(("world", "size"), [(2, 4), (1, 8), (8, 1), (1, 3), (3, 2), (4, 2)])
def test_resume_with_other_ranks_and_batches(world: int, size: int) -> None:
    seen: list[int] = []
    states = []
    for loader in ranks(4, 2, 40):
        batches = iter(loader)
        seen += flat([next(batches).tolist() for _ in range(3)])
        states.append(loader.state_dict())
    assert states == [states[0]] * 4
    rest: list[int] = []
    for loader in ranks(world, size, 40):
        loader.load_state_dict(states[0])
        rest += flat(values(loader))
    left = set(range(40)) - set(seen)
    assert left <= set(rest)
    assert len(rest) - len(left) < world  # the padding of a last step that cannot be shared evenly


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 2}])
def test_resume_twice_with_changing_worlds_sees_each_sample_once(options: dict[str, Any]) -> None:
    seen: list[int] = []
    state: dict[str, Any] = {}
    for world, steps in ((2, 3), (4, 2), (3, None)):
        loaders = ranks(world, 2, 101, **options)
        for loader in loaders:
            loader.load_state_dict(state)
            batches = iter(loader)
            seen += flat(values(itertools.islice(batches, steps)))
        state = loaders[0].state_dict()
    assert sorted(set(seen)) == list(range(101))
    assert len(seen) - 101 < 3


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


@pytest.mark.parametrize("name", ["keyed", "shuffled"])
def test_other_data_are_refused(name: str, tmp_path: Path) -> None:
    loader = make(name)
    next(iter(loader))
    state = loader.state_dict()
    other = np.arange(N)
    other[-1] = 0
    for data in (numbers(N + 1), ArrayDataset(other), ArrayDataset(np.arange(N, dtype="i4"))):
        with pytest.raises(ValueError, match="another fingerprint of the dataset"):
            make(name, data).load_state_dict(state)
    path = tmp_path / "x.npy"
    np.save(path, np.arange(N))
    saved = make(name, fastload.open(path)).state_dict()
    path.rename(tmp_path / "y.npy")
    make(name, fastload.open(tmp_path / "y.npy")).load_state_dict(saved)


class Batches(BatchSampler):
    """Of which nobody knows what it makes of its sampler."""


@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}])
def test_a_keyed_sampler_in_a_batch_sampler_of_ones_own(
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


def test_other_orders_are_refused() -> None:
    states = {name: make(name).state_dict() for name in ("keyed", "shuffled")}
    with pytest.raises(ValueError, match="another seed: 1, here it is 2"):
        FastLoader(numbers(N), SIZE, shuffle=True, seed=2).load_state_dict(states["keyed"])
    with pytest.raises(ValueError, match="another order: 'full', here it is 'sequential'"):
        FastLoader(numbers(N), SIZE, seed=1).load_state_dict(states["keyed"])
    with pytest.raises(ValueError, match="another sampler: 'RandomSampler'"):
        FastLoader(numbers(N), SIZE).load_state_dict(states["shuffled"])
    with pytest.raises(ValueError, match="saved with seed=1: give it here"):
        make("shuffled").load_state_dict(states["keyed"])
    with pytest.raises(ValueError, match="saved without seed="):
        make("keyed").load_state_dict(states["shuffled"])


@pytest.mark.parametrize("name", ["keyed", "shuffled"])
def test_damaged_states_are_refused(name: str) -> None:
    loader = make(name)
    next(iter(loader))
    state = loader.state_dict()
    counts: list[Any] = [-1, 2**64, 10**30, 2.5, "3", None, True]
    damages = [{key: count} for key in ("samples", "epoch") for count in counts]
    damages += [{"version": 2}, {"samples": N + 1}] if name == "keyed" else []
    damages += [{"seed": "zz"}, {"begun": 1}] if name == "shuffled" else []
    for damage in damages:
        loader = make(name)
        with pytest.raises(ValueError, match="state"):
            loader.load_state_dict(state | damage)
        assert len(list(loader)) == STEPS


@pytest.mark.parametrize("batched", [True, False])
def test_states_that_count_otherwise_are_refused(batched: bool) -> None:
    class Foreign(BatchSampler):
        pass

    def own() -> FastLoader[Any]:
        return FastLoader(numbers(N), SIZE)

    def foreign() -> FastLoader[Any]:
        sampler = Foreign(SequentialSampler(range(N)), SIZE, False)
        return FastLoader(numbers(N), batch_sampler=sampler)

    saved, other = (foreign(), own()) if batched else (own(), foreign())
    next(iter(saved))
    other.load_state_dict(saved.state_dict())
    with pytest.raises(ValueError, match="saved with another sampler"):
        next(iter(other))


@pytest.mark.parametrize("through", ["sampler", "loader"])
def test_set_epoch_counts_after_a_finished_epoch(through: str) -> None:
    def make_loader() -> FastLoader[Any]:
        return FastLoader(numbers(N), SIZE, sampler=DistributedSampler(range(N), 1, 0))

    def epoch(loader: FastLoader[Any], number: int) -> list[int]:
        target: Any = loader.sampler if through == "sampler" else loader
        target.set_epoch(number)
        return [int(x) for batch in loader for x in batch]

    whole = make_loader()
    orders = [epoch(whole, 0)]
    state = whole.state_dict()
    orders += [epoch(whole, 1), epoch(whole, 2)]
    resumed = make_loader()
    resumed.load_state_dict(state)
    assert [epoch(resumed, 1), epoch(resumed, 2)] == orders[1:]


@pytest.mark.parametrize("begin", [False, True])
def test_the_seed_of_workers_is_drawn_once(begin: bool) -> None:
    """Also if the state is taken after `iter()` and before the first batch."""

    def epochs(loader: FastLoader[Any], first: Any = None) -> list[list[int]]:
        runs = [first or iter(loader), loader, loader]
        return [[int(x) for batch in run for x in batch] for run in runs]

    torch.manual_seed(3)
    loader = make("shuffled")
    begun = iter(loader) if begin else None
    state, random_state = loader.state_dict(), torch.get_rng_state()
    expected = epochs(loader, begun)
    torch.set_rng_state(random_state)
    resumed = make("shuffled")
    resumed.load_state_dict(state)
    assert epochs(resumed) == expected


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
    """Sample 0 comes when it is told to."""

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
def test_set_epoch_of_the_next_epoch_passes_over_the_end_of_a_loaded_one(
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
    told, untold = made(), made()
    for resumed in (told, untold):
        resumed.load_state_dict(state)
    batches = iter(told)
    told.set_epoch(1)  # also between iter() and next()
    assert values(batches) == epochs[1]
    untold.set_epoch(0)
    assert values(untold) == []
    untold.set_epoch(1)
    assert values(untold) == epochs[1]
