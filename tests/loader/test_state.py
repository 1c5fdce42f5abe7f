"""States: what they survive, and samplers that have a state of their own."""

from __future__ import annotations

import copy
import io
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from oracle import numbers, values
from resuming import KINDS, Shifting, torch_loaders
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
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
    "seeded": lambda data: FastLoader(data, SIZE, shuffle=True, seed=1),
    "shuffled": lambda data: FastLoader(data, SIZE, shuffle=True),
    "listed": lambda data: FastLoader(data, SIZE, sampler=list(range(N - 1, -1, -1))),
}
WITH_WORKERS: dict[str, Callable[[Any], FastLoader[Any]]] = {
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


@pytest.mark.parametrize("name", list(WITH_WORKERS))
def test_resume_in_mid_epoch_with_workers(name: str) -> None:
    make = WITH_WORKERS[name]
    assert_resumes_exactly(lambda: make(numbers(N)), range(1, STEPS + 1), ended=False)
    assert_resumes_exactly(lambda: make(numbers(N)), range(STEPS, STEPS + 1), ended=True)


def test_resume_in_mid_epoch_of_worker_processes() -> None:
    make = WITH_WORKERS["shuffled, two"]
    assert_resumes_exactly(lambda: make(by_torch(N)), range(2, 3), ended=False)
    assert_resumes_exactly(lambda: make(by_torch(N)), range(STEPS, STEPS + 1), ended=True)


def test_states_survive_torch_save() -> None:
    loaders = [loader for kind in KINDS.values() for loader in torch_loaders(kind, kind.ways[0])]
    for loader in [*loaders, MAKERS["seeded"](numbers(N))]:
        next(iter(loader))
        state = loader.state_dict()
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        assert torch.load(file, weights_only=True) == state
        if not state.get("generator"):
            assert len(json.dumps(state)) < 1024


def test_nothing_is_no_state() -> None:
    loader = MAKERS["seeded"](numbers(N))
    first = values(loader)
    loader.load_state_dict({})
    assert values(loader) != first


@pytest.mark.parametrize("name", list(MAKERS))
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
    loader = MAKERS["seeded"](numbers(N))
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


# --- Samplers with a state of their own --------------------------------------------------------


class Positioned(DistributedSampler[int]):
    """Its state is its position, as torchdata's: at its end until it starts again."""

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
