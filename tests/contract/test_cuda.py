"""Pinned memory and batches on a real GPU; tests/device proves the order without one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

from fastload import ArrayDataset, FastLoader

pytestmark = pytest.mark.usefixtures("real_gpu")

Run = Callable[..., subprocess.CompletedProcess[str]]

ROWS, SIZE = 64, 8
DATA = np.arange(ROWS * 25_000, dtype="i8").reshape(ROWS, 25_000)
A_WHILE = 20_000_000  # clock cycles: about 10 ms


def make(**options: Any) -> FastLoader[Any]:
    return FastLoader(ArrayDataset({"x": DATA, "y": (np.arange(ROWS),)}), SIZE, **options)


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_every_tensor_is_pinned(workers: int | None) -> None:
    for batch in make(pin_memory=True, num_workers=workers):
        assert batch["x"].is_pinned()
        assert type(batch["y"]) is list
        assert batch["y"][0].is_pinned()


CONTEXTS = """
import ctypes, sys, threading
import numpy as np, torch
from fastload import ArrayDataset, FastLoader
def has_context(number):
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuInit(0) == 0
    flags, active = ctypes.c_uint(), ctypes.c_int()
    assert not driver.cuDevicePrimaryCtxGetState(number, ctypes.byref(flags), ctypes.byref(active))
    return bool(active.value)
data = ArrayDataset(np.zeros((64, 1000), "f4"))
"""


def test_batches_of_the_cpu_make_no_context(run_python: Run) -> None:
    run_python(
        CONTEXTS
        + "list(FastLoader(data, 8, num_workers=2))\n"
        + "list(FastLoader(list(range(9)), 2))\n"
        + "assert not has_context(0)"
    )


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_first_gpu_is_left_alone_when_another_is_chosen(run_python: Run) -> None:
    run_python(
        CONTEXTS
        + "torch.cuda.set_device(1)\n"
        + "def run():\n"
        + "    torch.cuda.set_device(1)\n"
        + "    list(FastLoader(data, 8, pin_memory=True, num_workers=2))\n"
        + "    list(FastLoader(data, 8, device='cuda'))\n"
        + "run()\n"
        + "thread = threading.Thread(target=run)\n"
        + "thread.start()\n"
        + "thread.join()\n"
        + "assert has_context(1) and not has_context(0)"
    )


@pytest.mark.parametrize("options", [{"pin_memory": True}, {"pin_memory": True, "device": "cuda"}])
def test_pinned_memory_is_allocated_at_the_beginning_only(options: dict[str, Any]) -> None:
    if not hasattr(torch.cuda, "host_memory_stats"):
        pytest.skip("this torch does not count pinned memory")
    loader, counts = make(num_workers=2, **options), []
    for _ in range(4):
        for batch in loader:
            batch["x"].cuda(non_blocking=True)
            torch.cuda.synchronize()
        counts.append(torch.cuda.host_memory_stats()["num_host_alloc"])
    assert counts[1:] == [counts[1]] * 3


@pytest.mark.parametrize("beside", [False, True])
def test_pinned_memory_is_not_used_again_while_it_is_copied(beside: bool) -> None:
    loader = make(pin_memory=True, num_workers=2)
    stream = torch.cuda.Stream() if beside else torch.cuda.current_stream()
    copies = []
    with torch.cuda.stream(stream):
        for _ in range(3):
            for batch in loader:
                torch.cuda._sleep(A_WHILE)
                copies.append(batch["x"].cuda(non_blocking=True))
                del batch
    torch.cuda.synchronize()
    assert torch.equal(torch.cat(copies).cpu(), torch.from_numpy(DATA).repeat(3, 1))


def test_a_captured_graph_reads_each_batch() -> None:
    static = torch.zeros(SIZE, DATA.shape[1], dtype=torch.int64, device="cuda")
    static.sum()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = static.sum()
    sums = []
    for batch in make(pin_memory=True, num_workers=2):
        torch.cuda._sleep(A_WHILE)
        static.copy_(batch["x"], non_blocking=True)
        del batch
        graph.replay()
        sums.append(total.clone())
    assert torch.stack(sums).tolist() == DATA.reshape(-1, SIZE * DATA.shape[1]).sum(1).tolist()


@pytest.mark.parametrize("beside", [False, True])
def test_a_batch_on_the_gpu_lives_until_its_last_kernel(beside: bool) -> None:
    stream = torch.cuda.Stream() if beside else torch.cuda.current_stream()
    sums = []
    with torch.cuda.stream(stream):
        for batch in make(device="cuda", pin_memory=True, num_workers=2):
            assert batch["x"].is_cuda
            torch.cuda._sleep(A_WHILE)
            sums.append(batch["x"].sum())
            del batch
    torch.cuda.synchronize()
    assert torch.stack(sums).tolist() == DATA.reshape(-1, SIZE * DATA.shape[1]).sum(1).tolist()


def test_the_host_does_not_wait_for_the_gpu() -> None:
    loader = make(device="cuda", pin_memory=True, num_workers=2)
    sums = [batch["x"].sum() for batch in loader]
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        sums += [batch["x"].sum() for batch in loader]
    names = {event.name for event in profile.events()}
    assert not names & {"cudaStreamSynchronize", "cudaEventSynchronize"}
    assert len(sums) == 2 * ROWS // SIZE


def losses(loader: Any) -> list[float]:
    """Of a training in mixed precision that adds up the gradients of two batches."""
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for step, batch in enumerate(loader):
        x = batch["x"].cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).square().mean() / 2
        loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        seen.append(loss.detach())
    return torch.stack(seen).tolist()


def test_training_in_mixed_precision_loses_as_with_dataloader() -> None:
    x = np.random.default_rng(0).standard_normal((256, 16), np.float32)
    data = ArrayDataset({"x": x})
    want = losses(DataLoader(data, 8))  # type: ignore[arg-type]
    assert losses(FastLoader(data, 8, device="cuda", pin_memory=True)) == want
    assert losses(FastLoader(data, 8, pin_memory=True)) == want


@pytest.mark.parametrize("workers", [0, 2])
def test_an_order_that_is_drawn_on_the_gpu_is_torchs(workers: int) -> None:
    def generator() -> torch.Generator:
        return torch.Generator("cuda").manual_seed(3)

    def orders(kind: type[DataLoader[Any]], options: dict[str, Any]) -> list[Any]:
        torch.manual_seed(3)
        loader = kind(ArrayDataset(np.arange(ROWS)), SIZE, **options)
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    weights = torch.arange(1.0, 9.0, device="cuda")
    makers: list[Callable[[], dict[str, Any]]] = [
        lambda: {"sampler": WeightedRandomSampler(weights, 30)},
        lambda: {"sampler": WeightedRandomSampler(weights, 30, generator=generator())},
    ]
    for make_options in makers:
        found = orders(FastLoader, make_options() | {"num_workers": workers})
        assert found == orders(DataLoader, make_options())
    try:
        torch.set_default_device("cuda")
        found = orders(FastLoader, {"shuffle": True, "generator": generator()})
        assert found == orders(DataLoader, {"shuffle": True, "generator": generator()})
    finally:
        torch.set_default_device(None)
