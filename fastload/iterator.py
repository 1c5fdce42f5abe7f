"""The iterator over data that the core gathers."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch._C._autograd import _profiler_enabled

from fastload import _core
from fastload.batches import Arrays, batch_maker
from fastload.decode import DecodeStage, Source
from fastload.errors import StoppedError
from fastload.formats.extents import Field, Int64Array
from fastload.handover import Handover
from fastload.run import Run
from fastload.state import Progress
from fastload.streams import Stream, make_stream
from fastload.transforms import DecodeImage, PadTo, Transform, padding

_NAMED = 4  # samples in a message

Take = Callable[[float], "Arrays | None"]


class _NativeIterator:
    """Gives the batches of one epoch; what `iter(FastLoader(...))` returns for native data.

    Example:
        >>> batches = iter(FastLoader(ArrayDataset(np.arange(4)), batch_size=3))
        >>> type(batches).__name__, len(batches), next(batches)
        ('_NativeIterator', 2, tensor([0, 1, 2]))
    """

    _workers = ()  # processes of torch's iterators, for those who look

    def __init__(self, run: Run) -> None:
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"
        self._source: Source | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._pulling = threading.Lock()  # threads may share an iterator
        self._begin(run, is_new=True)

    def restart(self, run: Run) -> None:
        """Begins again at the first batch of a new epoch, as torch's persistent workers do."""
        self._stop()
        self._begin(run, is_new=False)

    def _begin(self, run: Run, is_new: bool) -> None:
        self._run = run
        self._stream: Stream = make_stream(run.index_sampler, run.mark, run.extents.rows)
        if is_new and run.draws_base_seed:
            torch.empty((), dtype=torch.int64).random_(generator=run.generator)
        if run.worker_rules == 0 and run.timeout and run.threads == 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if run.worker_rules and run.pulls_ahead <= 0:
            raise AssertionError(
                "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        self._skips = run.on_error == "skip"
        self._make = batch_maker(run.extents, run.transforms, run.pin, self._skips)
        handover = Handover(run.device, run.batch_transform)
        self._handover = None if handover.does_nothing else handover
        self._missing: Any = ()
        self._timeout = float(run.timeout)
        # Until the first pull; these three change together.
        self._take: Take | None = None
        self._pull: Callable[[], bool] | None = None
        self._progress = self._stream.progress
        self._odd = self._stream.odd
        if run.worker_rules and not self._stream.waits_for_next:
            if is_new:  # torch makes an iterator over its sampler twice
                self._stream = make_stream(run.index_sampler, run.mark, run.extents.rows)
            self._start(run.pulls_ahead)

    def _start(self, pulls: int) -> None:
        stream, run = self._stream, self._run
        more = True
        for _ in range(pulls):
            more = more and stream.pull()
        self._progress, self._odd = stream.progress, stream.odd
        self._pull = stream.pull if more else None
        self._warn_if_empty()
        fields = run.extents.fields
        engine = _core.Engine(
            run.table,
            run.pool,
            [_as_delivered(field, run.transforms.get(field.name)) for field in fields],
            stream.order,
            run.threads,
            run.depth,
            run.on_error,
        )
        self._source = self._decoding(engine, fields)
        self._take = self._source.next

    def _pull_one(self) -> None:
        """Asks for one more batch of indices; at the first call, begins."""
        with self._pulling:
            if self._take is None:
                self._start(self._run.pulls_ahead or 1)
            elif self._pull is not None and not self._pull():
                self._pull = None

    def _decoding(self, engine: _core.Engine, fields: Sequence[Field]) -> Source:
        """The engine, with a stage behind it if there are images to decode."""
        transforms, images, number = self._run.transforms, {}, 0
        for field in fields:
            transform = transforms.get(field.name)
            if isinstance(transform, DecodeImage):
                images[number] = transform
            number += 2 if field.ragged else 1
        if not images:
            return engine
        stage = DecodeStage(engine, images, self._run.threads, self._run.depth)
        # Its threads hold the stage, but not this iterator.
        self._finalizer = weakref.finalize(self, stage.stop)
        return stage

    def _stop(self) -> None:
        if self._source is not None:
            self._source.stop()
        if self._finalizer is not None:
            self._finalizer.detach()

    def _warn_if_empty(self) -> None:
        progress = self._progress
        samples = progress.end
        if not samples or progress.first or self._run.mark.warned_empty:
            return
        sampler = self._run.index_sampler
        if getattr(sampler, "drop_last", False) and samples < progress.per_batch:
            self._run.mark.warned_empty = True
            warnings.warn(
                f"no batch is left: drop_last=True drops a batch that is not full, and "
                f"{progress.per_batch} samples make a batch of all ranks, but there are {samples}",
                stacklevel=7,
            )

    def __iter__(self) -> _NativeIterator:
        return self

    def __len__(self) -> int:
        return len(self._run.index_sampler)

    def __next__(self) -> Any:
        if _profiler_enabled():
            with torch.autograd.profiler.record_function(self._profile_name):
                return self._next()
        return self._next()

    def _next(self) -> Any:
        try:
            if self._handover is not None:
                return self._handover.next(self._loaded)
            batch = self._load()
        except StopIteration:
            self._progress.finished = True
            raise
        progress = self._progress
        progress.handed = progress.turns
        return batch

    def _loaded(self) -> tuple[Any, tuple[Progress, int]]:
        batch = self._load()
        return batch, (self._progress, self._progress.turns)

    def _load(self) -> Any:
        """The next batch as it is loaded; whether it comes or fails, that was its turn."""
        if self._take is None or (self._pull is not None and not self._run.worker_rules):
            self._pull_one()
        assert self._take is not None
        try:
            arrays = self._take(self._timeout)
        except Exception as error:
            self._fail(error)
        if arrays is None:
            self._finish()
        if self._skips:
            self._missing = arrays[-1]
            self._say_what_is_missing()
        if self._pull is not None and self._run.worker_rules:
            self._pull_one()  # torch pulls between receiving a batch and handing it out
        items = self._odd.pop(self._progress.turns, None)
        try:
            return self._make(arrays, self._samples) if items is None else self._run.fetch(items)
        finally:
            self._progress.turns += 1

    def _samples(self) -> Int64Array:
        """The dataset's indices of the batch whose turn it is."""
        indices = self._stream.indices(self._progress.turns)
        return indices[~np.isin(indices, self._missing)] if len(self._missing) else indices

    def _due(self) -> str:
        """The batch whose turn it is, for a message."""
        turn = self._progress.turns
        try:
            indices = self._stream.indices(turn)
        except KeyError:
            return f"batch {turn}"  # it has none yet
        samples = ", ".join(map(str, indices[:_NAMED].tolist()))
        return f"batch {turn} (samples {samples}{', ...' if len(indices) > _NAMED else ''})"

    def _say_what_is_missing(self) -> None:
        if not len(self._missing):
            return
        for complaint in self._run.table.bad_blocks:
            if complaint not in self._run.said:
                self._run.said.add(complaint)
                warnings.warn(f"samples are left out: {complaint}", stacklevel=5)

    def _fail(self, error: Exception) -> NoReturn:
        # A read may time out as well; that is the batch's own error and has an errno.
        if isinstance(error, TimeoutError) and error.errno is None:
            raise RuntimeError(
                f"DataLoader timed out after {self._run.timeout} seconds: {self._due()}: {error}"
            ) from None
        if isinstance(error, StoppedError) and self._take is _ended:
            raise StopIteration from None  # another thread took the last batch
        if not isinstance(error, StoppedError):
            self._progress.turns += 1
            if self._pull is not None and self._run.worker_rules:
                self._pull_one()
        raise error

    def _finish(self) -> NoReturn:
        self._take = _ended
        self._stop()
        raise StopIteration

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


def _ended(timeout_s: float) -> None:
    return None


def _as_delivered(field: Field, transform: Transform | None) -> Any:
    """What the engine is told of a field."""
    if isinstance(transform, PadTo):
        return field.storage, field.shape, padding(transform, field)
    return field.storage, field.shape
