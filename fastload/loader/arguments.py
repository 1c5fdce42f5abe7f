"""What the arguments of a FastLoader mean before torch's DataLoader sees them."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data._utils import collate

from fastload.batch.collate import batch_maker
from fastload.batch.sizes import sample_bytes
from fastload.batch.transforms import DecodeImage, Transforms, choices
from fastload.datasets.file_datasets import IO_KINDS
from fastload.datasets.token_dataset import TokenDataset
from fastload.errors import warn
from fastload.formats import checks
from fastload.formats.extents import Extents
from fastload.formats.structure import MISSING, REAL, with_added
from fastload.order.keyed_sampler import ORDERS, KeyedSampler, block_rows, resolved_tail
from fastload.order.samplers import bottom, is_masked, is_own
from fastload.order.weighted_sampler import WeightedSampler

_SHUFFLED = "made_of_shuffle"
_THREADS_PER_CPU = 8  # more are a mistake; some more than CPUs help where files are slow

# How torch ships it, unless somebody has been there before: then the modules of functions tell.
_COLLATE_MAP = dict(collate.default_collate_fn_map)


def check_own(
    seed: Any,
    shard: Any,
    order: str,
    tail: str | None,
    sampler: Any,
    io: str | None,
    device: Any,
    batch_transform: Any,
    static_buffers: Any,
    on_error: str,
) -> None:
    """Raises for what fastload's own arguments cannot be.

    Raises:
        ValueError: for a value that is none of those allowed.
        TypeError: `batch_transform` cannot be called.
    """
    if order not in ORDERS:
        raise ValueError(f"order must be 'full' or 'block', not {order!r}")
    if io is not None and io not in IO_KINDS:
        raise ValueError(f"io must be 'auto', 'mmap', 'pread' or None, not {io!r}")
    if seed is None and shard is not None:
        raise ValueError(
            "shard= is the sampler's: WeightedSampler(..., shard=)"
            if isinstance(sampler, WeightedSampler)
            else "shard= needs seed=: only the keyed order is shared out by itself"
        )
    if seed is None and order != "full":
        raise ValueError(f"order={order!r} needs seed=")
    resolved_tail(tail, drop_last=False)
    if tail is not None and seed is None and not isinstance(sampler, KeyedSampler):
        raise ValueError(f"tail={tail!r} needs seed=: torch's samplers have tails of their own")
    if isinstance(device, str):
        try:
            torch.device(device)  # whether it is there is asked when batches are copied
        except RuntimeError as error:
            raise ValueError(f"device={device!r}: {error}") from None
    if static_buffers and (device is None or torch.device(device).type == "cpu"):
        raise ValueError(
            "static_buffers=True is for batches that are copied to a device: give device= as well"
        )
    if static_buffers and on_error == "skip":
        raise ValueError(
            "on_error='skip' makes batches smaller, which static_buffers=True does not allow: the "
            "addresses that a CUDA graph reads would hold samples of an earlier batch"
        )
    if batch_transform is not None and not callable(batch_transform):
        raise TypeError(f"batch_transform must be a function of a batch, not {batch_transform!r}")


def check_counts(num_workers: Any, timeout: Any) -> None:
    """Raises for numbers that torch refuses at `iter()`, with less to go by.

    Raises:
        TypeError: `num_workers` is no integer.
        ValueError: `timeout` is not a number.
    """
    if isinstance(num_workers, float) and num_workers > 0:
        raise TypeError(f"num_workers must be an integer, not {num_workers!r}")
    if isinstance(timeout, float) and math.isnan(timeout):
        raise ValueError("timeout must be 0 or a positive number of seconds, not nan")


def check_prefetch(prefetch_factor: Any) -> None:
    """Raises for what `prefetch_factor` cannot be where `num_workers` is left out.

    Raises:
        TypeError: it is no integer.
        ValueError: it is not positive.
    """
    if isinstance(prefetch_factor, bool) or not hasattr(prefetch_factor, "__index__"):
        raise TypeError(f"prefetch_factor must be an integer, not {prefetch_factor!r}")
    if prefetch_factor < 1:
        raise ValueError(f"prefetch_factor must be at least 1, not {prefetch_factor}")


def check_reading(
    verify: str | None,
    on_error: str,
    dataset: Any,
    extents: Extents | None,
    transforms: Transforms | None,
) -> Extents | None:
    """The extents with the blocks that are to be checked.

    Args:
        verify: As given.
        on_error: As given.
        dataset: The dataset.
        extents: Where its samples lie; None if torch loads or collates it.
        transforms: Of its fields.

    Raises:
        ValueError: for what cannot be done with such data.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', not {on_error!r}")
    if extents is None:
        if on_error == "skip" or (verify is not None and getattr(dataset, "verify", 0) != verify):
            raise ValueError(
                "verify= and on_error= are for native data in batches, without a collate_fn: see "
                "fastload.open; a dataset that was opened with verify= checks itself"
            )
        return None
    extents = checks.lazily(extents) if verify == "lazy" else extents
    if on_error == "skip" and not checks.has_checksums(extents, lazy=True):
        ragged = choices(transforms, extents.fields).ragged
        if not any(isinstance(transform, DecodeImage) for transform in ragged.values()):
            raise ValueError(
                "on_error='skip' leaves out samples that do not fit their checksums, which needs "
                "packed data and verify='lazy', and samples whose images cannot be decoded, which "
                "needs DecodeImage in transforms="
            )
    if on_error == "skip":
        with_added(extents.structure, MISSING, 0)
    return extents


def check_not_empty(dataset: Any, shuffle: bool | None) -> None:
    """Raises ValueError, as torch does, where no window of tokens can be shuffled, or warns."""
    shortage = dataset.shortage if isinstance(dataset, TokenDataset) else None
    if shortage and shuffle:
        raise ValueError(
            f"num_samples should be a positive integer value, but got num_samples=0: {shortage}"
        )
    if shortage:
        warn(f"there are no batches: {shortage}")


def check_transforms(transforms: Any, extents: Extents | None) -> None:
    """Raises ValueError for transforms that do not fit the data.

    Args:
        transforms: As given.
        extents: Of the dataset; None if torch loads or collates it.
    """
    if transforms is None:
        return
    if extents is None:
        raise ValueError(
            "transforms= are for native data in batches, without a collate_fn: see fastload.open; "
            "torch's own iterators hand the samples to the collate_fn as they are"
        )
    batch_maker(extents, transforms)


def as_first_given(dataset: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments read from a loader's attributes, as they were when that loader was made.

    A loader's `vars()` hold both sampler and batch sampler, of which DataLoader takes one; tools
    that rebuild a loader pass them on.
    """
    sampler, batch_sampler = arguments["sampler"], arguments["batch_sampler"]
    if sampler is None:
        return arguments
    if getattr(sampler, _SHUFFLED, False):
        arguments = arguments | {"shuffle": None}
    if isinstance(dataset, IterableDataset):
        made_by_torch = type(sampler).__name__ == "_InfiniteConstantSampler"
        return arguments | ({"sampler": None, "batch_sampler": None} if made_by_torch else {})
    if type(batch_sampler) is BatchSampler and batch_sampler.sampler is sampler:
        same = (batch_sampler.batch_size, batch_sampler.drop_last)
        if same == (arguments["batch_size"], arguments["drop_last"]):
            return arguments | {"batch_sampler": None}
    # What DataLoader shows as the sampler beside a batch sampler.
    dummy = type(sampler) is SequentialSampler and sampler.data_source is dataset
    if batch_sampler is not None and arguments["batch_size"] is None and dummy:
        return arguments | {"batch_size": 1, "sampler": None}
    return arguments


def mark_shuffled(loader: Any) -> None:
    """Marks a sampler that was made of `shuffle=True`: a loader may be rebuilt with both."""
    if loader.shuffle and type(loader.sampler) in (RandomSampler, KeyedSampler):
        setattr(loader.sampler, _SHUFFLED, True)


def with_keyed_sampler(
    dataset: Any,
    arguments: dict[str, Any],
    native: Extents | None,
    *,
    seed: int | None,
    shard: Any,
    order: str,
    tail: str | None,
) -> dict[str, Any]:
    """The arguments with a KeyedSampler as the sampler, where the order is keyed."""
    batch_size, drop_last = arguments["batch_size"], bool(arguments["drop_last"])
    # Sizes that are none are refused later, in torch's words.
    size = batch_size if type(batch_size) is int and batch_size > 0 else 1
    sampler, batch_sampler = arguments["sampler"], arguments["batch_sampler"]
    if tail == "drop" and batch_sampler is None:
        drop_last = arguments["drop_last"] = True
    if isinstance(sampler, WeightedSampler) and not isinstance(dataset, IterableDataset):
        sampler.check_rows(len(dataset))
    if is_own(sampler):
        return arguments | {"sampler": sampler.rebatched(size, drop_last, tail)}
    explicit = sampler is not None or batch_sampler is not None
    if seed is None or explicit or isinstance(dataset, IterableDataset):
        return arguments
    shuffle = bool(arguments["shuffle"])
    if shuffle and len(dataset) == 0:
        return arguments  # torch refuses it, after all that it refuses before
    row_bytes = None if native is None else sample_bytes(native)
    sampler = KeyedSampler(
        dataset,
        batch_size=size,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        shard=shard,
        order=order,
        block_rows=block_rows(row_bytes),
        tail=tail,
    )
    return arguments | {"sampler": sampler, "shuffle": None}


def check_masked(loader: Any, extents: Extents | None) -> None:
    """Raises ValueError where batches cannot say which of their samples are real, but should.

    Args:
        loader: With its samplers.
        extents: Of its dataset; None if torch loads or collates it.
    """
    if not is_masked(loader):
        return
    if not loader._auto_collation:
        raise ValueError("tail='mask' needs batch_size: it adds a member to each batch")
    sampler = bottom(loader._index_sampler)
    if isinstance(sampler, DistributedSampler) and not is_own(sampler):
        kind = type(sampler).__name__
        raise ValueError(f"tail='mask': {kind} does not say which of its samples are real")
    if extents is not None:
        with_added(extents.structure, REAL, 0)


def collates_as_shipped() -> bool:
    """Whether nobody has told `default_collate` to treat some type in another way."""
    functions = collate.default_collate_fn_map
    return functions == _COLLATE_MAP and all(
        function.__module__ == collate.__name__ for function in functions.values()
    )


def pins(device_name: str, *, may_warn: bool) -> bool:
    """Whether batches can be pinned; warns in torch's words where they cannot be.

    Args:
        device_name: What `pin_memory_device` says.
        may_warn: Whether it has not been said before.
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


def warn_of_threads(num_workers: int, said: set[str]) -> None:
    """Warns, once, of many more threads than CPUs."""
    if num_workers <= _THREADS_PER_CPU or "threads" in said:
        return
    cpus = len(os.sched_getaffinity(0))
    if num_workers > _THREADS_PER_CPU * cpus:
        said.add("threads")
        warn(
            f"num_workers={num_workers} threads load this dataset, and {cpus} CPUs run them; where "
            "num_workers is left out, there are at most 4"
        )


def warn_of_unused(loader: Any, said: set[str]) -> None:
    """Warns, once, of arguments that mean nothing to threads."""
    for name in ("worker_init_fn", "multiprocessing_context"):
        if getattr(loader, name) is not None and name not in said:
            said.add(name)
            warn(f"{name} is not used: threads, not processes, load this dataset")
