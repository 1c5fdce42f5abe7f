"""Which datasets the core can read by itself."""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from fastload.array_dataset import ArrayDataset
from fastload.dataset import FileDataset, PackedDataset
from fastload.formats import arrays, combine
from fastload.formats.extents import Column, Extents, Group, Int64Array
from fastload.mixture import Mixture
from fastload.tokens import TokenDataset
from fastload.transforms import DecodeImage, Transforms, choices

_DECODED = 10  # times the bytes of an image that is not resized: what JPEG saves


def native_extents(dataset: Any) -> Extents | None:
    """Where the samples of a dataset lie, or None if only Python can load them.

    Types count exactly: a subclass may do anything. What the dataset holds is read at each call,
    because the user may have replaced it; files are not touched.
    """
    read = _READERS.get(type(dataset))
    # Loaders prefer `__getitems__`, which may also sit on the instance.
    if read is None or "__getitems__" in vars(dataset):
        return None
    extents: Extents | None = read(dataset)
    return extents


def sample_bytes(extents: Extents) -> int:
    """Bytes that a sample has in memory; of ragged fields those of a mean sample."""
    return sum(_column_bytes(group, column) for group in extents.groups for column in group.columns)


def delivered_bytes(extents: Extents, transforms: Transforms) -> int:
    """The same as it is delivered; of images that are decoded, with what they are decoded from."""
    chosen, stored = choices(transforms, extents.fields), sample_bytes(extents)
    total = stored
    for field in extents.fields:
        image, pixels = chosen.ragged.get(field.name), chosen.pixels.get(field.name)
        if isinstance(image, DecodeImage):
            total += (pixels.out_bytes if pixels else image.image_bytes) or stored * _DECODED
        elif pixels:
            total += pixels.out_bytes - field.row_bytes
    return total


def _column_bytes(group: Group, column: Column) -> int:
    row_bytes = column.field.row_bytes
    if column.bounds is None:
        return row_bytes
    rows = max(1, int(group.shard_rows.sum()))
    return row_bytes * max(1, int(column.bounds.totals.sum()) // rows)


def fingerprint(dataset: Any) -> str:
    """What a loader's state remembers of any dataset, to refuse another one."""
    if isinstance(dataset, Mixture):
        parts = list(map(fingerprint, dataset.datasets))
        told = [parts, dataset.sizes, dataset.weights, dataset.seed, dataset.exhausted]
        digest = hashlib.sha256(json.dumps([*told, dataset.samples]).encode())
        return f"sha256:{digest.hexdigest()}"
    extents = native_extents(dataset)
    if extents is not None:
        return extents.fingerprint()
    try:
        return f"rows:{len(dataset)}"
    except TypeError:
        return "rows:unknown"


def _from_own(dataset: Any) -> Extents:
    extents: Extents = dataset.extents
    return extents


def _from_tensors(dataset: TensorDataset) -> Extents | None:
    parts = []
    for number, tensor in enumerate(dataset.tensors):
        if type(tensor) is not torch.Tensor or tensor.ndim == 0:
            return None
        try:
            array, dtype = arrays.tensor_array(tensor, str(number))
        except (TypeError, RuntimeError):  # RuntimeError: no memory that numpy could see
            return None
        parts.append(arrays.read_extents(array, str(number), dtype))
    return _stacked(tuple(parts))


def _from_subset(dataset: Subset[Any]) -> Extents | None:
    whole = native_extents(dataset.dataset)
    indices = None if whole is None else _integers(dataset.indices)
    if whole is None or indices is None:
        return None
    rows = whole.rows
    if len(indices) and not -rows <= indices.min() <= indices.max() < rows:
        return None  # raises when that sample is asked for, and only then
    return whole.take(np.where(indices < 0, indices + rows, indices))


def _from_concat(dataset: ConcatDataset[Any]) -> Extents | None:
    datasets: list[Any] = dataset.datasets
    if list(itertools.accumulate(map(len, datasets))) != dataset.cumulative_sizes:
        return None  # a part has grown since; torch goes by the lengths of old
    # Empty parts deliver nothing, so they need not agree with the others.
    filled = [part for part in datasets if len(part)] or datasets[:1]
    parts = _all_native(filled)
    try:
        return None if parts is None else combine.concatenate(parts)
    except ValueError:
        return None


def _from_mixture(dataset: Mixture) -> Extents | None:
    parts = _all_native(dataset.datasets)
    if parts is None or [part.rows for part in parts] != dataset.sizes:
        return None  # one has grown or shrunk since
    try:
        return replace(combine.concatenate(parts), mixed=dataset.index_map)
    except ValueError:
        return None


def _from_stack(dataset: StackDataset[Any]) -> Extents | None:
    datasets: dict[str, Any] | tuple[Any, ...] = dataset.datasets
    named = isinstance(datasets, dict)
    parts = _all_native(datasets.values() if isinstance(datasets, dict) else datasets)
    if not parts or parts[0].rows != len(dataset):
        return None
    return _stacked(dict(zip(datasets, parts, strict=True)) if named else tuple(parts))


def _all_native(datasets: Iterable[Any]) -> list[Extents] | None:
    found = []
    for dataset in datasets:
        extents = native_extents(dataset)
        if extents is None:
            return None
        found.append(extents)
    return found


def _stacked(parts: Any) -> Extents | None:
    try:
        return combine.stack(parts)
    except ValueError:  # of unequal length
        return None


_READERS: dict[type, Any] = {
    FileDataset: _from_own,
    PackedDataset: _from_own,
    ArrayDataset: _from_own,
    TensorDataset: _from_tensors,
    Subset: _from_subset,
    ConcatDataset: _from_concat,
    StackDataset: _from_stack,
    Mixture: _from_mixture,
    TokenDataset: _from_own,
}


def _integers(indices: Any) -> Int64Array | None:
    """The indices of a Subset as int64, or None if they are not plainly integers."""
    if type(indices) is range:
        return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    if type(indices) is torch.Tensor and indices.ndim == 1 and indices.device.type == "cpu":
        # A uint8 or bool tensor would be a mask.
        signed = indices.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)
        return indices.numpy().astype(np.int64) if signed else None
    if type(indices) is np.ndarray and indices.ndim == 1 and indices.dtype.kind in "iu":
        fits = indices.dtype != np.uint64 or not len(indices) or indices.max() <= 2**63 - 1
        return indices.astype(np.int64) if fits else None
    if type(indices) not in (list, tuple):
        return None
    kinds = set(map(type, indices))
    try:
        if kinds == {torch.Tensor}:
            return _integers(torch.stack(tuple(indices)))
        if all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
            return np.fromiter(map(operator.index, indices), np.int64, len(indices))
    except (OverflowError, RuntimeError):  # too large; tensors of different shapes
        pass
    return None
