"""Objects of a loader that outlive its iterators, and the defaults that it chose itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastload import _core
from fastload.device.prefetcher import Target, device_with_index
from fastload.loader.arguments import check_prefetch
from fastload.loader.dataset_cache import DatasetCache
from fastload.loader.stats import figures
from fastload.order import ranks


class LoaderResources:
    """Objects of a loader that outlive its iterators. A copy of the loader makes its own.

    Args:
        warned: See the attribute.

    Attributes:
        pool: Memory of batches in host memory.
        stats: Counters of the loader.
        dataset: Plan and table of the dataset.
        warned: Names of the warnings that were issued. A copy of the loader has them, too.
        uses_torch: True if the last iterator was one of torch's.
    """

    def __init__(self, warned: set[str] | None = None) -> None:
        self.pool = _core.SlotPool()
        self.stats = _core.LoadStats()
        self.dataset = DatasetCache()
        self.warned: set[str] = warned or set()
        self.uses_torch = False
        self._targets: dict[tuple[torch.device, bool], Target] = {}

    def target(self, device: torch.device | str | int | None, *, static: bool) -> Target | None:
        """Returns the target for the batches of a new iterator; None for the CPU.

        Args:
            device: As given to the loader.
            static: True if all batches of one shape use the same tensors.

        Raises:
            RuntimeError: torch cannot use the device; the message names the reason.
        """
        try:
            where = device_with_index(device)
            if where is None:
                return None
            if (where, static) not in self._targets:
                target = Target(where, static)
                target.check()
                self._targets[where, static] = target
        # AssertionError: torch without CUDA; ImportError: a backend that is not installed.
        except (AssertionError, RuntimeError, ImportError) as error:
            reason = str(error).partition("\n")[0]  # torch may list all its backends below
            raise RuntimeError(
                f"device={str(device)!r} cannot be used: {reason}; without device= batches stay on "
                "the CPU"
            ) from error
        return self._targets[where, static]

    @property
    def pools(self) -> list[_core.SlotPool]:
        """All pools of batch memory, host and device."""
        pinned = (target.pool for target in list(self._targets.values()))
        return [self.pool, *(pool for pool in pinned if pool is not None)]

    @property
    def times(self) -> list[_core.StreamTimes]:
        """Timings of the devices that measure their streams."""
        measured = (target.times for target in list(self._targets.values()))
        return [times for times in measured if times is not None]

    def figures(self) -> dict[str, float]:
        """Returns the dict of `FastLoader.stats`."""
        return figures(self.stats, self.pools, self.times, is_native=not self.uses_torch)

    def __reduce__(self) -> tuple[Any, ...]:
        return LoaderResources, (set(self.warned),)


@dataclass
class AutoDefaults:
    """Values that the loader chose itself, to distinguish them from values assigned later.

    Attributes:
        workers: Number of threads; None: `num_workers` was given.
        prefetch: Value of the loader's `prefetch_factor`; -1: `prefetch_factor` was given.
    """

    workers: int | None = None
    prefetch: int | None = -1

    def choose_workers(self, loader: Any, prefetch: int | None, persistent: bool) -> None:
        """Sets the number of threads of a loader, and the arguments that torch refuses without.

        Args:
            loader: A loader of native data, without `num_workers`.
            prefetch: `prefetch_factor` as given.
            persistent: `persistent_workers` as given.

        Raises:
            TypeError: `prefetch` is not an integer.
            ValueError: `prefetch` is not positive.
        """
        if prefetch is not None:
            check_prefetch(prefetch)
        loader.num_workers = self.workers = ranks.thread_count()
        loader.prefetch_factor = prefetch
        loader.__dict__["persistent_workers"] = persistent  # DataLoader forbids assigning it

    def take_back_workers(self, loader: Any) -> None:
        """Resets `num_workers` to 0 for data that torch loads: no processes were requested."""
        if loader.num_workers == self.workers:
            loader.num_workers, self.workers = 0, None
