"""How near are the copies of a FastLoader to the limit of the bus, and what do they cost?

Batches of 224 x 224 x 3 uint8 images and labels are copied to the GPU and dropped. The limit is a
loop that copies one pinned block of the same size repeatedly on a separate stream. Then a
calibrated kernel runs for the time of 2 and of 4 copies: the time of a step in excess of the kernel
is not hidden. Finally, the cost of `next()` on a thread whose batch is ready.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gpu
import numpy as np
import torch
from harness import main, write_labels, write_rows

import fastload
from fastload import FastLoader
from fastload.tools.bench.timing import digits, median_ratio, take_turns

ROW_BYTES = 224 * 224 * 3
SIZES = (4, 32, 256)  # samples of a batch
STEPS = (2, 4)  # of a kernel, in copies
ROWS = 16_384
BATCH = 32
FIELDS = (1, 4)  # of the batch whose `next()` is timed
PAUSE = 0.005  # seconds, after which the next batch is ready


def measure(
    scale: float = 1.0,
    folder: Path = Path(),
    seconds: float = 1.0,
    rounds: int = 5,
    device: str | None = None,
) -> dict[str, Any]:
    where = gpu.device_for(device)
    rows = max(8 * max(SIZES), int(ROWS * scale))
    data = {
        "image": np.load(write_rows(folder / "images.npy", rows, ROW_BYTES), mmap_mode="r"),
        "label": np.load(write_labels(folder / "labels.npy", rows), mmap_mode="r"),
    }
    dataset = fastload.ArrayDataset(data)
    sizes = [size(dataset, batch, where, seconds, rounds) for batch in SIZES]
    return {
        **gpu.describe(where),
        "row_bytes": ROW_BYTES,
        "rounds": rounds,
        "seconds": seconds,
        "sizes": sizes,
        "next_us": {str(n): next_us(data, n, where) for n in FIELDS},
    }


def size(
    dataset: Any, batch: int, device: torch.device, seconds: float, rounds: int
) -> dict[str, Any]:
    copies = Copies(batch * (ROW_BYTES + 8), device)
    loader = FastLoader(dataset, batch, shuffle=True, seed=0, drop_last=True, device=device)
    contenders: dict[str, Callable[[], float]] = {
        "bare": partial(rate, copies, seconds, device),
        "fastload": partial(rate, forever(loader), seconds, device),
    }
    for step in STEPS:
        kernel = Kernel(step * copies.seconds(), device)
        contenders[f"kernel/{step}"] = partial(rate, kernel, seconds, device)
        contenders[f"beside/{step}"] = partial(rate, beside(kernel, loader), seconds, device)
    found = take_turns(contenders, rounds, print)
    return {
        "batch_size": batch,
        "bytes": copies.bytes,
        "bare_bytes_per_s": digits(statistics.median(found["bare"]) * copies.bytes),
        "bytes_per_s": digits(statistics.median(found["fastload"]) * copies.bytes),
        "ratio": digits(median_ratio(found["fastload"], found["bare"])),
        "hidden": {  # a step with the loader, in steps of the kernel alone
            str(step): digits(median_ratio(found[f"kernel/{step}"], found[f"beside/{step}"]))
            for step in STEPS
        },
    }


def forever(loader: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def beside(kernel: Kernel, loader: Any) -> Iterator[None]:
    """Runs the kernel once for each batch."""
    for _ in forever(loader):
        kernel()
        yield


def rate(work: Iterator[Any], seconds: float, device: torch.device) -> float:
    """Returns items per second, after all work on the device has finished."""
    for _ in itertools.islice(work, 3):
        pass
    gpu.synchronize(device)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in itertools.islice(work, 8):
            count += 1
    gpu.synchronize(device)
    return count / (time.perf_counter() - start)


class Copies:
    """Copies one pinned block repeatedly, on another stream than the current one."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        self.bytes = size_bytes
        self._device = device
        pinned = device.type == "cuda"
        self._from = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._to = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self._stream = torch.cuda.Stream(device) if pinned else None

    def __iter__(self) -> Iterator[None]:
        return self

    def __next__(self) -> None:
        if self._stream is None:
            self._to.copy_(self._from)
            return
        with torch.cuda.stream(self._stream):
            self._to.copy_(self._from, non_blocking=True)

    def seconds(self) -> float:
        """Returns the seconds of one copy."""
        return 1 / rate(self, 0.2, self._device)


class Kernel:
    """A kernel of matrix products that takes about the given seconds."""

    def __init__(self, seconds: float, device: torch.device) -> None:
        side = 2_048 if device.type == "cuda" else 64
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._matrix = torch.randn(side, side, device=device, dtype=dtype) / side
        self._device = device
        self._times = 1
        one = 1 / rate(self, 0.2, device)
        self._times = max(1, round(seconds / one))
        self.seconds = self._times * one

    def __call__(self) -> None:
        for _ in range(self._times):
            torch.mm(self._matrix, self._matrix)

    def __iter__(self) -> Iterator[None]:
        return self

    def __next__(self) -> None:
        self()


def next_us(data: dict[str, np.ndarray], fields: int, device: torch.device) -> dict[str, float]:
    """Returns the main thread's time in `next()` for a ready batch with many fields."""
    images = {"image": data["image"]} | {f"label{n}": data["label"] for n in range(fields - 1)}
    loader = FastLoader(
        fastload.ArrayDataset(images), BATCH, shuffle=True, seed=0, drop_last=True, device=device
    )
    taken, batches = [], forever(loader)
    for turn in range(220):
        gpu.synchronize(device)
        time.sleep(PAUSE)
        start = time.perf_counter()
        batch = next(batches)
        if turn >= 20:
            taken.append(1e6 * (time.perf_counter() - start))
        del batch
    taken.sort()
    return {
        "median": digits(statistics.median(taken)),
        "p99": digits(taken[len(taken) * 99 // 100]),
    }


if __name__ == "__main__":
    main("h2d", measure, "device")
