"""Brings batches to a device: copied ahead, on a stream beside the one that computes."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import torch

_AHEAD = 1  # batches that are copied before they are asked for
_NEEDED = ("Stream", "Event", "current_stream", "current_device", "stream")

T = TypeVar("T")


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


class _Copies:
    """The copies of one batch, which keep what they read until they are done."""

    def __init__(self, streams: Streams, device: torch.device, batch: Any) -> None:
        self._streams = streams
        self._home = streams.current()  # whose memory the copies lie in
        self._targets: list[torch.Tensor] = []
        self._sources: list[torch.Tensor] = []
        self.batch = with_tensors(batch, device, self._placed)
        side = streams.side()
        # The memory may be used until now by what the consumer has launched.
        streams.wait(side, streams.record(self._home))
        try:
            for target, source in zip(self._targets, self._sources, strict=True):
                streams.copy(side, target, source)
        except BaseException:
            streams.synchronize(streams.record(side))
            raise
        self._ready = streams.record(side)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        target = self._streams.allocate(tensor)
        self._targets.append(target)
        self._sources.append(tensor)
        return target

    def hand_over(self) -> Any:
        """The batch, for the stream on which the caller computes."""
        current = self._streams.current()
        self._streams.wait(current, self._ready)
        if current != self._home:
            for target in self._targets:
                self._streams.use(target, current)
        batch, self.batch = self.batch, None  # now it is the consumer's
        self._targets.clear()
        return batch

    @property
    def done(self) -> bool:
        """Whether the device has made them."""
        return self._streams.is_past(self._ready)

    def wait(self) -> None:
        """Stops the host until the device has made them."""
        self._streams.synchronize(self._ready)


class Prefetcher:
    """Gives the batches of a source on a device, copied one batch ahead of the consumer.

    The memory of a copy belongs to the stream on which the consumer computes, which waits for the
    copy when it is handed over; the host waits for nothing. One thread at a time.

    Args:
        device: With its index.
        streams: Of the device.
    """

    def __init__(self, device: torch.device, streams: Streams) -> None:
        self._device = device
        self._streams = streams
        self._pid = os.getpid()
        self._coming: collections.deque[tuple[_Copies, Any] | Exception] = collections.deque()
        self._running: collections.deque[_Copies] = collections.deque()  # handed over

    def next(self, load: Callable[[], tuple[Any, T]]) -> tuple[Any, T]:
        """The next batch on the device, and what was loaded with it.

        Args:
            load: Gives a batch and anything beside it. What it raises is raised at its turn.
        """
        while len(self._coming) <= _AHEAD and not self._ends():
            try:
                batch, beside = load()
                self._coming.append((_Copies(self._streams, self._device, batch), beside))
            except StopIteration:
                self._coming.append(StopIteration())  # the other one's traceback holds the source
            except Exception as error:
                if self._coming and _is_timeout(error):
                    break  # nobody waits for that batch yet
                self._coming.append(error)
        turn = self._coming.popleft()
        if isinstance(turn, Exception):
            try:
                raise turn
            finally:
                del turn  # whose traceback holds this frame
        copies, beside = turn
        moved = copies.hand_over()
        self._running.append(copies)
        while self._running and self._running[0].done:
            self._running.popleft()
        return moved, beside

    def _ends(self) -> bool:
        return bool(self._coming) and isinstance(self._coming[-1], StopIteration)

    def __del__(self) -> None:
        if self._pid != os.getpid():  # a forked child cannot use the device
            return
        waiting = [turn[0] for turn in self._coming if isinstance(turn, tuple)]
        for copies in [*self._running, *waiting]:
            # Memory on either side must not go while it is copied.
            with contextlib.suppress(Exception):  # at exit the device may be gone
                copies.wait()


class Mover:
    """The same for a device without streams: each batch is copied when it is asked for.

    Args:
        device: Where to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def next(self, load: Callable[[], tuple[Any, T]]) -> tuple[Any, T]:
        """See `Prefetcher.next`."""
        batch, beside = load()
        device = self._device
        return with_tensors(batch, device, lambda tensor: tensor.to(device)), beside


def make_prefetcher(device: torch.device | str | int | None) -> Prefetcher | Mover | None:
    """What brings an iterator's batches to a device; None if they stay on the CPU."""
    if device is None:
        return None
    where = torch.device(device)
    if where.type == "cpu":
        return None
    module: Any = getattr(torch, where.type, None)
    if not all(hasattr(module, name) for name in _NEEDED):
        return Mover(where)
    index: int | None = where.index
    if index is None:
        where = torch.device(where.type, module.current_device())
    return Prefetcher(where, TorchStreams(where))


def with_tensors(
    data: Any, device: torch.device, place: Callable[[torch.Tensor], torch.Tensor]
) -> Any:
    """A batch with its tensors on a device, in the same containers; anything else as it is.

    Args:
        data: The batch.
        device: Where its tensors are to be.
        place: Gives the copy of a plain tensor. Others, and objects that have a method `to`, are
            moved by that.
    """
    if isinstance(data, torch.Tensor):
        if data.device == device:
            return data
        plain = type(data) is torch.Tensor and data.layout is torch.strided
        plain = plain and not (data.requires_grad or data.is_quantized or data.is_nested)
        return place(data) if plain else data.to(device, non_blocking=True)
    if callable(getattr(data, "to", None)):
        return data.to(device)
    if isinstance(data, Mapping):
        return _like(data, {key: with_tensors(data[key], device, place) for key in data})
    if isinstance(data, (list, tuple)):
        members = [with_tensors(member, device, place) for member in data]
        if hasattr(data, "_fields"):
            return type(data)(*members)
        return tuple(members) if isinstance(data, tuple) else _like(data, dict(enumerate(members)))
    return data


def _like(template: Any, members: dict[Any, Any]) -> Any:
    if hasattr(template, "__setitem__"):
        clone = copy.copy(template)
        for key, value in members.items():
            clone[key] = value
        return clone
    try:
        return type(template)(members)
    except TypeError:
        return members


def _is_timeout(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader timed out")
