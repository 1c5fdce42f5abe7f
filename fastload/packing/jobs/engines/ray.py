"""Ray: tasks of a cluster write shards.

Ray repeats a task whose worker or node dies, up to three times.
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
    """Executor that runs calls as tasks of the Ray cluster this process is connected to.

    Args:
        ray: The `ray` module, after `ray.init`.

    Example:
        >>> import ray  # doctest: +SKIP
        >>> ray.init("auto")  # doctest: +SKIP
        >>> fastload.pack("photos", "data/photos", executor=RayExecutor(ray))  # doctest: +SKIP
    """

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray

        def call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs)

        # Ray pickles a local function by value, so the worker can report that fastload is missing.
        self._task = ray.remote(max_retries=_RETRIES, retry_exceptions=False)(call)

    @property
    def _max_workers(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs a function as a task that uses one CPU."""
        made: Future[Any] = self._task.remote(function, args, kwargs).future()
        return made


@contextmanager
def connected(address: str | None = None) -> Iterator[Executor]:
    """Connects to a cluster; the `with` block gets its executor.

    Args:
        address: Address of the cluster, such as `head:6379` or `ray://head:10001`. None or "auto"
            uses RAY_ADDRESS of the environment, else a cluster that runs on this host. If this
            process is already connected, that connection is used and stays open.

    Raises:
        ImportError: `ray` is not installed.
        OSError: no cluster answers.
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
