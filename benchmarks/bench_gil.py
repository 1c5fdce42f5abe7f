"""How much does loading slow down Python code that runs at the same time?

A thread counts in Python while the main thread takes batches of 256 rows of 150 528 bytes at a
fixed pace, gathered by one worker. The baseline is the same thread while another process copies
the same bytes at the same pace with memcpy.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from harness import main, write_rows

import fastload
from fastload.tools.bench.timing import digits, median_ratio, take_turns

ROW_BYTES = 150_528
ROWS = 8_000
BATCH = 256
PACE_SECONDS = 0.010


def measure(
    scale: float = 1.0, folder: Path = Path(), seconds: float = 2.0, rounds: int = 7
) -> dict[str, Any]:
    rows = max(2 * BATCH, int(ROWS * scale))
    x = write_rows(folder / "x.npy", rows, ROW_BYTES)
    contenders: dict[str, Callable[[], float]] = {
        "alone": partial(beside, nothing, seconds * scale),
        "memcpy": partial(beside, partial(memcpy, x), seconds * scale),
        "fastload": partial(beside, partial(fast_loader, x), seconds * scale),
    }
    done = take_turns(contenders, rounds, print)
    result: dict[str, Any] = {name: digits(statistics.median(r)) for name, r in done.items()}
    return {
        "counts_per_s": result,
        "pace_seconds": PACE_SECONDS,
        "rounds": rounds,
        "ratios": {"memcpy": digits(median_ratio(done["fastload"], done["memcpy"]))},
    }


def beside(start_step: Callable[[], AbstractContextManager[Any]], seconds: float) -> float:
    """Returns counts per second of a Python thread while `step()` is called at a fixed pace."""
    counts = 0
    stop = False

    def count() -> None:
        nonlocal counts
        while not stop:
            counts += 1

    with start_step() as step:
        step()
        thread = threading.Thread(target=count)
        start = time.perf_counter()
        thread.start()
        at_a_pace(step, start + seconds)
        elapsed = time.perf_counter() - start
        stop = True
        thread.join()
    return counts / elapsed


def at_a_pace(step: Callable[[], Any], end: float) -> None:
    due = time.perf_counter()
    while due < end:
        step()
        due += PACE_SECONDS
        time.sleep(max(0.0, due - time.perf_counter()))


@contextmanager
def nothing() -> Iterator[Callable[[], Any]]:
    yield lambda: None


@contextmanager
def fast_loader(x: Path) -> Iterator[Callable[[], Any]]:
    loader = fastload.FastLoader(
        fastload.open(x), batch_size=BATCH, shuffle=True, drop_last=True, seed=0, num_workers=1
    )
    yield partial(next, chain.from_iterable(repeat(loader)))


@contextmanager
def memcpy(x: Path) -> Iterator[Callable[[], Any]]:
    """Copies in another process, which cannot hold the GIL of this one."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=copy_at_a_pace, args=(x, ready), daemon=True)
    process.start()
    ready.wait()
    try:
        yield lambda: None
    finally:
        process.kill()
        process.join()


def copy_at_a_pace(x: Path, ready: Any) -> None:
    source = np.load(x, mmap_mode="r")
    target = np.empty((BATCH, ROW_BYTES), np.uint8)
    first = 0

    def copy() -> None:
        nonlocal first
        ctypes.memmove(target.ctypes.data, source[first:].ctypes.data, target.nbytes)
        first = (first + BATCH) % (len(source) - BATCH + 1)

    copy()
    ready.set()
    at_a_pace(copy, float("inf"))


if __name__ == "__main__":
    main("gil", measure)
