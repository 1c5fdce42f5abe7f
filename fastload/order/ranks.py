"""Rank and world size of this process, and its default number of threads."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

MAX_THREADS = 4


class ProcessRank(NamedTuple):
    """Rank of a process among those that train together.

    Attributes:
        rank: In [0, world).
        world: Number of processes.
        origin: Where they come from: "shard", "torch.distributed", "environment" or "alone".
    """

    rank: int
    world: int
    origin: str


def find_rank(shard: Any = None) -> ProcessRank:
    """Returns the current rank and world size.

    Args:
        shard: `(rank, world)`, a one-dimensional `DeviceMesh`, a `ProcessGroup`, False for "alone",
            or None: those of `torch.distributed` if it is initialised, else of the environment
            variables RANK and WORLD_SIZE if both are set, else "alone".

    Raises:
        ValueError: the rank is not in [0, world), or the variables are not integers.
        TypeError: `shard` is none of these.

    Example:
        >>> find_rank((1, 4))
        ProcessRank(rank=1, world=4, origin='shard')
    """
    if shard is None:
        return _found_rank()
    if shard is False:
        return ProcessRank(0, 1, "shard")
    if hasattr(shard, "get_local_rank"):  # DeviceMesh
        return _checked(shard.get_local_rank(), shard.size(), "shard")
    if callable(getattr(shard, "rank", None)):  # ProcessGroup
        return _checked(shard.rank(), shard.size(), "shard")
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise TypeError(f"shard must be (rank, world), False or None, not {shard!r}")
    rank, world = shard
    if any(isinstance(n, bool) or not hasattr(n, "__index__") for n in (rank, world)):
        raise TypeError(f"shard must hold two integers, not {shard!r}")
    return _checked(rank.__index__(), world.__index__(), "shard")


def _found_rank() -> ProcessRank:
    dist = process_group()
    if dist is not None:
        return ProcessRank(dist.get_rank(), dist.get_world_size(), "torch.distributed")
    rank, world = _env_int("RANK"), _env_int("WORLD_SIZE")
    if rank is None or world is None:
        return ProcessRank(0, 1, "alone")
    return _checked(rank, world, "environment")


def _checked(rank: int, world: int, origin: str) -> ProcessRank:
    if world < 1 or not 0 <= rank < world:
        source = " (from RANK and WORLD_SIZE)" if origin == "environment" else ""
        raise ValueError(f"rank {rank} of {world}{source} is not in [0, {world})")
    return ProcessRank(rank, world, origin)


def process_group() -> Any | None:
    """Returns `torch.distributed` if it is imported and initialised; never imports torch."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _env_int(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"environment variable {name}={text!r} is not an integer") from None


def thread_count() -> int:
    """Returns the default number of threads: this rank's share of the usable CPUs, 1 to 4."""
    local = _env_int("LOCAL_WORLD_SIZE")
    if local is None:
        dist = process_group()
        local = dist.get_world_size() if dist is not None else 1
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // max(1, local)))
