"""The samplers of a loader: kind, base sampler, batches, generator, epoch and own state."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import torch
from torch.utils.data import BatchSampler

from fastload.order.keyed_sampler import KeyedSampler
from fastload.order.torch_samplers import OrderKey, is_stock
from fastload.order.weighted_sampler import WeightedSampler

Kind = Literal["seeded", "stock", "other"]


@dataclass(frozen=True)
class SamplerView:
    """Facts about the sampler that a loader iterates.

    A view stores nothing but the sampler and reads its attributes at each access: trainers replace
    the base sampler of a batch sampler, its generator and its epoch.

    Attributes:
        index_sampler: Yields batches of indices, or indices where the loader makes no batches.
    """

    index_sampler: Any

    @property
    def base(self) -> Any:
        """Sampler inside a batch sampler; the sampler itself if there is none inside."""
        inside = getattr(self.index_sampler, "sampler", None)
        return self.index_sampler if inside is None else inside

    @property
    def kind(self) -> Kind:
        """Who computes the order.

        - "seeded": the core; the batches are exactly those of a `KeyedSampler`.
        - "stock": `draw_order`, for a sampler of torch's own type, alone or in a `BatchSampler`.
        - "other": the sampler itself, which can only be iterated.
        """
        if self.seeded is not None:
            return "seeded"
        return "stock" if self._is_plain and is_stock(self.base) else "other"

    @property
    def seeded(self) -> KeyedSampler | None:
        """Base sampler if the batches are exactly those of it; None for other kinds."""
        own = self.own
        if own is None or self.index_sampler is own:
            return own
        same = self.batch_size == own.batch_size and self.drop_last == own.drop_last
        return own if self._is_plain and same else None

    @property
    def own(self) -> KeyedSampler | None:
        """Base sampler if it is one of fastload's, whatever makes batches of it; else None."""
        base = self.base
        return base if is_own(base) else None

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a full batch; None if the sampler does not have the attribute."""
        size = getattr(self.index_sampler, "batch_size", None)
        return size if isinstance(size, int) else None

    @property
    def drop_last(self) -> bool:
        """True if a last batch that is not full is dropped."""
        return bool(getattr(self.index_sampler, "drop_last", False))

    @property
    def step(self) -> int:
        """Number of samples in a full batch, of all ranks in a seeded order; 1 if unknown."""
        seeded = self.seeded
        if seeded is not None:
            return seeded.batch_size * seeded.num_replicas
        return self.batch_size or 1

    @property
    def generator(self) -> torch.Generator | None:
        """Generator that was given to the base sampler, if it is one of torch's."""
        own = getattr(self.base, "generator", None)
        return own if isinstance(own, torch.Generator) else None

    def adds_mask(self, tail: str | None) -> bool:
        """Returns whether batches report which of their samples are real.

        Args:
            tail: Tail of the loader; the tail of the base sampler takes precedence.
        """
        base = self.base
        return (base.tail if isinstance(base, KeyedSampler) else tail) == "mask"

    def order_key(self) -> OrderKey:
        """Returns what the samplers report about their next order: epoch, world size, state."""
        base, key = self.base, OrderKey()
        if isinstance(base, KeyedSampler):  # it counts its epochs itself
            key["sampler_epoch"] = base.next_epoch
        elif hasattr(base, "set_epoch") and isinstance(getattr(base, "epoch", None), int):
            key["sampler_epoch"] = base.epoch
        if isinstance(getattr(base, "num_replicas", None), int):
            key["world"] = base.num_replicas
        stateful = self._stateful
        if stateful is not None:
            key["sampler_state"] = copy.deepcopy(stateful.state_dict())
        return key

    def restore_epoch(self, key: OrderKey) -> None:
        """Restores the epoch of a base sampler that has one, such as DistributedSampler."""
        epoch = key.get("sampler_epoch")
        if epoch is not None and hasattr(self.base, "set_epoch"):
            self.base.set_epoch(epoch)

    def restore_state(self, key: OrderKey) -> None:
        """Restores the state of a sampler that has one, and the generator of the base sampler."""
        stateful, generator = self._stateful, self.generator
        if stateful is not None and "sampler_state" in key:
            stateful.load_state_dict(copy.deepcopy(key["sampler_state"]))
        if generator is not None and "generator" in key:
            generator.set_state(key["generator"])

    @property
    def _is_plain(self) -> bool:
        return self.index_sampler is self.base or type(self.index_sampler) is BatchSampler

    @property
    def _stateful(self) -> Any | None:
        """The sampler with `state_dict` and `load_state_dict`, batch sampler first; None: none."""
        return next(filter(_is_stateful, (self.index_sampler, self.base)), None)


def is_own(sampler: Any) -> TypeGuard[KeyedSampler]:
    """Returns whether a sampler is one of fastload's itself: a subclass may do anything."""
    return type(sampler) in (KeyedSampler, WeightedSampler)


def _is_stateful(sampler: Any) -> bool:
    # After an epoch the state of torchdata's samplers is the end of that epoch, and they resume
    # there, with no indices. The loader counts the batches of these instead.
    if any(kind.__module__.startswith("torchdata.") for kind in type(sampler).__mro__):
        return False
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
