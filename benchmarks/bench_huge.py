"""Does a dataset of 10^9 samples cost anything before its samples are used?

A sparse file of 8-byte rows: time from opening it to the first shuffled batch, memory after twenty
batches, and the same for a loader that resumes in the middle of an epoch.
"""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path
from typing import Any

from harness import main

import fastload
from fastload.tools.bench.system import Resident, drop_from_cache
from fastload.tools.bench.timing import digits

ROWS = 10**9
BATCH = 256
BATCHES = 20


def measure(scale: float = 1.0, folder: Path = Path(), rounds: int = 5) -> dict[str, Any]:
    rows = max(100 * BATCH, int(ROWS * scale))
    file = folder / "rows.bin"
    with file.open("wb") as sparse:
        sparse.truncate(8 * rows)
    loader = open_loader(file)
    next(iter(loader))
    middle = loader.state_dict() | {"samples": rows // BATCH // 2 * BATCH}
    del loader
    fresh, resumed = [], []
    for _ in range(rounds):
        drop_from_cache([file])
        fresh.append(start(file, None))
        drop_from_cache([file])
        resumed.append(start(file, middle))
    again = [start(file, middle) for _ in range(rounds)]
    return {
        "rows": rows,
        "batch_size": BATCH,
        "batches": BATCHES,
        "rounds": rounds,
        "fresh": worst_and_median(fresh),
        "resumed": worst_and_median(resumed),
        "same_rows_again_cached": worst_and_median(again),
    }


def start(file: Path, state: dict[str, Any] | None) -> dict[str, float]:
    """Opens the file, takes twenty batches, and returns times and growth of memory."""
    gc.collect()
    before = Resident.now()
    begin = time.perf_counter()
    loader = open_loader(file)
    if state is not None:
        loader.load_state_dict(state)
    iterator = iter(loader)
    next(iterator)
    first = time.perf_counter() - begin
    for _ in range(BATCHES - 1):
        next(iterator)
    after = Resident.now()
    return {
        "first_batch_ms": 1e3 * first,
        "anonymous_bytes": after.anonymous_bytes - before.anonymous_bytes,
        "file_bytes": after.file_bytes - before.file_bytes,
        "resident_bytes": sum(after) - sum(before),
    }


def open_loader(file: Path) -> fastload.FastLoader:
    dataset = fastload.open(file, dtype="int64", shape=())
    return fastload.FastLoader(dataset, batch_size=BATCH, shuffle=True, seed=0)


def worst_and_median(runs: list[dict[str, float]]) -> dict[str, Any]:
    return {
        name: {
            "median": digits(statistics.median(run[name] for run in runs)),
            "worst": digits(max(run[name] for run in runs)),
        }
        for name in runs[0]
    }


if __name__ == "__main__":
    main("huge", measure)
