"""Loaders whose saved states lie in tests/golden/d71a9b4, made with public names only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from paths import GOLDEN
from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler

from fastload import (
    ArrayDataset,
    FastLoader,
    Mixture,
    RandomHorizontalFlip,
    TokenDataset,
    WeightedSampler,
)

ROWS = 23
IDS = np.arange(ROWS)
TOKENS = GOLDEN / "d71a9b4/tokens.bin"


class Plain:
    """A map-style dataset that torch's own iterator loads."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> int:
        return row


class Counting(IterableDataset[int]):
    """An iterable dataset that saves and restores its own position."""

    def __init__(self) -> None:
        self.row = 0

    def __iter__(self) -> Iterator[int]:
        while self.row < ROWS:
            self.row += 1
            yield self.row - 1
        self.row = 0

    def state_dict(self) -> dict[str, int]:
        return {"row": self.row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.row = state["row"]


class Evens:
    """A sampler of the even rows, without an attribute that the loader could know."""

    def __len__(self) -> int:
        return (ROWS + 1) // 2

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, ROWS, 2))


def _seeded(**options: Any) -> FastLoader[Any]:
    return FastLoader(ArrayDataset(IDS), 4, seed=5, **options)


def _torch(data: Any, **options: Any) -> FastLoader[Any]:
    return FastLoader(data, 4, **options)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def _flipped() -> FastLoader[Any]:
    images = IDS[:, None, None, None] * 4 + np.arange(4).reshape(1, 2, 2)
    data = ArrayDataset({"image": images.astype("u1")})
    flip = RandomHorizontalFlip()
    return FastLoader(data, 4, shuffle=True, transforms={"image": flip}, num_workers=0)


def _mixture() -> FastLoader[Any]:
    parts = [ArrayDataset(IDS), ArrayDataset(100 + np.arange(9))]
    return FastLoader(Mixture(parts, weights=[0.5, 0.5], seed=2), 4, shuffle=True, seed=5)


def _weighted() -> FastLoader[Any]:
    weights = (IDS % 5).astype("f8")
    return _torch(ArrayDataset(IDS), sampler=WeightedSampler(weights, num_samples=18, seed=3))


def _distributed() -> FastLoader[Any]:
    sampler = DistributedSampler(range(ROWS), num_replicas=2, rank=1, seed=9)
    return _torch(ArrayDataset(IDS), sampler=sampler)


def _random_sampler(**options: Any) -> Any:
    return RandomSampler(range(ROWS), generator=_generator(), **options)


LOADERS: dict[str, Callable[[], FastLoader[Any]]] = {
    "seeded": lambda: _seeded(shuffle=True),
    "seeded sequential": lambda: _seeded(),
    "seeded block": lambda: _seeded(shuffle=True, order="block"),
    "seeded drop": lambda: _seeded(shuffle=True, drop_last=True),
    "rank 0 of 2": lambda: _seeded(shuffle=True, shard=(0, 2)),
    "rank 1 of 2": lambda: _seeded(shuffle=True, shard=(1, 2)),
    "rank 2 of 3, short": lambda: _seeded(shuffle=True, shard=(2, 3), tail="short"),
    "rank 1 of 2, mask": lambda: _seeded(shuffle=True, shard=(1, 2), tail="mask"),
    "seeded, torch iterator": lambda: FastLoader(Plain(), 4, seed=5, shuffle=True),
    "weighted": _weighted,
    "mixture": _mixture,
    "tokens": lambda: FastLoader(TokenDataset(TOKENS, 4), 4, seed=5, shuffle=True),
    "sequential": lambda: _torch(ArrayDataset(IDS)),
    "shuffled": lambda: _torch(ArrayDataset(IDS), shuffle=True),
    "shuffled, generator": lambda: _torch(ArrayDataset(IDS), shuffle=True, generator=_generator()),
    "sampler with generator": lambda: _torch(ArrayDataset(IDS), sampler=_random_sampler()),
    "sampler with replacement": lambda: _torch(
        ArrayDataset(IDS), sampler=_random_sampler(replacement=True, num_samples=14)
    ),
    "distributed sampler": _distributed,
    "own sampler": lambda: _torch(ArrayDataset(IDS), sampler=Evens()),
    "random transform": _flipped,
    "torch iterator": lambda: _torch(Plain(), shuffle=True),
    "stateful dataset": lambda: _torch(Counting()),
}


def listed(batches: Iterable[Any]) -> list[Any]:
    """Batches as JSON holds them."""
    return [_listed(batch) for batch in batches]


def _listed(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _listed(value) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_listed(value) for value in batch]
    return batch.tolist()
