"""Keeps account of torch's own iterators, which load what the core cannot."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastload import _core
from fastload.formats.structure import REAL, with_added
from fastload.loader.collate_fn import inner_of
from fastload.loader.handover import Handover, Turn
from fastload.loader.stats import timed
from fastload.order.index_feeds import CountedBatches, StockStream, begin_keyed
from fastload.order.masks import Mask, Masks
from fastload.order.position import Bookmark, Progress
from fastload.order.sample_keys import keyed_indices
from fastload.order.samplers import bottom, is_keyed, is_masked
from fastload.order.state_dict import prepare_sampler
from fastload.order.torch_samplers import is_stock


class TrackedSampler:
    """A loader's sampler as torch's iterators see it: the same items, and it knows how many.

    Args:
        index_sampler: Gives batches of indices, or indices where the loader makes no batches.
        mark: Is told of each epoch that begins.
        masked: Batches are to say which of their samples are real.

    Attributes:
        real: That, by the number of the batch, from its pull until somebody takes it out.
    """

    def __init__(self, index_sampler: Any, mark: Bookmark, masked: bool = False) -> None:
        self.index_sampler = index_sampler
        self.mark = mark
        self.progress = Progress(0)
        self.pulled = 0
        self.real: dict[int, Mask] = {}
        self._masks = Masks(index_sampler) if masked else None

    @property
    def is_masked(self) -> bool:
        """Whether `real` is to be told."""
        return self._masks is not None

    def __len__(self) -> int:
        return len(self.index_sampler)

    def __iter__(self) -> Iterator[Any]:
        sampler = bottom(self.index_sampler)
        if is_keyed(self.index_sampler):
            return self._keyed(iter(self.index_sampler), sampler)
        if is_stock(sampler) and _is_plain(self.index_sampler, sampler):
            return self._stock(StockStream(self.index_sampler, self.mark))
        return self._counted(CountedBatches(self.index_sampler, self.mark))

    def _keyed(self, items: Iterator[Any], sampler: Any) -> Iterator[Any]:
        first = list(zip(range(1), items, strict=False))  # the sampler begins here
        self._begin(begin_keyed(sampler, self.mark))
        for _, item in first:
            yield self._counting(item)
            yield from map(self._counting, items)

    def _stock(self, stream: StockStream) -> Iterator[Any]:
        items = stream.items()
        self.pulled = 0
        for item in items:
            self.progress = stream.progress
            yield self._counting(item)
        self.progress = stream.progress

    def _counted(self, items: CountedBatches) -> Iterator[Any]:
        progress = items.begin()
        self._begin(progress)
        for item in items:
            yield self._counting(item, progress.first)

    def _begin(self, progress: Progress) -> None:
        self.progress, self.pulled = progress, 0
        self.real.clear()
        if self._masks is not None:
            self._masks.begin()

    def _counting(self, item: Any, before: int = 0) -> Any:
        if self._masks is not None:
            self.real[self.pulled] = self._masks.of(before + self.pulled, item)
        self.pulled += 1
        # Nothing else here needs the keys, which are long to pickle for worker processes.
        return item if keyed_indices(item) is None else list(map(int, item))


def _nothing() -> None:
    """No batch that is ready."""


def _private_generator(index_sampler: Any, mark: Bookmark) -> torch.Generator:
    """Gives torch's worker processes their seed where torch's own generator is left alone.

    That seed differs between epochs, and between the seeds of a keyed order or of the program.
    """
    generator = torch.Generator()
    if is_keyed(index_sampler):
        sampler = bottom(index_sampler)
        return generator.manual_seed(hash((sampler.seed, sampler.next_epoch)))
    assert mark.loaded is not None
    return generator.manual_seed(hash((torch.initial_seed(), mark.loaded["epoch"])))


def _is_plain(index_sampler: Any, sampler: Any) -> bool:
    return index_sampler is sampler or type(index_sampler) is torch.utils.data.BatchSampler


class _Tracked:
    """What stands in for the `_next_data` of one of torch's iterators.

    Args:
        iterator: Just made.
        tracked: Its sampler, for a map-style dataset.
        mark: Is told when an epoch of an IterableDataset begins.
        handover: Gets each batch.
        stats: Counts batches and waits.
    """

    def __init__(
        self,
        iterator: Any,
        tracked: TrackedSampler | None,
        mark: Bookmark,
        handover: Handover,
        stats: _core.LoadStats,
    ) -> None:
        self._stats = stats
        self._original = timed(type(iterator)._next_data, stats)
        # Weak: torch ends its workers when the last reference to the iterator goes.
        self._iterator = weakref.ref(iterator)
        self._tracked = tracked
        self._mark = mark
        self.restart(handover)

    def restart(self, handover: Handover) -> None:
        """A new epoch begins."""
        self._handover = handover
        self._begun: Progress | None = None
        self._left_to_skip = 0

    def __call__(self) -> Any:
        load = self._from_stream if self._tracked is None else self._from_map
        iterator: Any = self._iterator()
        # A stream in this process may wait for what the caller does with the batch before.
        waits = self._tracked is None and iterator._num_workers == 0
        try:
            return self._handover.next(load, _nothing if waits else load)
        except StopIteration:
            progress = self._begun if self._tracked is None else self._tracked.progress
            if progress is not None:
                progress.finished = True
            raise

    def _from_map(self) -> tuple[Any, Turn]:
        tracked = self._tracked
        assert tracked is not None
        before = tracked.progress.turns
        opened = self._open_tasks() if tracked.is_masked else None
        try:
            data = self._original(self._iterator())
        except BaseException as error:
            progress = tracked.progress
            progress.turns = self._turns(tracked)
            if isinstance(error, StopIteration) and progress.turns > before:
                raise RuntimeError("the dataset or collate_fn raised StopIteration") from error
            raise
        progress = tracked.progress
        progress.turns = self._turns(tracked)
        self._stats.count_batch()
        if opened is not None:
            data = self._masked(data, tracked.real.pop(self._turn_of(opened, progress.turns)))
        return data, (progress, self._resumable(progress.turns))

    def _open_tasks(self) -> tuple[int, set[int]]:
        """How many batches torch has sent for, and those that it has not given."""
        iterator: Any = self._iterator()
        if iterator._num_workers == 0:
            return 0, set()
        return iterator._send_idx, set(iterator._task_info)

    def _turn_of(self, opened: tuple[int, set[int]], turns: int) -> int:
        """The number of the batch that came, which may not be the next one."""
        (sent_before, open_before), (sent, still_open) = opened, self._open_tasks()
        came = (open_before | set(range(sent_before, sent))) - still_open
        return came.pop() if came else turns - 1

    def _masked(self, batch: Any, real: Mask) -> Any:
        """The batch with one more member that says which of its samples are real."""
        iterator: Any = self._iterator()
        mask = torch.from_numpy(real)
        return with_added(batch, REAL, mask.pin_memory() if iterator._pin_memory else mask)

    def _turns(self, tracked: TrackedSampler) -> int:
        """Batches that were given or have failed; one that is late, say, has done neither."""
        iterator: Any = self._iterator()
        if iterator._num_workers == 0:
            return tracked.pulled
        turns: int = iterator._send_idx - len(iterator._task_info)
        return turns

    def _resumable(self, turns: int) -> int:
        """Batches up to the first that is missing; with `in_order=False` later ones may be out."""
        iterator: Any = self._iterator()
        return turns if iterator._num_workers == 0 else min(iterator._task_info, default=turns)

    def _from_stream(self) -> tuple[Any, Turn]:
        """A loaded place is reached by loading up to it."""
        if self._begun is None:
            epoch, first, _, _ = self._mark.take("batches")
            self._begun = self._mark.begin(Progress(epoch, first))
            self._left_to_skip = first
        while self._left_to_skip:
            skipped = Progress(0)
            try:
                self._load_of_stream(skipped)
            except Exception:
                if not skipped.turns:
                    raise  # else the caller had this error before the state was saved
            self._left_to_skip -= 1
        data = self._load_of_stream(self._begun)
        self._stats.count_batch()
        return data, (self._begun, self._begun.turns)

    def _load_of_stream(self, progress: Progress) -> Any:
        iterator: Any = self._iterator()
        sent = getattr(iterator, "_send_idx", -1)
        try:
            data = self._original(iterator)
        except StopIteration:
            raise
        except Exception:
            # A process that has given a batch, or an error, is sent for the next one.
            progress.turns += iterator._num_workers == 0 or iterator._send_idx > sent
            raise
        progress.turns += 1
        return data


def torch_iterator(
    loader: Any, mark: Bookmark, make_handover: Callable[[], Handover], stats: _core.LoadStats
) -> Any:
    """One of torch's own iterators, whose batches are counted and handed out by a handover.

    Args:
        loader: Its sampler, generator and collate_fn are others while torch looks at them.
        mark: Of the loader.
        make_handover: For this iterator.
        stats: Of the loader.
    """
    own_generator, sampler, own_collate = loader.generator, loader._index_sampler, loader.collate_fn
    prepare_sampler(mark, sampler)
    if is_keyed(sampler) or mark.has_base_seed:
        # The seed of the workers comes from there: not from everybody's generator.
        loader.generator = _private_generator(sampler, mark)
    if not loader._is_iterable:
        loader._tracked = TrackedSampler(sampler, mark, is_masked(loader))
    # The handover does what else there is to do to a batch.
    loader.__dict__["collate_fn"] = inner_of(own_collate)
    try:
        iterator: Any = DataLoader._get_iterator(loader)
        handover = make_handover()
        iterator._next_data = _Tracked(iterator, loader._tracked, mark, handover, stats)
    finally:
        loader._tracked, loader.generator = None, own_generator
        loader.__dict__["collate_fn"] = own_collate
    return iterator
