"""Source and target memory of the copies of a batch to a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from fastload import _core
from fastload.batch.parts import Leaf, Raw
from fastload.formats.fields import torch_dtype

_SMALL_BYTES = 64 << 10  # tensors below share memory and a copy
_ALIGNMENT = 256


class Memory(Protocol):
    """Allocator of GPU memory for the current stream."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates a tensor in memory of the current stream."""

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        """Allocates memory of the current stream for a copy of the tensor."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Returns True if the tensor is in pinned memory."""


@dataclass(slots=True)
class Shipment:
    """The memory of one batch, ready to be copied.

    Attributes:
        sources: An array or an address for each leaf, for the core.
        addresses: Addresses on the device of the leaves that are copied alone, then of the memory
            that small leaves share.
        pixels: Arguments of the kernels.
        targets: The delivered tensors, one for each leaf.
        owners: Tensors that own the memory of the targets.
        kept: Objects that must live until the copies are complete: the sources and staging memory.
    """

    sources: list[Any]
    addresses: list[int] = field(default_factory=list)
    pixels: list[tuple[Any, ...]] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    owners: list[torch.Tensor] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)


def key_of(leaves: Sequence[Leaf]) -> tuple[Any, ...]:
    """Returns the key of batches that are copied in the same form: shapes, dtypes and strides."""
    return tuple(
        [
            (leaf.shape, leaf.dtype)
            if isinstance(leaf, np.ndarray)
            else None
            if isinstance(leaf, Raw)
            else (leaf.shape, leaf.dtype, leaf.stride())
            for leaf in leaves
        ]
    )


@dataclass(slots=True)
class Form:
    """The form in which all batches of one key are copied.

    Attributes:
        core: The form for the core.
        slab_bytes: Size of the memory that small tensors share, in bytes; 0: there are none.
        views: Views of this memory by dtype: the dtype, the numbers of elements of consecutive
            views, and the tensors among them: leaf, number of the view, shape and stride.
        whole: Tensors with their own memory: leaf, shape, dtype, and True if they have elements.
        tensors: Leaves that are tensors: leaf, and True if the device reads it from pinned memory.
        raw: Leaves that kernels deliver.
    """

    core: _core.ShipmentForm
    slab_bytes: int
    views: list[tuple[torch.dtype, list[int], list[tuple[int, int, Any, Any]]]]
    whole: list[tuple[int, Sequence[int], torch.dtype, bool]]
    tensors: list[tuple[int, bool]]
    raw: list[int]

    def fill(self, leaves: Sequence[Leaf], memory: Memory, pool: _core.SlotPool) -> Shipment:
        """Returns the shipment of one batch, for the current stream.

        Args:
            leaves: The tensors of the batch, of this form's key.
            memory: Allocator of memory on the device.
            pool: Pinned memory; the arrays are in it.
        """
        found: list[Any] = list(leaves)
        made = Shipment(found, targets=[None] * len(found), kept=[leaves, found])
        targets = made.targets
        dense: dict[int, torch.Tensor] = {}
        for leaf, is_read in self.tensors:
            source = dense[leaf] = _dense(found[leaf])
            if is_read:
                source = _pinned(source, memory, pool)
            made.kept.append(source)
            found[leaf] = source.data_ptr()
        for leaf, shape, dtype, has_elements in self.whole:
            like = dense.get(leaf)
            target = targets[leaf] = (
                memory.empty(shape, dtype)
                if like is None or like.is_contiguous()
                else memory.allocate(like)
            )
            if has_elements:
                made.addresses.append(target.data_ptr())
                made.owners.append(target)
        made.addresses.append(self._share(targets, made.owners, memory) if self.slab_bytes else 0)
        for leaf in self.raw:
            _deliver(leaves[leaf], leaf, made, memory, pool)
        return made

    def _share(self, targets: list[Any], owners: list[torch.Tensor], memory: Memory) -> int:
        """Allocates the memory that small tensors share; returns its address."""
        slab = memory.empty([self.slab_bytes], torch.uint8)
        owners.append(slab)
        for dtype, counts, members in self.views:
            # Autograd must not take a write to one of them as a change of the others.
            views = slab.view(dtype).unsafe_split_with_sizes(counts)
            for leaf, number, shape, stride in members:
                view = views[number]
                targets[leaf] = view if shape is None else view.as_strided(shape, stride).data
        return slab.data_ptr()


def form_of(leaves: Sequence[Leaf]) -> Form:
    """Returns the form of batches with the key of these leaves."""
    made = Form(_core.ShipmentForm([], []), 0, [], [], [], [])
    plain = {i: _outline(leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, Raw)}
    small = [i for i, outline in plain.items() if 0 < outline.nbytes < _SMALL_BYTES]
    if len(small) < 2:
        small = []
    copies: list[tuple[int, int]] = []
    for i, leaf in enumerate(leaves):
        if i not in plain:
            made.raw.append(i)
            continue
        outline = plain[i]
        if i not in small:
            made.whole.append((i, tuple(outline.shape), outline.dtype, outline.nbytes > 0))
            if outline.nbytes:
                copies.append((i, outline.nbytes))
        if isinstance(leaf, torch.Tensor):
            made.tensors.append((i, i not in small and outline.nbytes > 0))
    padded = [math.ceil(plain[i].nbytes / _ALIGNMENT) * _ALIGNMENT for i in small]
    starts = [sum(padded[:number]) for number in range(len(small))]
    packed = [(i, start, plain[i].nbytes) for i, start in zip(small, starts, strict=True)]
    made.slab_bytes = sum(padded)
    for dtype in dict.fromkeys(plain[i].dtype for i in small):
        members = [(i, start) for i, start, _ in packed if plain[i].dtype == dtype]
        made.views.append(_views(dtype, members, plain, made.slab_bytes))
    made.core = _core.ShipmentForm(copies, packed)
    return made


def _views(
    dtype: torch.dtype, members: list[tuple[int, int]], plain: dict[int, torch.Tensor], end: int
) -> tuple[torch.dtype, list[int], list[tuple[int, int, Any, Any]]]:
    """Returns the entry of `Form.views`; `members`: leaves and their offsets in bytes."""
    counts: list[int] = []
    tensors: list[tuple[int, int, Any, Any]] = []
    used = 0
    for leaf, start in members:
        outline = plain[leaf]
        if start // dtype.itemsize > used:
            counts.append(start // dtype.itemsize - used)
        is_flat = outline.dim() == 1 and outline.stride() == (1,)
        tensors.append(
            (leaf, len(counts), *((None, None) if is_flat else (outline.shape, outline.stride())))
        )
        counts.append(outline.numel())
        used = start // dtype.itemsize + outline.numel()
    if end // dtype.itemsize > used:
        counts.append(end // dtype.itemsize - used)
    return dtype, counts, tensors


def _outline(leaf: Any) -> torch.Tensor:
    """Returns a tensor like the delivered one, without memory."""
    if isinstance(leaf, np.ndarray):
        return torch.empty(leaf.shape, dtype=torch_dtype(leaf.dtype.name), device="meta")
    return torch.empty_like(leaf, device="meta")


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor; if it has holes or overlaps, a dense copy with the same stride order."""
    if tensor.is_contiguous():
        return tensor
    dense = torch.empty_like(tensor)
    return tensor if dense.stride() == tensor.stride() else dense.copy_(tensor)


def _pinned(source: torch.Tensor, memory: Memory, pool: _core.SlotPool) -> torch.Tensor:
    """Returns the bytes of a tensor in pinned memory.

    The driver reads other memory as well, but blocks the calling thread until the stream has
    reached the copy.
    """
    if memory.is_pinned(source):
        return source
    staged = torch.from_numpy(pool.empty(source.nbytes))
    flat = source.as_strided((source.numel(),), (1,))
    staged.view(source.dtype).copy_(flat)
    return staged


def _deliver(raw: Any, leaf: int, made: Shipment, memory: Memory, pool: _core.SlotPool) -> None:
    target = made.targets[leaf] = memory.empty(raw.shape, raw.dtype)
    if not target.nbytes:
        return
    staging = memory.empty([raw.staging_bytes], torch.uint8)
    images = _pinned(raw.images, memory, pool)
    made.pixels.append(
        (
            raw.plan,
            *raw.size,
            raw.seed,
            raw.epoch,
            raw.draws,
            images.data_ptr(),
            staging.data_ptr(),
            target.data_ptr(),
        )
    )
    made.owners.append(target)
    made.kept += [images, staging]
