"""Guards that hold for every test, and a few helpers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from cpp_build import built
from fake_gpu import FakeGpu
from warm_python import WarmPython

ROOT = Path(__file__).parents[1]
PF_EXITING = 4  # in the flags of Linux's tasks

# `python -m pytest` puts the current folder on sys.path, where `fastload` is the source without
# its compiled half. The tests are about the installed package.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]

# The tensors of tests are small, and several test processes share few cores: a second thread of
# torch would only spin while it waits for a core. Child processes inherit the variable.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Datasets that tests define reach torch's worker processes by fork alone, which is not the default
# of Python 3.14.
multiprocessing.set_start_method("fork")

# A shared machine makes examples slow, and no run must fail by a new random draw: these are made
# with FASTLOAD_DRAW=1.
hypothesis.settings.register_profile(
    "fastload",
    deadline=None,
    derandomize="FASTLOAD_DRAW" not in os.environ,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("fastload")

# A shell that starts a program in the background makes it ignore Ctrl-C, which tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def real_gpu() -> torch.device:
    """A GPU. Without one the test skips, and with FASTLOAD_REQUIRE_CUDA=1 it fails."""
    if not torch.cuda.is_available():
        if os.environ.get("FASTLOAD_REQUIRE_CUDA") == "1":
            pytest.fail("FASTLOAD_REQUIRE_CUDA=1, but torch finds no GPU")
        pytest.skip("torch finds no GPU")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def _same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts sys.path back: the command line adds the current folder, which may be the source's."""
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture(autouse=True)
def _same_random_numbers() -> Iterator[None]:
    """Seeds the three global generators before each test and puts their states back after it."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])


def _live_threads() -> set[str]:
    """Ids of the live threads of this process that Python or the engine started.

    The engine's threads are told from those of torch's and numpy's pools, which stay for good, by
    their name. A thread that has been joined may be listed for a moment, as one that exits.
    """
    found = {str(thread.native_id) for thread in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        try:
            name, fields = (task / "stat").read_text().partition("(")[2].rsplit(") ", 1)
            if name.startswith("fastload") and not int(fields.split()[6]) & PF_EXITING:
                found.add(task.name)
        except (FileNotFoundError, ProcessLookupError):  # it ended in the meantime
            pass
    return found


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    """Fails the test that leaves threads behind, after a time for those that are ending."""
    before = _live_threads()
    yield
    deadline = time.monotonic() + 20
    if _live_threads() - before:
        gc.collect()
    while left := _live_threads() - before:
        assert time.monotonic() < deadline, f"threads left behind: {sorted(left)}"
        time.sleep(0.01)


@pytest.fixture
def live_threads() -> Callable[[], set[str]]:
    """What the guard against threads left behind counts."""
    return _live_threads


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a fresh interpreter in `tmp_path`; fails with its stderr unless it exits 0."""

    def run(code: str, *args: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def _warm() -> Iterator[WarmPython]:
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture
def run_torch(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, _warm: WarmPython
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `run_python`, where torch and numpy are imported already; it must exit with `code`."""

    def run(
        text: str, *args: str, timeout: float = 240, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        output = tmp_path_factory.mktemp("said")
        done = _warm.run(text, *args, folder=tmp_path, output=output, timeout=timeout)
        assert done.returncode == code, done.stderr
        return done

    return run


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """The device `cuda:0` of the loaders; all that was promised of its use held."""
    from fastload import _core  # not before the path has been put right
    from fastload.device import prefetcher as devices
    from fastload.device.cuda_copier import Cuda

    made = FakeGpu(built("fake_cuda") / "libfake_cuda.so")
    monkeypatch.setattr(
        devices, "open_cuda", lambda device: Cuda(made, _core.CudaDevice(0, made.path))
    )
    before = made.count("misuses"), made.count("pageable")
    yield made
    gc.collect()
    made.forgive()
    assert made.count("misuses") == before[0], made.misuse()
    assert made.may_be_pageable or made.count("pageable") == before[1]
