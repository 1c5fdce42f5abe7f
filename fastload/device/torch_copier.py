"""Copying the tensors of a batch to a device: the interface, and a copier on torch's streams."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fastload.batch.parts import Leaf, moved


class Copies(Protocol):
    """The submitted copies of one batch. Keeps their sources alive until they are complete."""

    def deliver(self) -> list[torch.Tensor]:
        """Makes the current stream of the calling thread wait for the copies, and returns them.

        Raises:
            CudaError: the current stream is capturing a graph, or the device is lost. In the first
                case the copies can still be delivered afterwards.
        """

    @property
    def done(self) -> bool:
        """True if the device has completed the copies."""

    def wait(self) -> None:
        """Blocks the calling thread until the device has completed the copies."""


class Copier(Protocol):
    """Copies the batches of one iterator, in parallel to the consumer's computations."""

    @property
    def streams(self) -> Streams:
        """The streams of the device."""

    def ask(self) -> None:
        """Reports that the current stream has no further work until a batch is delivered.

        Raises:
            CudaError: the device is lost.
        """

    def submit(self, leaves: Sequence[Leaf], first: Copies | None = None) -> Copies:
        """Starts to copy a batch into memory that belongs to the current stream.

        Args:
            leaves: The tensors of the batch.
            first: Copies that are delivered to the same stream next; both may be submitted in one
                call.

        Raises:
            CudaError: the current stream is capturing a graph, or the device is lost. No copy was
                started.
            Exception: torch could not allocate the memory.
        """


class Streams(Protocol):
    """The stream operations of one device that copying needs."""

    def current(self) -> Any:
        """Returns the current stream of the calling thread."""

    def side(self) -> Any:
        """Returns the stream for copies."""

    def record(self, stream: Any) -> Any:
        """Records an event after all work that the stream has now, and returns it."""

    def wait(self, stream: Any, event: Any) -> None:
        """Makes later work of the stream wait for the event; does not block the host."""

    def is_past(self, event: Any) -> bool:
        """Returns True if the device has reached the event."""

    def synchronize(self, event: Any) -> None:
        """Blocks the calling thread until the device has reached the event."""

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        """Allocates memory of the current stream for a copy of the tensor."""

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueues a copy on the stream."""

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        """Records that a stream other than that of its memory uses the tensor."""


class TorchStreams:
    """torch's streams of a device.

    Args:
        device: The device, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = getattr(torch, device.type)

    def current(self) -> Any:
        """See `Streams`."""
        return self._module.current_stream(self._device)

    def side(self) -> Any:
        """See `Streams`; one for each device and process."""
        return _side_stream(self._device)

    def record(self, stream: Any) -> Any:
        """See `Streams`."""
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        """See `Streams`."""
        stream.wait_event(event)

    def is_past(self, event: Any) -> bool:
        """See `Streams`."""
        return bool(event.query())

    def synchronize(self, event: Any) -> None:
        """See `Streams`."""
        event.synchronize()

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Streams`."""
        return torch.empty_like(tensor, device=self._device)

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Streams`."""
        with self._module.stream(stream):
            target.copy_(source, non_blocking=True)

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        """See `Streams`."""
        tensor.record_stream(stream)


@functools.cache
def _side_stream(device: torch.device) -> Any:
    return getattr(torch, device.type).Stream(device=device)


class NoStreams:
    """Replaces the streams of a device without streams: operations complete immediately.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> Any:
        """See `Streams`."""

    def side(self) -> Any:
        """See `Streams`."""

    def record(self, stream: Any) -> Any:
        """See `Streams`."""

    def wait(self, stream: Any, event: Any) -> None:
        """See `Streams`."""

    def is_past(self, event: Any) -> bool:
        """See `Streams`."""
        return True

    def synchronize(self, event: Any) -> None:
        """See `Streams`."""

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Streams`."""
        return torch.empty_like(tensor, device=self._device)

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Streams`."""
        target.copy_(source)

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        """See `Streams`."""


class StreamCopier:
    """A `Copier` that calls torch for each copy. It accepts tensors only.

    Args:
        streams: The streams of the device.

    Attributes:
        streams: The streams of the device.
    """

    def __init__(self, streams: Streams) -> None:
        self.streams = streams

    def ask(self) -> None:
        """See `Copier`; this one measures nothing."""

    def submit(self, leaves: Sequence[Leaf], first: Copies | None = None) -> _StreamCopies:
        """See `Copier`."""
        return _StreamCopies(self.streams, leaves)


class _StreamCopies:
    """See `Copies`."""

    def __init__(self, streams: Streams, leaves: Sequence[Leaf]) -> None:
        tensors = (torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in leaves)
        sources = [leaf for leaf in tensors if isinstance(leaf, torch.Tensor)]
        assert len(sources) == len(leaves), "kernels are for CUDA"
        self._streams = streams
        self._sources = sources
        self._home = streams.current()  # owns the memory of the copies
        self._targets = [streams.allocate(source) for source in sources]
        side = streams.side()
        # Kernels that the consumer launched may still use this memory.
        streams.wait(side, streams.record(self._home))
        try:
            for target, source in zip(self._targets, sources, strict=True):
                streams.copy(side, target, source)
        except BaseException:
            streams.synchronize(streams.record(side))
            raise
        self._ready = streams.record(side)

    def deliver(self) -> list[torch.Tensor]:
        """See `Copies`."""
        current = self._streams.current()
        self._streams.wait(current, self._ready)
        if current != self._home:
            for target in self._targets:
                self._streams.use(target, current)
        targets, self._targets = self._targets, []  # the consumer owns them now
        return targets

    @property
    def done(self) -> bool:
        """See `Copies`."""
        return self._streams.is_past(self._ready)

    def wait(self) -> None:
        """See `Copies`."""
        self._streams.synchronize(self._ready)


class Moves:
    """Objects of a batch that are moved by their own method `to`, before the batch is delivered.

    Args:
        streams: The streams of the device.
        others: See `Parts.others`.
        device: The device.

    Raises:
        Exception: a method `to` failed.
    """

    def __init__(self, streams: Streams, others: Sequence[Any], device: torch.device) -> None:
        self._streams = streams
        self._device = device
        self._home = streams.current()
        self._moved = [moved(other, device) for other in others]

    def deliver(self) -> list[Any]:
        """Returns the objects on the device, for the current stream of the calling thread."""
        current = self._streams.current()
        if current == self._home:
            return self._moved
        # Their memory belongs to another stream, and such objects have no `record_stream`.
        self._streams.wait(current, self._streams.record(self._home))
        on_cpu = [moved(one, torch.device("cpu")) for one in self._moved]
        self._streams.synchronize(self._streams.record(current))
        return [moved(one, self._device) for one in on_cpu]


class StaticBuffers:
    """Tensors with fixed addresses, one for each tensor of the batches of one shape.

    They are filled on the current stream of the calling thread, so that work enqueued earlier still
    reads the previous batch.

    Args:
        streams: The streams of the device.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._buffers: dict[Any, list[torch.Tensor]] = {}
        self._last: Any = None  # the stream that used them last

    def fill(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies the tensors into the buffers of their shapes, and returns these."""
        streams = self._streams
        current, last = streams.current(), self._last
        key = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors)
        if key not in self._buffers:
            with torch.inference_mode(False):  # they may be filled outside of inference mode
                self._buffers[key] = [streams.allocate(tensor) for tensor in tensors]
        buffers = self._buffers[key]
        if last is not None and last != current:
            streams.wait(current, streams.record(last))
            for buffer in buffers:
                streams.use(buffer, current)
        self._last = current
        for buffer, tensor in zip(buffers, tensors, strict=True):
            streams.copy(current, buffer, tensor)
        return [
            buffer.detach() for buffer in buffers
        ]  # in-place changes of metadata stay with the caller
