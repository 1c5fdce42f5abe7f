"""Drawing with replacement by weight, each position of an epoch for itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastload import _core
from fastload.order.keyed_sampler import MAX_INDEX, KeyedSampler, checked_int


class WeightedSampler(KeyedSampler):
    """Draws by weight, with replacement: the keyed counterpart of torch's WeightedRandomSampler.

    What position p of an epoch draws is a function of (seed, epoch, p), found in O(log n): there is
    no list of an epoch's indices and no limit on the number of weights. So the ranks share the
    positions out, a state is a position, and all else is as with `KeyedSampler`. The weights are
    kept as their sums, in 8 bytes each.

    As the sampler of a FastLoader it stands in for `seed=`. The loader takes a copy that is for its
    batches, so that `set_epoch` is to be called on the loader. Random transforms follow from seed,
    epoch and position: a sample that is drawn again in an epoch is cropped and flipped anew, and
    alike for any number of ranks and batch size, and after a resume. What fills up a last step
    repeats the start of the epoch in this, too.

    Args:
        weights: (n,), numbers of any scale: an array, a tensor, a memmap or a list. Sample i of the
            dataset is drawn with probability weights[i] / sum(weights), right to 2**-62. Those of
            weight 0 are never drawn.
        num_samples: Draws of all ranks in an epoch; None: n.
        seed: In [0, 2**64).
        batch_size: Samples of one rank's step; in a FastLoader, its `batch_size`.
        drop_last: Drop the last step where it is not full; in a FastLoader, its `drop_last`.
        shard: See `fastload.order.ranks.find_place`.
        tail: See `KeyedSampler`. A FastLoader's own `tail` and `drop_last` decide whether the last
            step is dropped; "mask" and "short" may be said here.

    Raises:
        ValueError: a weight is negative or not finite, none is above 0, or they are not of one
            dimension; another argument is none of these.
        TypeError: the weights are no numbers; another argument is no integer.

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
        """Draws of all ranks in an epoch."""
        return self._draws

    def check_rows(self, rows: int) -> None:
        """Raises ValueError unless a dataset of `rows` samples has as many as there are weights."""
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
