"""Snapshot of a loader's settings, from which a native iterator starts an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from fastload import _core
from fastload.batch.collate import pinner
from fastload.batch.device_fields import DeviceFields
from fastload.batch.plan import BatchPlan
from fastload.datasets.native import native_extents
from fastload.device.prefetcher import Target
from fastload.formats.extents import Extents
from fastload.formats.structure import map_leaves
from fastload.loader.arguments import check_prefetch, pins
from fastload.loader.collate_fn import BatchCollate
from fastload.loader.explain import why_not_collated
from fastload.loader.handover import BatchTransform
from fastload.loader.plan_settings import PlanSettings
from fastload.loader.resources import AutoDefaults, LoaderResources
from fastload.order.position import Epochs
from fastload.order.samplers import SamplerView

_DEPTH_BYTES = 64 << 20
_MAX_DEPTH = 64


@dataclass(frozen=True)
class FeedSettings:
    """Settings of the index feed, and of the random numbers that depend on it.

    Attributes:
        samplers: Samplers of the loader.
        epochs: Epochs of the loader; the feed starts the next one.
        generator: Generator of torch's base seed.
        draws_base_seed: True if a new iterator draws that seed, as DataLoader does.
        seed: Seed of random transforms; None: torch's base seed.
        torch_workers: Number of workers of the DataLoader whose times of drawing indices the feed
            reproduces; 0: each batch is drawn in `next()`.
        batches_ahead: Batches of indices that such a DataLoader draws before the first `next()`.
    """

    samplers: SamplerView
    epochs: Epochs
    generator: torch.Generator | None
    draws_base_seed: bool
    seed: int | None
    torch_workers: int
    batches_ahead: int


@dataclass(frozen=True)
class EngineResources:
    """Memory, threads and counters of the engine.

    Attributes:
        table: The core's view of the dataset.
        io: How files are read.
        pool: Memory of batches; outlives the iterator.
        stats: Counters; outlive the iterator.
        threads: Number of worker threads.
        depth: Number of batches that the engine keeps ready.
        warned: Warnings that were issued; grows.
    """

    table: _core.Table
    io: str
    pool: _core.SlotPool
    stats: _core.LoadStats
    threads: int
    depth: int
    warned: set[str]


@dataclass(frozen=True)
class DeviceSettings:
    """Where batches are copied.

    Attributes:
        target: The device; None: batches stay on the host.
        fields: Fields that the device converts.
    """

    target: Target | None
    fields: DeviceFields


@dataclass(frozen=True)
class Delivery:
    """How batches reach the consumer.

    Attributes:
        timeout_s: Seconds to wait for a batch; 0: no limit.
        pin: Copy batches to pinned memory.
        on_error: "skip" leaves out damaged samples, "raise" raises.
        fetch: Loads a batch of non-integer indices from the dataset, as DataLoader does.
        batch_transform: Applied to each batch before it is delivered.
    """

    timeout_s: float
    pin: bool
    on_error: str
    fetch: Callable[[list[Any]], Any]
    batch_transform: BatchTransform | None


@dataclass(frozen=True)
class EpochSetup:
    """Snapshot of a loader's settings for one epoch of a native iterator.

    Attributes:
        plan: Fields that the engine gathers, and how they are collated.
        feed: Which indices are loaded, and when they are drawn.
        resources: Memory, threads and counters of the engine.
        device: Where batches are copied.
        delivery: How batches reach the consumer.
    """

    plan: BatchPlan
    feed: FeedSettings
    resources: EngineResources
    device: DeviceSettings
    delivery: Delivery


def current_plan(loader: Any, resources: LoaderResources) -> BatchPlan | None:
    """Returns the plan of a loader's dataset as it is now; None if torch loads or collates it.

    Args:
        loader: The loader.
        resources: Its resources.

    Raises:
        ValueError: an argument of the loader does not fit its data.
    """
    extents = native_extents(loader.dataset) if why_not_collated(loader) is None else None
    return plan_of(loader, resources, extents)


def plan_of(loader: Any, resources: LoaderResources, extents: Extents | None) -> BatchPlan | None:
    """Returns the plan of a dataset that was read just now; see `current_plan`.

    Args:
        loader: The loader.
        resources: Its resources.
        extents: Location of the samples; None if torch loads or collates them.
    """
    settings = PlanSettings.of(loader)
    if extents is None:
        settings.check_unplanned(loader.dataset)
        return None
    return resources.dataset.plan(extents, settings)


def make_setup(
    loader: Any,
    plan: BatchPlan,
    resources: LoaderResources,
    defaults: AutoDefaults,
    *,
    is_new: bool,
) -> EpochSetup:
    """Returns the setup of the next epoch of a loader.

    Args:
        loader: Its public attributes are the settings.
        plan: See `current_plan`.
        resources: The resources of the loader.
        defaults: The values that the loader chose itself.
        is_new: True for a new iterator, False for a persistent one that restarts.

    Raises:
        RuntimeError: torch cannot use the loader's device.
    """
    samplers, epochs, workers = loader._samplers, loader._epochs, loader.num_workers
    seeded = samplers.seeded
    prefetch = 2 if loader.prefetch_factor is None else loader.prefetch_factor
    is_auto = workers == defaults.workers
    has_prefetch = loader.prefetch_factor != defaults.prefetch
    if has_prefetch and is_auto:
        check_prefetch(prefetch)
    target = resources.target(loader.device, static=loader.static_buffers)
    device_fields = _device_fields(plan, target)
    batch_bytes = plan.delivered_bytes - device_fields.spared_bytes
    batch_bytes *= samplers.batch_size or 1
    depth = max(1, prefetch * workers) if has_prefetch else default_depth(batch_bytes, workers)
    pin = loader.pin_memory and pins(loader.pin_memory_device, may_warn=is_new)
    if target is not None and target.pool is not None:
        pin = False  # the pool is pinned memory, which only this loader uses
        target.reserve(batch_bytes, depth)
    return EpochSetup(
        plan=plan,
        feed=FeedSettings(
            samplers=samplers,
            epochs=epochs,
            generator=loader.generator,
            draws_base_seed=seeded is None and not epochs.has_base_seed,
            seed=loader.seed if seeded is None else seeded.seed,
            torch_workers=0 if is_auto else workers,
            batches_ahead=0 if is_auto else workers * prefetch,
        ),
        resources=EngineResources(
            table=resources.dataset.table(loader.dataset, plan, loader.io),
            io=loader.io or getattr(loader.dataset, "io", "auto"),
            pool=(target and target.pool) or resources.pool,
            stats=resources.stats,
            threads=workers,
            depth=depth,
            warned=resources.warned,
        ),
        device=DeviceSettings(target, device_fields),
        delivery=Delivery(
            timeout_s=loader.timeout,
            pin=pin,
            on_error=loader.on_error,
            fetch=partial(fetch_by_python, loader.dataset, loader.collate_fn, pin=pin),
            batch_transform=loader.batch_transform,
        ),
    )


def _device_fields(plan: BatchPlan, target: Target | None) -> DeviceFields:
    if target is None:
        return DeviceFields()
    return DeviceFields(plan.fields, plan.choices.pixels, target.runs)


def fetch_by_python(dataset: Any, collate_fn: Any, indices: list[Any], *, pin: bool) -> Any:
    """Loads and collates a batch as torch's iterators do, and applies the fields' transforms.

    Raises:
        RuntimeError: the dataset raised StopIteration, which would end the epoch.
        Exception: any other error of the dataset.
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
    """Returns the number of batches to keep ready.

    They fill 64 MiB; there are at least 2 and one per thread and the consumer, at most 64.
    """
    return max(2, threads + 1, min(_MAX_DEPTH, _DEPTH_BYTES // max(1, batch_bytes)))
