"""Whose random numbers are drawn, and that the keyed order depends on nothing else."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from oracle import flat, numbers, values
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils.worker import _generate_state

from fastload import FastLoader


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_draws_as_often_as_torchs(shuffle: bool, workers: int) -> None:
    def drawn(kind: Any) -> tuple[Any, ...]:
        torch.manual_seed(1)
        loader = kind(numbers(8), batch_size=3, shuffle=shuffle, num_workers=workers)
        before = oracle.random_states(None)
        epochs = [values(loader)]
        return before, epochs, oracle.random_states(None)

    assert drawn(FastLoader) == drawn(DataLoader)
    torch.manual_seed(1)
    for _ in range(1 + shuffle):
        torch.empty((), dtype=torch.int64).random_()
    assert oracle.random_states(None) == drawn(FastLoader)[2]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("workers", [None, 0, 1])
def test_a_given_generator_spares_the_default_one(native: bool, workers: int | None) -> None:
    before = oracle.random_states(None)
    generator = torch.Generator().manual_seed(1)
    data: Any = numbers(8) if native else list(range(8))
    loader = FastLoader(data, 3, shuffle=True, generator=generator, num_workers=workers)
    assert sorted(flat(values(loader) + values(loader))) == sorted([*range(8)] * 2)
    assert oracle.random_states(None) == before
    assert generator.initial_seed() == 1


class Draws:
    """Each sample is what a worker's three generators would give next."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[Any]:
        info = get_worker_info()
        return [
            info.id,
            info.seed,
            torch.initial_seed(),
            random.random(),
            np.random.random(),  # noqa: NPY002
            int(torch.randint(2**40, ())),
        ]


def listed(samples: list[Any]) -> Any:
    return samples


def test_workers_are_seeded_as_torch_seeds_them() -> None:
    def seen(kind: Any) -> Any:
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(2)
        options = {"collate_fn": listed, "generator": generator, "num_workers": 2}
        loader = kind(Draws(), batch_size=1, **options)
        return [list(loader), list(loader)]

    ours = seen(FastLoader)
    assert ours == seen(DataLoader)
    generator = torch.Generator().manual_seed(2)
    for epoch in ours:
        base = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
        for worker, [sample] in enumerate(epoch[:2]):  # the first batch of each worker
            seed, by_numpy = base + worker, np.random.RandomState(_generate_state(base, worker))
            by_torch = torch.Generator().manual_seed(seed)
            assert sample == [
                worker,
                seed,
                seed,
                random.Random(seed).random(),
                by_numpy.random(),
                int(torch.randint(2**40, (), generator=by_torch)),
            ]


def test_seeds_of_workers_follow_the_keyed_order() -> None:
    def seen(seed: int, noise: int) -> Any:
        torch.manual_seed(noise)
        loader = FastLoader(Draws(), 1, seed=seed, collate_fn=listed, num_workers=1, shuffle=False)
        return [list(loader), list(loader)]

    first = seen(0, 1)
    assert first == seen(0, 2)  # torch's own generator does not matter
    assert first[0] != first[1]
    assert first != seen(1, 1)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 17, 50])
def test_the_ranks_steps_one_after_another_are_the_keyed_order(n: int) -> None:
    """For any world and batch size."""
    for epoch, shuffle in itertools.product(range(2), (False, True)):
        want = oracle.global_order(n, 3, epoch, "full" if shuffle else "sequential")
        for world, size, workers in itertools.product((1, 2, 3, 8), (1, 2, 5), (0, None)):
            ranks = []
            for rank in range(world):
                options: dict[str, Any] = {"seed": 3, "shard": (rank, world), "shuffle": shuffle}
                loader = FastLoader(numbers(n), size, num_workers=workers, **options)
                loader.set_epoch(epoch)
                ranks.append(values(loader))
            assert len({len(batches) for batches in ranks}) == 1
            steps = flat([flat(list(step)) for step in zip(*ranks, strict=True)])
            assert steps[:n] == want
            assert len(steps) - n < world
