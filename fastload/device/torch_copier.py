"""Who copies the tensors of a batch to a device: the interface, and torch's own streams."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fastload.batch.parts import Leaf, moved


class Copies(Protocol):
    """The copies of one batch, on their way. Keeps what they read until they are done."""

    def hand_over(self) -> list[torch.Tensor]:
        """The copies, for the stream on which the calling thread computes, which waits for them.

        Raises:
            CudaError: a graph is captured from that stream, or the device is lost. In the first
                case the copies can still be handed over afterwards.
        """

    @property
    def done(self) -> bool:
        """Whether the device has made them."""

    def wait(self) -> None:
        """Stops the host until the device has made them."""


class Copier(Protocol):
    """Copies for one iterator, beside the stream on which its consumer computes."""

    @property
    def streams(self) -> Streams:
        """Of the device."""

    def ask(self) -> None:
        """Says that the current stream has nothing more to do until it is given a batch.

        Raises:
            CudaError: the device is lost.
        """

    def submit(self, leaves: Sequence[Leaf], first: Copies | None = None) -> Copies:
        """Begins to copy a batch, to memory that belongs to the current stream.

        Args:
            leaves: Of the batch.
            first: A batch that is handed over to the same stream next: these may be begun together.

        Raises:
            CudaError: a graph is captured from the current stream, or the device is lost. Nothing
                was begun.
            Exception: what torch raises where memory is short.
        """


class Streams(Protocol):
    """The streams of one device, as far as copying needs them."""

    def current(self) -> Any:
        """The stream on which the calling thread computes."""

    def side(self) -> Any:
        """The stream for copies."""

    def record(self, stream: Any) -> Any:
        """An event behind all that the stream was given so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """What the stream is given from now on starts after the event; the host goes on."""

    def is_past(self, event: Any) -> bool:
        """Whether the device has come to the event."""

    def synchronize(self, event: Any) -> None:
        """Stops the host until the device has come to the event."""

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for a copy of the tensor, that belongs to the current stream."""

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """Gives the stream a copy to do."""

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        """A stream that is not the one of its memory will use the tensor."""


class TorchStreams:
    """The streams that torch has for a device.

    Args:
        device: With its index.
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
    """Stands in for the streams of a device that has none: all is done at once.

    Args:
        device: Where to.
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
    """A `Copier` that asks torch for each copy. It takes tensors only.

    Args:
        streams: Of the device.

    Attributes:
        streams: The same.
    """

    def __init__(self, streams: Streams) -> None:
        self.streams = streams

    def ask(self) -> None:
        """See `Copier`; nothing is measured here."""

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
        self._home = streams.current()  # whose memory the copies lie in
        self._targets = [streams.allocate(source) for source in sources]
        side = streams.side()
        # The memory may be used until now by what the consumer has launched.
        streams.wait(side, streams.record(self._home))
        try:
            for target, source in zip(self._targets, sources, strict=True):
                streams.copy(side, target, source)
        except BaseException:
            streams.synchronize(streams.record(side))
            raise
        self._ready = streams.record(side)

    def hand_over(self) -> list[torch.Tensor]:
        """See `Copies`."""
        current = self._streams.current()
        self._streams.wait(current, self._ready)
        if current != self._home:
            for target in self._targets:
                self._streams.use(target, current)
        targets, self._targets = self._targets, []  # now they are the consumer's
        return targets

    @property
    def done(self) -> bool:
        """See `Copies`."""
        return self._streams.is_past(self._ready)

    def wait(self) -> None:
        """See `Copies`."""
        self._streams.synchronize(self._ready)


class Moves:
    """What moves by itself, moved before its batch is handed over.

    Args:
        streams: Of the device.
        others: See `Parts.others`.
        device: Where to.

    Raises:
        Exception: what such a method raised.
    """

    def __init__(self, streams: Streams, others: Sequence[Any], device: torch.device) -> None:
        self._streams = streams
        self._device = device
        self._home = streams.current()
        self._moved = [moved(other, device) for other in others]

    def hand_over(self) -> list[Any]:
        """The same, for the stream on which the calling thread computes."""
        current = self._streams.current()
        if current == self._home:
            return self._moved
        # Their memory is the other stream's, and how to tell that it is lent is not known.
        self._streams.wait(current, self._streams.record(self._home))
        on_cpu = [moved(one, torch.device("cpu")) for one in self._moved]
        self._streams.synchronize(self._streams.record(current))
        return [moved(one, self._device) for one in on_cpu]


class StaticBuffers:
    """Tensors whose addresses stay, one for each tensor of the batches of one shape.

    They are filled on the stream on which the calling thread computes: what it was given before
    still sees the batch before.

    Args:
        streams: Of the device.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._buffers: dict[Any, list[torch.Tensor]] = {}
        self._last: Any = None  # the stream that uses them

    def fill(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The buffers for such tensors, with their contents."""
        streams = self._streams
        current, last = streams.current(), self._last
        key = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors)
        if key not in self._buffers:
            with torch.inference_mode(False):  # they may be filled outside of that
                self._buffers[key] = [streams.allocate(tensor) for tensor in tensors]
        buffers = self._buffers[key]
        if last is not None and last != current:
            streams.wait(current, streams.record(last))
            for buffer in buffers:
                streams.use(buffer, current)
        self._last = current
        for buffer, tensor in zip(buffers, tensors, strict=True):
            streams.copy(current, buffer, tensor)
        return [buffer.detach() for buffer in buffers]  # what is done to those stays theirs
