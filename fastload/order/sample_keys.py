"""Indices that carry the RNG key of their sample, and samples that carry their indices.

With these, a loader that is rebuilt from a FastLoader's attributes applies the same random
transforms:
the sampler yields `KeyedIndex`, the dataset's `__getitems__` returns `FetchedSamples`, and the
`collate_fn` reads the keys from them, in any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class KeyedIndex(int):
    """Index of a sample, with the RNG key of its random transforms.

    It is an int. Arithmetic returns plain ints, so a wrapper that maps indices to others loses the
    key instead of passing it on for another sample.

    Args:
        index: Index of the sample.
        seed: Seed of the order.
        epoch: Epoch that the sampler iterates.
        draw: RNG key of the sample in that epoch; differs for each repeat of a sample.
        is_real: False for a sample that only fills up the last step.

    Attributes:
        seed: See Args.
        epoch: See Args.
        draw: See Args.
        is_real: See Args.
    """

    seed: int
    epoch: int
    draw: int
    is_real: bool

    def __new__(
        cls, index: int, seed: int, epoch: int, draw: int, is_real: bool = True
    ) -> KeyedIndex:
        """Returns the index with its key."""
        made = super().__new__(cls, index)
        made.seed, made.epoch, made.draw, made.is_real = seed, epoch, draw, is_real
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        key = self.seed, self.epoch, self.draw, self.is_real
        return KeyedIndex, (int(self), *key)


class FetchedSamples(list[Any]):
    """A list of samples.

    Args:
        samples: Samples of a batch.
        indices: Their indices, as passed to the dataset.

    Attributes:
        indices: See Args.
    """

    def __init__(self, samples: Iterable[Any] = (), indices: Sequence[Any] = ()) -> None:
        super().__init__(samples)
        self.indices = list(indices)
        self._fetched = list(self)

    @property
    def is_reordered(self) -> bool:
        """True if samples were moved within the list, so that `indices` do not fit them."""
        known = set(map(id, self._fetched))
        return any(
            id(sample) in known and sample is not fetched
            for sample, fetched in zip(self, self._fetched, strict=False)
        )


def keyed_indices(items: Any) -> list[KeyedIndex] | None:
    """Returns the items as a list if all of them carry a key; None otherwise or if empty."""
    if not isinstance(items, (list, tuple)) or not items:
        return None
    return list(items) if all(type(item) is KeyedIndex for item in items) else None


def indices_of(samples: Any) -> list[Any] | None:
    """Returns the indices of the samples of a batch if it has them and they fit; else None."""
    if not isinstance(samples, FetchedSamples) or len(samples.indices) != len(samples):
        return None
    return None if samples.is_reordered else samples.indices
