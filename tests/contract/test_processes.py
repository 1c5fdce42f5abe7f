"""Killed trainers, event loops, busy thread pools, and CPUs that are not all ours."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from oracle import flat, numbers, values

from fastload import FastLoader

pytestmark = pytest.mark.slow

TRAINER = """
from fastload import FastLoader
loader = FastLoader("data/x.npy", 10, shuffle=True, num_workers=2)
batches = iter(loader)
next(batches)
print("running", flush=True)
while True:
    for batch in loader:
        pass
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_trainer_that_is_killed_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data/x.npy", np.arange(1000))
    shared = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "running\n"
    assert psutil.Process(process.pid).children(recursive=True) == []
    start = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - start < 10
    assert process.returncode == -number
    assert errors == ""
    # Other tests and programs may come and go beside this one.
    mine = [name for name in set(os.listdir("/dev/shm")) - shared if str(process.pid) in name]
    assert mine == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["x.npy"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_loader_works_in_an_event_loop() -> None:
    """As in a notebook, whose cells run in one."""

    async def cell() -> None:
        loader = FastLoader(numbers(100), 10, num_workers=2)
        assert len(values(loader)) == 10
        batches = iter(loader)
        seen = [next(batches).tolist()]
        await asyncio.sleep(0)
        seen += await asyncio.to_thread(values, batches)
        assert flat(seen) == list(range(100))

    asyncio.run(cell())


def test_thread_pools_of_torch_and_forks_do_not_block_it() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (4, 1, 3):
            torch.set_num_threads(threads)
            torch.ones(1000, 1000).sum()
            loader = FastLoader(numbers(100), 10, num_workers=2)
            batches = iter(loader)
            next(batches)
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)
                os._exit(0 if len(values(loader)) == 10 else 1)
            assert os.waitpid(pid, 0)[1] == 0
            assert len(values(batches)) == 9
    finally:
        torch.set_num_threads(before)


def test_threads_stay_on_the_cpus_that_the_process_may_use(
    live_threads: Callable[[], set[str]],
) -> None:
    usable = os.sched_getaffinity(0)
    cpu, before = max(usable), live_threads()
    os.sched_setaffinity(0, {cpu})
    try:
        assert FastLoader(numbers(100)).num_workers == 1
        batches = iter(FastLoader(numbers(100), 10, num_workers=3))
        next(batches)
        started = live_threads() - before
        assert len(started) == 3
        assert all(os.sched_getaffinity(int(thread)) == {cpu} for thread in started)
    finally:
        os.sched_setaffinity(0, usable)
