"""Batches to an NVIDIA GPU through its driver: few calls for a batch, and kernels for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastload import _core
from fastload.batch.parts import Leaf
from fastload.device.cuda_shipment import Form, Shipment, form_of, key_of
from fastload.device.torch_copier import Copies, TorchStreams
from fastload.errors import CudaError, warn

_MOST_FORMS = 64  # data of ever other shapes must not fill the memory


class CudaStreams(TorchStreams):
    """What torch knows of a CUDA device, for one that copies without torch.

    Args:
        device: With its index.
    """

    def handle(self) -> int:
        """The driver's name for the current stream."""
        return int(self.current().cuda_stream)

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
        self._forms: dict[Any, Form] = {}
        self._refuses_kernels = False

    def runs(self, plan: _core.PixelPlan) -> bool:
        """Whether a kernel delivers images so; if the driver takes none, says it once."""
        if self._refuses_kernels or not plan.has_kernel:
            return False
        try:
            self._device.load_kernel(plan)
        except CudaError as error:
            self._refuses_kernels = True
            warn(
                f"the CPU prepares images, as the GPU does not take the kernels for that: {error}",
                RuntimeWarning,
            )
            return False
        return True

    def copier(self) -> CudaCopier:
        """For one iterator."""
        transfer = _core.Transfer(self._device, self.pool, self.times)
        return CudaCopier(self.streams, transfer, self.pool, self._forms)


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
        warn(
            f"batches are copied to {device} by torch, which takes longer: {error}",
            RuntimeWarning,
        )
        return None


class CudaCopier:
    """A `Copier` that gives the driver all copies of a batch at once.

    Args:
        streams: Of the device.
        transfer: Of this copier alone.
        pool: Memory that the device reads by itself.
        forms: How batches are copied, by `key_of`; grows.

    Attributes:
        streams: The same.
        transfer: The same.
        stream: The current one, when a batch was asked for last.
        oldest: The first ticket of copies that may not have been made.
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
        if self._is_captured:  # then torch must not take memory, which would be the graph's
            self.transfer.check(self.stream)
        key = key_of(leaves)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            form = self._forms[key] = form_of(leaves)
        shipment = form.fill(leaves, self.streams, self._pool)
        before = first.ticket if isinstance(first, CudaCopies) else -1
        ticket = self.transfer.submit(
            form.core, shipment.sources, shipment.places, shipment.pixels, self.stream, before
        )
        if isinstance(first, CudaCopies):
            first.handed_to = self.stream
        return CudaCopies(self, ticket, shipment)


class CudaCopies:
    """See `Copies`.

    Args:
        copier: Whose they are.
        ticket: By which it knows them.
        shipment: What they read and write.

    Attributes:
        ticket: The same.
        handed_to: The stream that waits for them already; None: none does.
    """

    def __init__(self, copier: CudaCopier, ticket: int, shipment: Shipment) -> None:
        self.ticket = ticket
        self.handed_to: int | None = None
        self._copier = copier
        self._home = copier.stream
        self._targets = shipment.targets
        self._owners = shipment.owners
        self._kept = shipment.kept  # until the copies are done

    def hand_over(self) -> list[torch.Tensor]:
        """See `Copies`."""
        copier = self._copier
        if self.handed_to != copier.stream:
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
