"""Other Python threads run while the core frees what takes long."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_gpu import FakeGpu
from transfer_rig import Rig

from fastload import _core

SECONDS = 0.3  # of the slow call: long against the interval at which Python switches threads


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """Yields a function that returns how often another thread has run."""
    turns, ended = 0, threading.Event()

    def turn() -> None:
        nonlocal turns
        while not ended.wait(0.001):
            turns += 1

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield lambda: turns
    finally:
        ended.set()
        thread.join()


def lone_pool(gpu: FakeGpu) -> list[Any]:
    pool = _core.SlotPool(_core.CudaDevice(0, gpu.path))
    pool.reserve(1 << 20)
    return [pool]


def lone_array(gpu: FakeGpu) -> list[Any]:
    return [lone_pool(gpu)[0].empty(1 << 20)]


def transfer(gpu: FakeGpu) -> list[Any]:
    made = Rig(gpu.path)
    return [made.transfer, made.pool]


@pytest.mark.parametrize("owner", [lone_pool, lone_array, transfer])
def test_threads_run_while_the_last_owner_of_pinned_memory_is_freed(
    owner: Callable[[FakeGpu], list[Any]], gpu: FakeGpu
) -> None:
    gc.collect()
    owners = owner(gpu)
    gpu.delay("cuMemHostUnregister", SECONDS)
    calls = gpu.calls("cuMemHostUnregister")
    with counting() as turns:
        before = turns()
        owners.clear()
        during = turns() - before
    assert gpu.calls("cuMemHostUnregister") > calls
    assert during >= 5


def test_threads_run_while_pinned_memory_is_reserved(gpu: FakeGpu) -> None:
    gpu.delay("cuMemHostRegister", SECONDS)
    with counting() as turns:
        before = turns()
        owners = lone_pool(gpu)
        during = turns() - before
    assert during >= 5
    del owners


def test_pinned_memory_may_be_freed_by_a_thread_of_its_own(gpu: FakeGpu) -> None:
    owners = lone_array(gpu)
    before = gpu.count("registered")
    thread = threading.Thread(target=owners.clear)
    thread.start()
    thread.join()
    assert gpu.count("registered") == before - 1
