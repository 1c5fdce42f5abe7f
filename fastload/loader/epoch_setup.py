"""What a native iterator is given, made of a loader's attributes whenever one begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from fastload import _core
from fastload.batch.collate import pinner
from fastload.batch.device_fields import RawFields
from fastload.batch.sizes import delivered_bytes
from fastload.batch.transforms import Transforms, choices
from fastload.datasets.native import native_extents
from fastload.device.prefetcher import Target
from fastload.formats.extents import Extents
from fastload.formats.structure import MISSING, REAL, map_leaves
from fastload.loader.arguments import check_prefetch, check_reading, check_transforms, pins
from fastload.loader.collate_fn import BatchCollate
from fastload.loader.explain import why_not_collated
from fastload.loader.handover import BatchTransform
from fastload.loader.resources import Chosen, Kept
from fastload.order.position import Bookmark
from fastload.order.samplers import bottom, is_keyed, is_masked

_DEPTH_BYTES = 64 << 20
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Run:
    """What an iterator needs of its loader.

    Attributes:
        extents: Where the samples lie.
        transforms: Of its fields.
        table: The same for the core.
        io: How its files are read.
        pool: Memory that outlives the iterator.
        stats: Counts what is loaded.
        index_sampler: Gives batches of indices.
        mark: Is told when the epoch begins.
        generator: For torch's base seed.
        draws_base_seed: Whether that is drawn at all.
        seed: Of what is drawn for each sample; None: torch's base seed.
        worker_rules: torch's number of workers, which says when indices are drawn.
        pulls_ahead: Batches of indices that torch draws before the first batch is asked for.
        threads: The engine's.
        depth: Batches that the engine keeps ready.
        timeout: Seconds to wait for a batch; 0 for ever.
        fetch: Loads a batch of indices that only the dataset understands, as torch does.
        pin: Copy batches to pinned memory.
        target: Where batches are brought; None: they stay.
        raw: The fields that are gathered as they are stored.
        batch_transform: Applied to each batch that is handed out.
        on_error: "skip" leaves out damaged samples, "raise" raises.
        added: What batches hold beside their fields.
        said: Warnings that were given; grows.
    """

    extents: Extents
    transforms: Transforms
    table: _core.Table
    io: str
    pool: _core.SlotPool
    stats: _core.LoadStats
    index_sampler: Any
    mark: Bookmark
    generator: torch.Generator | None
    draws_base_seed: bool
    seed: int | None
    worker_rules: int
    pulls_ahead: int
    threads: int
    depth: int
    timeout: float
    fetch: Callable[[list[Any]], Any]
    pin: bool
    target: Target | None
    raw: RawFields
    batch_transform: BatchTransform | None
    on_error: str
    added: tuple[str, ...]
    said: set[str]


def collated_extents(loader: Any) -> Extents | None:
    """Where the samples of a loader lie, if the core can load and collate them."""
    return native_extents(loader.dataset) if why_not_collated(loader) is None else None


def checked_extents(loader: Any) -> Extents | None:
    """The same, with the blocks that are to be checked.

    Raises:
        ValueError: the loader's arguments do not fit its data.
    """
    extents = collated_extents(loader)
    check_transforms(loader.transforms, extents)
    how = loader.verify, loader.on_error, loader.dataset
    return check_reading(*how, extents, loader.transforms)


def make_run(
    loader: Any, extents: Extents, kept: Kept, chosen: Chosen, mark: Bookmark, *, is_new: bool
) -> Run:
    """What the next iterator of a loader over these extents needs.

    Args:
        loader: Whose public attributes say what is wanted.
        extents: See `checked_extents`.
        kept: Of the loader.
        chosen: Of the loader.
        mark: Of the loader.
        is_new: Whether an iterator is made; else one begins again.
    """
    sampler, workers = loader._index_sampler, loader.num_workers
    is_auto = workers == chosen.workers
    transforms = loader.transforms or {}
    size = getattr(sampler, "batch_size", None)
    target = kept.target(loader.device, static=loader.static_buffers)
    raw = raw_fields(target, extents, transforms)
    sample_bytes = delivered_bytes(extents, transforms) - raw.spared_bytes
    batch_bytes = sample_bytes * (size if isinstance(size, int) else 1)
    prefetch = 2 if loader.prefetch_factor is None else loader.prefetch_factor
    depth = default_depth(batch_bytes, workers)
    if loader.prefetch_factor != chosen.prefetch:
        if is_auto:
            check_prefetch(prefetch)
        depth = max(1, prefetch * workers)
    pin = loader.pin_memory and pins(loader.pin_memory_device, may_warn=is_new)
    if target is not None and target.pool is not None:
        pin = False  # it is pinned, for us alone
        target.reserve(batch_bytes, depth)
    return Run(
        extents=extents,
        transforms=transforms,
        table=kept.tables.get(loader.dataset, extents, loader.io),
        io=loader.io or getattr(loader.dataset, "io", "auto"),
        pool=(target and target.pool) or kept.pool,
        stats=kept.stats,
        index_sampler=sampler,
        mark=mark,
        generator=loader.generator,
        draws_base_seed=not is_keyed(sampler) and not mark.has_base_seed,
        seed=bottom(sampler).seed if is_keyed(sampler) else loader.seed,
        worker_rules=0 if is_auto else workers,
        pulls_ahead=0 if is_auto else workers * prefetch,
        threads=workers,
        depth=depth,
        timeout=loader.timeout,
        fetch=partial(fetch_by_python, loader.dataset, loader.collate_fn, pin=pin),
        pin=pin,
        target=target,
        raw=raw,
        batch_transform=loader.batch_transform,
        on_error=loader.on_error,
        added=(MISSING,) * (loader.on_error == "skip") + (REAL,) * is_masked(loader),
        said=kept.said,
    )


def raw_fields(target: Target | None, extents: Extents, transforms: Transforms) -> RawFields:
    """The fields that a device delivers, of what is stored."""
    if target is None:
        return RawFields()
    return RawFields(extents.fields, choices(transforms, extents.fields).pixels, target.runs)


def fetch_by_python(dataset: Any, collate_fn: Any, indices: list[Any], *, pin: bool) -> Any:
    """The batch that torch's iterators would load and collate, with the transforms of its fields.

    Raises:
        RuntimeError: the dataset raised StopIteration, which would end the epoch.
        Exception: what the dataset raised.
    """
    has_transforms = isinstance(collate_fn, BatchCollate) and collate_fn.steps.transforms
    collate = collate_fn.collate if has_transforms else default_collate
    many = getattr(dataset, "__getitems__", None)
    try:
        batch = collate(many(indices) if many else [dataset[index] for index in indices])
    except StopIteration as stop:
        raise RuntimeError("the dataset raised StopIteration") from stop
    if not pin:
        return batch
    pinned = pinner()
    return map_leaves(lambda leaf: pinned(leaf) if torch.is_tensor(leaf) else leaf, batch)


def default_depth(batch_bytes: int, threads: int) -> int:
    """Batches to keep ready: 64 MiB of them, but enough for every thread, and at most 64."""
    return max(2, threads + 1, min(_MAX_DEPTH, _DEPTH_BYTES // max(1, batch_bytes)))
