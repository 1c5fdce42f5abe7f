"""Why a loader's data are not native, warnings about slow data, and the repr of a loader."""

from __future__ import annotations

import math
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from fastload.datasets.file_datasets import Dataset
from fastload.datasets.mixture import Mixture
from fastload.datasets.native import holds_native_kinds, why_only_python
from fastload.errors import warn
from fastload.formats.columns import Column
from fastload.formats.extents import Extents
from fastload.loader.collate_fn import collates_as_shipped, inner_of, is_default
from fastload.order.keyed_sampler import KeyedSampler

_MB = 1e6


def why_not_collated(loader: Any) -> str | None:
    """Returns why the core cannot build a loader's batches of any dataset; None if it can."""
    if isinstance(loader.dataset, IterableDataset):
        return "dataset is an IterableDataset, whose samples are made by Python, one after another"
    if not loader._auto_collation:
        return "batch_size=None: samples are returned one by one, and native data come in batches"
    if not is_default(loader.collate_fn):
        return (
            f"collate_fn={_named(inner_of(loader.collate_fn))} makes the batches in Python; leave "
            "it out, and use transforms= or batch_transform= for what it does"
        )
    if not collates_as_shipped():
        return (
            "default_collate was changed (torch.utils.data._utils.collate.default_collate_fn_map), "
            "and native batches are those of the original one"
        )
    return None


def why_not_native(loader: Any) -> str | None:
    """See `FastLoader.why_not_native`."""
    return why_not_collated(loader) or why_only_python(loader.dataset)


def warn_of_slow_data(loader: Any, extents: Extents | None, warned: set[str]) -> None:
    """Warns once of data that load much more slowly than the user would expect.

    Args:
        loader: A FastLoader.
        extents: Where its samples lie; None if torch loads or collates them.
        warned: Warnings that were issued; grows.
    """
    if extents is not None:
        _warn_of_strides(extents, warned)
    elif (
        "not native" not in warned and loader._auto_collation and holds_native_kinds(loader.dataset)
    ):
        warned.add("not native")
        warn(
            "torch loads this dataset, much slower than native data are loaded: "
            f"{why_not_native(loader)}"
        )


def _warn_of_strides(extents: Extents, warned: set[str]) -> None:
    for group in extents.groups:
        for column in group.columns:
            if column.strides is None or "strides" in warned:
                continue
            pieces, shard = max((_pieces(column, s), s) for s in range(len(column.sources)))
            if pieces == 1:
                continue
            warned.add("strides")
            size, rows = column.row_bytes, int(group.shard_rows[shard])
            copy = f"{rows * size / _MB:,.1f} MB" if rows * size >= _MB / 10 else "less than 0.1 MB"
            warn(
                f"field {column.field.name!r} is not contiguous in memory: each sample is gathered "
                f"in {pieces:,} pieces of {size // pieces:,} bytes. A contiguous copy of the "
                f"field (.contiguous() of a tensor, np.ascontiguousarray of an array; {copy}) "
                "loads several times as fast"
            )


def _pieces(column: Column, shard: int) -> int:
    """Returns the number of separate blocks of memory of a row of a shard."""
    lengths, strides = list(column.field.shape), list(column.shard_strides(shard)[1:])
    dense = column.field.storage.itemsize
    while lengths and (lengths[-1] == 1 or strides[-1] == dense):
        dense *= lengths.pop()
        strides.pop()
    return math.prod(lengths)


def describe(loader: Any) -> str:
    """Returns the `repr` of a loader; never raises, even if its attributes are invalid."""
    kind = type(loader).__name__
    parts = []
    for part in (_data, _batches, _order, _settings, _loading):
        try:
            parts.append(part(loader))
        except Exception:
            parts.append("?")
    return f"{kind}({', '.join(filter(None, parts))})"


def _data(loader: Any) -> str:
    dataset = loader.dataset
    if isinstance(dataset, (Dataset, Mixture)):
        return repr(dataset)
    try:
        return f"{type(dataset).__name__} of {len(dataset):,} samples"
    except Exception:
        return type(dataset).__name__


def _batches(loader: Any) -> str:
    if loader.batch_size is not None:
        return f"batch_size={loader.batch_size}" + ", drop_last=True" * bool(loader.drop_last)
    if loader.batch_sampler is None:
        return "batch_size=None"
    return f"batch_sampler={type(loader.batch_sampler).__name__}"


def _order(loader: Any) -> str:
    if isinstance(loader.dataset, IterableDataset):
        return "order of the stream"
    sampler = loader._samplers.base
    if type(sampler) is KeyedSampler:
        shuffled = "shuffled" if sampler.shuffle else "in order"
        return f"{shuffled} by seed={sampler.seed}"
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        return "its order"
    known = {RandomSampler: "shuffled", SequentialSampler: "in order"}
    return known.get(type(sampler)) or f"sampler={type(sampler).__name__}"


def _settings(loader: Any) -> str:
    """Returns shard, tail, transforms, on_error and device where they differ from the default."""
    chosen = []
    if isinstance(loader.shard, tuple):
        chosen.append(f"shard={loader.shard}")
    if loader.tail is not None:
        chosen.append(f"tail={loader.tail!r}")
    if loader.transforms:
        chosen.append(f"transforms of {', '.join(map(str, loader.transforms))}")
    if loader.on_error != "raise":
        chosen.append(f"on_error={loader.on_error!r}")
    if loader.device is not None:
        chosen.append(f"device={str(loader.device)!r}")
    return ", ".join(chosen)


def _loading(loader: Any) -> str:
    reason = why_not_native(loader)
    count = loader.num_workers
    if reason is None:
        return f"native, {count} threads" if count != 1 else "native, 1 thread"
    return f"{count or 'no'} worker processes, not native: {reason}"


def _named(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__name__)
