"""A GPU for whole loaders, on the fake driver: its memory is that of CPU tensors."""

from __future__ import annotations

import collections
import ctypes
import inspect
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

_POISON = 0xDB
# Torch 2.4 takes no limits of the lengths: it looks at the offsets when somebody asks for one.
_LIMITS_ARE_GIVEN = (
    "max_seqlen" in inspect.signature(torch.nested.nested_tensor_from_jagged).parameters
)


class FakeGpu:
    """The fake driver, and what torch would be for its device 0; see `CudaStreams`.

    Streams are the driver's handles. Memory is that of a caching allocator: what is freed goes to
    the next one that asks in the same stream, whose work may still use it. It is filled with 0xDB,
    by its stream, when it is given out and when it is freed.

    Args:
        library: The fake driver.

    Attributes:
        library: The same, for ctypes.
        path: Where it is.
        may_be_pageable: Whether copies from memory that is not pinned are expected.
        now: The stream on which the consumer computes; 0: the default stream.
    """

    def __init__(self, library: Path | str) -> None:
        self.path = str(library)
        self.library = ctypes.CDLL(self.path)
        self.library.fake_cuda_make_stream.restype = ctypes.c_void_p
        self.library.fake_cuda_count.restype = ctypes.c_int64
        self.library.fake_cuda_calls.restype = ctypes.c_int64
        self.library.fake_cuda_misuse.restype = ctypes.c_char_p
        self.may_be_pageable = False
        self.now = 0
        self._seen: list[torch.Tensor] = []
        self._free: collections.defaultdict[tuple[int, int], list[Any]] = collections.defaultdict(
            list
        )
        self._lent: collections.defaultdict[int, set[int]] = collections.defaultdict(set)

    def make_stream(self) -> int:
        """One more stream."""
        return int(self.library.fake_cuda_make_stream(0))

    def count(self, what: str) -> int:
        """See fake_cuda.h."""
        return int(self.library.fake_cuda_count(what.encode()))

    def calls(self, function: str) -> int:
        """How often a function of the driver was called."""
        return int(self.library.fake_cuda_calls(function.encode()))

    def fail(self, function: str, nth: int, code: int, times: int = 1) -> None:
        """See fake_cuda.h."""
        self.library.fake_cuda_fail(function.encode(), nth, code, times)

    def delay(self, function: str, seconds: float) -> None:
        """See fake_cuda.h."""
        us = ctypes.c_int64(round(seconds * 1e6))
        self.library.fake_cuda_delay(function.encode(), us)

    def capture(self, stream: int, is_captured: bool) -> None:
        """Whether a graph is captured from the stream."""
        self.library.fake_cuda_capture(_handle(stream), int(is_captured))

    def stop_clock(self, ns_per_byte: int) -> None:
        """See fake_cuda.h."""
        self.library.fake_cuda_stop_clock(ctypes.c_int64(ns_per_byte))

    def forgive(self) -> None:
        """Neither faults nor delays from now on, and nothing is held up; time passes."""
        self.stop_clock(-1)
        self.library.fake_cuda_forgive()
        self.library.fake_cuda_seed(0, 0)
        self.library.fake_cuda_hold_all(0)

    def misuse(self) -> str:
        """The last call that a driver may answer with anything."""
        return str(self.library.fake_cuda_misuse().decode())

    def synchronise(self, stream: int) -> None:
        """Waits until the stream is idle."""
        self.library.fake_cuda_synchronize(_handle(stream))

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a training step on the current stream sees, once the stream has been waited for."""
        seen = torch.empty_like(tensor)
        self._seen.append(seen)  # the stream writes to it later
        self.copy(self.now, seen, tensor)
        return seen

    # What a target uses of torch.

    def current(self) -> int:
        return self.now

    def handle(self) -> int:
        return self.now

    def record(self, stream: int) -> int:
        return stream

    def wait(self, stream: int, event: int) -> None:
        self.synchronise(event)

    def synchronize(self, event: int) -> None:
        self.synchronise(event)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self.allocate(torch.empty(tuple(shape), dtype=dtype, device="meta"))

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.nbytes:
            return torch.empty_like(tensor, device="cpu")
        key = self.now, tensor.nbytes
        block = self._free[key].pop() if self._free[key] else np.empty(tensor.nbytes, np.uint8)
        self._poison(self.now, block)
        # torch holds the array as long as the storage lives.
        array = block.view()
        weakref.finalize(array, self._release, self.now, block).atexit = False
        flat = torch.from_numpy(array).view(tensor.dtype)
        return flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())

    def copy(self, stream: int, target: torch.Tensor, source: torch.Tensor) -> None:
        assert target.stride() == source.stride()
        self.library.fake_cuda_copy(
            _handle(stream),
            ctypes.c_void_p(target.data_ptr()),
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_size_t(source.nbytes),
        )

    def use(self, tensor: torch.Tensor, stream: int) -> None:
        self._lent[tensor.untyped_storage().data_ptr()].add(stream)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return bool(
            self.library.fake_cuda_pinned(
                ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
            )
        )

    def _poison(self, stream: int, block: Any) -> None:
        self.library.fake_cuda_fill(
            _handle(stream),
            ctypes.c_void_p(block.ctypes.data),
            _POISON,
            ctypes.c_size_t(block.nbytes),
        )

    def _release(self, home: int, block: Any) -> None:
        for stream in self._lent.pop(block.ctypes.data, ()):
            self.synchronise(stream)
        self._poison(home, block)
        self._free[home, block.nbytes].append(block)


def _handle(stream: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(stream or None)


def seen(gpu: FakeGpu, batch: Any) -> Any:
    """What the current stream sees of a batch, once it has been waited for."""
    if isinstance(batch, torch.Tensor) and batch.is_nested:
        if not _LIMITS_ARE_GIVEN:
            gpu.synchronise(gpu.now)  # what reading a number from the offsets does on a GPU
        return [gpu.read(batch.values()), gpu.read(batch.offsets()), batch._max_seqlen]
    if isinstance(batch, torch.Tensor):
        return gpu.read(batch)
    if isinstance(batch, dict):
        return {key: seen(gpu, member) for key, member in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch), [seen(gpu, member) for member in batch]
    return batch


def host(batch: Any) -> Any:
    """The same of a batch on the CPU."""
    if isinstance(batch, torch.Tensor) and batch.is_nested:
        return [batch.values(), batch.offsets(), batch._max_seqlen]
    if isinstance(batch, dict):
        return {key: host(member) for key, member in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch), [host(member) for member in batch]
    return batch


def assert_equal(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert torch.equal(got, want)
        assert got.stride() == torch.empty_like(want).stride() or not want.numel()
    elif isinstance(want, dict):
        assert list(got) == list(want)
        assert_equal(list(got.values()), list(want.values()))
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_equal(one, other)
    else:
        assert got == want
