"""Masks of batches: which samples are real, and which only fill up the last step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import _core
from fastload.order.sample_keys import keyed_indices
from fastload.order.samplers import SamplerView

Mask = npt.NDArray[np.bool_]


class Masks:
    """Masks of the batches of one sampler: all samples are real except those that fill up a step.

    Args:
        samplers: Samplers that yield the batches.
    """

    def __init__(self, samplers: SamplerView) -> None:
        self._sampler = samplers.own
        self._is_seeded = samplers.kind == "seeded"
        self._plan: _core.EpochPlan | None = None

    def start(self) -> None:
        """Called when the sampler starts another epoch."""
        self._plan = None

    def of(self, number: int, indices: Any) -> Mask:
        """Returns the mask of a batch that was just pulled: bool (B,).

        Args:
            number: Number of the batch: in this iterator if the order is seeded, else in the epoch.
            indices: The batch that the batch sampler yielded.

        Raises:
            RuntimeError: a batch sampler around a KeyedSampler yields other batches than this.
        """
        if keyed := keyed_indices(indices):
            return np.array([index.is_real for index in keyed], np.bool_)
        if self._sampler is None:
            return np.ones(len(indices), np.bool_)
        if self._plan is None:
            assert self._sampler.begun is not None
            self._plan = self._sampler.own_plan(self._sampler.begun)
        if not self._is_seeded and not _is_batch(self._plan, number, indices):
            raise RuntimeError(
                "tail='mask': the batch_sampler makes other batches of the sampler's indices, so "
                "that it is unknown which samples are real"
            )
        return real_samples(self._plan, number)


def _is_batch(plan: _core.EpochPlan, number: int, indices: Any) -> bool:
    return number < plan.batch_count and np.array_equal(plan.indices(number), indices)


def real_samples(plan: _core.EpochPlan, number: int) -> Mask:
    """Returns which samples of a batch are real, which are the first ones: bool (B,)."""
    mask: Mask = np.arange(plan.batch_size(number)) < plan.real_count(number)
    return mask
