"""Clusters that pack: one module each, which provides an executor while it is connected."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext

ENGINES = ("local", "dask", "ray")
"""Values of `--engine`: processes of this host, or a cluster."""


def connected(
    engine: str = "local", *, scheduler: str | None = None, address: str | None = None
) -> AbstractContextManager[Executor | None]:
    """Connects to an engine; the `with` block gets its executor, or None for this host.

    Args:
        engine: One of `ENGINES`.
        scheduler: Address of the Dask scheduler, or a file that contains it.
        address: Address of a Ray cluster.

    Raises:
        ImportError: the package of the engine is not installed.
        ValueError: the engine is unknown, or an argument belongs to another engine.
        OSError: no scheduler or cluster answers.

    Example:
        >>> with connected("dask", scheduler="tcp://head:8786") as executor:  # doctest: +SKIP
        ...     fastload.pack("photos", "data/photos", executor=executor)
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    if scheduler is not None and engine != "dask":
        raise ValueError("--scheduler needs --engine dask")
    if address is not None and engine != "ray":
        raise ValueError("--address needs --engine ray")
    if engine == "dask":
        from fastload.packing.jobs.engines import dask

        return dask.connected(scheduler)
    if engine == "ray":
        from fastload.packing.jobs.engines import ray

        return ray.connected(address)
    return nullcontext()
