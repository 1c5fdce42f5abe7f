"""Time to fetch and to collate a batch of a Python dataset, without workers."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

_BATCHES = 4
_SECONDS = 1.0  # no batch starts after this time


def sample_loading(loader: Any) -> dict[str, float | None] | None:
    """Loads a few batches in this process, without workers.

    Args:
        loader: A DataLoader.

    Returns:
        Milliseconds per batch: `fetch_ms` and `collate_ms`; `cpu_ms`, the CPU time of both;
        `queued_ms`, the time in which this thread waited for a CPU, or None if the kernel does not
        report it. None for native data and iterable datasets.

    Raises:
        Exception: any error of the dataset or the collate_fn.

    Example:
        >>> sorted(sample_loading(torch.utils.data.DataLoader(range(8))))
        ['collate_ms', 'cpu_ms', 'fetch_ms', 'queued_ms']
    """
    dataset = loader.dataset
    if getattr(loader, "is_native", False) or isinstance(dataset, IterableDataset):
        return None
    if loader.batch_sampler is None:
        return None
    fetch_s = collate_s = 0.0
    count = 0
    cpu, queued, start = time.process_time(), _queued_s(), time.perf_counter()
    for indices in itertools.islice(loader.batch_sampler, _BATCHES):
        begun = time.perf_counter()
        if hasattr(dataset, "__getitems__"):
            samples = dataset.__getitems__(indices)
        else:
            samples = [dataset[index] for index in indices]
        fetched = time.perf_counter()
        loader.collate_fn(samples)
        fetch_s += fetched - begun
        collate_s += time.perf_counter() - fetched
        count += 1
        if time.perf_counter() - start > _SECONDS:
            break
    if not count:
        return None
    queued_ms = None
    if queued is not None:
        queued_ms = 1e3 * ((_queued_s() or queued) - queued) / count
    return {
        "fetch_ms": 1e3 * fetch_s / count,
        "collate_ms": 1e3 * collate_s / count,
        "cpu_ms": 1e3 * (time.process_time() - cpu) / count,
        "queued_ms": queued_ms,
    }


def _queued_s() -> float | None:
    """Returns the time this thread has waited for a CPU; None if the kernel does not report it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
