"""`loader.stats()`: what it counts, for every way in which batches come."""

from __future__ import annotations

import io
import json
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from ragged import ragged_dataset
from waiting import wait_for

from fastload import ArrayDataset, DecodeImage, FastLoader
from fastload.formats.fields import Field

NATIVE = {
    *("batches", "wait_s", "wait_p50_ms", "wait_p99_ms", "samples", "bytes", "missing"),
    *("worker_wait_s", "ready", "cold_share", "slot_bytes", "free_slot_bytes", "slot_allocations"),
}


class Slow(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_native_batches_are_counted_over_epochs(workers: int) -> None:
    loader = FastLoader(ArrayDataset({"x": np.zeros((10, 4))}), 4, num_workers=workers)
    assert set(loader.stats()) == NATIVE
    assert not any(loader.stats().values())
    for epoch in (1, 2):
        for _ in loader:
            pass
        stats = loader.stats()
        assert (stats["batches"], stats["samples"]) == (3 * epoch, 10 * epoch)
        assert (stats["bytes"], stats["ready"]) == (320 * epoch, 0)
    assert json.loads(json.dumps(stats)) == stats
    assert all(type(value) in (int, float) for value in stats.values())


def test_kept_batches_are_in_use_and_ready_ones_wait() -> None:
    loader = FastLoader(ArrayDataset(np.zeros((64, 1 << 14))), 2, num_workers=1, prefetch_factor=3)
    batches = iter(loader)
    kept = [next(batches) for _ in range(5)]
    wait_for(lambda: loader.stats()["ready"] >= 3)
    stats = loader.stats()
    assert stats["ready"] == 3
    assert stats["slot_bytes"] >= 8 * 2 * 8 << 14
    assert stats["slot_allocations"] >= 8
    assert stats["worker_wait_s"] >= 0
    del batches, kept
    assert loader.stats()["ready"] == loader.stats()["slot_bytes"] == 0


@pytest.mark.parametrize(("workers", "waits"), [(0, 6 * 0.01), (2, 0.02)])
def test_of_torchs_iterators_batches_and_waits_are_known(workers: int, waits: float) -> None:
    for _ in range(20):
        loader = FastLoader(Slow(), 2, num_workers=workers)
        assert [len(batch) for batch in loader] == [2, 2, 2]
        stats = loader.stats()
        assert set(stats) == {"batches", "wait_s", "wait_p50_ms", "wait_p99_ms"}
        assert stats["batches"] == 3
        if stats["wait_s"] >= waits or workers == 0:
            break  # else this process was held up, and not by its workers
    assert stats["wait_s"] >= waits
    if workers == 0:
        assert stats["wait_p50_ms"] >= 20 * 15 / 16


def test_waits_are_those_that_the_caller_sees() -> None:
    loader = FastLoader(Slow(), 2)
    batches, seen = iter(loader), 0.0
    for _ in range(3):
        start = time.perf_counter()
        next(batches)
        seen += time.perf_counter() - start
    assert 0.06 <= loader.stats()["wait_s"] <= seen


def test_an_iterable_dataset_is_counted_too() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(7))

    loader = FastLoader(Stream(), 2)
    assert len(list(loader)) == 4
    assert loader.stats()["batches"] == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_waiting_for_decoded_images_is_waiting(workers: int) -> None:
    file = io.BytesIO()
    Image.fromarray(np.zeros((300, 300, 3), np.uint8)).save(file, "PNG")
    fields = [Field("image", "uint8", (), ragged=True, logical="image")]
    dataset = ragged_dataset({"image": 0}, fields, [[file.getvalue()] * 12], [12])
    loader = FastLoader(
        dataset, 4, num_workers=workers, transforms={"image": DecodeImage((300, 300))}
    )
    start = time.perf_counter()
    assert len(list(loader)) == 3
    took = time.perf_counter() - start
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (3, 12)
    assert 0 < stats["wait_p50_ms"] <= stats["wait_p99_ms"] <= 1e3 * took * 17 / 16
    assert 0 < stats["wait_s"] <= took


def test_a_copy_of_a_loader_has_done_nothing() -> None:
    loader = FastLoader(ArrayDataset(np.arange(4)), 2)
    list(loader)
    assert pickle.loads(pickle.dumps(loader)).stats()["batches"] == 0


def test_any_thread_may_ask_while_others_load() -> None:
    loader = FastLoader(ArrayDataset(np.arange(4000)), 2, num_workers=2)
    counts, ends = [0.0], threading.Event()

    def ask() -> None:
        while not ends.is_set():
            counts.append(loader.stats()["batches"])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    consumers = [threading.Thread(target=lambda: list(loader)) for _ in range(2)]
    for thread in consumers:
        thread.start()
    for thread in consumers:
        thread.join()
    ends.set()
    for thread in threads:
        thread.join()
    assert loader.stats()["batches"] == 4000
    assert max(counts) <= 4000


def test_a_forked_child_begins_at_zero(run_torch: Callable[..., Any]) -> None:
    run_torch(
        "import os, numpy as np, fastload\n"
        "loader = fastload.FastLoader(fastload.ArrayDataset(np.arange(40)), 2, num_workers=2)\n"
        "batches = iter(loader)\n"
        "next(batches)\n"
        "if os.fork() == 0:\n"
        "    assert not any(loader.stats().values()), loader.stats()\n"
        "    list(loader)\n"
        "    os._exit(loader.stats()['batches'] != 20)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "assert loader.stats()['batches'] == 1"
    )
