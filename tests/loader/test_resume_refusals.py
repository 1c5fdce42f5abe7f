"""States that are refused: of other data, orders and samplers, and damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import numbers, values
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

import fastload
from fastload import ArrayDataset, FastLoader, WeightedSampler

N, SIZE = 23, 4


def seeded(data: Any = None, seed: int = 1, **options: Any) -> FastLoader[Any]:
    data = numbers(N) if data is None else data
    return FastLoader(data, SIZE, **{"shuffle": True, "seed": seed} | options)


def shuffled(data: Any = None) -> FastLoader[Any]:
    return FastLoader(numbers(N) if data is None else data, SIZE, shuffle=True)


def in_order() -> FastLoader[Any]:
    return FastLoader(numbers(N), SIZE)


def distributed(world: int) -> FastLoader[Any]:
    sampler = DistributedSampler(range(N), world, 1)  # type: ignore[arg-type]
    return FastLoader(numbers(N), SIZE, sampler=sampler)


def weighted(last: float) -> FastLoader[Any]:
    return FastLoader(numbers(N), SIZE, sampler=WeightedSampler([1.0] * (N - 1) + [last], seed=1))


def changed() -> ArrayDataset:
    other = np.arange(N)
    other[-1] = 0
    return ArrayDataset(other)


OTHER_DATA = "another fingerprint of the dataset"
REFUSED: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "more data": (seeded, lambda: seeded(numbers(N + 1)), OTHER_DATA),
    "other data": (seeded, lambda: seeded(changed()), OTHER_DATA),
    "other dtype": (seeded, lambda: seeded(ArrayDataset(np.arange(N, dtype="i4"))), OTHER_DATA),
    "more data, torch": (shuffled, lambda: shuffled(numbers(N + 1)), OTHER_DATA),
    "other data, torch": (shuffled, lambda: shuffled(changed()), OTHER_DATA),
    "seed": (seeded, lambda: seeded(seed=2), "another seed: 1, here it is 2"),
    "order": (
        seeded,
        lambda: seeded(shuffle=False),
        "another order: 'full', here it is 'sequential'",
    ),
    "block": (seeded, lambda: seeded(order="block"), "another order: 'full', here it is 'block'"),
    "sampler": (shuffled, in_order, "another sampler: 'RandomSampler'"),
    "with seed": (seeded, shuffled, "saved with seed=1: give it here"),
    "without seed": (shuffled, seeded, "saved without seed=: remove seed= from this loader"),
    "world": (
        lambda: distributed(2),
        lambda: distributed(3),
        "another world size: 2, here it is 3",
    ),
    "weights": (
        lambda: weighted(1.0),
        lambda: weighted(2.0),
        "another fingerprint of the weights",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_state_of_another_loader_is_refused_by_the_difference(name: str) -> None:
    save, load, message = REFUSED[name]
    loader, other = save(), load()
    next(iter(loader))
    whole = values(load())
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(loader.state_dict())
    if name not in ("sampler", "with seed", "more data, torch", "other data, torch"):
        assert values(other) == whole  # as if nothing had been loaded


@pytest.mark.parametrize("make", [seeded, shuffled])
def test_damaged_states_are_refused(make: Callable[[], FastLoader[Any]]) -> None:
    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    counts: list[Any] = [-1, 2**64, 10**30, 2.5, "3", None, True]
    damages = [{key: count} for key in ("samples", "epoch") for count in counts]
    damages += [{"version": 2}, {"samples": N + 1}] if make is seeded else []
    damages += [{"seed": "zz"}, {"begun": 1}] if make is shuffled else []
    for damage in damages:
        loader = make()
        with pytest.raises(ValueError, match="state"):
            loader.load_state_dict(state | damage)
        assert len(list(loader)) == -(-N // SIZE)


class Batches(BatchSampler):
    """A type of the user."""


def own_batches() -> FastLoader[Any]:
    sampler = Batches(SequentialSampler(range(N)), SIZE, False)
    return FastLoader(numbers(N), batch_sampler=sampler)


@pytest.mark.parametrize(("save", "load"), [(in_order, own_batches), (own_batches, in_order)])
def test_a_state_that_counts_in_another_unit_is_refused_at_the_first_batch(
    save: Callable[[], Any], load: Callable[[], Any]
) -> None:
    saved, other = save(), load()
    next(iter(saved))
    other.load_state_dict(saved.state_dict())
    with pytest.raises(ValueError, match="saved with another sampler"):
        next(iter(other))


@pytest.mark.parametrize("make", [seeded, shuffled])
def test_a_file_that_was_renamed_is_the_same_data(
    make: Callable[[Any], FastLoader[Any]], tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(N))
    saved = make(fastload.open(path)).state_dict()
    path.rename(tmp_path / "y.npy")
    make(fastload.open(tmp_path / "y.npy")).load_state_dict(saved)
