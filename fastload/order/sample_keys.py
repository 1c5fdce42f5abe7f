"""Indices that carry their random key, and samples that carry their indices.

They let a loader that was rebuilt from a FastLoader's attributes draw what the FastLoader draws:
the sampler yields `KeyedIndex`, the dataset's `__getitems__` returns `FetchedSamples`, and the
`collate_fn` reads the keys from them, in any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class KeyedIndex(int):
    """The index of a sample, with the key of its random transforms.

    Everywhere else it is an integer. Arithmetic gives plain integers: a wrapper that maps indices
    to others loses the key, rather than passing it on for another sample.

    Args:
        index: Of the sample.
        seed: Of the order.
        epoch: The epoch that the sampler iterates.
        draw: Number of the sample's draw in that epoch.
        is_real: False for a sample that only fills up the last step.

    Attributes:
        seed: As given.
        epoch: As given.
        draw: As given.
        is_real: As given.
    """

    seed: int
    epoch: int
    draw: int
    is_real: bool

    def __new__(
        cls, index: int, seed: int, epoch: int, draw: int, is_real: bool = True
    ) -> KeyedIndex:
        """The index with its key."""
        made = super().__new__(cls, index)
        made.seed, made.epoch, made.draw, made.is_real = seed, epoch, draw, is_real
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        key = self.seed, self.epoch, self.draw, self.is_real
        return KeyedIndex, (int(self), *key)


class FetchedSamples(list[Any]):
    """A list of samples.

    Args:
        samples: Of a batch.
        indices: Of the samples, as the dataset was given them.

    Attributes:
        indices: As given.
    """

    def __init__(self, samples: Iterable[Any] = (), indices: Sequence[Any] = ()) -> None:
        super().__init__(samples)
        self.indices = list(indices)
        self._fetched = list(self)

    @property
    def is_reordered(self) -> bool:
        """Whether samples were moved within the list, so that `indices` are those of others."""
        known = set(map(id, self._fetched))
        return any(
            id(sample) in known and sample is not fetched
            for sample, fetched in zip(self, self._fetched, strict=False)
        )


def keyed_indices(items: Any) -> list[KeyedIndex] | None:
    """The items as a list, if there are any and all of them carry a key; else None."""
    if not isinstance(items, (list, tuple)) or not items:
        return None
    return list(items) if all(type(item) is KeyedIndex for item in items) else None


def indices_of(samples: Any) -> list[Any] | None:
    """The indices of the samples of a batch, if the dataset passed them on and they still fit."""
    if not isinstance(samples, FetchedSamples) or len(samples.indices) != len(samples):
        return None
    return None if samples.is_reordered else samples.indices
