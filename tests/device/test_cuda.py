"""Whole loaders over the fake CUDA driver give what they give on the CPU, whatever the timing."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch
from cuda_loaders import (
    CASES,
    CUDA,
    loaders,
    native,
)
from fake_gpu import FakeGpu, assert_equal, host, seen

from fastload import ArrayDataset, FastLoader


@pytest.mark.parametrize("name", CASES)
def test_batches_are_those_of_the_cpu(name: str, gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(1, 100)
    on_device, on_cpu = loaders(name)
    for _ in range(2):
        torch.manual_seed(5)
        got = [seen(gpu, batch) for batch in on_device]
        gpu.synchronise(gpu.now)
        torch.manual_seed(5)
        assert_equal(got, [host(batch) for batch in on_cpu])


def test_kernels_deliver_images_and_numbers_cross_the_bus_as_they_are_stored(gpu: FakeGpu) -> None:
    before = gpu.count("launches")
    for name in ("images", "planar", "channels last"):
        on_device, _ = loaders(name)
        for batch in on_device:
            assert batch["image"].dtype == torch.bfloat16
    assert gpu.count("launches") - before == 3 * len(on_device)


def test_a_batch_is_one_copy_for_each_large_field_and_one_for_all_small_ones(gpu: FakeGpu) -> None:
    before = gpu.calls("cuMemcpyHtoDAsync")
    for batch in native():
        assert batch["y"].untyped_storage().data_ptr() == batch["z"].untyped_storage().data_ptr()
        batch["y"].add_(1)
        assert batch["z"]._version == 0
        assert batch["x"].untyped_storage().nbytes() == batch["x"].nbytes
        assert all(tensor.data_ptr() % 16 == 0 for tensor in batch.values())
    assert gpu.calls("cuMemcpyHtoDAsync") - before == 2 * len(native())


def test_a_batch_is_two_calls_of_the_core(gpu: FakeGpu) -> None:
    batches = iter(native())
    next(batches)
    scopes = gpu.calls("cuCtxPushCurrent")
    for _ in range(13):
        gpu.synchronise(gpu.now)
        next(batches)
    assert gpu.calls("cuCtxPushCurrent") - scopes == 2 * 13


def test_ten_thousand_batches_of_which_some_are_kept(gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(3, 5)
    data = ArrayDataset({"x": np.arange(10_000 * 4).reshape(-1, 4), "y": np.arange(10_000)})
    rng = np.random.default_rng(0)
    kept: collections.deque[Any] = collections.deque()
    got = []
    for batch in FastLoader(data, 1, device=CUDA, seed=0, shuffle=True):
        kept.append(batch)
        while len(kept) > rng.integers(0, 20):
            old = kept.popleft()
            got.append(gpu.read(old["x"] if len(got) % 2 else old["y"]))
    got += [
        gpu.read(batch["x"] if (len(got) + i) % 2 else batch["y"]) for i, batch in enumerate(kept)
    ]
    gpu.synchronise(gpu.now)
    want = FastLoader(data, 1, seed=0, shuffle=True)
    for i, (one, batch) in enumerate(zip(got, want, strict=True)):
        assert torch.equal(one, batch["x"] if i % 2 else batch["y"])
