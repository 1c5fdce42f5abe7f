"""Clusters that can pack: one file each, which gives an executor for as long as it is connected."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext

ENGINES = ("local", "dask", "ray")
"""What `--engine` may say: processes of this host, or a cluster."""


def connected(
    engine: str = "local", *, scheduler: str | None = None, address: str | None = None
) -> AbstractContextManager[Executor | None]:
    """An executor of an engine; None if it is this host.

    Args:
        engine: One of `ENGINES`.
        scheduler: Of Dask; its address, or a file that has it.
        address: Of a Ray cluster.

    Raises:
        ImportError: the package of the engine is not installed.
        ValueError: there is no such engine, or an argument is not its.
        OSError: nobody answers there.

    Example:
        >>> with connected("dask", scheduler="tcp://head:8786") as executor:  # doctest: +SKIP
        ...     fastload.pack("photos", "data/photos", executor=executor)
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    if scheduler is not None and engine != "dask":
        raise ValueError("--scheduler is Dask's: --engine dask")
    if address is not None and engine != "ray":
        raise ValueError("--address is Ray's: --engine ray")
    if engine == "dask":
        from fastload.packing.jobs.engines import dask

        return dask.connected(scheduler)
    if engine == "ray":
        from fastload.packing.jobs.engines import ray

        return ray.connected(address)
    return nullcontext()
