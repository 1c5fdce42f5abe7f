"""Copier to an NVIDIA GPU through its driver: few calls per batch, and kernels for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastload import _core
from fastload.batch.parts import Leaf
from fastload.device.cuda_shipment import Form, Shipment, form_of, key_of
from fastload.device.torch_copier import Copies, TorchStreams
from fastload.errors import CudaError, warn

_MAX_FORMS = 64  # bounds the memory for data whose shapes always change


class CudaStreams(TorchStreams):
    """torch's streams and memory of a CUDA device, for a copier that does not copy by torch.

    Args:
        device: The device, with its index.
    """

    def handle(self) -> int:
        """Returns the driver's handle of the current stream."""
        return int(self.current().cuda_stream)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates a tensor in memory of the current stream."""
        return torch.empty(shape, dtype=dtype, device=self._device)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Returns True if the tensor is in pinned memory."""
        return tensor.is_pinned()


class Cuda:
    """A CUDA device with pinned memory and timings, for the iterators of one loader.

    Args:
        streams: torch's streams of the device.
        device: The core's device.

    Attributes:
        streams: torch's streams of the device.
        pool: Pinned memory of batches.
        times: Timings of the streams.
    """

    def __init__(self, streams: CudaStreams, device: _core.CudaDevice) -> None:
        self.streams = streams
        self._device = device
        self.pool = _core.SlotPool(device)
        self.times = _core.StreamTimes(device)
        self._forms: dict[Any, Form] = {}
        self._refuses_kernels = False

    def runs(self, plan: _core.PixelPlan) -> bool:
        """Returns True if a kernel can apply the transforms; warns once if the driver cannot."""
        if self._refuses_kernels or not plan.has_kernel:
            return False
        try:
            self._device.load_kernel(plan)
        except CudaError as error:
            self._refuses_kernels = True
            warn(
                f"the CPU prepares images, since the GPU does not accept the kernels: {error}",
                RuntimeWarning,
            )
            return False
        return True

    def copier(self) -> CudaCopier:
        """Returns the copier of one iterator."""
        transfer = _core.Transfer(self._device, self.pool, self.times)
        return CudaCopier(self.streams, transfer, self.pool, self._forms)


def open_cuda(device: torch.device) -> Cuda | None:
    """Opens the driver's side of a device; returns None if torch must copy without.

    Args:
        device: A device that torch can use, with its index.
    """
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return None
    torch.cuda.init()  # type: ignore[no-untyped-call]  # the context is torch's
    try:
        return Cuda(CudaStreams(device), _core.CudaDevice(device.index))
    except CudaError as error:
        warn(
            f"torch copies batches to {device}, more slowly than the driver: {error}",
            RuntimeWarning,
        )
        return None


class CudaCopier:
    """A `Copier` that submits all copies of a batch to the driver in one call.

    Args:
        streams: torch's streams of the device.
        transfer: The core's transfer, which no other copier uses.
        pool: Pinned memory.
        forms: Forms of batches by `key_of`; grows.

    Attributes:
        streams: torch's streams of the device.
        transfer: The core's transfer.
        stream: Handle of the current stream when a batch was last requested.
        oldest: First ticket of copies that may be incomplete.
    """

    def __init__(
        self,
        streams: CudaStreams,
        transfer: _core.Transfer,
        pool: _core.SlotPool,
        forms: dict[Any, Form],
    ) -> None:
        self.streams = streams
        self.transfer = transfer
        self.stream = self.oldest = 0
        self._pool = pool
        self._is_captured = False
        self._forms = forms

    def ask(self) -> None:
        """See `Copier`."""
        self.stream = self.streams.handle()
        self.oldest, self._is_captured = self.transfer.ask(self.stream)

    def submit(self, leaves: Sequence[Leaf], first: Copies | None = None) -> CudaCopies:
        """See `Copier`."""
        if self._is_captured:  # torch must not allocate now: the memory would belong to the graph
            self.transfer.check(self.stream)
        key = key_of(leaves)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            form = self._forms[key] = form_of(leaves)
        shipment = form.fill(leaves, self.streams, self._pool)
        before = first.ticket if isinstance(first, CudaCopies) else -1
        ticket = self.transfer.submit(
            form.core, shipment.sources, shipment.addresses, shipment.pixels, self.stream, before
        )
        if isinstance(first, CudaCopies):
            first.delivered_to = self.stream
        return CudaCopies(self, ticket, shipment)


class CudaCopies:
    """See `Copies`.

    Args:
        copier: The copier that submitted them.
        ticket: Their ticket in the copier's transfer.
        shipment: The memory that they read and write.

    Attributes:
        ticket: Their ticket in the copier's transfer.
        delivered_to: The stream that waits for them already; None: no stream does.
    """

    def __init__(self, copier: CudaCopier, ticket: int, shipment: Shipment) -> None:
        self.ticket = ticket
        self.delivered_to: int | None = None
        self._copier = copier
        self._home = copier.stream
        self._targets = shipment.targets
        self._owners = shipment.owners
        self._kept = shipment.kept  # alive until the copies are complete

    def deliver(self) -> list[torch.Tensor]:
        """See `Copies`."""
        copier = self._copier
        if self.delivered_to != copier.stream:
            copier.transfer.deliver(self.ticket, copier.stream)
        if copier.stream != self._home:
            current = copier.streams.current()
            for owner in self._owners:
                copier.streams.use(owner, current)
        targets, self._targets, self._owners = self._targets, [], []
        return targets

    @property
    def done(self) -> bool:
        """See `Copies`."""
        return self.ticket < self._copier.oldest

    def wait(self) -> None:
        """See `Copies`."""
        self._copier.transfer.wait(self.ticket)
        self._copier.oldest = max(self._copier.oldest, self.ticket + 1)
