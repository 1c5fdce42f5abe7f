"""The process group of a training script, destroyed on every exit path."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous

from fastload.order import ranks

_GRACE_S = 0.1


class Process(NamedTuple):
    """This process in its process group.

    Attributes:
        rank: In [0, world).
        world: Number of processes.
        local_rank: Index among the processes of this host.
        device: Device of this process.
    """

    rank: int
    world: int
    local_rank: int
    device: torch.device


@contextlib.contextmanager
def distributed(
    rank: int | None = None,
    world: int | None = None,
    *,
    init_method: str | None = None,
    device: torch.device | str | None = None,
    timeout: float = 600.0,
) -> Iterator[Process]:
    """Context manager: a process group for the time of its `with` block.

    Under torchrun, rank and world size come from the environment. Processes started by
    `torch.multiprocessing.spawn` pass them, and a common `init_method`. A single process becomes a
    group of one, so that DDP works. On GPUs, `torch.cuda.set_device` is called. The group is
    destroyed at the end of the block, also after an exception. An existing group is used and not
    destroyed.

    Args:
        rank: Rank of this process; None: RANK of the environment, else a single process.
        world: Number of processes; required with `rank`.
        init_method: See `torch.distributed.init_process_group`; None: MASTER_ADDR and MASTER_PORT
            of the environment.
        device: Device of this process; None: GPU number LOCAL_RANK if torch finds GPUs, else the
            CPU. The backend is NCCL on GPUs, gloo on CPUs.
        timeout: Seconds after which a rank that waits for other ranks raises.

    Yields:
        Rank, world size, local rank and device of this process.

    Raises:
        ValueError: the rank is not in [0, world), or only one of `rank` and `world` is given; this
            host has fewer GPUs than processes.

    Example:
        >>> with distributed(device="cpu") as process:
        ...     model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        >>> process.rank, process.world
        (0, 1)
    """
    if (rank is None) != (world is None):
        raise ValueError(f"rank and world must be given together, got {rank=} and {world=}")
    place = ranks.find_rank(None if rank is None else (rank, world))
    target, local = _device(device, place.rank)
    if target.type == "cuda":
        torch.cuda.set_device(target)
    process = Process(place.rank, place.world, local, target)
    if dist.is_initialized():
        yield process
        return
    limit = timedelta(seconds=timeout)
    options: dict[str, Any] = {"rank": place.rank, "world_size": place.world, "timeout": limit}
    if place.world == 1 and init_method is None:
        options["store"] = dist.HashStore()  # type: ignore[attr-defined]
    elif init_method is not None:
        options["init_method"] = init_method
    elif (attempt := _restarts()) > 0:
        store = next(rendezvous("env://", place.rank, place.world, timeout=limit))[0]
        options["store"] = dist.PrefixStore(f"restart {attempt}", store)  # type: ignore[attr-defined]
    if target.type == "cuda":
        options["device_id"] = target
    backend = "nccl" if target.type == "cuda" else "gloo"
    dist.init_process_group(backend, **options)
    try:
        yield process
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        if backend == "gloo":
            # gloo's threads still release tensors, which takes the GIL; requesting the GIL after
            # Python has exited aborts the process. DDP keeps the group in reference cycles.
            gc.collect()
            time.sleep(_GRACE_S)


def _restarts() -> int:
    """Returns the number of restarts by torchrun, if it runs on one host; else 0.

    After a restart the store of torchrun still holds the addresses of the old processes, and a
    fast process would connect to one of them. On several hosts the counts of the hosts may differ;
    there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 helps.
    """
    alone = os.environ.get("GROUP_WORLD_SIZE") == "1"
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) if alone else 0


def _device(wanted: torch.device | str | None, rank: int) -> tuple[torch.device, int]:
    """Returns the device of this process and its local rank."""
    device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    local = int(os.environ.get("LOCAL_RANK", rank % count if count else rank))
    if device.type != "cuda" or ":" in str(device):
        return device, local
    if local >= count:
        raise ValueError(f"local rank {local} has no GPU: there are {count} on this host")
    return torch.device("cuda", local), local
