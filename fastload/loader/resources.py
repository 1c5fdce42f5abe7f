"""What a loader keeps between iterators, and the defaults that it chose by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastload import _core
from fastload.device.prefetcher import Target, device_with_index
from fastload.loader.arguments import check_prefetch
from fastload.loader.stats import figures
from fastload.loader.table_cache import TableCache
from fastload.order import ranks


class Kept:
    """What a loader keeps from one iterator to the next; a copy of the loader starts without it.

    Attributes:
        pool: Memory of batches.
        stats: What was loaded.
        tables: The core's view of the dataset.
        said: Warnings that were given. These are copied.
        by_torch: Whether the last iterator was one of torch's.
    """

    def __init__(self, said: set[str] | None = None) -> None:
        self.pool = _core.SlotPool()
        self.stats = _core.LoadStats()
        self.tables = TableCache()
        self.said: set[str] = said or set()
        self.by_torch = False
        self._targets: dict[tuple[torch.device, bool], Target] = {}

    def target(self, device: torch.device | str | int | None, *, static: bool) -> Target | None:
        """Where the batches of a new iterator are brought; None: they stay on the CPU.

        Args:
            device: As the loader was given it.
            static: Whether they come in the same tensors.

        Raises:
            RuntimeError: torch cannot use the device; says why.
        """
        try:
            where = device_with_index(device)
            if where is None:
                return None
            if (where, static) not in self._targets:
                target = Target(where, static)
                target.check()
                self._targets[where, static] = target
        # The first without CUDA in torch, the last without what a backend needs.
        except (AssertionError, RuntimeError, ImportError) as error:
            reason = str(error).partition("\n")[0]  # torch may list all its backends below
            raise RuntimeError(
                f"device={str(device)!r} cannot be used: {reason}; without device= batches stay on "
                "the CPU"
            ) from error
        return self._targets[where, static]

    @property
    def pools(self) -> list[_core.SlotPool]:
        """All memory of batches."""
        pinned = (target.pool for target in list(self._targets.values()))
        return [self.pool, *(pool for pool in pinned if pool is not None)]

    @property
    def times(self) -> list[_core.StreamTimes]:
        """Of the devices that measure what they do for batches."""
        measured = (target.times for target in list(self._targets.values()))
        return [times for times in measured if times is not None]

    def figures(self) -> dict[str, float]:
        """What `FastLoader.stats` gives."""
        return figures(self.stats, self.pools, self.times, is_native=not self.by_torch)

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, (set(self.said),)


@dataclass
class Chosen:
    """What was chosen where the user said nothing, to tell it from what is assigned later.

    Attributes:
        workers: Threads; None: the user said how many.
        prefetch: The loader's `prefetch_factor`; -1: the user gave one.
    """

    workers: int | None = None
    prefetch: int | None = -1

    def choose_workers(self, loader: Any, prefetch: int | None, persistent: bool) -> None:
        """Gives a loader of native data its threads, and what torch takes only with workers.

        Raises:
            TypeError: `prefetch` is not an integer.
            ValueError: `prefetch` is not positive.
        """
        if prefetch is not None:
            check_prefetch(prefetch)
        loader.num_workers = self.workers = ranks.thread_count()
        loader.prefetch_factor = prefetch
        loader.__dict__["persistent_workers"] = persistent  # torch forbids to assign it

    def take_back_workers(self, loader: Any) -> None:
        """For data that threads cannot load after all: processes were not asked for."""
        if loader.num_workers == self.workers:
            loader.num_workers, self.workers = 0, None
