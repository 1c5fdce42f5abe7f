"""Warnings of trainers that replace a loader silently; each names an alternative."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import DistributedSampler

from fastload.errors import warn
from fastload.order import ranks
from fastload.order.samplers import SamplerView


def warn_of_replacement(loader: Any) -> None:
    """Warns if a trainer replaces a FastLoader by another loader.

    Args:
        loader: A loader of native data; its constructor calls this function.
    """
    if _ray_would_replace(loader):
        warn(
            "Ray's prepare_data_loader puts a DataLoader, which is slower, in the place of a "
            "FastLoader that does not shard its data: with seed= it does, and is kept; else "
            "give a DistributedSampler, or add_dist_sampler=False to prepare_data_loader",
        )
    if _is_ignites_copy(loader):
        warn(
            "Ignite's DeterministicEngine has rebuilt this FastLoader and tracks the position "
            "itself: do not save or load the loader's state there, call loader.set_epoch when an "
            "epoch starts, or use Engine and the loader's state",
        )


def warn_of_accelerate(loader: Any, warned: set[str], shards: bool) -> None:
    """Warns once if Accelerate prepares a loader in a way that loses its speed or its position.

    Args:
        loader: The loader.
        warned: Warnings that were issued; grows.
        shards: True if the loader shards its data, so that Accelerate leaves it unchanged.
    """
    if "accelerate" not in sys.modules or "accelerate" in warned:
        return
    warned.add("accelerate")
    if shards or loader.is_native:
        what = (
            "does not see where the epochs of this FastLoader end"
            if shards
            else "puts a DataLoader, which is slower, in the place of this FastLoader"
        )
        warn(
            f"Accelerate {what}: prepare it by "
            "fastload.integrations.accelerate.prepare(accelerator, loader) before",
        )


def _ray_would_replace(loader: Any) -> bool:
    # Ray's workers have their process group before the training function starts.
    if "ray.train.torch" not in sys.modules or isinstance(loader.sampler, DistributedSampler):
        return False
    place = ranks.find_rank()
    return place.origin == "torch.distributed" and place.world > 1


def _is_ignites_copy(loader: Any) -> bool:
    samplers = SamplerView(loader.batch_sampler)
    made_by = type(samplers.index_sampler).__module__
    return made_by == "ignite.engine.deterministic" and samplers.own is not None
