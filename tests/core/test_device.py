"""The bindings of the way to the GPU, over the fake driver."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cpp_build import built
from fake_gpu import FakeGpu
from paths import SUPPORT
from transfer_rig import LARGE, Rig

from fastload import StoppedError, _core


@pytest.fixture
def rig(gpu: FakeGpu) -> Rig:
    gpu.may_be_pageable = True  # arrays are not pinned here
    return Rig(gpu.path)


def test_arrays_arrive(rig: Rig) -> None:
    ticket = rig.submit()
    rig.transfer.deliver(ticket, 0)
    rig.transfer.wait(ticket)
    assert rig.transfer.done(ticket)
    rig.check()
    stats = rig.transfer.stats()
    waits = stats.pop("waits")
    assert waits in (0, 1)
    assert rig.times.read()["bytes"] == stats["bytes"]
    assert stats == {"bytes": LARGE.nbytes + 912, "copies": 2, "packed": 2, "kernels": 0}
    assert (rig.device.ordinal, rig.device.driver_version) == (0, 13000)
    assert rig.pool.complaint == ""
    assert rig.pool.pinned_bytes >= 1 << 20
    with pytest.raises(IndexError):
        rig.transfer.done(ticket + 1)


def test_a_pool_without_a_device_pins_nothing() -> None:
    pool = _core.SlotPool()
    pool.reserve(1 << 20)
    assert (pool.complaint, pool.pinned_bytes, pool.used_bytes) == ("", 0, 0)


def test_images_are_delivered_by_a_kernel(rig: Rig) -> None:
    plan = _core.PixelPlan(
        item_bytes=1,
        channels=3,
        planar=True,
        conversion=("uint8", "float32", True, 1 / 255, [0.5], [0.25]),
        crop=((8, 8), (2, 2, 2, 2), 0),
        flip=(0.5, False, 1),
    )
    images = np.random.default_rng(0).integers(0, 256, (5, 10, 10, 3), np.uint8)
    indices = np.array([4, 1, 10**12, 0, 7])
    got = np.zeros((5, 3, 8, 8), np.float32)
    want = np.zeros_like(got)
    raw = np.zeros(4096, np.uint8)
    place = (raw.ctypes.data + 255) // 256 * 256
    job: Any = (plan, 10, 10, 3, 1, indices, images.ctypes.data, place, got.ctypes.data)
    form = _core.ShipmentForm([], [])
    rig.transfer.wait(rig.transfer.submit(form, [], [0], [job], 0))
    for i, index in enumerate(indices):
        plan.deliver(images[i], want[i], 3, 1, int(index))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    assert rig.transfer.stats()["kernels"] == 1


def test_ctrl_c_ends_a_wait(rig: Rig, gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_hold_all(1)
    ticket = rig.submit()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        rig.transfer.wait(ticket)
    timer.join()
    assert not rig.transfer.done(ticket)
    gpu.library.fake_cuda_hold_all(0)
    rig.transfer.wait(ticket)
    rig.check()


def test_other_threads_run_during_a_wait(rig: Rig, gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_hold_all(1)
    ticket = rig.submit()
    timer = threading.Timer(0.05, lambda: gpu.library.fake_cuda_hold_all(0))
    timer.start()
    rig.transfer.wait(ticket)  # for ever, if it kept the GIL
    timer.join()


def test_threads_that_share_a_transfer(rig: Rig) -> None:
    def work() -> None:
        for _ in range(100):
            ticket = rig.submit()
            rig.transfer.deliver(ticket, 0)
            rig.transfer.wait(ticket)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.check()
    assert rig.transfer.stats()["copies"] == 600


def test_in_a_forked_child(rig: Rig) -> None:
    ticket = rig.submit()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for use in (rig.submit, lambda: rig.transfer.deliver(ticket, 0)):
                with pytest.raises(StoppedError, match="spawn"):
                    use()
            with pytest.raises(StoppedError, match="spawn"):
                rig.pool.reserve(1)
            del rig.transfer, rig.pool
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    rig.transfer.wait(ticket)
    rig.check()


EXIT = """
import atexit, ctypes, sys, threading, time
library = ctypes.CDLL(sys.argv[1])
atexit.register(lambda: library.fake_cuda_hold_all(0))  # after the hook of the core
sys.path.insert(0, sys.argv[2])
import transfer_rig
from fastload import StoppedError
rig = transfer_rig.Rig(sys.argv[1])
library.fake_cuda_hold_all(1)
ticket = rig.submit()
begun = threading.Event()
def wait():
    begun.set()
    try:
        rig.transfer.wait(ticket)
    except StoppedError:
        print("stopped", flush=True)
threading.Thread(target=wait, daemon=True).start()
begun.wait()
time.sleep(0.1)
"""


def test_leaving_python_while_a_daemon_thread_waits(run_torch: Callable[..., Any]) -> None:
    library = built("fake_cuda") / "libfake_cuda.so"
    done = run_torch(EXIT, str(library), str(SUPPORT))
    assert done.stdout == "stopped\n"


def test_errors_that_stick(run_torch: Callable[..., Any]) -> None:
    code = """
import ctypes, sys
sys.path.insert(0, sys.argv[2])
import transfer_rig
from fastload import CudaError
rig = transfer_rig.Rig(sys.argv[1])
ticket = rig.submit()
rig.transfer.wait(ticket)
ctypes.CDLL(sys.argv[1]).fake_cuda_stick(700)
for use in rig.submit, rig.submit, lambda: rig.transfer.deliver(ticket, 0):
    try:
        use()
    except CudaError as error:
        assert "outside fastload" in str(error), error
    else:
        raise AssertionError("no error")
"""
    run_torch(code, str(built("fake_cuda") / "libfake_cuda.so"), str(SUPPORT))
