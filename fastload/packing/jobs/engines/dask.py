"""Dask: the workers of a `distributed` cluster write shards.

If a worker dies, the scheduler runs its job on another one, up to
`distributed.scheduler.allowed-failures` (3) times.
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
    """Connects to a cluster; the `with` block gets its executor.

    Args:
        scheduler: Address, such as `tcp://head:8786`, or the file that `dask scheduler
            --scheduler-file` wrote. None uses the address in Dask's configuration, which includes
            DASK_SCHEDULER_ADDRESS of the environment.

    Raises:
        ImportError: `distributed` is not installed.
        OSError: no scheduler answers.
        ValueError: no address is given, or it is not an address.
    """
    distributed = package("distributed", "dask")
    dask = package("dask", "dask")
    scheduler = scheduler or dask.config.get("scheduler-address", None)
    if scheduler is None:
        raise ValueError("--engine dask needs --scheduler ADDRESS, or DASK_SCHEDULER_ADDRESS")
    is_file = os.path.isfile(scheduler)
    # A client with an invalid address raises only after a minute.
    if not is_file and not re.search(r"^inproc://|:\d+(/|$)", scheduler):
        raise ValueError(
            f"--scheduler {scheduler!r} is neither an existing file nor an address such as "
            "tcp://head:8786"
        )
    where = {"scheduler_file": scheduler} if is_file else {"address": scheduler}
    with distributed.Client(**where, set_as_default=False) as client:
        # A pure call could return the result of an earlier run with the same arguments.
        yield client.get_executor(pure=False)
