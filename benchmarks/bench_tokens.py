"""How fast are windows of tokens, against the limit and against nanoGPT's get_batch?

A raw uint16 file in the page cache, delivered as (x, y) of int64 in random order. The limit is the
speed of threads that only gather and convert the same windows into private buffers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import FILL_BYTES, main

from fastload import FastLoader, TokenDataset, _core
from fastload.tools.bench import system
from fastload.tools.bench.timing import Speed, digits, drive, median_ratio, summary, take_turns

TOKENS = 200_000_000
# Batch size and tokens of a window: nanoGPT's for GPT-2, for its small model, and a large batch.
SHAPES = ((12, 1024), (64, 256), (256, 1024))


def measure(
    scale: float = 1.0, folder: Path = Path(), seconds: float = 1.0, rounds: int = 5
) -> dict[str, Any]:
    largest = max(batch * seq_len for batch, seq_len in SHAPES)
    file = write_tokens(folder / "train.bin", max(8 * largest, int(TOKENS * scale)))
    shapes = [compare(file, *shape, seconds, rounds) for shape in SHAPES]
    return {"rounds": rounds, "seconds": seconds, "shapes": shapes}


def compare(file: Path, batch: int, seq_len: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Measures one shape of batches: every loader once per round."""
    dataset = TokenDataset(file, seq_len)
    sample_bytes = 2 * 8 * seq_len
    indices = _core.Permutation(len(dataset), 0, 0).indices(0, len(dataset))

    def limit() -> float:
        threads = system.core_count()
        rate = _core.measure_gather(dataset.table, indices, batch, threads, seconds)
        return rate / sample_bytes

    def fast_loader() -> FastLoader:
        return FastLoader(dataset, batch_size=batch, shuffle=True, drop_last=True, seed=0)

    contenders: dict[str, Callable[[], Any]] = {
        "limit": limit,
        "fastload": partial(drive, fast_loader, batch, seconds),
        "get_batch": partial(get_batch_rate, file, batch, seq_len, seconds),
    }
    done = take_turns(contenders, rounds, lambda step: print(f"{batch} x {seq_len}: {step}"))
    speeds: list[Speed] = done.pop("fastload")
    rates = done | {"fastload": [speed.samples_per_s for speed in speeds]}
    return {
        "batch_size": batch,
        "seq_len": seq_len,
        "fastload": summary(speeds, sample_bytes),
        **{name: {"samples_per_s": digits(statistics.median(done[name]))} for name in done},
        "ratios": {name: digits(median_ratio(rates["fastload"], done[name])) for name in done},
    }


def get_batch(file: Path, batch_size: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a batch as in nanoGPT's train.py, on a CPU."""
    # We recreate np.memmap every batch to avoid a memory leak.
    data = np.memmap(file, dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
    y = torch.stack(
        [torch.from_numpy((data[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix]
    )
    return x, y


def get_batch_rate(file: Path, batch: int, seq_len: int, seconds: float) -> float:
    """Returns samples per second of get_batch in a loop."""
    get_batch(file, batch, seq_len)
    count = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        get_batch(file, batch, seq_len)
        count += batch
    return count / elapsed


def write_tokens(path: Path, count: int) -> Path:
    """Writes a raw file of random uint16 ids."""
    random = np.random.default_rng(count)
    with path.open("wb") as file:
        for first in range(0, count, FILL_BYTES // 2):
            size = min(FILL_BYTES // 2, count - first)
            random.integers(0, 50_257, size, np.uint16).tofile(file)
    return path


if __name__ == "__main__":
    main("tokens", measure)
