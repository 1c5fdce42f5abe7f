"""Tracks torch's own iterators, which load what the core cannot."""

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
from fastload.order.index_feeds import CountedBatches, StockFeed, start_seeded
from fastload.order.keyed_sampler import KeyedSampler
from fastload.order.masks import Mask, Masks
from fastload.order.position import Epochs, Position
from fastload.order.sample_keys import keyed_indices
from fastload.order.samplers import SamplerView
from fastload.order.state_dict import prepare_samplers


class TrackedSampler:
    """Wrapper around a loader's sampler, for torch's iterators, that counts what it yields.

    Args:
        samplers: Samplers of the loader.
        epochs: Epochs of the loader; each `iter()` starts one.
        masked: True if batches report which of their samples are real.

    Attributes:
        index_sampler: The wrapped sampler.
        position: Position of the iterator that started last.
        pulled: Number of batches that this iterator pulled.
        real: Masks of batches, by turn, from the pull until the batch is delivered.
    """

    def __init__(self, samplers: SamplerView, epochs: Epochs, masked: bool = False) -> None:
        self.index_sampler = samplers.index_sampler
        self.position = Position(0)
        self._samplers = samplers
        self._epochs = epochs
        self.pulled = 0
        self.real: dict[int, Mask] = {}
        self._masks = Masks(samplers) if masked else None

    @property
    def is_masked(self) -> bool:
        """True if `real` has the masks of batches."""
        return self._masks is not None

    def __len__(self) -> int:
        return len(self.index_sampler)

    def __iter__(self) -> Iterator[Any]:
        samplers, seeded = self._samplers, self._samplers.seeded
        if seeded is not None:
            return self._seeded(iter(self.index_sampler), seeded)
        if samplers.kind == "stock":
            return self._stock(StockFeed(samplers, self._epochs))
        return self._counted(CountedBatches(samplers, self._epochs))

    def _seeded(self, items: Iterator[Any], sampler: KeyedSampler) -> Iterator[Any]:
        first = list(zip(range(1), items, strict=False))  # the sampler starts its epoch here
        self._start(start_seeded(sampler, self._epochs))
        for _, item in first:
            yield self._counting(item)
            yield from map(self._counting, items)

    def _stock(self, feed: StockFeed) -> Iterator[Any]:
        items = feed.items()
        self.pulled = 0
        for item in items:
            self.position = feed.position
            yield self._counting(item)
        self.position = feed.position

    def _counted(self, items: CountedBatches) -> Iterator[Any]:
        position = items.start()
        self._start(position)
        for item in items:
            yield self._counting(item, position.first)

    def _start(self, position: Position) -> None:
        self.position, self.pulled = position, 0
        self.real.clear()
        if self._masks is not None:
            self._masks.start()

    def _counting(self, item: Any, before: int = 0) -> Any:
        if self._masks is not None:
            self.real[self.pulled] = self._masks.of(before + self.pulled, item)
        self.pulled += 1
        # The mask was read from the keys, which take long to pickle for worker processes.
        return item if keyed_indices(item) is None else list(map(int, item))


def _nothing() -> None:
    """Returns None: no batch is ready."""


def _private_generator(samplers: SamplerView, epochs: Epochs) -> torch.Generator:
    """Returns a generator for the seed of torch's workers where torch's own must not advance.

    The seed differs between epochs, and between the seeds of a seeded order or of the program.
    """
    generator = torch.Generator()
    seeded = samplers.seeded
    if seeded is not None:
        return generator.manual_seed(hash((seeded.seed, seeded.next_epoch)))
    assert epochs.loaded is not None
    return generator.manual_seed(hash((torch.initial_seed(), epochs.loaded["epoch"])))


class _Tracked:
    """Replacement for `_next_data` of one of torch's iterators that counts turns.

    Args:
        iterator: The iterator, which has not started.
        tracked: Its sampler; None for an IterableDataset.
        epochs: Epochs of the loader; started here for an IterableDataset.
        handover: Delivers each batch.
        stats: Counts batches and waits.
    """

    def __init__(
        self,
        iterator: Any,
        tracked: TrackedSampler | None,
        epochs: Epochs,
        handover: Handover,
        stats: _core.LoadStats,
    ) -> None:
        self._stats = stats
        self._original = timed(type(iterator)._next_data, stats)
        # Weak: torch ends its workers when the last reference to the iterator is dropped.
        self._iterator = weakref.ref(iterator)
        self._tracked = tracked
        self._epochs = epochs
        self.restart(handover)

    def restart(self, handover: Handover) -> None:
        """Called when a new epoch starts."""
        self._handover = handover
        self._position: Position | None = None  # of an IterableDataset
        self._left_to_skip = 0

    def __call__(self) -> Any:
        load = self._from_stream if self._tracked is None else self._from_map
        iterator: Any = self._iterator()
        # An IterableDataset in this process may wait for what the caller does with the last batch.
        waits = self._tracked is None and iterator._num_workers == 0
        try:
            return self._handover.next(load, _nothing if waits else load)
        except StopIteration:
            position = self._position if self._tracked is None else self._tracked.position
            if position is not None:
                position.finished = True
            raise

    def _from_map(self) -> tuple[Any, Turn]:
        tracked = self._tracked
        assert tracked is not None
        before = tracked.position.turns
        opened = self._open_tasks() if tracked.is_masked else None
        try:
            data = self._original(self._iterator())
        except BaseException as error:
            position = tracked.position
            position.turns = self._turns(tracked)
            if isinstance(error, StopIteration) and position.turns > before:
                raise RuntimeError("the dataset or collate_fn raised StopIteration") from error
            raise
        position = tracked.position
        position.turns = self._turns(tracked)
        self._stats.count_batch()
        if opened is not None:
            data = self._masked(data, tracked.real.pop(self._turn_of(opened, position.turns)))
        return data, (position, self._resumable(position.turns))

    def _open_tasks(self) -> tuple[int, set[int]]:
        """Returns the number of batches that torch has requested, and those not returned yet."""
        iterator: Any = self._iterator()
        if iterator._num_workers == 0:
            return 0, set()
        return iterator._send_idx, set(iterator._task_info)

    def _turn_of(self, opened: tuple[int, set[int]], turns: int) -> int:
        """Returns the number of the batch that arrived, which may not be the next one."""
        (sent_before, open_before), (sent, still_open) = opened, self._open_tasks()
        arrived = (open_before | set(range(sent_before, sent))) - still_open
        return arrived.pop() if arrived else turns - 1

    def _masked(self, batch: Any, real: Mask) -> Any:
        """Returns the batch with one more member: which of its samples are real."""
        iterator: Any = self._iterator()
        mask = torch.from_numpy(real)
        return with_added(batch, REAL, mask.pin_memory() if iterator._pin_memory else mask)

    def _turns(self, tracked: TrackedSampler) -> int:
        """Returns the number of batches that arrived or failed; late ones have done neither."""
        iterator: Any = self._iterator()
        if iterator._num_workers == 0:
            return tracked.pulled
        turns: int = iterator._send_idx - len(iterator._task_info)
        return turns

    def _resumable(self, turns: int) -> int:
        """Returns the number of batches before the first missing one (with `in_order=False`)."""
        iterator: Any = self._iterator()
        return turns if iterator._num_workers == 0 else min(iterator._task_info, default=turns)

    def _from_stream(self) -> tuple[Any, Turn]:
        """Loads the next batch; a loaded position is reached by loading the batches before it."""
        if self._position is None:
            self._position = self._epochs.start(self._epochs.next("batches"))
            self._left_to_skip = self._position.first
        while self._left_to_skip:
            skipped = Position(0)
            try:
                self._load_of_stream(skipped)
            except Exception:
                if not skipped.turns:
                    raise  # otherwise it was raised before the state was saved
            self._left_to_skip -= 1
        data = self._load_of_stream(self._position)
        self._stats.count_batch()
        return data, (self._position, self._position.turns)

    def _load_of_stream(self, position: Position) -> Any:
        iterator: Any = self._iterator()
        sent = getattr(iterator, "_send_idx", -1)
        try:
            data = self._original(iterator)
        except StopIteration:
            raise
        except Exception:
            # torch requests another batch from a worker that has returned a batch or an error.
            position.turns += iterator._num_workers == 0 or iterator._send_idx > sent
            raise
        position.turns += 1
        return data


def torch_iterator(
    loader: Any, make_handover: Callable[[], Handover], stats: _core.LoadStats
) -> Any:
    """Returns one of torch's own iterators, whose batches are counted and delivered by a handover.

    Args:
        loader: The loader. Its sampler, generator and collate_fn are replaced during this call.
        make_handover: Returns the handover of this iterator.
        stats: Counters of the loader.
    """
    own_generator, own_collate = loader.generator, loader.collate_fn
    samplers, epochs = loader._samplers, loader._epochs
    prepare_samplers(samplers, epochs)
    if samplers.kind == "seeded" or epochs.has_base_seed:
        # The workers' seed is drawn from this generator, so that torch's does not advance.
        loader.generator = _private_generator(samplers, epochs)
    if not loader._is_iterable:
        loader._tracked = TrackedSampler(samplers, epochs, samplers.adds_mask(loader.tail))
    # Transforms, device and batch_transform are applied by the handover.
    loader.__dict__["collate_fn"] = inner_of(own_collate)
    try:
        iterator: Any = DataLoader._get_iterator(loader)
        handover = make_handover()
        iterator._next_data = _Tracked(iterator, loader._tracked, epochs, handover, stats)
    finally:
        loader._tracked, loader.generator = None, own_generator
        loader.__dict__["collate_fn"] = own_collate
    return iterator
