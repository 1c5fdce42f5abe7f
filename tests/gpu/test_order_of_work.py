"""Nothing is read before it has arrived, and nothing is overwritten while it is read."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fastload import ArrayDataset, CudaError, FastLoader, Normalize, ToChannelsFirst

BATCHES = 10_000
CYCLES = 2_000_000  # that a kernel spins: about a millisecond


def numbered(rows: int, width: int) -> ArrayDataset:
    """Rows of int32 that tell where they belong."""
    data = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    return ArrayDataset({"x": data, "y": np.arange(rows)})


def wrong_rows(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """How many rows are not what their numbers say, without waiting for the device."""
    width = batch["x"].shape[1]
    expected = batch["y"][:, None] * width + torch.arange(width, device=batch["y"].device)
    return (batch["x"] != expected).any(1).sum()


def spin(chance: random.Random) -> None:
    if chance.random() < 0.05:
        torch.cuda._sleep(chance.randrange(CYCLES))


@pytest.mark.parametrize("width", [16, 40_000])
def test_no_wrong_byte_with_delayed_kernels(width: int, device: torch.device) -> None:
    chance = random.Random(width)
    loader = FastLoader(numbered(4_096, width), 32, shuffle=True, seed=0, device=device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    held: list[Any] = []
    streams = [torch.cuda.default_stream(device), torch.cuda.Stream(device)]
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for number, batch in enumerate(itertools.islice(batches, BATCHES)):
        spin(chance)
        wrong += wrong_rows(batch)
        if chance.random() < 0.02:
            held.append(batch)
        else:
            batch["x"].fill_(-1)  # what was delivered is the consumer's to write to
        if len(held) > 8:
            wrong += wrong_rows(held.pop(chance.randrange(len(held))))
        if number % 1_000 == 999:
            assert wrong.item() == 0, f"within {number + 1} batches"
        if number % 500 == 0:
            streams.reverse()
            streams[0].wait_stream(streams[1])
            torch.cuda.set_stream(streams[0])
    torch.cuda.set_stream(torch.cuda.default_stream(device))
    assert wrong.item() == 0


def test_early_breaks_while_copies_run(device: torch.device) -> None:
    chance = random.Random(0)
    dataset = numbered(2_048, 40_000)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(300):
        loader = FastLoader(dataset, 64, shuffle=True, seed=0, device=device)
        for batch in itertools.islice(loader, chance.randrange(4)):
            spin(chance)
            wrong += wrong_rows(batch)
        del loader
        # Whoever gets the memory of undelivered batches must not be written to.
        mine = torch.full((64, 40_000), 7, dtype=torch.int32, device=device)
        spin(chance)
        wrong += (mine != 7).sum()
    assert wrong.item() == 0


def test_the_stream_may_change_between_batches(device: torch.device) -> None:
    loader = FastLoader(numbered(640, 40_000), 32, device=device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    side = torch.cuda.Stream(device)
    for number, batch in enumerate(loader):
        stream = side if number % 2 else torch.cuda.default_stream(device)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
        del batch
    batches = iter(loader)
    for number in range(len(loader)):
        stream = side if number % 2 else torch.cuda.default_stream(device)
        stream.wait_stream(torch.cuda.default_stream(device) if number % 2 else side)
        with torch.cuda.stream(stream):
            batch = next(batches)
            torch.cuda._sleep(CYCLES)
            wrong += wrong_rows(batch)
    torch.cuda.synchronize(device)
    assert wrong.item() == 0


def test_a_graph_is_captured_while_batches_are_prefetched(device: torch.device) -> None:
    loader = FastLoader(numbered(4_096, 10_000), 32, shuffle=True, seed=0, device=device)
    batches = iter(loader)
    static = next(batches)["x"].float()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = static * 2
    for batch in batches:
        static.copy_(batch["x"])
        graph.replay()
        assert torch.equal(result, batch["x"].float() * 2)


def test_next_during_a_capture_is_an_error_and_loses_nothing(device: torch.device) -> None:
    batches = iter(FastLoader(numbered(256, 64), 32, device=device))
    next(batches)
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(4, device=device)
    with torch.cuda.graph(graph):
        x += 1
        with pytest.raises(CudaError, match="captur"):
            next(batches)
    rest = [batch["y"] for batch in batches]
    assert torch.cat(rest).tolist() == list(range(32, 256))


def test_a_whole_step_in_a_graph_over_static_buffers(device: torch.device) -> None:
    images = np.random.default_rng(0).integers(0, 256, (512, 32, 32, 3), np.uint8)
    steps = [Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)), ToChannelsFirst()]
    data = ArrayDataset({"x": images, "y": np.arange(512) % 10})
    options: dict[str, Any] = {"shuffle": True, "seed": 0, "transforms": {"x": steps}}
    losses = []
    for graphs in (False, True):
        loader = FastLoader(data, 64, device=device, static_buffers=graphs, **options)
        step = _new_step(device)
        losses.append(list(map(float, _graphed(loader, step) if graphs else map(step, loader))))
    assert losses[0] == losses[1]


def _new_step(device: torch.device) -> Any:
    """A training step of a small model, always the same one."""
    torch.manual_seed(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 32), torch.nn.Linear(32, 10)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _graphed(loader: Any, step: Any) -> Any:
    """The losses of an epoch: the first steps as they are, then by a graph."""
    graph, loss, first = None, None, None
    for number, batch in enumerate(loader):
        first = batch if first is None else first
        assert all(batch[key].data_ptr() == first[key].data_ptr() for key in batch)
        if number < 3:  # cuBLAS and the gradients get their memory
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                warm = step(batch)
            torch.cuda.current_stream().wait_stream(side)
            yield warm.item()
            continue
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = step(batch)
        graph.replay()
        yield loss.item()


class Late(torch.utils.data.IterableDataset[torch.Tensor]):
    """Whose batches come when the GPU has been idle for 20 ms."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(10):
            torch.cuda.synchronize()
            time.sleep(0.02)
            yield torch.zeros(1 << 20)


def test_a_stall_is_what_the_gpu_waits_for_data_and_not_what_it_computes(
    device: torch.device,
) -> None:
    late = FastLoader(Late(), None, device=device)
    start = time.perf_counter()
    for batch in late:
        batch.sum()
    torch.cuda.synchronize()
    stats = late.stats()
    assert 0.2 <= stats["gpu_stall_s"] <= time.perf_counter() - start
    assert stats["h2d_bytes"] == 10 * 4 << 20
    assert 0 < stats["h2d_s"] < stats["gpu_stall_s"]

    busy = FastLoader(numbered(640, 1_000), 64, device=device)
    for batch in busy:
        torch.cuda._sleep(20 * CYCLES)
        batch["x"].sum()
    torch.cuda.synchronize()
    assert busy.stats()["gpu_stall_s"] < 0.1  # of about 0.2 s
