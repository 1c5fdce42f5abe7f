"""What loading costs, counted rather than timed."""

from __future__ import annotations

import os
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import numbers
from packing import encoded, noise

import fastload
from fastload import ArrayDataset, DecodeImage, FastLoader
from fastload.batch import decode


def sparse(path: Path, rows: int) -> Any:
    """A dataset of int64 zeros that takes no space."""
    with path.open("wb") as file:
        file.truncate(8 * rows)
    return fastload.open(path, dtype="int64", shape=())


def python_calls(run: Callable[[], Any]) -> int:
    """Functions called, in this thread."""
    count = 0

    def called(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def peak_bytes(run: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", ["full", "block"])
@pytest.mark.parametrize("workers", [0, 1])
def test_beginning_a_keyed_epoch_costs_the_same_for_any_length(
    order: str, workers: int, tmp_path: Path
) -> None:
    costs = []
    for rows in (10**3, 10**9):
        data = sparse(tmp_path / f"{rows}.bin", rows)
        loader = (
            FastLoader(
                data, 16, shuffle=True, seed=0, order=order, num_workers=workers, prefetch_factor=1
            )
            if workers
            else FastLoader(data, 16, shuffle=True, seed=0, order=order, num_workers=0)
        )
        next(iter(loader))  # what is made once

        def begin(loader: FastLoader[Any] = loader) -> None:
            next(iter(loader))

        costs.append((python_calls(begin), peak_bytes(begin)))
    (few_calls, few_bytes), (many_calls, many_bytes) = costs
    assert many_calls == few_calls
    assert many_bytes <= few_bytes + 10_000


def test_resuming_costs_the_same_at_any_place(tmp_path: Path) -> None:
    costs = []
    for rows, place in ((10**3, 10), (10**9, 10), (10**9, 987_654_321)):
        data = sparse(tmp_path / f"{rows}.bin", rows)
        loader = FastLoader(data, 16, shuffle=True, seed=0, num_workers=0)
        state = loader.state_dict() | {"samples": place}

        def resume(loader: FastLoader[Any] = loader, state: dict[str, Any] = state) -> None:
            loader.load_state_dict(state)
            next(iter(loader))

        resume()
        costs.append((python_calls(resume), peak_bytes(resume)))
    assert len({calls for calls, _ in costs}) == 1
    assert max(peak for _, peak in costs) <= costs[0][1] + 10_000


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "seed": 0}])
def test_later_epochs_open_nothing_and_allocate_nothing(
    options: dict[str, Any], tmp_path: Path
) -> None:
    rows = np.zeros((256, 40_000), "u1")
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", rows)
    loader = FastLoader(tmp_path, 8, num_workers=2, prefetch_factor=1, **options)
    tables, allocations, files = [], [], []
    for _ in range(4):
        batches: Any = iter(loader)
        run = batches._resources
        for _batch in batches:
            pass
        tables.append(run.table)
        allocations.append(run.pool.allocation_count)
        files.append(len(os.listdir("/proc/self/fd")))
    assert all(table is tables[0] for table in tables)
    # How many of the 128 batches are under way at once is chance: 2 that fill or are ready, those
    # that threads begin while others are taken, and two with the caller.
    assert allocations[-1] <= 12
    assert max(files[2:]) <= files[1]  # fewer where the collector closes what others left


def test_an_epoch_takes_no_shared_memory_no_files_and_no_threads(
    live_threads: Callable[[], set[str]], tmp_path: Path
) -> None:
    for number in range(10):
        np.save(tmp_path / f"{number}.npy", np.zeros((100, 1000), "u1"))

    def held() -> tuple[int, int, int]:
        mapped = Path("/proc/self/maps").read_text().count("/dev/shm/")
        return len(os.listdir("/proc/self/fd")), mapped, len(live_threads())

    loader = FastLoader(tmp_path, 10, shuffle=True, num_workers=2)
    for _ in loader:
        pass
    batches = iter(loader)
    kept = [next(batches)]
    at_first = held()
    for batch in batches:
        kept.append(batch)
        if len(kept) < 100:  # after the last one the threads may end
            files, mapped, threads = held()
            assert (files, mapped) == at_first[:2]
            assert threads <= at_first[2]
    assert len(kept) == 100


def test_a_slow_sample_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    images = [encoded(noise(4, 4, seed), "PNG") for seed in range(8)]
    fastload.pack([{"image": image} for image in images], tmp_path / "data")
    others, overtaken = threading.Semaphore(0), []
    decode_image = decode.decode_image

    def gated(data: bytes, transform: DecodeImage) -> Any:
        if data == images[0]:  # waits until all others are done
            overtaken.append(all(others.acquire(timeout=30) for _ in images[1:]))
        else:
            others.release()
        return decode_image(data, transform)

    monkeypatch.setattr(decode, "decode_image", gated)
    loader = FastLoader(
        tmp_path / "data", 2, num_workers=2, transforms={"image": DecodeImage((4, 4))}
    )
    assert len(list(loader)) == 4
    assert overtaken == [True]


def test_loading_ahead_leaves_python_alone() -> None:
    """Nobody asks for a batch: the threads that prepare them do not need the interpreter."""
    data = ArrayDataset(np.zeros((64, 100_000), "u1"))
    batches = iter(FastLoader(data, 1, num_workers=1, prefetch_factor=8))
    next(batches)
    engine: Any = batches._source
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody who waits for the interpreter gets it from this thread
    try:
        for _ in range(50_000_000):
            if engine.stats()["ready"] >= 8:
                break
        assert engine.stats()["ready"] >= 8
    finally:
        sys.setswitchinterval(interval)


def test_batches_cost_the_same_number_of_calls_for_any_size() -> None:
    costs = []
    for size in (1, 1000):
        batches = iter(FastLoader(numbers(10 * size), size, num_workers=1))
        next(batches)
        costs.append(python_calls(lambda taken=batches: next(taken)))  # type: ignore[misc]
    assert costs[0] == costs[1]
