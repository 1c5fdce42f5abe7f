"""Dask: shards are written by the workers of a `distributed` cluster.

A job whose worker dies is given to another one by the scheduler, until
`distributed.scheduler.allowed-failures` (3) have died of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from fastload.packing.jobs.engines.package import package


@contextmanager
def connected(scheduler: str | None = None) -> Iterator[Executor]:
    """The executor of a cluster, for as long as the `with` block runs.

    Args:
        scheduler: Its address, such as `tcp://head:8786`, or the file that `dask scheduler
            --scheduler-file` wrote; None for the address in Dask's configuration, which is
            DASK_SCHEDULER_ADDRESS of the environment.

    Raises:
        ImportError: `distributed` is not installed.
        OSError: nobody answers there.
        ValueError: there is no address, or it is none.
    """
    distributed = package("distributed", "dask")
    dask = package("dask", "dask")
    scheduler = scheduler or dask.config.get("scheduler-address", None)
    if scheduler is None:
        raise ValueError("--engine dask needs --scheduler ADDRESS, or DASK_SCHEDULER_ADDRESS")
    is_file = os.path.isfile(scheduler)
    # A client that was given something else waits for a minute before it ends.
    if not is_file and not re.search(r"^inproc://|:\d+(/|$)", scheduler):
        raise ValueError(
            f"--scheduler {scheduler!r} is neither a file that is there nor an address, such as "
            "tcp://head:8786"
        )
    where = {"scheduler_file": scheduler} if is_file else {"address": scheduler}
    with distributed.Client(**where, set_as_default=False) as client:
        # Else a result of an earlier run with the same arguments could be given back.
        yield client.get_executor(pure=False)
