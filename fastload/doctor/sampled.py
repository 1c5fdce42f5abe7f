"""What a batch of a Python dataset takes to fetch and to collate, without workers."""

from __future__ import annotations

import itertools
import time
from typing import Any

from torch.utils.data import IterableDataset

_BATCHES = 4
_SECONDS = 1.0  # after which no other batch is begun


def sample_loading(loader: Any) -> dict[str, float] | None:
    """Loads a few batches in this process, without workers; None where that says nothing.

    Args:
        loader: A DataLoader. Of native data and of iterable datasets nothing is sampled.

    Returns:
        Milliseconds per batch: `fetch_ms` and `collate_ms`, and `cpu_ms`, the CPU time of both.

    Raises:
        Exception: what the dataset or the collate_fn raises.

    Example:
        >>> sorted(sample_loading(torch.utils.data.DataLoader(range(8))))
        ['collate_ms', 'cpu_ms', 'fetch_ms']
    """
    dataset = loader.dataset
    if getattr(loader, "is_native", False) or isinstance(dataset, IterableDataset):
        return None
    if loader.batch_sampler is None:
        return None
    fetch_s = collate_s = 0.0
    count = 0
    cpu, start = time.process_time(), time.perf_counter()
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
    spent = (fetch_s, collate_s, time.process_time() - cpu)
    return dict(
        zip(("fetch_ms", "collate_ms", "cpu_ms"), (1e3 * s / count for s in spent), strict=True)
    )
