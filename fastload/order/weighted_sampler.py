"""Sampling with replacement by weight, independently for each position of an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastload import _core
from fastload.order.keyed_sampler import MAX_INDEX, KeyedSampler, checked_int


class WeightedSampler(KeyedSampler):
    """Samples by weight, with replacement: WeightedRandomSampler with a seeded order.

    The index at position p of an epoch is a function of (seed, epoch, p), computed in O(log n): no
    list of an epoch's indices is stored, and the number of weights is not limited. Sharding, state
    and resume are those of `KeyedSampler`. The sampler stores the cumulative sums of the weights,
    8 bytes each.

    As the sampler of a FastLoader it replaces `seed=`. The loader makes a copy for its batches:
    call `set_epoch` on the loader. Random transforms depend on seed, epoch and position: a sample
    that repeats in an epoch is cropped and flipped differently each time, and equally for any
    number of ranks, any batch size, and after a resume. Padding of a last step repeats the samples
    at the start of the epoch with the same transforms.

    Args:
        weights: (n,), numbers of any scale: an array, a tensor, a memmap or a list. Sample i of the
            dataset is drawn with probability weights[i] / sum(weights), exact to 2**-62. Samples of
            weight 0 are never drawn.
        num_samples: Number of samples of all ranks in an epoch; None: n.
        seed: In [0, 2**64).
        batch_size: Samples of one rank's step; in a FastLoader, its `batch_size`.
        drop_last: Drop the last step where it is not full; in a FastLoader, its `drop_last`.
        shard: See `fastload.order.ranks.find_rank`.
        tail: See `KeyedSampler`. A FastLoader's own `tail` and `drop_last` decide whether the last
            step is dropped; "mask" and "short" can be given here.

    Raises:
        ValueError: a weight is negative or not finite, no weight is above 0, or `weights` does not
            have one dimension; another argument is invalid.
        TypeError: the weights are not numbers; another argument is not an integer.

    Example:
        >>> sampler = WeightedSampler([0.0, 3.0, 1.0], num_samples=1000, seed=0)
        >>> loader = FastLoader(ArrayDataset(np.arange(3)), batch_size=500, sampler=sampler)
        >>> [batch.bincount().tolist() for batch in loader]
        [[0, 377, 123], [0, 388, 112]]
    """

    __module__ = "fastload"

    def __init__(
        self,
        weights: Any,
        num_samples: int | None = None,
        *,
        seed: int = 0,
        batch_size: int = 1,
        drop_last: bool = False,
        shard: Any = None,
        tail: str | None = None,
    ) -> None:
        table = _core.WeightTable(_as_floats(weights))
        super().__init__(
            range(len(table)),
            batch_size=batch_size,
            seed=seed,
            drop_last=drop_last,
            shard=shard,
            tail=tail,
        )
        self.order = "weighted"
        self._weights = table
        self._draws = len(table)
        if num_samples is not None:
            self._draws = checked_int("num_samples", num_samples, least=1)
            if self._draws > MAX_INDEX:
                raise ValueError(f"num_samples must be at most 2**62, not {num_samples}")

    @property
    def positions(self) -> int:
        """Number of samples of all ranks in an epoch."""
        return self._draws

    def check_rows(self, rows: int) -> None:
        """Raises ValueError unless a dataset has as many samples as there are weights."""
        count = len(self.dataset)  # type: ignore[arg-type]
        if rows != count:
            raise ValueError(f"there are {count} weights for {rows} samples")


def _as_floats(weights: Any) -> Any:
    if isinstance(weights, torch.Tensor):
        tensor = weights.detach().cpu()
        weights = tensor.numpy() if tensor.dtype is torch.float32 else tensor.double().numpy()
    array = np.asarray(weights)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"weights must be numbers, not of dtype {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"weights must have one dimension, not {array.ndim}")
    return np.ascontiguousarray(array, np.float32 if array.dtype == np.float32 else np.float64)
