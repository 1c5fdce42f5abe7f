"""How fast are rows of an array in Fortran order, against DataLoader and against a contiguous copy?

2 million rows of 60 float32, as returned by `torch.from_numpy(frame.to_numpy(np.float32))`, and
an int64 label, shuffled. CPU seconds cover all threads of the process, and vary less than times on
a shared machine.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import main
from torch.utils.data import DataLoader, TensorDataset

from fastload import FastLoader
from fastload.tools.bench.timing import digits, median_ratio, take_turns

ROWS, COLUMNS = 2_000_000, 60
BATCHES = (256, 1024)
DATALOADER_ROWS = 100_000  # of an epoch; it is slow
WORKERS = (0, 2)


def measure(scale: float = 1.0, folder: Path = Path(), rounds: int = 7) -> dict[str, Any]:
    rows = max(4 * max(BATCHES), int(ROWS * scale))
    random = np.random.default_rng(0)
    dense = random.standard_normal((rows, COLUMNS), np.float32)
    labels = torch.arange(rows)
    fortran = TensorDataset(torch.from_numpy(np.asfortranarray(dense)), labels)
    contiguous = TensorDataset(torch.from_numpy(dense), labels)
    sizes = [compare(fortran, contiguous, batch, rounds) for batch in BATCHES]
    return {"rows": rows, "columns": COLUMNS, "rounds": rounds, "batches": sizes}


def compare(
    fortran: TensorDataset, contiguous: TensorDataset, batch: int, rounds: int
) -> dict[str, Any]:
    """Measures one batch size: every loader once per round."""
    some = max(1, min(len(fortran), DATALOADER_ROWS) // batch)
    contenders: dict[str, Callable[[], tuple[float, float]]] = {}
    for name, data in (("fortran", fortran), ("contiguous", contiguous)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the data are not contiguous
            loader = FastLoader(data, batch, shuffle=True, seed=0, drop_last=True)
        contenders[name] = partial(epoch, loader, batch, len(data) // batch)
    for n in WORKERS:
        plain = DataLoader(
            fortran, batch, shuffle=True, drop_last=True, num_workers=n, persistent_workers=n > 0
        )
        contenders[f"dataloader/{n}"] = partial(epoch, plain, batch, some)
    done = take_turns(contenders, rounds, lambda step: print(f"batches of {batch}: {step}"))
    rates = {name: [rate for rate, _ in each] for name, each in done.items()}
    cpu = {name: [seconds for _, seconds in each] for name, each in done.items()}
    result: dict[str, Any] = {"batch_size": batch}
    for name in contenders:
        result[name] = {"samples_per_s": digits(statistics.median(rates[name]))}
        if name != "dataloader/2":  # CPU time of its processes is not counted
            result[name]["cpu_us_per_sample"] = digits(1e6 * statistics.median(cpu[name]))
    ratios = {
        name: digits(median_ratio(rates["fortran"], rates[name]))
        for name in contenders
        if name != "fortran"
    }
    ratios["dataloader/0, by CPU time"] = digits(median_ratio(cpu["dataloader/0"], cpu["fortran"]))
    return result | {"ratios": ratios}


def epoch(loader: Any, batch: int, batches: int) -> tuple[float, float]:
    """Returns samples/s and CPU seconds per sample, without the first fifth of the batches."""
    skipped = batches // 5
    start = time.perf_counter(), time.process_time()
    for taken, _ in enumerate(loader, 1):
        if taken == skipped:
            start = time.perf_counter(), time.process_time()
        if taken == batches:
            break
    wall, used = time.perf_counter() - start[0], time.process_time() - start[1]
    samples = batch * (batches - skipped)
    return samples / wall, used / samples


if __name__ == "__main__":
    main("strided", measure)
