"""Loaders that are saved and resumed, and slow references that know what they must deliver.

A reference is driven by the same calls as the loaders. It delivers, for each rank, the next batch,
and can return to any moment that was saved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from oracle import Stream, global_order, numbers
from plans import planned
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from fastload import FastLoader, KeyedSampler

N, SIZE = 23, 4
SEED = 3


class Way(NamedTuple):
    """How batches are loaded, which must not change them."""

    by_python: bool = False
    workers: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        own = {"collate_fn": _collate} if self.by_python else {}
        return own | {"num_workers": self.workers}


def _collate(samples: list[Any]) -> Any:
    return default_collate(samples)


WAYS = [Way(), Way(workers=0), Way(workers=2), Way(by_python=True)]


# --- Seeded orders -----------------------------------------------------------------------------


class Shape(NamedTuple):
    """What another loader over the same seeded order may change."""

    batch: int = SIZE
    world: int = 1
    tail: str = "pad"


class EpochStart(NamedTuple):
    epoch: int
    first: int


class SeededReference:
    """The order of `seed=` in plain Python."""

    def __init__(self, order: str, shape: Shape) -> None:
        self.order = order
        self.shape = shape
        self.next = EpochStart(0, 0)
        self.loaded: EpochStart | None = None  # until the first batch after it
        self.wins = False  # the loaded position wins over set_epoch
        self.added = 0  # to the epochs that the caller names, after a restart
        self.running: EpochStart | None = None
        self.taken = 0
        self.batches: list[list[Any]] = []

    @property
    def step(self) -> int:
        return self.shape.batch * self.shape.world

    def start(self) -> None:
        """An iterator is made, which takes its epoch at its first batch."""

    def deliver(self, is_first: bool) -> list[Any] | None:
        """Returns the next batch of each rank; None for a rank, or all, without one."""
        if is_first:
            order = _seeded_order(self.order, self.next.epoch)
            self.batches = planned(order, *self.shape, self.next.first)
            self.running, self.taken = self.next, 0
            self.loaded, self.wins = None, False
            self.next = EpochStart(self.running.epoch + 1, 0)
        found = [rank[self.taken] if self.taken < len(rank) else None for rank in self.batches]
        if not any(found):
            self.running = None
            return None
        self.taken += 1
        return [_expected(batch, self.shape.tail) for batch in found]

    @property
    def is_even(self) -> bool:
        """False after a last step that only some ranks had, whose positions differ."""
        return all(len(rank) >= self.taken for rank in self.batches) or self.running is None

    def set_epoch(self, epoch: int) -> bool:
        """Returns whether the call is ignored with a warning."""
        if self.wins:
            left = N - self.next.first
            is_over = left < (self.step if self.shape.tail == "drop" else 1)
            if not (is_over and epoch == self.next.epoch + 1):
                self.added = max(0, self.next.epoch - epoch)
                return epoch != self.next.epoch
        self.next, self.wins = EpochStart(epoch + self.added, 0), False
        return False

    def save(self) -> EpochStart:
        if self.loaded or self.running is None:
            return self.loaded or self.next
        return EpochStart(self.running.epoch, min(N, self.running.first + self.taken * self.step))

    def load(self, place: EpochStart, shape: Shape) -> SeededReference:
        made = SeededReference(self.order, shape)
        made.next, made.loaded, made.wins = place, place, True
        return made

    @property
    def position(self) -> int:
        """What `loader.position` is: batches of this epoch."""
        if self.loaded:
            return -(-self.loaded.first // self.step)
        if self.running is None:
            return 0
        return -(-self.running.first // self.step) + self.taken


def _seeded_order(order: str, epoch: int) -> list[int]:
    if order != "block":
        return global_order(N, SEED, epoch, order)
    sampler = KeyedSampler(range(N), seed=SEED, order="block", block_rows=1 << 17)
    sampler.set_epoch(epoch)
    return list(sampler)


def seeded_loaders(order: str, shape: Shape, way: Way) -> list[FastLoader[Any]]:
    return [
        FastLoader(
            numbers(N),
            shape.batch,
            shuffle=order != "sequential",
            order="block" if order == "block" else "full",
            seed=SEED,
            shard=(rank, shape.world),
            tail=shape.tail,
            **way.options,
        )
        for rank in range(shape.world)
    ]


# --- Orders of torch's and other samplers ------------------------------------------------------


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class OwnRandomSampler(RandomSampler):
    """Draws from torch's default generator for its first index."""


class OwnBatches(BatchSampler):
    """Batches of another type around a sampler of torch's."""


class DrawnInIter(list[int]):
    """Draws in `iter()`, before the first index is requested."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(len(self)).tolist())


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


class Kind(NamedTuple):
    """A sampler that is not seeded.

    Attributes:
        options: Arguments of a loader, DataLoader or FastLoader, for a rank.
        ways: Ways to load with the same draws at the same times.
        predicts: A state between epochs has what the next order will be drawn from.
        world: Number of ranks.
        data: Makes the dataset.
        draws_in_iter: The sampler draws in `iter()`, which a state between epochs cannot have.
    """

    options: Callable[[int], dict[str, Any]]
    ways: list[Way] = WAYS
    predicts: bool = False
    world: int = 1
    data: Callable[[], Any] = lambda: numbers(N)
    draws_in_iter: bool = False


_IN_TURN = [way for way in WAYS if not way.workers]
"""Without workers, which make torch draw before a batch is requested."""


def _sampled(make: Callable[[], Any]) -> Callable[[int], dict[str, Any]]:
    return lambda rank: {"batch_size": SIZE, "sampler": make()}


def _replaced(**options: Any) -> RandomSampler:
    return RandomSampler(range(N), True, num_samples=N, **options)


KINDS: dict[str, Kind] = {
    "in order": Kind(lambda rank: {"batch_size": SIZE}, predicts=True),
    "shuffled": Kind(lambda rank: {"batch_size": SIZE, "shuffle": True}, predicts=True),
    "dropping": Kind(
        lambda rank: {"batch_size": SIZE, "shuffle": True, "drop_last": True}, predicts=True
    ),
    "generator": Kind(
        lambda rank: {"batch_size": SIZE, "shuffle": True, "generator": _generator()}, _IN_TURN
    ),
    "subset": Kind(_sampled(lambda: SubsetRandomSampler(range(3, N))), predicts=True),
    "weighted": Kind(
        _sampled(lambda: WeightedRandomSampler([1.0] * N, N, generator=_generator())), _IN_TURN
    ),
    "replaced": Kind(_sampled(_replaced), predicts=True),
    "replaced, given": Kind(_sampled(lambda: _replaced(generator=_generator())), _IN_TURN),
    "listed": Kind(_sampled(lambda: list(range(N - 1, -1, -1)))),
    "batches": Kind(lambda rank: {"batch_sampler": [[i, 0] for i in range(6)]}),
    "drawing at first": Kind(_sampled(lambda: OwnRandomSampler(range(N))), _IN_TURN),
    "drawing in iter": Kind(
        lambda rank: {"batch_size": None, "sampler": DrawnInIter(range(9))},
        [Way(workers=0)],
        draws_in_iter=True,
    ),
    "own batches": Kind(
        lambda rank: {"batch_sampler": OwnBatches(RandomSampler(range(N)), 3, False)}, _IN_TURN
    ),
    "stateful": Kind(_sampled(Shifting), _IN_TURN),
    "distributed": Kind(
        lambda rank: {
            "batch_size": SIZE,
            "sampler": DistributedSampler(range(N), 2, rank, seed=SEED),  # type: ignore[arg-type]
        },
        world=2,
    ),
    "distributed, dropping": Kind(
        lambda rank: {
            "batch_size": SIZE,
            "sampler": DistributedSampler(range(N), 2, rank, seed=SEED, drop_last=True),  # type: ignore[arg-type]
            "drop_last": True,
        },
        world=2,
    ),
    "stream": Kind(lambda rank: {"batch_size": 2}, [Way(workers=0)], data=Stream),
}


class RandomState:
    """The default generator of one process of several that tests keep apart."""

    def __init__(self, state: torch.Tensor) -> None:
        self.state = state

    @contextmanager
    def used(self) -> Iterator[None]:
        before = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(before)


class TorchReference:
    """torch's DataLoader, which is never resumed: all that was done to it is done again."""

    def __init__(self, kind: Kind, state: torch.Tensor) -> None:
        self.kind, self.seed = kind, state
        self.random = RandomState(state)
        self.done: list[tuple[str, Any]] = []
        self.loaders = [DataLoader(kind.data(), **kind.options(rank)) for rank in range(kind.world)]
        self.batches: list[Iterator[Any]] = []
        self.is_loaded = False  # and has not delivered a batch since
        self.loaded: list[tuple[str, Any]] = []
        self.is_started = False
        self.is_open = False  # an epoch has started and not ended
        self.taken = 0

    def start(self) -> None:
        """Makes iterators, unless they are those of a loaded epoch."""
        self.is_started = True
        if not (self.is_loaded and self.batches):
            self._do("start", None)

    def deliver(self, is_first: bool) -> list[Any] | None:
        """Returns the next batch of each rank; None at the end."""
        self.is_loaded = False
        found: list[Any] | None = self._do("deliver", None)
        return found

    def set_epoch(self, epoch: int) -> bool:
        """Sets the epoch of the samplers, unless a loaded epoch has batches left."""
        if self.is_loaded and self.is_open:
            is_over = self.taken == len(self.loaders[0])
            if not (is_over and epoch == self.loaders[0].sampler.epoch + 1):  # type: ignore[attr-defined]
                return False
            self._do("leave", None)
            if self.is_started:
                self._do("start", None)
        self._do("epoch", epoch)
        return False

    def follow(self, state: torch.Tensor) -> None:
        """The default generator is another one from here on."""
        if self.is_loaded:
            self.loaded = [*self.loaded, ("random", state)]
        self._do("random", state)

    def _do(self, name: str, value: Any) -> Any:
        self.done.append((name, value))
        with self.random.used():
            return getattr(self, f"_{name}")(value)

    def _start(self, _: None) -> None:
        self.batches = [iter(loader) for loader in self.loaders]
        self.is_open, self.taken = False, 0

    def _deliver(self, _: None) -> list[Any] | None:
        found = [plain(next(batches, None)) for batches in self.batches]
        self.is_open = found[0] is not None
        self.taken += self.is_open
        if not self.is_open:
            self.batches = []
        return found if self.is_open else None

    def _leave(self, _: None) -> None:
        self.batches, self.is_open, self.taken = [], False, 0

    def _epoch(self, epoch: int) -> None:
        for loader in self.loaders:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]

    def _random(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)

    def save(self) -> list[tuple[str, Any]]:
        """Returns all that was done; what follows a load counts from the first batch on."""
        return self.loaded if self.is_loaded else copy.copy(self.done)

    def load(self, done: list[tuple[str, Any]]) -> TorchReference:
        """Returns a reference at the moment that was saved."""
        made = TorchReference(self.kind, self.seed)
        for name, value in done:
            made._do(name, value)
        made.loaded, made.is_loaded = done, True
        return made

    @property
    def position(self) -> int:
        """Value of `loader.position`."""
        return self.taken if self.is_open else 0


def torch_loaders(kind: Kind, way: Way) -> list[FastLoader[Any]]:
    return [
        FastLoader(kind.data(), **kind.options(rank), **way.options) for rank in range(kind.world)
    ]


def plain(batch: Any) -> Any:
    """The batch as lists; None if there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(member) for member in batch] if isinstance(batch, list) else batch


def _expected(batch: Any, tail: str) -> Any:
    """A planned batch as a loader delivers it."""
    if batch is None:
        return None
    indices = [sample.index for sample in batch]
    return [indices, [sample.is_real for sample in batch]] if tail == "mask" else indices
