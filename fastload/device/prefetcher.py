"""Copies batches to a device ahead of the consumer, in parallel to the stream that computes."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from fastload import _core
from fastload.batch.parts import Build, Parts, take_apart
from fastload.device.cuda_copier import open_cuda
from fastload.device.torch_copier import (
    Copier,
    Copies,
    Moves,
    NoStreams,
    StaticBuffers,
    StreamCopier,
    Streams,
    TorchStreams,
)
from fastload.errors import CudaError, StoppedError, warn

_AHEAD = 1  # batches that are copied before they are requested
_MAX_RUNNING = 4  # delivered batches with incomplete copies, which hold their sources
_NEEDED = ("Stream", "Event", "current_stream", "current_device", "stream")

T = TypeVar("T")


@dataclass
class _Turn(Generic[T]):
    """A batch that waits for its turn; its copies may have been submitted."""

    parts: Parts | None
    build: Build
    payload: T
    copies: Copies | None = None
    moves: Moves | None = None


class Prefetcher:
    """Delivers batches on a device, copied ahead of the consumer.

    The memory of a copy belongs to the stream on which the consumer computes; that stream waits for
    the copy when the batch is delivered. The host waits only for the copies of a batch that it
    delivered a few batches ago, if it is that far ahead of the device. Threads take turns.

    Args:
        device: The device, with its index.
        copier: A copier to the device, which no other prefetcher uses.
        ahead: Number of batches that are copied before they are requested.
        buffers: Tensors that all batches share; None: each batch has its own.
    """

    def __init__(
        self,
        device: torch.device,
        copier: Copier,
        *,
        ahead: int = _AHEAD,
        buffers: StaticBuffers | None = None,
    ) -> None:
        self._device = device
        self._copier = copier
        self._ahead = ahead
        self._buffers = buffers
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._coming: collections.deque[_Turn[Any] | Exception] = collections.deque()
        self._running: collections.deque[Copies] = collections.deque()  # delivered

    def next(
        self,
        load: Callable[[], tuple[Any, T]],
        load_ready: Callable[[], tuple[Any, T] | None],
    ) -> tuple[Any, T]:
        """Returns the next batch on the device, and the payload that was loaded with it.

        Args:
            load: Loads a batch, or its `Parts`, and a payload. Its errors are raised at the turn
                of the batch.
            load_ready: Like `load`, but returns None if the caller would have to wait.

        Raises:
            CudaError: the device is lost; or the caller's stream is capturing a graph, after which
                the same batch is delivered.
            StoppedError: the caller is in a forked child.
            Exception: an error of loading or copying this batch.
        """
        if self._pid != os.getpid():  # the lock may have been copied while it was held
            raise StoppedError("the iterator belongs to the parent process; make a new one here")
        with self._lock:
            self._copier.ask()
            self._drop_done()
            while len(self._running) > _MAX_RUNNING:
                self._running[0].wait()
                self._drop_done()
            if not self._coming:
                self._take(load)
            self._submit()  # before loading more: the engine may reuse the memory
            taken = False
            while len(self._coming) <= self._ahead and not self._ends():
                if not self._take(load_ready):
                    break
                taken = True
            if taken:
                self._submit()
            turn = self._coming[0]
            if isinstance(turn, Exception):
                self._coming.popleft()
                try:
                    raise turn
                finally:
                    del turn  # whose traceback holds this frame
            assert turn.copies is not None
            tensors = turn.copies.deliver()
            self._coming.popleft()
            self._running.append(turn.copies)
            others = [] if turn.moves is None else turn.moves.deliver()
            if self._buffers is not None:
                tensors = self._buffers.fill(tensors)
            return turn.build([*tensors, *others] if others else tensors), turn.payload

    def _take(self, load: Callable[[], tuple[Any, Any] | None]) -> bool:
        try:
            loaded = load()
        except StopIteration:
            self._coming.append(StopIteration())  # the original's traceback holds the source
        except Exception as error:
            if self._coming and _is_timeout(error):
                return False  # the consumer does not wait for that batch yet
            self._coming.append(error)
        else:
            if loaded is None:
                return False
            batch, payload = loaded
            try:
                parts = batch if isinstance(batch, Parts) else take_apart(batch, self._device)
            except Exception as error:  # a container cannot be copied
                self._coming.append(error)
            else:
                self._coming.append(_Turn(parts, parts.build, payload))
        return True

    def _submit(self) -> None:
        """Submits the loaded batches; a batch that cannot be submitted is retried at its turn."""
        if not torch.is_inference_mode_enabled():
            return self._submit_all()
        with torch.inference_mode(False):  # the batch may be delivered outside of inference mode
            return self._submit_all()

    def _submit_all(self) -> None:
        for place, turn in enumerate(self._coming):
            if isinstance(turn, Exception) or turn.parts is None:
                continue
            first = self._coming[0] if place else None
            try:
                turn.copies = self._copier.submit(
                    turn.parts.leaves, first.copies if isinstance(first, _Turn) else None
                )
                others, turn.parts = turn.parts.others, None
                if others:
                    turn.moves = Moves(self._copier.streams, others, self._device)
            except CudaError:
                if place == 0:
                    raise
                return
            except Exception as error:
                self._coming[place] = error
                if turn.copies is not None:
                    self._running.append(turn.copies)

    def _ends(self) -> bool:
        return bool(self._coming) and isinstance(self._coming[-1], StopIteration)

    def _drop_done(self) -> None:
        while self._running and self._running[0].done:
            self._running.popleft()

    def __del__(self) -> None:
        if self._pid != os.getpid():  # a forked child cannot use the device
            return
        coming = [turn.copies for turn in self._coming if isinstance(turn, _Turn)]
        for copies in [*self._running, *coming]:
            # Memory on both sides must not be freed while it is copied.
            with contextlib.suppress(Exception):  # at exit the device may be gone
                if copies is not None:
                    copies.wait()


class Target:
    """The device to which the batches of a loader are copied.

    Args:
        device: The device, with its index.
        static: True if all batches of one shape, of all iterators, use the same tensors.

    Attributes:
        device: The device, with its index.
        pool: Pinned memory for the engine; None: the engine may use any memory.
    """

    def __init__(self, device: torch.device, static: bool = False) -> None:
        self.device = device
        self._has_streams = _has_streams(device)
        self._streams: Streams = TorchStreams(device) if self._has_streams else NoStreams(device)
        self._cuda = open_cuda(device) if self._has_streams else None
        if self._cuda is not None:
            self._streams = self._cuda.streams
        self._buffers = StaticBuffers(self._streams) if static else None
        self._warned = False

    def check(self) -> None:
        """Raises torch's error for a device that it cannot use, before the first batch."""
        if self._cuda is None:
            self._streams.allocate(torch.empty(0))

    @property
    def pool(self) -> _core.SlotPool | None:
        """See the class."""
        return None if self._cuda is None else self._cuda.pool

    @property
    def times(self) -> _core.StreamTimes | None:
        """Timings of the device's streams; None: they are not measured."""
        return None if self._cuda is None else self._cuda.times

    def runs(self, plan: _core.PixelPlan) -> bool:
        """Returns True if the device can apply these transforms to stored images."""
        return self._cuda is not None and self._cuda.runs(plan)

    def prefetcher(self) -> Prefetcher:
        """Returns the prefetcher of one iterator."""
        copier: Copier = StreamCopier(self._streams)
        if self._cuda is not None:
            copier = self._cuda.copier()
        ahead = _AHEAD if self._has_streams else 0
        return Prefetcher(self.device, copier, ahead=ahead, buffers=self._buffers)

    def reserve(self, batch_bytes: int, depth: int) -> None:
        """Reserves pinned memory before an iterator starts; warns once if there is not enough.

        Args:
            batch_bytes: Size of a batch in bytes.
            depth: Number of batches that the engine keeps ready.
        """
        if self._cuda is None:
            return
        self._cuda.pool.reserve(batch_bytes * (depth + _AHEAD + _MAX_RUNNING + 1))
        complaint = self._cuda.pool.complaint
        if complaint and not self._warned:
            self._warned = True
            warn(complaint, RuntimeWarning)


def _has_streams(device: torch.device) -> bool:
    module: Any = getattr(torch, device.type, None)
    return all(hasattr(module, name) for name in _NEEDED)


def device_with_index(device: torch.device | str | int | None) -> torch.device | None:
    """Returns the device with its index, by default the current one; None for the CPU.

    Raises:
        Exception: torch cannot use the device.
    """
    if device is None:
        return None
    where = torch.device(device)
    if where.type == "cpu":
        return None
    index: int | None = where.index
    if index is None and _has_streams(where):
        return torch.device(where.type, getattr(torch, where.type).current_device())
    return where


def _is_timeout(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader timed out")
