"""Ray: shards are written by tasks of a cluster.

A task whose worker or node dies is run again by Ray, up to three times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from fastload.packing.jobs.engines.package import package

_RETRIES = 3


class RayExecutor(Executor):
    """An executor over the tasks of the cluster that this process is connected with.

    Args:
        ray: The module, after `ray.init`.

    Example:
        >>> import ray  # doctest: +SKIP
        >>> ray.init("auto")  # doctest: +SKIP
        >>> fastload.pack("photos", "data/photos", executor=RayExecutor(ray))  # doctest: +SKIP
    """

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray

        def call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs)

        # A local function travels itself, also to a worker without fastload.
        self._task = ray.remote(max_retries=_RETRIES, retry_exceptions=False)(call)

    @property
    def _max_workers(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs a function in a task that takes one CPU."""
        made: Future[Any] = self._task.remote(function, args, kwargs).future()
        return made


@contextmanager
def connected(address: str | None = None) -> Iterator[Executor]:
    """The executor of a cluster, for as long as the `with` block runs.

    Args:
        address: Of the cluster, such as `head:6379` or `ray://head:10001`; None or "auto" for
            RAY_ADDRESS of the environment, or else one that runs on this host. A connection of
            this process that exists already is used, and left as it is.

    Raises:
        ImportError: `ray` is not installed.
        OSError: there is no cluster.
    """
    ray = package("ray", "ray")
    if ray.is_initialized():
        yield RayExecutor(ray)
        return
    ray.init(address=address or "auto", logging_level="WARNING")
    try:
        yield RayExecutor(ray)
    finally:
        ray.shutdown()
