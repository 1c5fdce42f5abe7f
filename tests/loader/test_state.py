"""Saving and restoring the place: exact, small, and independent of how the data are loaded."""

from __future__ import annotations

import copy
import io
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Stream, numbers, random_states, values
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastload import FastLoader

N, SIZE = 23, 4
STEPS = -(-N // SIZE)


class Listed(list[int]):
    """Only Python can load this."""


def by_torch(n: int) -> Any:
    return Listed(range(n))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


MAKERS: dict[str, Callable[[Any], FastLoader[Any]]] = {
    "keyed": lambda data: FastLoader(data, SIZE, shuffle=True, seed=1),
    "block": lambda data: FastLoader(data, SIZE, shuffle=True, seed=1, order="block"),
    "keyed in order": lambda data: FastLoader(data, SIZE, seed=1),
    "keyed, inline": lambda data: FastLoader(data, SIZE, shuffle=True, seed=1, num_workers=0),
    "in order": lambda data: FastLoader(data, SIZE),
    "shuffled": lambda data: FastLoader(data, SIZE, shuffle=True),
    "shuffled, inline": lambda data: FastLoader(data, SIZE, shuffle=True, num_workers=0),
    "generator": lambda data: FastLoader(data, SIZE, shuffle=True, generator=seeded()),
    "subset": lambda data: FastLoader(data, SIZE, sampler=SubsetRandomSampler(range(N))),
    "weighted": lambda data: FastLoader(
        data, SIZE, sampler=WeightedRandomSampler([1.0] * N, N, generator=seeded())
    ),
    "replaced": lambda data: FastLoader(
        data, SIZE, sampler=RandomSampler(range(N), True, num_samples=N)
    ),
    "replaced, given": lambda data: FastLoader(
        data, SIZE, sampler=RandomSampler(range(N), True, num_samples=N, generator=seeded())
    ),
    "foreign": lambda data: FastLoader(data, SIZE, sampler=list(range(N - 1, -1, -1))),
    "batches": lambda data: FastLoader(data, batch_sampler=[[i, 0] for i in range(STEPS)]),
}
WITH_WORKERS: dict[str, Callable[[Any], FastLoader[Any]]] = {
    "keyed, two": lambda data: FastLoader(data, SIZE, shuffle=True, seed=1, num_workers=2),
    "shuffled, two": lambda data: FastLoader(data, SIZE, shuffle=True, num_workers=2),
    "generator, two": lambda data: FastLoader(
        data, SIZE, shuffle=True, num_workers=2, generator=seeded()
    ),
    "replaced, two": lambda data: FastLoader(
        data,
        SIZE,
        sampler=RandomSampler(range(N), True, num_samples=N, generator=(shared := seeded())),
        num_workers=2,
        generator=shared,
    ),
    "foreign, two": lambda data: FastLoader(data, SIZE, sampler=list(range(N)), num_workers=2),
    "persistent": lambda data: FastLoader(
        data, SIZE, shuffle=True, num_workers=1, persistent_workers=True, generator=seeded()
    ),
}


def assert_resumes_exactly(make: Callable[[], FastLoader[Any]], ks: range, ended: bool) -> None:
    """`ks` batches of the second epoch, save, load into a new loader: nothing else changes."""
    for k in ks:
        torch.manual_seed(0)
        loader = make()
        whole = [values(loader) for _ in range(4)]
        torch.manual_seed(0)
        loader = make()
        assert values(loader) == whole[0]
        batches = iter(loader)
        seen = [next(batches).tolist() for _ in range(k)]
        if ended:
            assert list(batches) == []
        state = loader.state_dict()
        kept = copy.deepcopy(state)
        assert state == loader.state_dict()
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.state_dict() == state
        if not ended:
            # Without a generator the later epochs are drawn from the default one as it is now.
            seen += values(resumed)
            assert seen == whole[1], k
        rest = [values(resumed), values(resumed)]
        if not loader.persistent_workers:  # a new loader draws torch's base seed once more
            assert rest == whole[2:], k
        assert state == kept


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize("data", [numbers, by_torch])
def test_resume_in_mid_epoch(name: str, data: Any) -> None:
    steps = len(MAKERS[name](data(N)))
    # Batch 0 is asked for, because an epoch begins with its first batch.
    assert_resumes_exactly(lambda: MAKERS[name](data(N)), range(1, steps + 1), ended=False)
    assert_resumes_exactly(lambda: MAKERS[name](data(N)), range(steps, steps + 1), ended=True)


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_state_has_the_same_keys_at_all_times(name: str) -> None:
    """torch.distributed.checkpoint loads those that a fresh loader's state has."""
    loader = MAKERS[name](numbers(N))
    keys = list(loader.state_dict())
    batches = iter(loader)
    assert list(loader.state_dict()) == keys
    for _ in batches:
        assert list(loader.state_dict()) == keys
    assert list(loader.state_dict()) == keys


@pytest.mark.parametrize("name", list(WITH_WORKERS))
def test_resume_in_mid_epoch_with_workers(name: str) -> None:
    make = WITH_WORKERS[name]
    assert_resumes_exactly(lambda: make(numbers(N)), range(1, STEPS + 1), ended=False)
    assert_resumes_exactly(lambda: make(numbers(N)), range(STEPS, STEPS + 1), ended=True)


def test_resume_in_mid_epoch_of_worker_processes() -> None:
    make = WITH_WORKERS["shuffled, two"]
    assert_resumes_exactly(lambda: make(by_torch(N)), range(2, 3), ended=False)
    assert_resumes_exactly(lambda: make(by_torch(N)), range(STEPS, STEPS + 1), ended=True)


@pytest.mark.parametrize("name", ["keyed", "generator", "in order", "foreign"])
def test_states_before_and_between_epochs(name: str) -> None:
    whole = [values(loader) for loader in [MAKERS[name](numbers(N))] for _ in range(3)]
    for epochs in range(3):
        loader = MAKERS[name](numbers(N))
        for _ in range(epochs):
            list(loader)
        state = loader.state_dict()
        assert state["epoch"] == epochs
        iter(loader)  # not asked for a batch
        resumed = MAKERS[name](numbers(N))
        resumed.load_state_dict(state)
        assert [values(resumed) for _ in range(3 - epochs)] == whole[epochs:]


@pytest.mark.parametrize("name", ["shuffled", "shuffled, inline", "subset", "replaced"])
@pytest.mark.parametrize("data", [numbers, by_torch])
@pytest.mark.parametrize("begun", [0, 1, 2])
def test_the_next_order_is_foreseen(name: str, data: Any, begun: int) -> None:
    loader = MAKERS[name](data(N))
    for _ in range(begun):
        list(loader)
    for make_iterator in (False, True):
        batches = iter(loader) if make_iterator else None
        state, random_state = loader.state_dict(), torch.get_rng_state()
        want = values(loader if batches is None else batches)
        after = random_states(None)
        torch.manual_seed(99)
        resumed = MAKERS[name](data(N))
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert values(resumed) == want
        torch.set_rng_state(random_state)
        resumed = MAKERS[name](data(N))
        resumed.load_state_dict(state)
        assert values(resumed) == want
        assert make_iterator or random_states(None) == after


def test_an_epoch_that_was_left_is_over() -> None:
    loader = MAKERS["keyed"](numbers(N))
    next(iter(loader))
    second = values(loader)
    fresh = MAKERS["keyed"](numbers(N))
    fresh.set_epoch(1)
    assert values(fresh) == second


def test_the_last_state_before_the_end_gives_an_epoch_without_batches() -> None:
    for name in ("keyed", "shuffled", "in order", "foreign"):
        loader = MAKERS[name](numbers(N))
        for _ in loader:
            state = loader.state_dict()
        resumed = MAKERS[name](numbers(N))
        resumed.load_state_dict(state)
        assert list(resumed) == []
        assert len(list(resumed)) == STEPS


def test_only_batches_handed_out_count() -> None:
    loader = FastLoader(numbers(1000), 1, seed=0, num_workers=2, prefetch_factor=100)
    batches = iter(loader)
    for k in range(1, 5):
        next(batches)
        time.sleep(0.01)
        assert loader.state_dict()["samples"] == k


def test_states_survive_torch_save() -> None:
    for make in MAKERS.values():
        loader = make(numbers(N))
        next(iter(loader))
        state = loader.state_dict()
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        assert torch.load(file, weights_only=True) == state
        if "generator" not in state:
            assert len(json.dumps(state)) < 1024


def test_nothing_is_no_state() -> None:
    loader = MAKERS["keyed"](numbers(N))
    first = values(loader)
    loader.load_state_dict({})
    assert values(loader) != first


@pytest.mark.parametrize("name", ["keyed", "shuffled", "foreign"])
def test_nonsense_is_no_state(name: str) -> None:
    loader = MAKERS[name](numbers(N))
    for nonsense in (None, 0, 5, "state", [], [("version", 1)], b""):
        kind = type(nonsense).__name__
        with pytest.raises(TypeError, match=f"a state is a dict .*, not .*{kind}"):
            loader.load_state_dict(nonsense)
    state = loader.state_dict()
    for nonsense in ({"epoch": 3}, {"model": {}, "optimizer": {}}, {"_snapshot": {}}, {1: 2}):
        with pytest.raises(ValueError, match=r"has no .*: it is not of a FastLoader"):
            loader.load_state_dict(nonsense)
    for key in ("step", "Samples", 7, (), b"epoch"):
        with pytest.raises(ValueError, match=r"the state has .*, which is not of a FastLoader"):
            loader.load_state_dict(state | {key: 1})
    assert loader.state_dict() == state
    loader.load_state_dict(state | {"_of_a_wrapper": 1})
    assert len(values(loader)) == STEPS


def test_a_state_is_for_the_next_iterator() -> None:
    loader = MAKERS["keyed"](numbers(N))
    whole = values(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    next(batches)
    loader.load_state_dict(state)
    next(batches)  # goes on where it was
    assert loader.state_dict() == state
    assert values(batches) == whole[3:]
    assert values(loader) == whole[1:]


def test_a_loaded_state_wins_over_set_epoch_until_the_first_batch() -> None:
    loader = MAKERS["keyed"](numbers(N))
    list(loader)
    batches = iter(loader)
    second = [next(batches).tolist()]
    state = loader.state_dict()
    second += values(batches)
    resumed = MAKERS["keyed"](numbers(N))
    resumed.load_state_dict(state)
    batches = iter(resumed)
    resumed.set_epoch(1)
    with pytest.warns(UserWarning, match="is ignored"):
        resumed.set_epoch(0)
    assert values(batches) == second[1:]
    assert values(resumed) == values(loader)


# --- Samplers with a state of their own --------------------------------------------------------


class Shifting:
    """A sampler whose order depends on its state."""

    def __init__(self) -> None:
        self.shift = 0

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[int]:
        self.shift += 3
        return iter([(i + self.shift) % 10 for i in range(10)])

    def state_dict(self) -> dict[str, int]:
        return {"shift": self.shift}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.shift = state["shift"]


@pytest.mark.parametrize("data", [numbers, by_torch])
@pytest.mark.parametrize("k", range(1, 6))
def test_stateful_samplers(data: Any, k: int) -> None:
    loader = FastLoader(data(10), 2, sampler=Shifting(), num_workers=0)
    whole = [values(loader) for _ in range(3)]
    loader = FastLoader(data(10), 2, sampler=Shifting(), num_workers=0)
    list(loader)
    batches = iter(loader)
    for _ in range(k):
        next(batches)
    resumed = FastLoader(data(10), 2, sampler=Shifting(), num_workers=0)
    resumed.load_state_dict(loader.state_dict())
    assert values(resumed) == whole[1][k:]
    assert values(resumed) == whole[2]


class Positioned(DistributedSampler[int]):
    """Says where it is, as torchdata's does: at its end until it begins anew."""

    __module__ = "torchdata.stateful_dataloader.sampler"
    yielded, begin_at = 0, None

    def __iter__(self) -> Iterator[int]:
        self.yielded, self.begin_at = self.begin_at or 0, None
        for index in itertools.islice(super().__iter__(), self.yielded, None):
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "yielded": self.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.set_epoch(state["epoch"])
        self.begin_at = state["yielded"]


@pytest.mark.parametrize("data", [numbers, by_torch])
@pytest.mark.parametrize("epochs", range(3))
def test_samplers_that_say_how_far_they_are(data: Any, epochs: int) -> None:
    def make() -> FastLoader[Any]:
        return FastLoader(data(10), 2, sampler=Positioned(range(10), 1, 0), num_workers=0)

    def epoch(loader: FastLoader[Any], number: int) -> list[Any]:
        loader.set_epoch(number)
        return values(loader)

    for k in range(7):  # 6: after the end
        loader = make()
        for number in range(epochs):
            epoch(loader, number)
        loader.set_epoch(epochs)
        batches = iter(loader)
        for _ in range(k):
            next(batches, None)
        resumed = make()
        resumed.load_state_dict(loader.state_dict())
        if k < 6:
            assert values(resumed) == values(batches)
        assert epoch(resumed, epochs + 1) == epoch(loader, epochs + 1)


def test_a_generator_that_is_not_torchs_is_left_alone() -> None:
    sampler = Shifting()
    sampler.generator = np.random.default_rng(0)  # type: ignore[attr-defined]
    loader = FastLoader(by_torch(10), 2, sampler=sampler)
    next(iter(loader))
    assert loader.state_dict()["batches"] == 1
    list(loader)
    assert not loader.state_dict()["begun"]


def test_a_foreign_sampler_is_skipped_without_loading() -> None:
    loaded: list[int] = []

    class Counting(Listed):
        def __getitem__(self, index: Any) -> Any:
            loaded.append(index)
            return index

    loader = FastLoader(Counting(range(10)), 2, sampler=list(range(10)))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    resumed = FastLoader(Counting(range(10)), 2, sampler=list(range(10)))
    resumed.load_state_dict(loader.state_dict())
    loaded.clear()
    assert values(resumed) == [[6, 7], [8, 9]]
    assert loaded == [6, 7, 8, 9]


def test_an_iterable_dataset_is_loaded_up_to_its_place() -> None:
    loader = FastLoader(Stream(), 2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    resumed = FastLoader(Stream(), 2)
    resumed.load_state_dict(state)
    assert values(resumed) == [[2, 3], [4, 5], [6]]
    assert values(resumed) == [[0, 1], [2, 3], [4, 5], [6]]
    assert resumed.state_dict()["epoch"] == 2


def test_resuming_draws_nothing_from_the_default_generator() -> None:
    for data in (numbers, by_torch):
        loader = MAKERS["shuffled"](data(N))
        next(iter(loader))
        resumed = MAKERS["shuffled"](data(N))
        resumed.load_state_dict(loader.state_dict())
        before = random_states(None)
        list(resumed)
        assert random_states(None) == before
        list(resumed)
        assert random_states(None) != before
