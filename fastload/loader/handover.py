"""The last steps of every batch, in the thread that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastload.device.prefetcher import Target
from fastload.order.position import Position

Turn = tuple[Position, int]
"""The epoch of a batch, and how many turns it counts with it."""

Load = Callable[[], tuple[Any, Turn]]
LoadReady = Callable[[], tuple[Any, Turn] | None]
BatchTransform = Callable[[Any], Any]


class Handover:
    """Brings batches to the device, applies `batch_transform`, and counts those handed out.

    Args:
        target: Where batches are brought; None: they stay.
        batch_transform: From the batch to what is handed out.
    """

    def __init__(self, target: Target | None, batch_transform: BatchTransform | None) -> None:
        self._prefetcher = None if target is None else target.prefetcher()
        self._batch_transform = batch_transform

    @property
    def does_nothing(self) -> bool:
        """Whether batches are handed out as they are loaded."""
        return self._prefetcher is None and self._batch_transform is None

    def next(self, load: Load, load_ready: LoadReady) -> Any:
        """The next batch.

        Args:
            load: Gives a batch and its turn.
            load_ready: The same, or None if the caller would have to wait for it.

        Raises:
            RuntimeError: `batch_transform` raised StopIteration, which would end the epoch.
            Exception: what `load`, for this batch, or `batch_transform` raised.
        """
        prefetcher = self._prefetcher
        batch, (position, turn) = (
            load() if prefetcher is None else prefetcher.next(load, load_ready)
        )
        if self._batch_transform is not None:
            try:
                batch = self._batch_transform(batch)
            except StopIteration as stop:
                raise RuntimeError("batch_transform raised StopIteration") from stop
        position.delivered = max(position.delivered, turn)  # threads may overtake each other here
        return batch
