"""Counters of a loader, as numbers for any logger."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastload import _core

T = TypeVar("T")


def timed(take: Callable[[Any], T], stats: _core.LoadStats) -> Callable[[Any], T]:
    """Wraps a function that returns batches, and counts its time as waiting for a batch.

    Args:
        take: Returns a batch; None at the end.
        stats: Counts each wait.
    """

    def take_and_count(argument: Any) -> T:
        start, batch = time.perf_counter_ns(), None
        try:
            batch = take(argument)
            return batch
        finally:
            wait_ns = time.perf_counter_ns() - start
            stats.add_wait(wait_ns)
            if batch is not None:
                stats.count_wait(wait_ns)

    return take_and_count


def figures(
    stats: _core.LoadStats,
    pools: Sequence[_core.SlotPool],
    times: Sequence[_core.StreamTimes],
    *,
    is_native: bool,
) -> dict[str, float]:
    """Returns the dict of `FastLoader.stats`.

    Args:
        stats: Counters of the loader.
        pools: Pools of batch memory of the loader.
        times: Timings of the devices to which its batches are copied.
        is_native: True if the core loaded the batches; torch's iterators count fewer things.
    """
    found = stats.read()
    known: dict[str, float] = {
        "batches": found["batches"],
        "wait_s": found["consumer_wait_ns"] / 1e9,
        "wait_p50_ms": found["wait_p50_ns"] / 1e6,
        "wait_p99_ms": found["wait_p99_ns"] / 1e6,
    }
    if times:
        streams = [device.read() for device in times]
        known |= {
            "h2d_bytes": sum(device["bytes"] for device in streams),
            "h2d_s": sum(device["copy_ns"] for device in streams) / 1e9,
            "gpu_stall_s": sum(device["stall_ns"] for device in streams) / 1e9,
        }
    if not is_native:
        return known
    return known | {
        "samples": found["samples"],
        "bytes": found["bytes"],
        "missing": found["missing"],
        "worker_wait_s": found["worker_wait_ns"] / 1e9,
        "ready": found["ready"],
        "cold_share": found["cold_batches"] / max(1, found["batches"]),
        "slot_bytes": sum(pool.used_bytes for pool in pools),
        "free_slot_bytes": sum(pool.free_bytes for pool in pools),
        "slot_allocations": sum(pool.allocation_count for pool in pools),
    }
