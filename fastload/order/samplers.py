"""What a batch sampler is made of: its base sampler, generator, epoch and own state."""

from __future__ import annotations

import copy
from typing import Any, TypeGuard

import torch
from torch.utils.data import BatchSampler

from fastload.order.keyed_sampler import KeyedSampler
from fastload.order.torch_samplers import Draw
from fastload.order.weighted_sampler import WeightedSampler


def set_sampler_epoch(index_sampler: Any, saved: Draw | None) -> None:
    """Restores the epoch of a sampler that has one, such as DistributedSampler."""
    sampler, epoch = bottom(index_sampler), (saved or {}).get("sampler_epoch")
    if epoch is not None and hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


def sampler_draw(index_sampler: Any) -> Draw:
    """What the sampler itself says about the order that it will give next."""
    sampler, draw = bottom(index_sampler), Draw()
    if isinstance(sampler, KeyedSampler):  # it moves on by itself
        draw["sampler_epoch"] = sampler.next_epoch
    elif hasattr(sampler, "set_epoch") and isinstance(getattr(sampler, "epoch", None), int):
        draw["sampler_epoch"] = sampler.epoch
    if isinstance(getattr(sampler, "num_replicas", None), int):
        draw["world"] = sampler.num_replicas
    for candidate in (index_sampler, sampler):
        if is_stateful(candidate):
            draw["sampler_state"] = copy.deepcopy(candidate.state_dict())
            break
    return draw


def bottom(index_sampler: Any) -> Any:
    """The sampler under a batch sampler, if it has one."""
    below = getattr(index_sampler, "sampler", None)
    return index_sampler if below is None else below


def own_generator(sampler: Any) -> torch.Generator | None:
    """The generator that was given to a sampler, if it is one of torch's."""
    own = getattr(sampler, "generator", None)
    return own if isinstance(own, torch.Generator) else None


def is_stateful(sampler: Any) -> bool:
    """Whether the state of a sampler is saved and restored by its own methods."""
    # After an epoch torchdata's samplers say "at its end", and resume there: with nothing. The
    # loader counts as well as they do.
    if any(kind.__module__.startswith("torchdata.") for kind in type(sampler).__mro__):
        return False
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")


def is_own(sampler: Any) -> TypeGuard[KeyedSampler]:
    """Whether it is one of these samplers itself: a subclass may do anything."""
    return type(sampler) in (KeyedSampler, WeightedSampler)


def is_keyed(index_sampler: Any) -> bool:
    """Whether these batches are those of a KeyedSampler, or the sampler is one."""
    sampler = bottom(index_sampler)
    if not is_own(sampler):
        return False
    return index_sampler is sampler or (
        type(index_sampler) is BatchSampler
        and index_sampler.batch_size == sampler.batch_size
        and index_sampler.drop_last == sampler.drop_last
    )


def is_masked(loader: Any) -> bool:
    """Whether batches are to say which of their samples are real."""
    sampler = bottom(loader._index_sampler)
    if isinstance(sampler, KeyedSampler):
        return sampler.tail == "mask"
    return bool(loader.tail == "mask")
