"""What trainers of others do to a loader without saying so, and what to do instead."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import DistributedSampler

from fastload.errors import warn
from fastload.order import ranks
from fastload.order.samplers import SamplerView


def warn_of_replacement(loader: Any) -> None:
    """Warns where a trainer puts another loader in the place of a FastLoader.

    Args:
        loader: One whose data are native; its `__init__` calls this.
    """
    if _ray_would_replace(loader):
        warn(
            "Ray's prepare_data_loader puts a DataLoader, which is slower, in the place of a "
            "FastLoader that does not shard its data: with seed= it does, and stays; else give a "
            "DistributedSampler, or add_dist_sampler=False to prepare_data_loader",
        )
    if _is_ignites_copy(loader):
        warn(
            "Ignite's DeterministicEngine has rebuilt this FastLoader and finds its place by "
            "itself: do not save or load the loader's state there, call loader.set_epoch when an "
            "epoch starts, or take Engine and the loader's state",
        )


def warn_of_accelerate(loader: Any, said: set[str], is_shared_out: bool) -> None:
    """Warns once when Accelerate, which is about to prepare a loader, will do it no good.

    Args:
        loader: The loader.
        said: Warnings that were given; grows.
        is_shared_out: Accelerate leaves it as it is, for it shares itself out.
    """
    if "accelerate" not in sys.modules or "accelerate" in said:
        return
    said.add("accelerate")
    if is_shared_out or loader.is_native:
        what = (
            "does not see where the epochs of this FastLoader end"
            if is_shared_out
            else "puts a DataLoader, which is slower, in the place of this FastLoader"
        )
        warn(
            f"Accelerate {what}: prepare it by "
            "fastload.integrations.accelerate.prepare(accelerator, loader) before",
        )


def _ray_would_replace(loader: Any) -> bool:
    # Ray's workers have their process group before the training function begins.
    if "ray.train.torch" not in sys.modules or isinstance(loader.sampler, DistributedSampler):
        return False
    place = ranks.find_rank()
    return place.origin == "torch.distributed" and place.world > 1


def _is_ignites_copy(loader: Any) -> bool:
    samplers = SamplerView(loader.batch_sampler)
    made_by = type(samplers.index_sampler).__module__
    return made_by == "ignite.engine.deterministic" and samplers.own is not None
