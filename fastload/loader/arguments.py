"""The arguments of a FastLoader, before torch's DataLoader sees them."""

from __future__ import annotations

import inspect
import math
import os
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from fastload.batch.sizes import sample_bytes
from fastload.datasets import file_datasets
from fastload.datasets.native import native_extents
from fastload.datasets.token_dataset import TokenDataset
from fastload.errors import warn
from fastload.formats.extents import Extents
from fastload.loader.collate_fn import Steps, split_collate_fn
from fastload.order.keyed_sampler import ORDERS, KeyedSampler, block_rows, resolved_tail
from fastload.order.samplers import is_own
from fastload.order.weighted_sampler import WeightedSampler

_SHUFFLED = "made_of_shuffle"
_MAX_THREADS_PER_CPU = 8  # more are a mistake; a few per CPU help with slow files

# Older torch lacks some arguments: they are accepted and not passed on.
_TORCH_ARGUMENTS = frozenset(inspect.signature(DataLoader.__init__).parameters)

OWN_ARGUMENTS = (
    "in_order",
    "seed",
    "shard",
    "order",
    "tail",
    "device",
    "io",
    "transforms",
    "verify",
    "on_error",
    "batch_transform",
    "static_buffers",
)
"""Arguments that are attributes of the loader under their names, and which torch does not set."""


@dataclass
class LoaderArguments:
    """The arguments of a FastLoader by name; as given, until `resolve` makes them consistent.

    Attributes:
        extents: Location of the samples, set by `resolve`; None if only Python can load them.
    """

    dataset: Any
    batch_size: Any
    shuffle: bool | None
    sampler: Any
    batch_sampler: Any
    num_workers: Any
    collate_fn: Any
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Any
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    seed: int | None
    shard: Any
    order: str
    tail: str | None
    device: Any
    io: str | None
    transforms: Any
    verify: str | None
    on_error: str
    batch_transform: Any
    static_buffers: bool
    extents: Extents | None = field(init=False, default=None)

    @classmethod
    def named(cls, values: dict[str, Any]) -> LoaderArguments:
        """Returns the arguments among the local variables of the loader's constructor."""
        return cls(*map(values.__getitem__, _NAMES))

    def resolve(self) -> None:
        """Merges the steps of `collate_fn`, opens a path, and makes or adapts the sampler.

        Arguments that were read from the attributes of another loader become those that the other
        loader was given.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: an argument has a value that is not allowed, or contradicts another one.
        """
        steps = Steps(
            self.transforms, self.device, self.batch_transform, self.on_error, self.verify
        )
        self.collate_fn, steps = split_collate_fn(self.collate_fn, steps)
        self.transforms, self.device = steps.transforms, steps.device
        self.batch_transform = steps.batch_transform
        self.on_error, self.verify = steps.on_error, steps.verify
        self._check_own()
        if isinstance(self.dataset, (str, bytes, os.PathLike)):
            io = self.io or "auto"
            self.dataset = file_datasets.open(self.dataset, io=io, verify=self.verify)
        self._check_counts()
        self._check_not_empty()
        self._undo_attributes()
        self.extents = native_extents(self.dataset)
        self._make_seeded_sampler()

    @property
    def has_threads(self) -> bool:
        """True if the workers of the loader are threads."""
        batched = self.batch_size is not None or self.batch_sampler is not None
        collates = self.collate_fn is None or self.collate_fn is default_collate
        return self.extents is not None and batched and collates

    @property
    def has_auto_workers(self) -> bool:
        """True if the loader chooses its number of threads."""
        return self.num_workers is None and self.has_threads

    def for_torch(self) -> dict[str, Any]:
        """Returns the arguments of DataLoader after the dataset."""
        made = {name: value for name, value in vars(self).items() if name in _TORCH_ARGUMENTS}
        del made["dataset"]
        if self.has_auto_workers:  # torch refuses these without workers
            made |= {"prefetch_factor": None, "persistent_workers": False}
        return made | {"num_workers": self.num_workers or 0}

    def own(self) -> dict[str, Any]:
        """Returns the values of `OWN_ARGUMENTS` by their names."""
        return {name: getattr(self, name) for name in OWN_ARGUMENTS}

    def _check_own(self) -> None:
        """Raises for values that the arguments of FastLoader itself cannot have."""
        if self.order not in ORDERS:
            raise ValueError(f"order must be 'full' or 'block', not {self.order!r}")
        if self.io is not None and self.io not in file_datasets.IO_KINDS:
            raise ValueError(f"io must be 'auto', 'mmap', 'pread' or None, not {self.io!r}")
        if self.seed is None and self.shard is not None:
            raise ValueError(
                "shard= is the sampler's: WeightedSampler(..., shard=)"
                if isinstance(self.sampler, WeightedSampler)
                else "shard= needs seed=: only the seeded order is sharded by FastLoader"
            )
        if self.seed is None and self.order != "full":
            raise ValueError(f"order={self.order!r} needs seed=")
        resolved_tail(self.tail, drop_last=False)
        is_seeded = self.seed is not None or isinstance(self.sampler, KeyedSampler)
        if self.tail is not None and not is_seeded:
            raise ValueError(
                f"tail={self.tail!r} needs seed=: torch's samplers have their own tails"
            )
        self._check_device()
        if self.batch_transform is not None and not callable(self.batch_transform):
            raise TypeError(
                f"batch_transform must be a function of a batch, not {self.batch_transform!r}"
            )

    def _check_device(self) -> None:
        if isinstance(self.device, str):
            try:
                torch.device(self.device)  # `iter()` checks that it exists
            except RuntimeError as error:
                raise ValueError(f"device={self.device!r}: {error}") from None
        if not self.static_buffers:
            return
        if self.device is None or torch.device(self.device).type == "cpu":
            raise ValueError(
                "static_buffers=True is for batches that are copied to a device: give device= as "
                "well"
            )
        if self.on_error == "skip":
            raise ValueError(
                "on_error='skip' makes batches smaller, which static_buffers=True does not allow: "
                "the addresses that a CUDA graph reads would hold samples of an earlier batch"
            )

    def _check_counts(self) -> None:
        """Raises for numbers that torch refuses only at `iter()`, with a less clear message."""
        if isinstance(self.num_workers, float) and self.num_workers > 0:
            raise TypeError(f"num_workers must be an integer, not {self.num_workers!r}")
        if isinstance(self.timeout, float) and math.isnan(self.timeout):
            raise ValueError("timeout must be 0 or a positive number of seconds, not nan")

    def _undo_attributes(self) -> None:
        """Removes what DataLoader adds to its arguments in its attributes.

        A loader has both a sampler and a batch sampler, of which DataLoader accepts one; tools that
        rebuild a loader pass both.
        """
        sampler, batch_sampler = self.sampler, self.batch_sampler
        if sampler is None:
            return
        if getattr(sampler, _SHUFFLED, False):
            self.shuffle = None
        if isinstance(self.dataset, IterableDataset):
            if type(sampler).__name__ == "_InfiniteConstantSampler":  # made by DataLoader
                self.sampler = self.batch_sampler = None
            return
        if type(batch_sampler) is BatchSampler and batch_sampler.sampler is sampler:
            same = (batch_sampler.batch_size, batch_sampler.drop_last)
            if same == (self.batch_size, self.drop_last):
                self.batch_sampler = None
                return
        # DataLoader has such a sampler as its attribute if it was given a batch sampler.
        dummy = type(sampler) is SequentialSampler and sampler.data_source is self.dataset
        if batch_sampler is not None and self.batch_size is None and dummy:
            self.batch_size, self.sampler = 1, None

    def _check_not_empty(self) -> None:
        """Raises, as torch does, or warns if a dataset of tokens has no window to load."""
        shortage = self.dataset.shortage if isinstance(self.dataset, TokenDataset) else None
        if shortage and self.shuffle:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples=0: {shortage}"
            )
        if shortage:
            warn(f"there are no batches: {shortage}")

    def _make_seeded_sampler(self) -> None:
        """Makes the KeyedSampler of a seeded order, or adapts a given one to the batch size."""
        # DataLoader refuses other values of batch_size later, with its own message.
        size = self.batch_size if type(self.batch_size) is int and self.batch_size > 0 else 1
        sampler, is_stream = self.sampler, isinstance(self.dataset, IterableDataset)
        if self.tail == "drop" and self.batch_sampler is None:
            self.drop_last = True
        if isinstance(sampler, WeightedSampler) and not is_stream:
            sampler.check_rows(len(self.dataset))
        if is_own(sampler):
            self.sampler = sampler.rebatched(size, bool(self.drop_last), self.tail)
            return
        if self.seed is None or is_stream or not (sampler is None and self.batch_sampler is None):
            return
        if self.shuffle and len(self.dataset) == 0:
            return  # DataLoader refuses it, after its other checks
        self.sampler = KeyedSampler(
            self.dataset,
            batch_size=size,
            shuffle=bool(self.shuffle),
            seed=self.seed,
            drop_last=bool(self.drop_last),
            shard=self.shard,
            order=self.order,
            block_rows=block_rows(None if self.extents is None else sample_bytes(self.extents)),
            tail=self.tail,
        )
        self.shuffle = None


_NAMES = tuple(each.name for each in fields(LoaderArguments) if each.init)


def mark_shuffled(loader: Any) -> None:
    """Marks a sampler that was made from `shuffle=True`: a rebuilt loader may be given both."""
    if loader.shuffle and type(loader.sampler) in (RandomSampler, KeyedSampler):
        setattr(loader.sampler, _SHUFFLED, True)


def check_prefetch(prefetch_factor: Any) -> None:
    """Checks `prefetch_factor` of a loader that chooses its number of threads.

    Raises:
        TypeError: `prefetch_factor` is not an integer.
        ValueError: `prefetch_factor` is not positive.
    """
    if isinstance(prefetch_factor, bool) or not hasattr(prefetch_factor, "__index__"):
        raise TypeError(f"prefetch_factor must be an integer, not {prefetch_factor!r}")
    if prefetch_factor < 1:
        raise ValueError(f"prefetch_factor must be at least 1, not {prefetch_factor}")


def pins(device_name: str, *, may_warn: bool) -> bool:
    """Returns True if batches can be pinned; warns with torch's message if they cannot.

    Args:
        device_name: `pin_memory_device` of the loader.
        may_warn: False if the warning was issued before.
    """
    if device_name and may_warn:
        warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the "
            f"device,ignore pin_memory_device='{device_name}'.",
        )
    accelerator = getattr(torch, "accelerator", torch.cuda)
    found = bool(accelerator.is_available())
    if not found and may_warn:
        warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device "
            "pinned memory won't be used.",
        )
    return found and not torch.backends.mps.is_available()


def warn_of_threads(num_workers: int, warned: set[str]) -> None:
    """Warns once of many more threads than CPUs."""
    if num_workers <= _MAX_THREADS_PER_CPU or "threads" in warned:
        return
    cpus = len(os.sched_getaffinity(0))
    if num_workers > _MAX_THREADS_PER_CPU * cpus:
        warned.add("threads")
        warn(
            f"num_workers={num_workers} threads load this dataset, and {cpus} CPUs run them; where "
            "num_workers is left out, there are at most 4"
        )


def warn_of_unused(loader: Any, warned: set[str]) -> None:
    """Warns once of arguments that have no effect on threads."""
    for name in ("worker_init_fn", "multiprocessing_context"):
        if getattr(loader, name) is not None and name not in warned:
            warned.add(name)
            warn(f"{name} is not used: threads, not processes, load this dataset")
