"""The batches of indices of one iterator, pulled at the very times at which torch pulls them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import BatchSampler, SubsetRandomSampler

from fastload import _core
from fastload.formats.columns import Int64Array
from fastload.order.keyed_sampler import KeyedSampler
from fastload.order.masks import Mask, Masks, real_samples
from fastload.order.position import Bookmark, Progress
from fastload.order.sample_keys import KeyedIndex, keyed_indices
from fastload.order.samplers import bottom, is_keyed, own_generator, sampler_draw, set_sampler_epoch
from fastload.order.torch_samplers import (
    Draw,
    as_indices,
    draw_at_exhaustion,
    draw_order,
    is_stock,
    may_repeat,
    wrap_negative,
)

Order = _core.EpochPlan | _core.ArrayOrder | _core.PushedOrder


class Stream(Protocol):
    """Where an iterator's indices come from.

    Attributes:
        waits_for_next: It must not be pulled before the first `next()`.
        order: For the engine; the right one from the first pull on.
        progress: The right one from the first pull on.
        odd: What is no batch of integers, by its number: the dataset may know what it means.
        random_key: Seed and epoch of random transforms, if the indices carry them (`KeyedIndex`);
            the right one from the first pull on.
    """

    waits_for_next: bool
    order: Order
    progress: Progress
    odd: dict[int, list[Any]]
    random_key: tuple[int, int] | None

    def pull(self) -> bool:
        """Does what torch does when it asks for one more batch; False: nothing is left to do."""

    def indices(self, turn: int) -> Int64Array:
        """The dataset's indices of a batch that was not handed out yet."""

    def real(self, turn: int) -> Mask:
        """Which samples of that batch are real; bool (B,)."""

    def forget(self, turn: int) -> None:
        """Nobody will ask for that batch again."""


def make_stream(
    index_sampler: Any, mark: Bookmark, rows: int, masked: bool = False, drawn: bool = False
) -> Stream:
    """The stream for a dataset of `rows` samples that computes as much as possible natively.

    Args:
        index_sampler: Gives batches.
        mark: Is told when the epoch begins.
        rows: Of the dataset.
        masked: Whether it will be asked which samples are `real`.
        drawn: Whether something is drawn for samples: anew for each time that one comes.
    """
    if is_keyed(index_sampler):
        return KeyedStream(bottom(index_sampler), mark)
    if type(index_sampler) is BatchSampler and is_stock(index_sampler.sampler):
        return StockStream(index_sampler, mark, rows, drawn)
    return PushedStream(index_sampler, mark, rows, masked, drawn)


def _nothing() -> Order:
    return _core.ArrayOrder(as_indices(()), 1, False)


class KeyedStream:
    """An epoch of a KeyedSampler, which the core computes."""

    waits_for_next = True
    random_key: tuple[int, int] | None = None

    def __init__(self, sampler: KeyedSampler, mark: Bookmark) -> None:
        self.order: Order = _nothing()
        self.progress = Progress(0)
        self._sampler = sampler
        self._mark = mark
        self.odd: dict[int, list[Any]] = {}

    def pull(self) -> bool:
        """Begins the epoch."""
        self.order = self._sampler.begin()
        self.progress = begin_keyed(self._sampler, self._mark)
        return False

    def indices(self, turn: int) -> Int64Array:
        """Of batch `turn`, counted from the first one."""
        assert isinstance(self.order, _core.EpochPlan)
        return self.order.indices(turn)

    def real(self, turn: int) -> Mask:
        """Of batch `turn`, which of its samples are real."""
        assert isinstance(self.order, _core.EpochPlan)
        return real_samples(self.order, turn)

    def forget(self, turn: int) -> None:
        """Nothing is kept of batches."""


def begin_keyed(sampler: KeyedSampler, mark: Bookmark) -> Progress:
    """Notes the epoch that the sampler has just begun."""
    begun = sampler.begun
    assert begun is not None
    return mark.begin(Progress(begun.epoch, begun.first, begun.per_batch, begun.rows))


class StockStream:
    """An epoch of a stock sampler, with or without a stock BatchSampler around it."""

    random_key: tuple[int, int] | None = None

    def __init__(
        self, index_sampler: Any, mark: Bookmark, rows: int = 0, drawn: bool = False
    ) -> None:
        # The draws of a loaded epoch were saved; trainers tell its number after `iter()`.
        self.waits_for_next = mark.resumes
        self.order: Order = _nothing()  # and so it stays when drawing fails, as torch ends then
        self.progress = Progress(0)
        self._sampler = bottom(index_sampler)
        batched = index_sampler is not self._sampler
        self._batch: int | None = index_sampler.batch_size if batched else None
        self._drop_last: bool = batched and index_sampler.drop_last
        self._mark = mark
        self._rows = rows
        self._drawn = drawn
        self._pulls = 0
        self._last_pull = 0
        self._rest = as_indices(())
        self._exhaust = draw_at_exhaustion(self._sampler)
        self.odd: dict[int, list[Any]] = {}

    def pull(self) -> bool:
        """Draws the order at the first pull, and what comes after it at the last."""
        self._pulls += 1
        if self._pulls == 1:
            self._begin_natively()
        if self._exhaust is None:
            return False
        if self._pulls == self._last_pull:
            self._exhaust()
        return self._pulls < self._last_pull

    def _begin(self) -> Any:
        epoch, first, saved, is_drawn = self._mark.take("samples")
        if is_drawn and self._was_told_to_pass_over(first, saved):
            self._mark.pass_over()
            epoch, first, saved, is_drawn = self._mark.take("samples")
        if is_drawn:
            set_sampler_epoch(self._sampler, saved)
        foreseen = "seed" in saved or "generator" in saved
        if not is_drawn and foreseen and self._sampler.generator is None:
            draw_order(self._sampler)  # the draws are torch's, the order is the saved one
            is_drawn = True
        indices, draw = draw_order(self._sampler, saved if is_drawn else None)
        draw |= sampler_draw(self._sampler)
        batch = self._batch or 1
        self.progress = self._mark.begin(Progress(epoch, first, batch, len(indices), draw))
        # A short last batch is filled until the sampler runs out; else the next pull finds it out.
        self._last_pull = max(0, len(indices) - first) // batch + 1
        return indices

    def _was_told_to_pass_over(self, first: int, saved: Draw) -> bool:
        """Whether nothing is left of a loaded epoch, and set_epoch has named the one after it."""
        least = (self._batch or 1) if self._drop_last else 1
        if len(self._sampler) - first >= least or "sampler_epoch" not in saved:
            return False
        return bool(self._sampler.epoch == saved["sampler_epoch"] + 1)

    def _begin_natively(self) -> None:
        indices, batch = self._begin(), self._batch or 1
        total, first = len(indices), min(self.progress.first, len(indices))
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
            chosen = self._sampler.indices
            try:
                indices = wrap_negative(as_indices(chosen)[indices], self._rows)
            except (TypeError, IndexError):
                self._leave_to_dataset([chosen[place] for place in indices[first:]])
                return
        self._rest = indices[first:]
        repeats = None
        if self._drawn and may_repeat(self._sampler):
            repeats = _core.Occurrences(self._rows)
            repeats.count(indices[:first])
        size = min(batch, total + 1)
        self.order = _core.ArrayOrder(self._rest, size, self._drop_last, repeats)

    def _leave_to_dataset(self, items: list[Any]) -> None:
        """Makes every batch an odd one; for the core they are empty."""
        order, batch = _core.PushedOrder(), self._batch or 1
        for turn, start in enumerate(range(0, len(items), batch)):
            if start + batch <= len(items) or not self._drop_last:
                self.odd[turn] = items[start : start + batch]
                order.push(as_indices(()))
        order.finish()
        self.order = order

    def indices(self, turn: int) -> Int64Array:
        """Of batch `turn`, counted from the first one."""
        if isinstance(self.order, _core.EpochPlan):
            return self.order.indices(turn)
        batch = self._batch or 1
        return self._rest[turn * batch : (turn + 1) * batch]

    def real(self, turn: int) -> Mask:
        """Nothing fills up batch `turn`."""
        return np.ones(len(self.odd.get(turn) or self.indices(turn)), np.bool_)

    def forget(self, turn: int) -> None:
        """The order is kept as a whole."""

    def items(self) -> Iterator[Any]:
        """What iterating the sampler gives: lists of ints, or ints."""
        indices, batch = self._begin(), self._batch or 1
        total = len(indices)
        for start in range(self.progress.first, total, batch):
            places = indices[start : start + batch]
            if len(places) < batch and self._drop_last:
                break
            if len(places) < batch and self._exhaust is not None:
                self._exhaust()
                self._exhaust = None
            items = list(places) if isinstance(places, range) else places.tolist()
            if type(self._sampler) is SubsetRandomSampler:
                items = [self._sampler.indices[place] for place in items]
            yield items if self._batch is not None else items[0]
        if self._exhaust is not None:
            self._exhaust()


class PushedStream:
    """Any other sampler, iterated by the thread that takes the batches."""

    waits_for_next = False

    def __init__(
        self,
        index_sampler: Any,
        mark: Bookmark,
        rows: int,
        masked: bool = False,
        drawn: bool = False,
    ) -> None:
        self._rows = rows
        self._batches = CountedBatches(index_sampler, mark)
        self._pulled = -1
        self._pushed: dict[int, tuple[Int64Array, Mask | None]] = {}
        self._repeats = _core.Occurrences(rows) if drawn else None
        self.random_key: tuple[int, int] | None = None
        self.order: Order = _core.PushedOrder(self._repeats)
        self.progress = Progress(0)
        self.odd: dict[int, list[Any]] = {}
        self._masks = Masks(index_sampler) if masked else None

    def pull(self) -> bool:
        """Pushes the sampler's next batch."""
        assert isinstance(self.order, _core.PushedOrder)
        if self._pulled < 0:
            self.progress = self._batches.begin(self._pass_over)
            self._pulled = 0
        try:
            batch = next(self._batches)
        except StopIteration:
            self.order.finish()
            return False
        batch, indices = self._read(batch)
        draws = None
        if self._repeats is not None and (keyed := keyed_indices(batch)):
            draws = self._draws(keyed)
            indices = indices if draws is not None else None
        if indices is None:
            self.odd[self._pulled] = list(batch)
            indices = as_indices(())
        mask = None
        if self._masks is not None:
            mask = self._masks.of(self.progress.first + self._pulled, batch)
        # Another thread may take the batch as soon as it is pushed.
        self._pushed[self._pulled] = indices, mask
        self.order.push(indices, draws)
        self._pulled += 1
        return True

    def _draws(self, keyed: list[KeyedIndex]) -> Int64Array | None:
        """The draws of samples; None unless seed and epoch are those of the first batch."""
        keys = {(index.seed, index.epoch) for index in keyed}
        if self._pulled == 0 and len(keys) == 1:
            [self.random_key] = keys
        if keys != {self.random_key}:
            return None  # the engine has one seed and epoch
        return np.array([index.draw for index in keyed], np.int64)

    def _read(self, batch: Any) -> tuple[Any, Int64Array | None]:
        """A batch that can be read again, and its indices; None if it is an odd one."""
        if not isinstance(batch, (list, tuple, np.ndarray, torch.Tensor)):
            batch = list(batch)  # it may be one that can be read only once
        try:
            return batch, wrap_negative(as_indices(batch), self._rows)
        except (TypeError, IndexError):
            return batch, None

    def _pass_over(self, batch: Any) -> None:
        """A batch was handed out before the epoch was resumed."""
        if self._repeats is None:
            return
        _, indices = self._read(batch)
        if indices is not None:
            self._repeats.count(indices)

    def indices(self, turn: int) -> Int64Array:
        """Of batch `turn`, counted from the first one."""
        return self._pushed[turn][0]

    def real(self, turn: int) -> Mask:
        """Of batch `turn`, where batches are masked."""
        mask = self._pushed[turn][1]
        assert mask is not None
        return mask

    def forget(self, turn: int) -> None:
        """Frees its indices."""
        self._pushed.pop(turn, None)


class CountedBatches:
    """The batches of a sampler of which only batches can be counted.

    What it draws from torch's default generator until it gives the first one is drawn again in a
    loaded epoch, and then nothing from the generator as it is now.

    Args:
        index_sampler: Of the loader; iterated at once.
        mark: Is told when the epoch begins.
    """

    def __init__(self, index_sampler: Any, mark: Bookmark) -> None:
        self._mark = mark
        self._own = own_generator(bottom(index_sampler))
        self._replayed = None if self._own is not None else mark.drawn_from
        self._draw = sampler_draw(index_sampler)
        self._is_first = True
        with self._drawing():
            self._batches: Iterator[Any] = iter(index_sampler)

    def begin(self, pass_over: Callable[[Any], None] = lambda batch: None) -> Progress:
        """Begins the epoch, past the batches that were handed out before.

        Args:
            pass_over: Is given each of these.
        """
        # Another iterator than a generator may have been drawn from.
        if self._own is not None and inspect.isgenerator(self._batches):
            self._draw["generator"] = self._own.get_state()
        epoch, first, _, _ = self._mark.take("batches")
        if first:
            self._is_first = False
            with self._drawing():
                for _, batch in zip(range(first), self._batches, strict=False):
                    pass_over(batch)
        return self._mark.begin(Progress(epoch, first, draw=self._draw))

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
                self._draw.setdefault("generator", before)
            if self._replayed is not None:
                self._replayed = after
                torch.set_rng_state(now)
