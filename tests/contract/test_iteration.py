"""Iterators, and the batches they give, seen from the loop around them."""

from __future__ import annotations

import os
import resource
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import numbers, values
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, default_convert

import fastload
from fastload import ArrayDataset, FastLoader

ALL = [
    pytest.param(True, {}, id="native"),
    pytest.param(True, {"num_workers": 0}, id="native inline"),
    pytest.param(True, {"num_workers": 2}, id="native threads"),
    pytest.param(True, {"num_workers": 2, "persistent_workers": True}, id="native persistent"),
    pytest.param(True, {"seed": 0}, id="native keyed"),
    pytest.param(False, {}, id="torch"),
    pytest.param(False, {"num_workers": 1}, id="torch worker"),
    pytest.param(False, {"num_workers": 1, "persistent_workers": True}, id="torch persistent"),
    pytest.param(False, {"seed": 0}, id="torch keyed"),
]


def data_of(native: bool, n: int) -> Any:
    return numbers(n) if native else list(range(n))


@pytest.mark.parametrize(("native", "options"), ALL)
def test_after_leaving_early_the_next_epoch_is_whole(native: bool, options: dict[str, Any]) -> None:
    loader = FastLoader(data_of(native, 9), 2, **options)
    for stop in range(5):
        for k, batch in enumerate(loader):
            assert batch.tolist() == list(range(9))[2 * k : 2 * k + 2]
            if k == stop:
                break
    assert values(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


@pytest.mark.parametrize(("native", "options"), ALL)
def test_interleaved_iterators_are_whole(native: bool, options: dict[str, Any]) -> None:
    if "persistent_workers" in options:
        loader = FastLoader(data_of(native, 6), 2, **options)
        first = iter(loader)
        next(first)
        assert iter(loader) is first
        assert values(first) == [[0, 1], [2, 3], [4, 5]]
        return
    loader = FastLoader(data_of(native, 6), 2, **options)
    first, second = iter(loader), iter(loader)
    assert first is not second
    assert iter(first) is first
    seen = [(a.tolist(), b.tolist()) for a, b in zip(first, second, strict=True)]
    assert seen == [([0, 1], [0, 1]), ([2, 3], [2, 3]), ([4, 5], [4, 5])]
    for batches in (first, second):
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(batches)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "seed": 1}, {}])
def test_batches_do_not_depend_on_how_many_are_prepared(options: dict[str, Any]) -> None:
    rows = np.random.default_rng(0).random((50, 3))
    seen = []
    for workers, factor in ((0, None), (1, 1), (1, 7), (2, 1), (2, 5), (None, 1), (None, 9)):
        torch.manual_seed(3)
        loader = FastLoader(
            ArrayDataset(rows), 7, num_workers=workers, prefetch_factor=factor, **options
        )
        seen.append(values(loader) + values(loader))
    assert len(seen[0]) == 16
    assert all(batches == seen[0] for batches in seen)


def test_iterators_of_one_loader_run_on_different_threads() -> None:
    for data in (numbers(60), list(range(60))):
        loader = FastLoader(data, 4, seed=0)
        iterators = [iter(loader) for _ in range(3)]
        seen: list[list[int]] = []

        def run(batches: Any, seen: list[list[int]] = seen) -> None:
            seen.append([i for batch in batches for i in batch.tolist()])

        threads = [threading.Thread(target=run, args=(batches,)) for batches in iterators]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [list(range(60))] * 3


def test_ten_thousand_batches_need_no_descriptors() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (40_000, 32), np.uint8)
    loader = FastLoader(ArrayDataset(rows), 4, shuffle=True, seed=0, num_workers=2)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(map(int, os.listdir("/proc/self/fd"))) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    try:
        kept, sums = [], []
        for batch in loader:
            kept.append(batch)
            sums.append(zlib.crc32(batch.numpy()))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(kept) == 10_000
    assert [zlib.crc32(batch.numpy()) for batch in kept] == sums
    assert sum(int(batch.sum()) for batch in kept) == int(rows.sum())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_memory_stays_flat_while_batches_are_dropped(workers: int | None) -> None:
    data = ArrayDataset(np.ones((256, 4096), "f4"))
    sampler = RandomSampler(range(256), replacement=True, num_samples=10_000)
    before = 0
    for k, batch in enumerate(FastLoader(data, 2, sampler=sampler, num_workers=workers)):
        assert batch.nbytes == 32 << 10
        if k == 100:
            before = resident_bytes()
    assert k == 4999
    assert resident_bytes() < before * 1.01


@pytest.mark.parametrize("workers", [None, 0, 1, 3])
def test_holding_every_kth_batch_stops_nothing(workers: int | None) -> None:
    loader = FastLoader(numbers(600), 2, num_workers=workers)
    for every in (1, 2, 3, 7, 50):
        held = [(k, batch) for k, batch in enumerate(loader) if k % every == 0]
        assert all(batch.tolist() == [2 * k, 2 * k + 1] for k, batch in held)
        assert len(held) == -(-300 // every)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_writing_to_a_batch_reaches_nothing_else(io: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((64, 1024), "f4"))
    before = path.read_bytes()
    loader = FastLoader(path, 8, io=io, num_workers=1)
    batches = iter(loader)
    kept = [next(batches), next(batches)]
    kept[0].mul_(0)
    assert kept[1].eq(1).all()
    assert all(batch.eq(1).all() for batch in batches)
    for batch in loader:
        assert batch.eq(1).all()
        batch.zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_no_batch_or_sample_is_a_view_of_a_file(mode: Any, tmp_path: Path) -> None:
    """Warnings are errors in these tests, and torch warns of arrays that cannot be written."""
    path = tmp_path / "x.npy"
    np.save(path, np.ones((8, 4), "f4"))
    before = path.read_bytes()
    for data in (
        fastload.open(path, io="mmap"),
        fastload.open(path, io="pread"),
        ArrayDataset(np.load(path, mmap_mode=mode)),
        ArrayDataset(path),
    ):
        for loader in (
            FastLoader(data, 4),
            FastLoader(data, None),
            FastLoader(data, 1, collate_fn=lambda samples: torch.from_numpy(samples[0])),
            DataLoader(data, 4),
        ):
            for batch in loader:
                assert batch.eq(1).all()
                batch.zero_()
        default_convert(data[0]).zero_()
        default_convert(data.__getitems__([1, 2]))[0].zero_()
    assert path.read_bytes() == before
    assert np.load(path).sum() == 32


def test_without_workers_an_array_is_read_at_its_turn() -> None:
    array = np.zeros(6, "i8")
    tensor = torch.zeros(6, dtype=torch.int64)
    for data, rows in ((ArrayDataset(array), array), (TensorDataset(tensor), tensor)):
        seen = []
        for k, batch in enumerate(FastLoader(data, 2, num_workers=0)):
            seen.append(batch if torch.is_tensor(batch) else batch[0])
            rows[:] = k + 1
        assert [batch.tolist() for batch in seen] == [[0, 0], [1, 1], [2, 2]]
