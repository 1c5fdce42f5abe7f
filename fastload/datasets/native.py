"""Detection of the datasets that the core can read without Python."""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from fastload.datasets.array_dataset import ArrayDataset
from fastload.datasets.file_datasets import FileDataset, PackedDataset
from fastload.datasets.mixture import Mixture
from fastload.datasets.token_dataset import TokenDataset
from fastload.formats import arrays, combine
from fastload.formats.columns import Int64Array
from fastload.formats.extents import Extents


class NotNative(Exception):
    """Error for a dataset that only Python can load; the message names the part and the reason."""


def native_extents(dataset: Any) -> Extents | None:
    """Returns the extents of a dataset, or None if only Python can load it.

    Types count exactly: a subclass may do anything. What the dataset holds is read at each call,
    because the user may have replaced it; files are not touched.
    """
    try:
        return _read(dataset, "dataset")
    except NotNative:
        return None


def why_only_python(dataset: Any) -> str | None:
    """Returns why only Python can load a dataset, or None if the core can."""
    try:
        _read(dataset, "dataset")
    except NotNative as reason:
        return str(reason)
    return None


def holds_native_kinds(dataset: Any) -> bool:
    """Returns True if a dataset consists of native datasets or of subclasses of them."""
    if isinstance(dataset, Subset):
        return holds_native_kinds(dataset.dataset)
    if isinstance(dataset, (ConcatDataset, StackDataset, Mixture)):
        parts = dataset.datasets
        return any(map(holds_native_kinds, parts.values() if isinstance(parts, dict) else parts))
    return isinstance(dataset, tuple(_READERS))


def _read(dataset: Any, where: str) -> Extents:
    """Returns the extents of a dataset.

    Args:
        dataset: The dataset.
        where: How the user reaches it from the loader, for messages.

    Raises:
        NotNative: only Python can load them.
    """
    read, kind = _READERS.get(type(dataset)), type(dataset).__name__
    if read is None:
        bases = [base.__name__ for base in type(dataset).__mro__ if base in _READERS]
        if isinstance(dataset, (np.ndarray, torch.Tensor)):
            raise NotNative(f"{where} is of type {kind}; ArrayDataset of it loads natively")
        if not bases:
            raise NotNative(
                f"{where} is of type {kind}, whose samples are made by Python; fastload.pack "
                "writes them to files that load natively"
            )
        raise NotNative(
            f"{where} is of type {kind}, a subclass of {bases[0]}, which may return other samples "
            f"than {bases[0]} does; use {bases[0]} itself if it does not"
        )
    # Loaders prefer `__getitems__`, which may also sit on the instance.
    if "__getitems__" in vars(dataset):
        raise NotNative(f"{where} has a __getitems__ of its own, which may return other samples")
    extents: Extents = read(dataset, where)
    return extents


def fingerprint(dataset: Any) -> str:
    """Returns the fingerprint of a dataset, which a loader's state stores and compares."""
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


def _from_own(dataset: Any, where: str) -> Extents:
    extents: Extents = dataset.extents
    return extents


def _from_tensors(dataset: TensorDataset, where: str) -> Extents:
    parts = []
    for number, tensor in enumerate(dataset.tensors):
        try:
            if type(tensor) is not torch.Tensor or tensor.ndim == 0:
                raise TypeError(type(tensor))
            array, dtype = arrays.tensor_array(tensor, str(number))
        except (TypeError, RuntimeError) as error:  # RuntimeError: no memory for numpy
            reason = _why_not_plain(tensor, error)
            raise NotNative(f"{where}.tensors[{number}] {reason}") from None
        parts.append(arrays.read_extents(array, str(number), dtype))
    if not parts:
        raise NotNative(f"{where} holds no tensors")
    return _combined(combine.stack, tuple(parts), f"the tensors of {where} cannot be combined")


def _why_not_plain(tensor: Any, error: Exception) -> str:
    """Returns why a tensor cannot be read in place; `error` is the error of its conversion."""
    kind = type(tensor)
    if not isinstance(tensor, torch.Tensor):
        return f"is of type {kind.__name__}, no tensor"
    if tensor.requires_grad:
        return "requires gradients, which native batches would lose; call detach() if they may"
    if kind is not torch.Tensor:
        return (
            f"is of type {kind.__name__}, a subclass of torch.Tensor, which may index differently"
        )
    if tensor.ndim == 0:
        return "has no first axis"
    if tensor.is_quantized:
        return "is quantized; native data are plain numbers"
    if tensor.is_nested:
        return "is a nested tensor; native data are dense"
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}; native data are dense"
    if tensor.device.type != "cpu":
        return f"is on the device {tensor.device}; native data are in the memory of the CPU"
    if tensor.is_conj() or tensor.is_neg():
        bit = "resolve_conj" if tensor.is_conj() else "resolve_neg"
        return f"is a lazy conjugate or negative; call {bit}()"
    if isinstance(error, TypeError):
        return f"has the dtype {tensor.dtype}, which is not supported"
    return f"has no memory that can be read: {error}"


def _from_subset(dataset: Subset[Any], where: str) -> Extents:
    whole = _read(dataset.dataset, f"{where}.dataset")
    indices, rows = _integers(dataset.indices), whole.rows
    if indices is None:
        raise NotNative(
            f"{where}.indices ({type(dataset.indices).__name__}) are not a sequence of integers"
        )
    if len(indices) and not -rows <= indices.min() <= indices.max() < rows:
        # Indexing raises only when that sample is requested.
        raise NotNative(f"{where}.indices lead outside the {rows} samples of {where}.dataset")
    return whole.take(np.where(indices < 0, indices + rows, indices))


def _from_concat(dataset: ConcatDataset[Any], where: str) -> Extents:
    datasets: list[Any] = dataset.datasets
    if list(itertools.accumulate(map(len, datasets))) != dataset.cumulative_sizes:
        # torch uses the lengths at construction.
        raise NotNative(f"a part of {where} has another length than when {where} was made")
    # Empty parts deliver nothing, so they need not agree with the others.
    filled = [n for n, part in enumerate(datasets) if len(part)] or list(range(len(datasets)))[:1]
    parts = [_read(datasets[n], f"{where}.datasets[{n}]") for n in filled]
    return _combined(combine.concatenate, parts, f"the parts of {where} cannot be combined")


def _from_mixture(dataset: Mixture, where: str) -> Extents:
    parts = [_read(part, f"{where}.datasets[{n}]") for n, part in enumerate(dataset.datasets)]
    if [part.rows for part in parts] != dataset.sizes:
        raise NotNative(f"a part of {where} has another length than when {where} was made")
    whole = _combined(combine.concatenate, parts, f"the parts of {where} cannot be combined")
    return replace(whole, mixed=dataset.index_map)


def _from_stack(dataset: StackDataset[Any], where: str) -> Extents:
    datasets: dict[str, Any] | tuple[Any, ...] = dataset.datasets
    named = datasets.items() if isinstance(datasets, dict) else enumerate(datasets)
    parts = {key: _read(part, f"{where}.datasets[{key!r}]") for key, part in named}
    if any(part.rows != len(dataset) for part in parts.values()):
        raise NotNative(f"a part of {where} has another length than when {where} was made")
    stacked = parts if isinstance(datasets, dict) else tuple(parts.values())
    return _combined(combine.stack, stacked, f"the parts of {where} cannot be combined")


def _combined(combine_parts: Callable[[Any], Extents], parts: Any, failure: str) -> Extents:
    try:
        return combine_parts(parts)
    except ValueError as error:  # they differ
        raise NotNative(f"{failure}: {error}") from error


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
