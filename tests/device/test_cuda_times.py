"""`loader.stats()` of loaders with a GPU: what its streams did, over the fake driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cuda_loaders import CUDA, LARGE, native
from fake_gpu import FakeGpu

from fastload import ArrayDataset, FastLoader

KEYS = {"h2d_bytes", "h2d_s", "gpu_stall_s"}


def figures(loader: FastLoader[Any]) -> tuple[int, int, int]:
    """Bytes, and nanoseconds of copies and of stalls."""
    stats = loader.stats()
    times = (round(stats[key] * 1e9) for key in ("h2d_s", "gpu_stall_s"))
    return int(stats["h2d_bytes"]), *times  # type: ignore[return-value]


def test_copies_are_counted_over_epochs_and_nobody_waits(gpu: FakeGpu) -> None:
    gpu.stop_clock(1)
    loader = native()
    assert not KEYS & set(loader.stats())
    for epoch in (1, 2):
        before = gpu.calls("cuStreamSynchronize")
        for _ in loader:
            gpu.synchronise(gpu.now)
        assert gpu.calls("cuStreamSynchronize") == before
        copied, copy_ns, stall_ns = figures(loader)
        assert copied >= epoch * sum(member.nbytes for member in LARGE.values())
        assert copy_ns == copied
        assert LARGE["x"][:4].nbytes <= stall_ns / epoch <= copied
    assert figures(loader) == (copied, copy_ns, stall_ns)


class Slow(torch.utils.data.IterableDataset[torch.Tensor]):
    """Whose samples take a microsecond each, in which the GPU comes to an end of its work."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(12):
            self._gpu.synchronise(self._gpu.now)
            self._gpu.library.fake_cuda_pass(ctypes.c_int64(1000))
            yield torch.zeros(100, dtype=torch.uint8)


def test_a_gpu_that_waits_for_the_data_stalls(gpu: FakeGpu) -> None:
    gpu.stop_clock(1)
    loader = FastLoader(Slow(gpu), 4, device=CUDA)
    assert len(list(loader)) == 3
    gpu.synchronise(gpu.now)
    assert figures(loader) == (1200, 1200, 12_000 + 1200)


def test_a_gpu_that_computes_does_not(gpu: FakeGpu) -> None:
    gpu.stop_clock(1)
    loader = native()
    batches = iter(loader)
    next(batches)
    gpu.synchronise(gpu.now)
    first = figures(loader)[2]
    for _ in range(3):
        gpu.library.fake_cuda_hold(ctypes.c_void_p(gpu.now or None), 1)
        next(batches)
        gpu.library.fake_cuda_pass(ctypes.c_int64(10**9))
        gpu.library.fake_cuda_hold(ctypes.c_void_p(gpu.now or None), 0)
        gpu.synchronise(gpu.now)
    bytes_since = 4 * sum(member[:4].nbytes + 512 for member in LARGE.values())
    assert figures(loader)[2] - first <= bytes_since


@pytest.mark.parametrize("device", [None, "meta"])
def test_what_torch_copies_is_not_measured(device: str | None) -> None:
    loader = FastLoader(ArrayDataset(np.arange(8)), 4, device=device)
    assert len(list(loader)) == 2
    assert not KEYS & set(loader.stats())


def test_iterators_at_once_and_one_that_is_gone(gpu: FakeGpu) -> None:
    gpu.stop_clock(1)
    loader = native()
    for _ in zip(loader, loader, strict=True):
        pass
    for _ in loader:
        break
    gpu.synchronise(gpu.now)
    copied, copy_ns, _ = figures(loader)
    assert copied >= 2 * sum(member.nbytes for member in LARGE.values())
    assert copy_ns == copied
