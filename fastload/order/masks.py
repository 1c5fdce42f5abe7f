"""Which loaders have a keyed order, and which samples of their batches are real."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import _core
from fastload.order.sample_keys import keyed_indices
from fastload.order.samplers import bottom, is_keyed, is_own

Mask = npt.NDArray[np.bool_]


class Masks:
    """Says of each batch which samples are real: all but those that fill up a keyed order.

    Args:
        index_sampler: Gives the batches.
    """

    def __init__(self, index_sampler: Any) -> None:
        self._sampler = bottom(index_sampler)
        self._is_keyed = is_keyed(index_sampler)
        self._plan: _core.EpochPlan | None = None

    def begin(self) -> None:
        """The sampler begins another epoch."""
        self._plan = None

    def of(self, number: int, indices: Any) -> Mask:
        """Of a batch that was just pulled: bool (B,).

        Args:
            number: Of the batch in the whole epoch, or if that is keyed, in this iterator.
            indices: What the batch sampler gave.

        Raises:
            RuntimeError: a batch sampler around a KeyedSampler makes other batches than this.
        """
        if keyed := keyed_indices(indices):
            return np.array([index.is_real for index in keyed], np.bool_)
        if not is_own(self._sampler):
            return np.ones(len(indices), np.bool_)
        if self._plan is None:
            assert self._sampler.begun is not None
            self._plan = self._sampler.own_plan(self._sampler.begun)
        if not self._is_keyed and not self._is_batch(number, indices):
            raise RuntimeError(
                "tail='mask': the batch_sampler makes other batches of the sampler's indices, so "
                "that nobody knows which samples are real"
            )
        return real_samples(self._plan, number)

    def _is_batch(self, number: int, indices: Any) -> bool:
        assert self._plan is not None
        known = number < self._plan.batch_count
        return known and np.array_equal(self._plan.indices(number), indices)


def real_samples(plan: _core.EpochPlan, number: int) -> Mask:
    """Which samples of a batch are real: bool (B,), the first ones."""
    mask: Mask = np.arange(plan.batch_size(number)) < plan.real_count(number)
    return mask
