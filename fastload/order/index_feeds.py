"""Index feeds: the batches of indices of one iterator, pulled when torch would pull them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import SubsetRandomSampler

from fastload import _core
from fastload.formats.columns import Int64Array
from fastload.order.keyed_sampler import KeyedSampler
from fastload.order.masks import Mask, Masks, real_samples
from fastload.order.position import Epochs, Position
from fastload.order.sample_keys import KeyedIndex, keyed_indices
from fastload.order.samplers import SamplerView
from fastload.order.torch_samplers import (
    as_indices,
    draw_at_exhaustion,
    draw_order,
    may_repeat,
    wrap_negative,
)

Order = _core.EpochPlan | _core.ArrayOrder | _core.PushedOrder


class IndexFeed(Protocol):
    """Indices of one iterator.

    One thread at a time may call `pull`. Batches are identified by their turn: their number in this
    iterator, from 0.

    Attributes:
        waits_for_next: True if the feed must not be pulled before the first `next()`.
        order: Order for the engine; final after the first pull.
        position: Position of the iterator; final after the first pull.
        non_integer: Batches that are not integers, by turn; the dataset may accept their items.
        random_key: Seed and epoch of random transforms if the indices carry them (`KeyedIndex`);
            final after the first pull.
    """

    waits_for_next: bool
    order: Order
    position: Position
    non_integer: dict[int, list[Any]]
    random_key: tuple[int, int] | None

    def pull(self) -> bool:
        """Does what torch does to request one more batch; returns False if nothing is left."""

    def indices(self, turn: int) -> Int64Array:
        """Returns the dataset's indices of a batch that was not forgotten: int64 (B,)."""

    def real(self, turn: int) -> Mask:
        """Returns which samples of that batch are real: bool (B,)."""

    def forget(self, turn: int) -> None:
        """Frees what is stored about that batch."""


def make_feed(
    samplers: SamplerView, epochs: Epochs, rows: int, masked: bool = False, drawn: bool = False
) -> IndexFeed:
    """Returns the feed that computes as much as possible in the core.

    Args:
        samplers: Samplers of the loader, which makes batches.
        epochs: Epochs of the loader; the feed starts one at the first pull.
        rows: Number of samples of the dataset.
        masked: True if `real` will be called.
        drawn: True if random transforms need a key for each repeat of a sample.
    """
    seeded = samplers.seeded
    if seeded is not None:
        return SeededFeed(seeded, epochs)
    if samplers.kind == "stock" and samplers.batch_size is not None:
        return StockFeed(samplers, epochs, rows, drawn)
    return PushedFeed(samplers, epochs, rows, masked, drawn)


def _nothing() -> Order:
    return _core.ArrayOrder(as_indices(()), 1, False)


class SeededFeed:
    """An epoch of a KeyedSampler, which the core computes."""

    waits_for_next = True
    random_key: tuple[int, int] | None = None

    def __init__(self, sampler: KeyedSampler, epochs: Epochs) -> None:
        self.order: Order = _nothing()
        self.position = Position(0)
        self._sampler = sampler
        self._epochs = epochs
        self.non_integer: dict[int, list[Any]] = {}

    def pull(self) -> bool:
        """Starts the epoch."""
        self.order = self._sampler.begin()
        self.position = start_seeded(self._sampler, self._epochs)
        return False

    def indices(self, turn: int) -> Int64Array:
        """Returns the indices of a batch."""
        assert isinstance(self.order, _core.EpochPlan)
        return self.order.indices(turn)

    def real(self, turn: int) -> Mask:
        """Returns which samples of a batch are real."""
        assert isinstance(self.order, _core.EpochPlan)
        return real_samples(self.order, turn)

    def forget(self, turn: int) -> None:
        """Does nothing: no batch is stored."""


def start_seeded(sampler: KeyedSampler, epochs: Epochs) -> Position:
    """Starts, for the loader, the epoch that its sampler has just started."""
    started = sampler.begun
    assert started is not None
    return epochs.start(
        Position(started.epoch, started.first, step=started.per_batch, end=started.rows)
    )


class StockFeed:
    """An epoch of a sampler of torch's, with or without torch's BatchSampler around it."""

    random_key: tuple[int, int] | None = None

    def __init__(
        self, samplers: SamplerView, epochs: Epochs, rows: int = 0, drawn: bool = False
    ) -> None:
        # The order key of a loaded epoch was saved, and trainers call set_epoch after `iter()`.
        self.waits_for_next = epochs.resumes
        self.order: Order = _nothing()  # also after an error in draw_order, where torch ends too
        self.position = Position(0)
        self._samplers = samplers
        self._sampler = samplers.base
        self._batch = samplers.batch_size
        self._drop_last = self._batch is not None and samplers.drop_last
        self._epochs = epochs
        self._rows = rows
        self._drawn = drawn
        self._pulls = 0
        self._last_pull = 0
        self._rest = as_indices(())
        self._exhaust = draw_at_exhaustion(self._sampler)
        self.non_integer: dict[int, list[Any]] = {}

    def pull(self) -> bool:
        """Draws the order at the first pull, and at the last one what torch draws at the end."""
        self._pulls += 1
        if self._pulls == 1:
            self._start_natively()
        if self._exhaust is None:
            return False
        if self._pulls == self._last_pull:
            self._exhaust()
        return self._pulls < self._last_pull

    def _start(self) -> Any:
        position = self._epochs.next("samples")
        if position.resumed and self._is_next_requested(position):
            self._epochs.skip_loaded()
            position = self._epochs.next("samples")
        saved, draws_again = position.key, position.resumed
        if draws_again:
            self._samplers.restore_epoch(saved)
        predicted = "seed" in saved or "generator" in saved
        if not draws_again and predicted and self._sampler.generator is None:
            draw_order(self._sampler)  # advances torch's generator; the saved order is used
            draws_again = True
        indices, key = draw_order(self._sampler, saved if draws_again else None)
        position.key = key | self._samplers.order_key()
        position.step, position.end = self._batch or 1, len(indices)
        self.position = self._epochs.start(position)
        # torch finds the end while it fills a short last batch, or else by one more pull.
        self._last_pull = max(0, len(indices) - position.first) // position.step + 1
        return indices

    def _is_next_requested(self, loaded: Position) -> bool:
        """True if the loaded epoch is exhausted and set_epoch selected the next one."""
        least = (self._batch or 1) if self._drop_last else 1
        if len(self._sampler) - loaded.first >= least or "sampler_epoch" not in loaded.key:
            return False
        return bool(self._sampler.epoch == loaded.key["sampler_epoch"] + 1)

    def _start_natively(self) -> None:
        indices, batch = self._start(), self._batch or 1
        total, first = len(indices), min(self.position.first, len(indices))
        if isinstance(indices, range):
            self.order = _core.EpochPlan(
                rows=total,
                batch=min(batch, total + 1),  # the core's sizes have limits
                first_position=first,
                tail="drop" if self._drop_last else "short",
                order="sequential",
            )
            return
        if type(self._sampler) is SubsetRandomSampler:
            subset = self._sampler.indices
            try:
                indices = wrap_negative(as_indices(subset)[indices], self._rows)
            except (TypeError, IndexError):
                self._leave_to_dataset([subset[number] for number in indices[first:]])
                return
        self._rest = indices[first:]
        repeats = None
        if self._drawn and may_repeat(self._sampler):
            repeats = _core.Occurrences(self._rows)
            repeats.count(indices[:first])
        size = min(batch, total + 1)
        self.order = _core.ArrayOrder(self._rest, size, self._drop_last, repeats)

    def _leave_to_dataset(self, items: list[Any]) -> None:
        """Makes every batch a non-integer one; for the core they are empty."""
        order, batch = _core.PushedOrder(), self._batch or 1
        for turn, start in enumerate(range(0, len(items), batch)):
            if start + batch <= len(items) or not self._drop_last:
                self.non_integer[turn] = items[start : start + batch]
                order.push(as_indices(()))
        order.finish()
        self.order = order

    def indices(self, turn: int) -> Int64Array:
        """Returns the indices of a batch."""
        if isinstance(self.order, _core.EpochPlan):
            return self.order.indices(turn)
        batch = self._batch or 1
        return self._rest[turn * batch : (turn + 1) * batch]

    def real(self, turn: int) -> Mask:
        """Returns a mask of ones: nothing fills up the batches."""
        return np.ones(len(self.non_integer.get(turn) or self.indices(turn)), np.bool_)

    def forget(self, turn: int) -> None:
        """Does nothing: the order is stored as a whole."""

    def items(self) -> Iterator[Any]:
        """Yields what iterating the sampler yields: lists of ints, or ints."""
        indices, batch = self._start(), self._batch or 1
        total = len(indices)
        for start in range(self.position.first, total, batch):
            part = indices[start : start + batch]
            if len(part) < batch and self._drop_last:
                break
            if len(part) < batch and self._exhaust is not None:
                self._exhaust()
                self._exhaust = None
            items = list(part) if isinstance(part, range) else part.tolist()
            if type(self._sampler) is SubsetRandomSampler:
                items = [self._sampler.indices[number] for number in items]
            yield items if self._batch is not None else items[0]
        if self._exhaust is not None:
            self._exhaust()


class PushedFeed:
    """Any other sampler, iterated by the thread that takes the batches."""

    waits_for_next = False

    def __init__(
        self,
        samplers: SamplerView,
        epochs: Epochs,
        rows: int,
        masked: bool = False,
        drawn: bool = False,
    ) -> None:
        self._rows = rows
        self._batches = CountedBatches(samplers, epochs)
        self._pulled = -1
        self._pushed: dict[int, tuple[Int64Array, Mask | None]] = {}
        self._repeats = _core.Occurrences(rows) if drawn else None
        self.random_key: tuple[int, int] | None = None
        self.order: Order = _core.PushedOrder(self._repeats)
        self.position = Position(0, unit="batches")
        self.non_integer: dict[int, list[Any]] = {}
        self._masks = Masks(samplers) if masked else None

    def pull(self) -> bool:
        """Pushes the sampler's next batch."""
        assert isinstance(self.order, _core.PushedOrder)
        if self._pulled < 0:
            self.position = self._batches.start(self._count_repeats)
            self._pulled = 0
        try:
            batch = next(self._batches)
        except StopIteration:
            self.order.finish()
            return False
        batch, indices = self._read(batch)
        keys = None
        if self._repeats is not None and (keyed := keyed_indices(batch)):
            keys = self._keys(keyed)
            indices = indices if keys is not None else None
        if indices is None:
            self.non_integer[self._pulled] = list(batch)
            indices = as_indices(())
        mask = None
        if self._masks is not None:
            mask = self._masks.of(self.position.first + self._pulled, batch)
        # Another thread may take the batch as soon as it is pushed.
        self._pushed[self._pulled] = indices, mask
        self.order.push(indices, keys)
        self._pulled += 1
        return True

    def _keys(self, keyed: list[KeyedIndex]) -> Int64Array | None:
        """Returns the RNG keys of samples; None unless seed and epoch are the first batch's."""
        seeds = {(index.seed, index.epoch) for index in keyed}
        if self._pulled == 0 and len(seeds) == 1:
            [self.random_key] = seeds
        if seeds != {self.random_key}:
            return None  # the engine has one seed and epoch
        return np.array([index.draw for index in keyed], np.int64)

    def _read(self, batch: Any) -> tuple[Any, Int64Array | None]:
        """Returns a batch that can be read twice, and its indices; None if they are no integers."""
        if not isinstance(batch, (list, tuple, np.ndarray, torch.Tensor)):
            batch = list(batch)  # an iterator can be read only once
        try:
            return batch, wrap_negative(as_indices(batch), self._rows)
        except (TypeError, IndexError):
            return batch, None

    def _count_repeats(self, batch: Any) -> None:
        """Counts the samples of a batch that was delivered before the epoch was resumed."""
        if self._repeats is None:
            return
        _, indices = self._read(batch)
        if indices is not None:
            self._repeats.count(indices)

    def indices(self, turn: int) -> Int64Array:
        """Returns the indices of a batch."""
        return self._pushed[turn][0]

    def real(self, turn: int) -> Mask:
        """Returns the mask of a batch, where batches are masked."""
        mask = self._pushed[turn][1]
        assert mask is not None
        return mask

    def forget(self, turn: int) -> None:
        """Frees the indices of a batch."""
        self._pushed.pop(turn, None)


class CountedBatches:
    """The batches of a sampler that can only be iterated: the position counts them.

    What the sampler draws from torch's default generator up to its first batch is drawn again, from
    the saved state, when a loaded epoch is resumed; the default generator does not advance then.

    Args:
        samplers: Samplers of the loader; iterated at once.
        epochs: Epochs of the loader.
    """

    def __init__(self, samplers: SamplerView, epochs: Epochs) -> None:
        self._epochs = epochs
        self._own = samplers.generator
        self._replayed = None if self._own is not None else epochs.saved_generator
        self._key = samplers.order_key()
        self._is_first = True
        with self._drawing():
            self._batches: Iterator[Any] = iter(samplers.index_sampler)

    def start(self, skipped: Callable[[Any], None] = lambda batch: None) -> Position:
        """Starts the epoch, after the batches that were delivered before it was saved.

        Args:
            skipped: Called with each of these batches.
        """
        # An iterator that is not a generator may have drawn in iter() already.
        if self._own is not None and inspect.isgenerator(self._batches):
            self._key["generator"] = self._own.get_state()
        position = self._epochs.next("batches")
        if position.first:
            self._is_first = False
            with self._drawing():
                for _, batch in zip(range(position.first), self._batches, strict=False):
                    skipped(batch)
        position.key = self._key
        return self._epochs.start(position)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._is_first:
            return next(self._batches)
        self._is_first = False
        with self._drawing():
            return next(self._batches)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        now = torch.get_rng_state()
        if self._replayed is not None:
            torch.set_rng_state(self._replayed)
        before = torch.get_rng_state()
        try:
            yield
        finally:
            after = torch.get_rng_state()
            if self._own is None and not torch.equal(before, after):
                self._key.setdefault("generator", before)
            if self._replayed is not None:
                self._replayed = after
                torch.set_rng_state(now)
