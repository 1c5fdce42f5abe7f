"""Keeps account of torch's own iterators, which load what the core cannot."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fastload.state import Bookmark, Progress, bottom, sampler_draw
from fastload.streams import StockStream, begin_counted, begin_keyed, is_keyed
from fastload.torch_order import is_stock


class TrackedSampler:
    """A loader's sampler as torch's iterators see it: the same items, and it knows how many.

    Args:
        index_sampler: Gives batches of indices, or indices where the loader makes no batches.
        mark: Is told of each epoch that begins.
    """

    def __init__(self, index_sampler: Any, mark: Bookmark) -> None:
        self.index_sampler = index_sampler
        self.mark = mark
        self.progress = Progress(0)
        self.pulled = 0

    def __len__(self) -> int:
        return len(self.index_sampler)

    def __iter__(self) -> Iterator[Any]:
        sampler = bottom(self.index_sampler)
        if is_keyed(self.index_sampler):
            return self._keyed(iter(self.index_sampler), sampler)
        if is_stock(sampler) and _is_plain(self.index_sampler, sampler):
            return self._stock(StockStream(self.index_sampler, self.mark))
        draw = sampler_draw(self.index_sampler)
        return self._counted(iter(self.index_sampler), draw)

    def _keyed(self, items: Iterator[Any], sampler: Any) -> Iterator[Any]:
        first = list(zip(range(1), items, strict=False))  # the sampler begins here
        self._begin(begin_keyed(sampler, self.mark))
        for _, item in first:
            self.pulled += 1
            yield item
            yield from self._passed(items)

    def _stock(self, stream: StockStream) -> Iterator[Any]:
        items = stream.items()
        self.pulled = 0
        for item in items:
            self.progress = stream.progress
            self.pulled += 1
            yield item
        self.progress = stream.progress

    def _counted(self, items: Iterator[Any], draw: dict[str, Any]) -> Iterator[Any]:
        self._begin(begin_counted(items, draw, self.mark))
        yield from self._passed(items)

    def _begin(self, progress: Progress) -> None:
        self.progress, self.pulled = progress, 0

    def _passed(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.pulled += 1
            yield item


def private_generator(index_sampler: Any, mark: Bookmark) -> torch.Generator:
    """Gives torch's worker processes their seed where torch's own generator is left alone.

    That seed differs between epochs, and between the seeds of a keyed order.
    """
    generator = torch.Generator()
    if is_keyed(index_sampler):
        sampler = bottom(index_sampler)
        return generator.manual_seed(hash((sampler.seed, sampler.next_epoch)))
    assert mark.loaded is not None
    return generator.manual_seed(mark.loaded["epoch"])


def _is_plain(index_sampler: Any, sampler: Any) -> bool:
    return index_sampler is sampler or type(index_sampler) is torch.utils.data.BatchSampler


def track_map(iterator: Any, tracked: TrackedSampler, finish: Callable[[Any], Any] | None) -> None:
    """Counts what a torch iterator over a map-style dataset hands out.

    Args:
        iterator: Just made, over `tracked`.
        tracked: Its sampler.
        finish: Applied to each batch.
    """
    next_data = type(iterator)._next_data
    # Weak: torch ends its workers when the last reference to the iterator goes.
    reference = weakref.ref(iterator)

    def counted() -> Any:
        try:
            data = next_data(reference())
        except StopIteration as stop:
            progress = tracked.progress
            if progress.turns < tracked.pulled:
                progress.turns += 1
                raise RuntimeError("the dataset or collate_fn raised StopIteration") from stop
            progress.finished = True
            raise
        except Exception:
            tracked.progress.turns += 1
            raise
        progress = tracked.progress
        progress.turns += 1
        progress.handed = progress.turns
        return data if finish is None else finish(data)

    iterator._next_data = counted


def track_iterable(iterator: Any, mark: Bookmark, finish: Callable[[Any], Any] | None) -> None:
    """The same over an IterableDataset, where a loaded place is reached by loading up to it."""
    next_data = type(iterator)._next_data
    reference = weakref.ref(iterator)
    begun: list[Progress] = []

    def counted() -> Any:
        if not begun:
            epoch, first, _, _ = mark.take("batches")
            begun.append(mark.begin(Progress(epoch, first)))
            for _skipped in range(first):
                next_data(reference())
        progress = begun[0]
        try:
            data = next_data(reference())
        except StopIteration:
            progress.finished = True
            raise
        progress.handed += 1
        return data if finish is None else finish(data)

    iterator._next_data = counted


def to_device(data: Any, device: torch.device) -> Any:
    """Every tensor of a batch on the device, in the same containers; anything else as it is.

    Example:
        >>> to_device({"x": torch.zeros(2), "name": "a"}, torch.device("cpu"))
        {'x': tensor([0., 0.]), 'name': 'a'}
    """
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, dict):
        moved = {key: to_device(value, device) for key, value in data.items()}
        return _like(data, moved)
    if isinstance(data, (list, tuple)):
        members = [to_device(member, device) for member in data]
        if hasattr(data, "_fields"):
            return type(data)(*members)
        return tuple(members) if isinstance(data, tuple) else _like(data, dict(enumerate(members)))
    if callable(getattr(data, "to", None)):
        return data.to(device)
    return data


def _like(template: Any, items: dict[Any, Any]) -> Any:
    clone = copy.copy(template)
    for key, value in items.items():
        clone[key] = value
    return clone
