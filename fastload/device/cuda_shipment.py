"""What is copied of a batch to a GPU, and where it comes to lie there."""

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
    """Who has memory on a GPU, for the current stream."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory that belongs to the current stream."""

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same, for a copy of the tensor."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the device reads this memory by itself."""


@dataclass(slots=True)
class Shipment:
    """A batch that can be copied.

    Attributes:
        sources: Of each leaf an array or an address, for the core.
        places: Addresses on the device of what is not packed, then of the memory for what is.
        pixels: What kernels deliver.
        targets: What is handed over, one tensor for each leaf.
        owners: Whose memory these are.
        kept: What is read, and memory of the device that is used meanwhile.
    """

    sources: list[Any]
    places: list[int] = field(default_factory=list)
    pixels: list[tuple[Any, ...]] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    owners: list[torch.Tensor] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)


def key_of(leaves: Sequence[Leaf]) -> tuple[Any, ...]:
    """What decides how a batch is copied, apart from its contents."""
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
    """How batches of one key are copied; made once for all of them.

    Attributes:
        core: The same for the core.
        slab_bytes: Of the memory that small tensors share; 0: none do.
        groups: Of it, by dtype: the dtype, the numbers of elements in a row of pieces, and the
            tensors among these: leaf, piece, shape and stride.
        whole: Tensors with memory of their own: leaf, shape, dtype, and whether they have elements.
        tensors: Leaves that torch has: leaf, and whether the device has to read it by itself.
        raw: Leaves that kernels deliver.
    """

    core: _core.ShipmentForm
    slab_bytes: int
    groups: list[tuple[torch.dtype, list[int], list[tuple[int, int, Any, Any]]]]
    whole: list[tuple[int, Sequence[int], torch.dtype, bool]]
    tensors: list[tuple[int, bool]]
    raw: list[int]

    def fill(self, leaves: Sequence[Leaf], memory: Memory, pool: _core.SlotPool) -> Shipment:
        """One batch, for the current stream.

        Args:
            leaves: Of the key.
            memory: On the device.
            pool: Memory that the device reads by itself; arrays are in such.
        """
        found: list[Any] = list(leaves)
        made = Shipment(found, targets=[None] * len(found), kept=[leaves, found])
        targets = made.targets
        dense: dict[int, torch.Tensor] = {}
        for leaf, is_read in self.tensors:
            source = dense[leaf] = _in_one_block(found[leaf])
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
                made.places.append(target.data_ptr())
                made.owners.append(target)
        made.places.append(self._share(targets, made.owners, memory) if self.slab_bytes else 0)
        for leaf in self.raw:
            _deliver(leaves[leaf], leaf, made, memory, pool)
        return made

    def _share(self, targets: list[Any], owners: list[torch.Tensor], memory: Memory) -> int:
        """Gives small tensors their part of new memory, whose address it returns."""
        slab = memory.empty([self.slab_bytes], torch.uint8)
        owners.append(slab)
        for dtype, counts, places in self.groups:
            # What is written to one of them is no change of the others for autograd.
            pieces = slab.view(dtype).unsafe_split_with_sizes(counts)
            for leaf, number, shape, stride in places:
                piece = pieces[number]
                targets[leaf] = piece if shape is None else piece.as_strided(shape, stride).data
        return slab.data_ptr()


def form_of(leaves: Sequence[Leaf]) -> Form:
    """How batches of the key of this one are copied."""
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
    rooms = [math.ceil(plain[i].nbytes / _ALIGNMENT) * _ALIGNMENT for i in small]
    starts = [sum(rooms[:place]) for place in range(len(small))]
    packed = [(i, start, plain[i].nbytes) for i, start in zip(small, starts, strict=True)]
    made.slab_bytes = sum(rooms)
    for dtype in dict.fromkeys(plain[i].dtype for i in small):
        group = [(i, start) for i, start, _ in packed if plain[i].dtype == dtype]
        made.groups.append(_pieces(dtype, group, plain, made.slab_bytes))
    made.core = _core.ShipmentForm(copies, packed)
    return made


def _pieces(
    dtype: torch.dtype, group: list[tuple[int, int]], plain: dict[int, torch.Tensor], end: int
) -> tuple[torch.dtype, list[int], list[tuple[int, int, Any, Any]]]:
    """See `Form.groups`; `group`: leaves and where they start in the shared memory."""
    counts: list[int] = []
    places: list[tuple[int, int, Any, Any]] = []
    used = 0
    for leaf, start in group:
        outline = plain[leaf]
        if start // dtype.itemsize > used:
            counts.append(start // dtype.itemsize - used)
        is_flat = outline.dim() == 1 and outline.stride() == (1,)
        places.append(
            (leaf, len(counts), *((None, None) if is_flat else (outline.shape, outline.stride())))
        )
        counts.append(outline.numel())
        used = start // dtype.itemsize + outline.numel()
    if end // dtype.itemsize > used:
        counts.append(end // dtype.itemsize - used)
    return dtype, counts, places


def _outline(leaf: Any) -> torch.Tensor:
    """A tensor like the one that is handed over, without memory."""
    if isinstance(leaf, np.ndarray):
        return torch.empty(leaf.shape, dtype=torch_dtype(leaf.dtype.name), device="meta")
    return torch.empty_like(leaf, device="meta")


def _in_one_block(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or if it has gaps or overlaps a copy without, with strides in the same order."""
    if tensor.is_contiguous():
        return tensor
    dense = torch.empty_like(tensor)
    return tensor if dense.stride() == tensor.stride() else dense.copy_(tensor)


def _pinned(source: torch.Tensor, memory: Memory, pool: _core.SlotPool) -> torch.Tensor:
    """The bytes of a tensor where the device reads them by itself.

    The driver would read them elsewhere too, but hold up this thread until it has, and that is when
    the stream has come to it.
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
