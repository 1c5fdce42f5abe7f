"""The last steps of every batch, in the consumer's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastload.device.prefetcher import Target
from fastload.order.position import Position

Turn = tuple[Position, int]
"""Position of a batch's iterator, and its number of turns including this batch."""

Load = Callable[[], tuple[Any, Turn]]
LoadReady = Callable[[], tuple[Any, Turn] | None]
BatchTransform = Callable[[Any], Any]


class Handover:
    """Copies batches to the device, applies `batch_transform`, and counts delivered batches.

    Args:
        target: The device; None: batches stay where they are.
        batch_transform: Applied to each batch before it is delivered.
    """

    def __init__(self, target: Target | None, batch_transform: BatchTransform | None) -> None:
        self._prefetcher = None if target is None else target.prefetcher()
        self._batch_transform = batch_transform

    @property
    def does_nothing(self) -> bool:
        """True if batches are delivered as they are loaded."""
        return self._prefetcher is None and self._batch_transform is None

    def next(self, load: Load, load_ready: LoadReady) -> Any:
        """Returns the next batch.

        Args:
            load: Loads a batch; returns the batch and its turn.
            load_ready: Like `load`, but returns None if the caller would have to wait.

        Raises:
            RuntimeError: `batch_transform` raised StopIteration, which would end the epoch.
            Exception: `load` or `batch_transform` failed for this batch.
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
