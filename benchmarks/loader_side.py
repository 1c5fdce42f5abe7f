"""A FastLoader over rows and labels; run as a program to compare two versions of the package.

    PYTHONPATH=FOLDER python loader_side.py X.npy Y.npy BATCH

Prints a line when ready, then reads a number of seconds per line from standard input and answers
with JSON: samples per second, microseconds of CPU per batch, and those of `main_thread_us`.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path

from fastload import ArrayDataset, FastLoader

DRAINS = 5
PATIENCE = 0.5  # seconds, for the loader to get ahead
CHUNK_SECONDS = 0.01


def make_loader(x: Path | str, y: Path | str, batch: int) -> FastLoader:
    dataset = ArrayDataset({"x": x, "y": y})
    return FastLoader(dataset, batch_size=batch, shuffle=True, drop_last=True, seed=0)


def main_thread_us(loader: FastLoader) -> float:
    """Microseconds of CPU per batch on the thread that takes batches which are ready.

    The loader gets ahead as far as it will, then half of these batches are taken and dropped.
    """
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    next(batches)
    spent = []
    for _ in range(DRAINS):
        ready, end = 0, time.perf_counter() + PATIENCE
        while time.perf_counter() < end:
            before, ready = ready, int(loader.stats()["ready"])
            if 1 < ready == before:
                break
            time.sleep(0.005)
        count = max(1, ready // 2)
        start = time.thread_time_ns()
        for _ in itertools.islice(batches, count):
            pass
        spent.append((time.thread_time_ns() - start) / count / 1e3)
    return statistics.median(spent)


def measure(loader: FastLoader, batch: int, seconds: float) -> dict[str, float]:
    """Samples per second of a consumer that drops each batch, and CPU time per batch."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    chunk, count, start, cpu = 1, 0, 0.0, 0.0
    for _ in itertools.islice(batches, 2):
        pass
    begun = time.perf_counter()
    while True:
        for _ in itertools.islice(batches, chunk):
            pass
        now = time.perf_counter()
        if not start:
            if now - begun < seconds * 0.2:  # workers start, first buffers are made
                chunk = max(chunk, int(chunk * CHUNK_SECONDS / (now - begun)))
                continue
            start, cpu = now, time.process_time()
            continue
        count += chunk
        if now - start >= seconds:
            cpu_us = 1e6 * (time.process_time() - cpu) / count
            return {"samples_per_s": count * batch / (now - start), "cpu_us": cpu_us}


def main() -> None:
    x, y, batch = sys.argv[1:]
    loader = make_loader(x, y, int(batch))
    next(iter(loader))
    print("ready", flush=True)
    for line in sys.stdin:
        measured = measure(loader, int(batch), float(line))
        print(json.dumps(measured | {"main_us": main_thread_us(loader)}), flush=True)


if __name__ == "__main__":
    main()
