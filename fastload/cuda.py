"""Batches to an NVIDIA GPU through its driver: few calls for a batch, and kernels for images."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from fastload import _core
from fastload.copies import TorchStreams
from fastload.errors import CudaError
from fastload.parts import Leaf, Raw

_SMALL_BYTES = 64 << 10  # tensors below share memory and a copy
_ALIGNMENT = 256


class CudaStreams(TorchStreams):
    """What torch knows of a CUDA device, for one that copies without torch.

    Args:
        device: With its index.
    """

    def handle(self, stream: Any) -> int:
        """The driver's name for a stream."""
        return int(stream.cuda_stream)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory that belongs to the current stream."""
        return torch.empty(shape, dtype=dtype, device=self._device)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the device reads this memory by itself."""
        return tensor.is_pinned()


class Cuda:
    """The driver's side of a device, for the iterators of one loader.

    Args:
        streams: Torch's side of it.
        device: The core's.

    Attributes:
        streams: The same.
        pool: Memory that the device reads by itself.
        times: What its streams did for the loader.
    """

    def __init__(self, streams: CudaStreams, device: _core.CudaDevice) -> None:
        self.streams = streams
        self._device = device
        self.pool = _core.SlotPool(device)
        self.times = _core.StreamTimes(device)
        self._refuses_kernels = False

    def runs(self, plan: _core.PixelPlan) -> bool:
        """Whether a kernel delivers images so; if the driver takes none, says it once."""
        if self._refuses_kernels or not plan.has_kernel:
            return False
        try:
            self._device.load_kernel(plan)
        except CudaError as error:
            self._refuses_kernels = True
            warnings.warn(
                f"the CPU prepares images, as the GPU does not take the kernels for that: {error}",
                RuntimeWarning,
                stacklevel=10,
            )
            return False
        return True

    def copier(self) -> CudaCopier:
        """For one iterator."""
        transfer = _core.Transfer(self._device, self.pool, self.times)
        return CudaCopier(self.streams, transfer, self.pool)


def open_cuda(device: torch.device) -> Cuda | None:
    """The driver's side of a device that torch can use; None if torch has to do without.

    Args:
        device: With its index.
    """
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return None
    torch.cuda.init()  # type: ignore[no-untyped-call]  # the context is torch's
    try:
        return Cuda(CudaStreams(device), _core.CudaDevice(device.index))
    except CudaError as error:
        warnings.warn(
            f"batches are copied to {device} by torch, which takes longer: {error}",
            RuntimeWarning,
            stacklevel=6,
        )
        return None


class CudaCopier:
    """A `Copier` that gives the driver all copies of a batch at once.

    Args:
        streams: Of the device.
        transfer: Of this copier alone.
        pool: Memory that the device reads by itself.
    """

    def __init__(
        self, streams: CudaStreams, transfer: _core.Transfer, pool: _core.SlotPool
    ) -> None:
        self._streams = streams
        self._transfer = transfer
        self._pool = pool

    def ask(self) -> None:
        """See `Copier`."""
        self._transfer.ask(self._streams.handle(self._streams.current()))

    def submit(self, leaves: Sequence[Leaf]) -> CudaCopies:
        """See `Copier`."""
        home = self._streams.current()
        stream = self._streams.handle(home)
        self._transfer.check(stream)  # before torch takes memory for a graph that is captured
        shipment = _Shipment(self._streams, self._pool, leaves)
        ticket = self._transfer.submit(shipment.copies, shipment.packed, shipment.pixels, stream)
        return CudaCopies(self._streams, self._transfer, ticket, home, shipment)


class CudaCopies:
    """See `Copies`."""

    def __init__(
        self,
        streams: CudaStreams,
        transfer: _core.Transfer,
        ticket: int,
        home: Any,
        shipment: _Shipment,
    ) -> None:
        self._streams = streams
        self._transfer = transfer
        self._ticket = ticket
        self._home = home
        self._targets = shipment.targets
        self._owners = shipment.owners
        self._kept = shipment.kept  # until the copies are done

    def hand_over(self) -> list[torch.Tensor]:
        """See `Copies`."""
        current = self._streams.current()
        self._transfer.hand_over(self._ticket, self._streams.handle(current))
        if current != self._home:
            for owner in self._owners:
                self._streams.use(owner, current)
        targets, self._targets, self._owners = self._targets, [], []
        return targets

    @property
    def done(self) -> bool:
        """See `Copies`."""
        return self._transfer.done(self._ticket)

    def wait(self) -> None:
        """See `Copies`."""
        self._transfer.wait(self._ticket)


class _Shipment:
    """What is copied of a batch, and where to.

    Attributes:
        copies: Target address, source address and bytes of each large tensor.
        packed: The same of small ones, whose targets lie side by side.
        pixels: What the kernels deliver.
        targets: What is handed over, one tensor for each leaf.
        owners: Whose memory these are.
        kept: What is read, and memory of the device that is used meanwhile.
    """

    def __init__(self, streams: CudaStreams, pool: _core.SlotPool, leaves: Sequence[Leaf]) -> None:
        self._streams = streams
        self._pool = pool
        self.copies: list[tuple[int, int, int]] = []
        self.packed: list[tuple[int, int, int]] = []
        self.pixels: list[tuple[Any, ...]] = []
        self.targets: list[torch.Tensor] = []
        self.owners: list[torch.Tensor] = []
        self.kept: list[Any] = []
        small = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and _is_small(leaf)]
        slab = None
        if len(small) > 1:
            slab = _Slab(streams.empty([sum(map(_room, small))], torch.uint8))
            self.owners.append(slab.memory)
        for leaf in leaves:
            if isinstance(leaf, Raw):
                self._deliver(leaf)
            elif slab is not None and _is_small(leaf):
                self._pack(leaf, slab)
            else:
                self._copy(leaf)

    def _pack(self, leaf: torch.Tensor, slab: _Slab) -> None:
        source = _in_one_block(leaf)
        target = slab.place(source)
        self.packed.append((target.data_ptr(), source.data_ptr(), source.nbytes))
        self.targets.append(target)
        self.kept.append(source)

    def _copy(self, leaf: torch.Tensor) -> None:
        source = _in_one_block(leaf)
        target = self._streams.allocate(source)
        self.targets.append(target)
        if not source.nbytes:
            return
        source = self._pinned(source)
        self.copies.append((target.data_ptr(), source.data_ptr(), source.nbytes))
        self.owners.append(target)
        self.kept.append(source)

    def _deliver(self, leaf: Raw) -> None:
        target = self._streams.empty(leaf.shape, leaf.dtype)
        self.targets.append(target)
        if not target.nbytes:
            return
        staging = self._streams.empty([leaf.staging_bytes], torch.uint8)
        images = self._pinned(leaf.images)
        self.pixels.append(
            (
                leaf.plan,
                *leaf.size,
                leaf.seed,
                leaf.epoch,
                leaf.indices,
                images.data_ptr(),
                staging.data_ptr(),
                target.data_ptr(),
            )
        )
        self.owners.append(target)
        self.kept += [images, staging]

    def _pinned(self, source: torch.Tensor) -> torch.Tensor:
        """The bytes of a tensor where the device reads them by itself.

        The driver would read them elsewhere too, but hold up this thread until it has, and that is
        when the stream has come to it.
        """
        if self._streams.is_pinned(source):
            return source
        staged = torch.from_numpy(self._pool.empty(source.nbytes))
        flat = source.as_strided((source.numel(),), (1,))
        staged.view(source.dtype).copy_(flat)
        return staged


class _Slab:
    """Memory that small tensors share; each has all else for itself."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self._views: dict[torch.dtype, torch.Tensor] = {}
        self._used = 0

    def place(self, source: torch.Tensor) -> torch.Tensor:
        """Room for a tensor like `source`."""
        view = self._views.get(source.dtype)
        if view is None:
            view = self._views[source.dtype] = self.memory.view(source.dtype)
        start = self._used // source.element_size()
        self._used += _room(source)
        # `data`: what is written to one of them is no change of the others for autograd.
        return view.as_strided(source.shape, source.stride(), start).data


def _is_small(leaf: torch.Tensor) -> bool:
    return 0 < leaf.nbytes < _SMALL_BYTES


def _room(tensor: torch.Tensor) -> int:
    return math.ceil(tensor.nbytes / _ALIGNMENT) * _ALIGNMENT


def _in_one_block(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or if it has gaps or overlaps a copy without, with strides in the same order."""
    if tensor.is_contiguous():
        return tensor
    dense = torch.empty_like(tensor)
    return tensor if dense.stride() == tensor.stride() else dense.copy_(tensor)
