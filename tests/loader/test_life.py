"""Iterators, threads and batches from birth to death, and errors on the way."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import numbers, values
from torch.utils.data import Sampler, TensorDataset

import fastload
from fastload import ArrayDataset, FastLoader


def test_two_iterators_are_independent() -> None:
    for options in ({}, {"num_workers": 2}, {"seed": 0}):
        loader = FastLoader(numbers(10), 1, **options)
        assert [(i.item(), j.item()) for i in loader for j in loader] == [
            (i, j) for i in range(10) for j in range(10)
        ]


def test_the_end_stays_the_end() -> None:
    batches = iter(FastLoader(numbers(3), 2))
    assert iter(batches) is batches
    assert len(list(batches)) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(batches)


def test_persistent_workers_restart_one_iterator() -> None:
    loader = FastLoader(numbers(6), 2, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    assert iter(loader) is batches
    assert values(batches) == [[0, 1], [2, 3], [4, 5]]
    assert values(loader) == [[0, 1], [2, 3], [4, 5]]
    loader._iterator = None  # as Lightning does
    assert values(loader) == [[0, 1], [2, 3], [4, 5]]
    by_torch = FastLoader(list(range(4)), 2, num_workers=1, persistent_workers=True)
    assert iter(by_torch) is iter(by_torch)
    assert values(by_torch) == values(by_torch) == [[0, 1], [2, 3]]


def test_shutting_the_workers_down_ends_the_threads(live_threads: Callable[[], set[str]]) -> None:
    loader = FastLoader(numbers(6), 2, num_workers=2, persistent_workers=True)
    before = live_threads()
    next(iter(loader))
    assert live_threads() > before
    loader._iterator._shutdown_workers()
    assert live_threads() == before
    loader._iterator = None
    assert values(loader) == [[0, 1], [2, 3], [4, 5]]


def test_leaving_early_leaves_nothing_behind(live_threads: Callable[[], set[str]]) -> None:
    data = ArrayDataset(np.zeros((64, 1024), "f4"))
    loader = FastLoader(data, 4, shuffle=True, num_workers=2)

    def leave() -> None:
        next(iter(loader))
        for _ in zip(loader, range(2), strict=False):
            pass
        for _ in loader:
            break
        batches = iter(loader)
        next(batches)
        cycle: list[Any] = [batches]
        cycle.append(cycle)

    for _ in range(10):
        leave()
    gc.collect()
    threads, files = live_threads(), len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        leave()
    gc.collect()
    assert live_threads() <= threads
    assert len(os.listdir("/proc/self/fd")) <= files


def test_every_batch_can_be_kept() -> None:
    array = np.arange(400 * 256, dtype="i4").reshape(400, 256)
    for size in (1, 64):
        kept = list(FastLoader(ArrayDataset(array), size, num_workers=2))
        assert len({batch.data_ptr() for batch in kept}) == len(kept)
        assert sum(int(batch.sum()) for batch in kept) == int(array.sum())


def test_a_batch_outlives_everything_and_is_the_callers() -> None:
    array = np.ones((8, 40_000), "f4")
    loader = FastLoader(ArrayDataset(array), 4, num_workers=1)
    batches = iter(loader)
    batch = next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch.mul_(0)
    assert next(batches).sum() == 160_000
    assert next(iter(loader)).sum() == 160_000
    assert array.sum() == 320_000
    assert batch.untyped_storage().nbytes() == batch.nbytes
    del loader, batches
    gc.collect()
    assert batch.sum() == 0


def test_threads_may_iterate() -> None:
    loader = FastLoader(numbers(1000), 10, shuffle=True, seed=0, num_workers=1)
    sums: list[int] = []

    def run() -> None:
        sums.append(sum(int(batch.sum()) for batch in loader))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [499_500] * 4


def test_threads_may_share_an_iterator() -> None:
    batches = iter(FastLoader(numbers(4000), 4, num_workers=2))
    seen: list[int] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for batch in batches:
                seen.append(int(batch[0]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(seen) == list(range(0, 4000, 4))


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_may_share_an_iterator_over_batches_of_their_own(workers: int) -> None:
    own = [list(range(begin, begin + 2)) for begin in range(0, 1000, 2)]
    seen: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            batches = iter(
                FastLoader(
                    numbers(1000), batch_sampler=own, num_workers=workers, seed=0, tail="mask"
                )
            )

            def run(batches: Any = batches) -> None:
                for batch, real in batches:
                    assert real.tolist() == [True, True]
                    seen.append(int(batch[0]))

            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(seen) == sorted([*range(0, 1000, 2)] * 10)


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_that_share_an_iterator_begin_it_once(workers: int) -> None:
    drawn: list[int] = []

    class Slow(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            drawn.append(1)
            time.sleep(0.02)  # the others come in the meantime
            return iter(range(4))

        def __len__(self) -> int:
            return 4

    batches = iter(FastLoader(numbers(4), 1, sampler=Slow(), num_workers=workers or None))
    drawn.clear()
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(int(next(batches)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [0, 1, 2, 3]
    assert len(drawn) <= 1


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_that_share_an_iterator_share_indices_of_all_kinds(workers: int) -> None:
    reached, go_on = threading.Event(), threading.Event()

    class Slow:
        """At first no integer, later one that takes its time."""

        refuses = True

        def __index__(self) -> int:
            if self.refuses:
                self.refuses = False
                raise TypeError("not now")
            reached.set()
            go_on.wait()
            return 5

    sampler: Any = [[0], [Slow()], [1], [[2, 3]], [4]]
    data = TensorDataset(torch.arange(6))
    batches = iter(FastLoader(data, batch_sampler=sampler, num_workers=workers))
    seen = [next(batches)[0].tolist()]
    late: list[Any] = []
    thread = threading.Thread(target=lambda: late.append(next(batches)[0].tolist()))
    thread.start()
    reached.wait()
    seen += [batch.tolist() for (batch,) in batches]
    go_on.set()
    thread.join()
    assert seen == [[0], [1], [[2, 3]], [4]]
    assert late == [[5]]


class _Fragile(dict[str, Any]):
    """Refuses a tensor under one key, so that a batch fails when it is half built."""

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "last" and torch.is_tensor(value):
            raise ValueError("refused")
        super().__setitem__(key, value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_cannot_be_built_frees_its_memory_with_its_error(workers: int) -> None:
    data = ArrayDataset(_Fragile(first=np.arange(8), last=np.arange(8)))
    loader = FastLoader(data, batch_size=4, num_workers=workers)
    batches = iter(loader)
    gc.disable()  # nothing may wait for it
    try:
        for _ in range(2):
            with contextlib.suppress(ValueError):
                next(batches)
                pytest.fail("the batch was built")
        assert next(batches, None) is None
        assert loader.stats()["slot_bytes"] == 0
    finally:
        gc.enable()


def test_copies_and_pickles() -> None:
    loader = FastLoader(numbers(20), 3, shuffle=True, seed=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    with pytest.raises(NotImplementedError):
        pickle.dumps(batches)
    for clone in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        clone.set_epoch(0)
        loader.set_epoch(0)
        assert values(clone) == values(loader)
        clone.batch_sampler.set_epoch(5)
        assert clone.sampler.epoch == 5
        assert loader.sampler.epoch == 0  # type: ignore[union-attr]


def test_ignored_arguments_say_so_once() -> None:
    loader = FastLoader(numbers(4), worker_init_fn=lambda _: None)
    with pytest.warns(UserWarning, match="worker_init_fn is not used"):
        list(loader)
    list(loader)
    loader = FastLoader(numbers(4), num_workers=1, multiprocessing_context="spawn")
    with pytest.warns(UserWarning, match="multiprocessing_context is not used"):
        list(loader)


def test_a_batch_that_is_late() -> None:
    batches = iter(FastLoader(numbers(4), 2, timeout=5))
    assert next(batches).tolist() == [0, 1]
    take, batches._take = batches._take, late
    with pytest.raises(RuntimeError, match=r"timed out after 5 seconds: batch 1 .*is late"):
        next(batches)
    batches._take = take
    assert next(batches).tolist() == [2, 3]


def late(timeout: float) -> Any:
    raise TimeoutError("batch 1 is late")


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_a_file_that_shrinks_is_an_error_of_its_batches(
    workers: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1 << 16))
    loader = FastLoader(path, batch_size=1 << 13, num_workers=workers)
    os.truncate(path, 4096 * 3)
    batches, good, bad = iter(loader), 0, 0
    while True:
        try:
            next(batches)
            good += 1
        except StopIteration:
            break
        except (OSError, fastload.FormatError) as error:
            bad += "x.npy" in str(error)
    assert (good, bad) == (0, 8)


def test_stop_iteration_in_a_dataset_is_no_end() -> None:
    class Stops(list[int]):
        def __getitem__(self, index: Any) -> Any:
            if index == 3:
                raise StopIteration
            return index

    for workers in (0, 1):
        batches = iter(FastLoader(Stops(range(6)), 2, num_workers=workers))
        assert next(batches).tolist() == [0, 1]
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            next(batches)
        assert values(batches) == [[4, 5]]


def test_an_error_of_a_dataset_is_torchs() -> None:
    class Fails(list[int]):
        def __getitem__(self, index: Any) -> Any:
            if index == 3:
                raise KeyError("boom")
            return index

    batches = iter(FastLoader(Fails(range(6)), 2))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(KeyError, match="boom"):
        next(batches)
    assert values(batches) == [[4, 5]]
