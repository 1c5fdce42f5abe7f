"""The process group of a training script: made, and unmade whatever happens."""

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
    """One of the processes that train together.

    Attributes:
        rank: In [0, world).
        world: How many there are.
        local_rank: Which of those on this host.
        device: What it computes on.
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
    """The process group of a script, for as long as its `with` block: the same script everywhere.

    Under torchrun, rank and world size come from its environment. Processes that were started by
    `torch.multiprocessing.spawn` give them, and an `init_method` on which all agree. Alone, it is a
    group of one, so that DDP works. A GPU is made the current one (`torch.cuda.set_device`). The
    group is destroyed at the end, after an exception too. A group that exists already is used and
    left as it is.

    Args:
        rank: Of this process; None: RANK of the environment, or else alone.
        world: How many processes there are; with `rank`.
        init_method: As of `torch.distributed.init_process_group`; None: MASTER_ADDR and
            MASTER_PORT of the environment.
        device: None: GPU number LOCAL_RANK if there is one, else the CPU. Backend NCCL on GPUs,
            gloo on CPUs.
        timeout: Seconds after which a rank that waits for the others raises.

    Raises:
        ValueError: the rank is not in [0, world), or one of the two is missing; there are fewer
            GPUs than processes on this host.

    Example:
        >>> with distributed(device="cpu") as process:
        ...     model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        >>> process.rank, process.world
        (0, 1)
    """
    if (rank is None) != (world is None):
        raise ValueError(f"rank and world go together, but they are {rank} and {world}")
    place = ranks.find_place(None if rank is None else (rank, world))
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
            # Its threads still let go of the last tensors, which takes the GIL; one that wants it
            # when Python is gone aborts the process. The group itself is in cycles of DDP's.
            gc.collect()
            time.sleep(_GRACE_S)


def _restarts() -> int:
    """How often torchrun has started all processes anew, where they agree on that: on one host.

    Its store then holds the addresses of the dead still, and who is quick connects to one of them.
    On several hosts each counts for itself; there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 helps.
    """
    alone = os.environ.get("GROUP_WORLD_SIZE") == "1"
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) if alone else 0


def _device(wanted: torch.device | str | None, rank: int) -> tuple[torch.device, int]:
    """The device of this process, and which of those on this host it is."""
    device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    local = int(os.environ.get("LOCAL_RANK", rank % count if count else rank))
    if device.type != "cuda" or ":" in str(device):
        return device, local
    if local >= count:
        raise ValueError(f"local rank {local} has no GPU: there are {count} on this host")
    return torch.device("cuda", local), local
