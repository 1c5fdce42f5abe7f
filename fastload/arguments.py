"""What the arguments of a FastLoader mean before torch's DataLoader sees them."""

from __future__ import annotations

from typing import Any

import torch.utils.data._utils.collate
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler
from torch.utils.data._utils.collate import default_collate_fn_map

from fastload.formats.extents import Extents
from fastload.order import ORDERS, KeyedSampler, block_rows

IO_KINDS = (None, "auto", "mmap", "pread")


def check_own(seed: Any, shard: Any, order: str, io: str | None) -> None:
    """Raises ValueError for what fastload's own arguments cannot be."""
    if order not in ORDERS:
        raise ValueError(f"order must be 'full' or 'block', not {order!r}")
    if io not in IO_KINDS:
        raise ValueError(f"io must be 'auto', 'mmap', 'pread' or None, not {io!r}")
    if seed is None and shard is not None:
        raise ValueError("shard= needs seed=: only the keyed order is shared out by itself")
    if seed is None and order != "full":
        raise ValueError(f"order={order!r} needs seed=")


def as_first_given(dataset: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments read from a loader's attributes, as they were when that loader was made.

    A loader's `vars()` hold both sampler and batch sampler, of which DataLoader takes one; tools
    that rebuild a loader pass them on.
    """
    sampler, batch_sampler = arguments["sampler"], arguments["batch_sampler"]
    if sampler is None:
        return arguments
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


def with_keyed_sampler(
    dataset: Any,
    arguments: dict[str, Any],
    native: Extents | None,
    *,
    seed: int | None,
    shard: Any,
    order: str,
) -> dict[str, Any]:
    """The arguments with a KeyedSampler as the sampler, where the order is keyed.

    Raises:
        ValueError: there is nothing to shuffle.
    """
    batch_size, drop_last = arguments["batch_size"], bool(arguments["drop_last"])
    # Sizes that are none are refused later, in torch's words.
    size = batch_size if type(batch_size) is int and batch_size > 0 else 1
    if type(arguments["sampler"]) is KeyedSampler:  # our own, handed back
        return arguments | {"sampler": arguments["sampler"].rebatched(size, drop_last)}
    explicit = arguments["sampler"] is not None or arguments["batch_sampler"] is not None
    if seed is None or explicit or isinstance(dataset, IterableDataset):
        return arguments
    shuffle = bool(arguments["shuffle"])
    if shuffle and len(dataset) == 0:
        raise ValueError("num_samples should be a positive integer value, but got num_samples=0")
    row_bytes = None if native is None else sum(field.row_bytes for field in native.fields)
    sampler = KeyedSampler(
        dataset,
        batch_size=size,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        shard=shard,
        order=order,
        block_rows=block_rows(row_bytes),
    )
    return arguments | {"sampler": sampler, "shuffle": None}


def collates_as_shipped() -> bool:
    """Whether nobody has told `default_collate` to treat some type in another way."""
    own = torch.utils.data._utils.collate.__name__
    return all(function.__module__ == own for function in default_collate_fn_map.values())
