"""The iterator over data that the core gathers."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch._C._autograd import _profiler_enabled

from fastload import _core
from fastload.batch.collate import Arrays, Samples, decode_fault
from fastload.batch.decode import DecodeStage, Source
from fastload.batch.images import ImageField
from fastload.batch.left_out import leave_out, undecodable
from fastload.errors import StoppedError, warn
from fastload.formats.columns import Int64Array
from fastload.formats.image_sizes import size_extents
from fastload.formats.places import described_place
from fastload.formats.structure import MISSING, REAL, with_added
from fastload.loader.epoch_setup import EpochSetup
from fastload.loader.handover import Handover
from fastload.loader.stats import timed
from fastload.order.index_feeds import IndexFeed, make_feed
from fastload.order.position import Position
from fastload.order.torch_samplers import draw_seed

_EMPTY, _UNDECODABLE = "empty", "undecodable"  # warnings that were issued

_NAMED = 4  # samples in a message

Take = Callable[[float], Any]
"""Waits a number of seconds for the next arrays, or batch, of the core; returns None at the end."""


class _NativeIterator:
    """Iterator over the batches of one epoch, returned by `iter(FastLoader(...))` for native data.

    Example:
        >>> batches = iter(FastLoader(ArrayDataset(np.arange(4)), batch_size=3))
        >>> type(batches).__name__, len(batches), next(batches)
        ('_NativeIterator', 2, tensor([0, 1, 2]))
    """

    _workers = ()  # torch's iterators have their worker processes here

    def __init__(self, setup: EpochSetup) -> None:
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"
        self._source: Source | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._set_up(setup, is_new=True)

    def restart(self, setup: EpochSetup) -> None:
        """Starts a new epoch, as torch's persistent workers do."""
        self._stop()
        self._set_up(setup, is_new=False)

    def _set_up(self, setup: EpochSetup, is_new: bool) -> None:
        self._plan = setup.plan
        self._settings, self._resources = settings, resources = setup.feed, setup.resources
        self._device, self._delivery = device, delivery = setup.device, setup.delivery
        self._pid = os.getpid()
        self._pulling = threading.Lock()  # threads may share an iterator
        self._feed: IndexFeed = self._new_feed()
        base_seed = draw_seed(settings.generator) if is_new and settings.draws_base_seed else None
        if settings.torch_workers == 0 and delivery.timeout_s and resources.threads == 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if settings.torch_workers and settings.batches_ahead <= 0:
            raise AssertionError(
                "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        self._skips = MISSING in self._plan.added
        self._masks = REAL in self._plan.added
        if settings.seed is None and self._plan.is_random:
            self._base_seed = settings.epochs.base_seed_of(base_seed, settings.generator)
        self._make: Callable[[Arrays, Samples], Any] = (
            self._plan.collate(pin=delivery.pin)
            if device.target is None
            else self._plan.collate_parts(device.fields, pin=delivery.pin)
        )
        handover = Handover(device.target, delivery.batch_transform)
        self._handover = None if handover.does_nothing else handover
        self._timeout = float(delivery.timeout_s)
        # Until the first pull; these six change together.
        self._take: Take | None = None
        self._takes_batches = False
        self._pull: Callable[[], bool] | None = None
        self._with_samples = False
        self._position = self._feed.position
        self._non_integer = self._feed.non_integer
        if settings.torch_workers and not self._feed.waits_for_next:
            if is_new:  # torch makes an iterator over its sampler twice
                self._feed = self._new_feed()
            try:
                self._start(settings.batches_ahead)
            except StoppedError as stop:
                _raise_stopped(stop)

    def _new_feed(self) -> IndexFeed:
        settings, plan = self._settings, self._plan
        return make_feed(
            settings.samplers,
            settings.epochs,
            plan.extents.rows,
            masked=REAL in plan.added,
            drawn=plan.is_random,
        )

    def _start(self, pulls: int) -> None:
        feed, plan, device = self._feed, self._plan, self._device
        resources, on_error = self._resources, self._delivery.on_error
        more = True
        for _ in range(pulls):
            more = more and feed.pull()
        self._position, self._non_integer = feed.position, feed.non_integer
        self._pull = feed.pull if more else None
        self._warn_if_empty()
        seed, epoch = feed.random_key or (self._seed(), feed.position.epoch)
        device.fields.start(seed, epoch)
        images = self._images(seed, epoch)
        self._with_samples = bool(images) or device.fields.are_random
        builder = self._builder()
        engine = _core.Engine(
            resources.table,
            resources.pool,
            plan.engine_arguments(device.fields),
            feed.order,
            resources.threads,
            resources.depth,
            on_error,
            seed=seed,
            epoch=epoch,
            with_number=True,
            with_samples=self._with_samples,
            stats=resources.stats,
            counts_waits=not images,
            builder=builder,
        )
        self._source = engine
        if images:
            stage = DecodeStage(engine, images, resources.threads, resources.depth)
            # Its threads hold the stage, but not this iterator.
            self._finalizer = weakref.finalize(self, stage.stop)
            self._source = stage
        self._takes_batches = builder is not None
        if builder is not None:
            self._take = engine.next_batch
        else:
            self._take = timed(self._source.next, resources.stats) if images else self._source.next

    def _builder(self) -> _core.BatchBuilder | None:
        """Returns the core's builder of whole batches; None if Python collates them."""
        if self._device.target is not None or self._delivery.pin:
            return None
        if isinstance(self._feed.order, _core.PushedOrder):
            return None  # the dataset loads those of its batches that are not integers
        return self._plan.core_builder

    def _pull_one(self) -> None:
        """Pulls one more batch of indices; the first call starts the engine."""
        if self._pid != os.getpid():  # the lock may have been copied while it was held
            raise StoppedError("the iterator belongs to the parent process; make a new one here")
        with self._pulling:
            if self._take is None:
                self._start(self._settings.batches_ahead or 1)
            elif self._pull is not None and not self._pull():
                self._pull = None

    def _seed(self) -> int:
        """Returns the seed of the random transforms in the current epoch."""
        if self._settings.seed is not None:
            return int(self._settings.seed) % 2**64
        if not self._plan.is_random:
            return 0
        seed = self._feed.position.base_seed = self._base_seed
        return seed

    def _images(self, seed: int, epoch: int) -> dict[int, ImageField]:
        """Returns the fields of encoded images with their settings for this epoch."""
        target = self._device.target
        return {
            number: replace(
                image,
                seed=seed,
                epoch=epoch,
                pool=None if target is None else target.pool,
                sizes=self._sizes(image),
                skips=self._skips,
            )
            for number, image in self._plan.image_fields.items()
        }

    def _sizes(self, image: ImageField) -> _core.Table | None:
        """Returns a table of the stored sizes of images, where it helps."""
        found = size_extents(self._plan.extents, image.name) if image.needs_sizes else None
        return None if found is None else found.build(self._resources.io)

    def _shutdown_workers(self) -> None:
        """Ends the threads; scripts call this method of torch to end persistent workers."""
        self._stop()

    def _stop(self) -> None:
        if self._source is not None:
            self._source.stop()
        if self._finalizer is not None:
            self._finalizer.detach()

    def _warn_if_empty(self) -> None:
        position, warned = self._position, self._resources.warned
        samples = position.end
        if not samples or position.first or _EMPTY in warned:
            return
        if self._settings.samplers.drop_last and samples < position.step:
            warned.add(_EMPTY)
            warn(
                f"the epoch has no batches: drop_last=True drops incomplete batches, and a "
                f"batch of all ranks needs {position.step} samples, but the epoch has {samples}",
            )

    def __iter__(self) -> _NativeIterator:
        return self

    def __len__(self) -> int:
        return len(self._settings.samplers.index_sampler)

    def __next__(self) -> Any:
        if _profiler_enabled():
            with torch.autograd.profiler.record_function(self._profile_name):
                return self._next()
        return self._next()

    def _next(self) -> Any:
        try:
            if self._handover is not None:
                return self._handover.next(self._loaded, self._loaded_if_ready)
            batch = self._load()
        except StopIteration:
            self._position.finished = True
            raise
        except StoppedError as stop:
            _raise_stopped(stop)
        position = self._position
        position.delivered = position.turns
        return batch

    def _loaded(self) -> tuple[Any, tuple[Position, int]]:
        batch = self._load()
        return batch, (self._position, self._position.turns)

    def _loaded_if_ready(self) -> tuple[Any, tuple[Position, int]] | None:
        """Loads the next batch; returns None if the engine's threads have not completed it."""
        assert self._source is not None
        on_this_thread = self._resources.threads == 0 or isinstance(
            self._feed.order, _core.PushedOrder
        )
        return self._loaded() if on_this_thread or self._source.is_ready() else None

    def _load(self) -> Any:
        """Loads the next batch. The turn counter advances even if loading fails."""
        if self._take is None or (self._pull is not None and not self._settings.torch_workers):
            self._pull_one()
        assert self._take is not None
        try:
            taken = self._take(self._timeout)
        except Exception as error:
            self._fail(error)
        if taken is None:
            self._finish()
        if not self._takes_batches:
            return self._made(taken)
        if self._pull is not None and self._settings.torch_workers:
            self._pull_one()  # torch pulls between receiving a batch and delivering it
        self._position.turns += 1
        return taken

    def _made(self, arrays: Arrays) -> Any:
        """Returns the batch of these arrays, which are followed by its number and its RNG keys."""
        draws = arrays.pop()[1] if self._with_samples else None
        number = arrays.pop()  # counted by the core, since several threads may take batches
        if self._skips:
            draws = self._leave_out(arrays, number, draws)
        missing = arrays[-1] if self._skips else ()
        self._warn_of_missing(missing)
        real = self._feed.real(number) if self._masks else None
        if self._pull is not None and self._settings.torch_workers:
            self._pull_one()  # torch pulls between receiving a batch and delivering it
        items = self._non_integer.pop(number, None)
        try:
            if items is not None:
                batch = self._delivery.fetch(items)
                return batch if real is None else with_added(batch, REAL, torch.from_numpy(real))
            if real is not None:
                arrays.append(self._without(real, number, missing))
            return self._make(arrays, _Samples(self, number, missing, draws))
        finally:
            self._feed.forget(number)
            self._position.turns += 1

    def _leave_out(self, arrays: Arrays, number: int, draws: Any) -> Any:
        """Removes samples whose images cannot be decoded; returns the RNG keys of the others."""
        resources = self._resources
        failed = undecodable(arrays, self._plan)
        if not failed:
            return draws
        rows = list(failed)
        indices = self.samples(number, arrays[-1])[rows]
        leave_out(arrays, rows, self._plan)
        arrays[-1] = np.concatenate([arrays[-1], indices])
        resources.stats.count_missing(len(rows))
        if _UNDECODABLE not in resources.warned:
            resources.warned.add(_UNDECODABLE)
            name, error = failed[rows[0]]
            place = described_place(self._plan.extents, name, int(indices[0]))
            warn(
                "samples are left out whose images cannot be decoded, which batches and stats() "
                f"report as missing; the first is sample {indices[0]}{place}: {decode_fault(error)}"
            )
        return None if draws is None else np.delete(draws, rows)

    def samples(self, number: int, missing: Sequence[int]) -> Int64Array:
        """Returns the dataset's indices of a batch, without the samples that were left out."""
        indices: Int64Array = self._without(self._feed.indices(number), number, missing)
        return indices

    def _without(self, array: Any, number: int, missing: Sequence[int]) -> Any:
        """Returns the elements of an array whose samples were not left out of the batch."""
        if not len(missing):
            return array
        return array[~np.isin(self._feed.indices(number), missing)]

    def _due(self) -> str:
        """Describes the next batch, for a message."""
        turn = self._position.turns
        try:
            indices = self._feed.indices(turn)
        except KeyError:
            return f"batch {turn}"  # it has none yet
        samples = ", ".join(map(str, indices[:_NAMED].tolist()))
        return f"batch {turn} (samples {samples}{', ...' if len(indices) > _NAMED else ''})"

    def _warn_of_missing(self, missing: Sequence[int]) -> None:
        if not len(missing):
            return
        for reason in self._resources.table.bad_blocks:
            if reason not in self._resources.warned:
                self._resources.warned.add(reason)
                warn(f"samples are left out: {reason}")

    def _fail(self, error: Exception) -> NoReturn:
        # A read may time out as well; that is the batch's own error and has an errno.
        if isinstance(error, TimeoutError) and error.errno is None:
            raise RuntimeError(
                f"DataLoader timed out after {self._delivery.timeout_s} seconds: {self._due()}: "
                f"{error}"
            ) from None
        if isinstance(error, StoppedError) and self._take is _ended:
            raise StopIteration from None  # another thread took the last batch
        if not isinstance(error, StoppedError):
            self._position.turns += 1
            if self._pull is not None and self._settings.torch_workers:
                self._pull_one()
        try:
            raise error
        finally:
            del error  # its traceback holds this frame, and may hold tensors of the batch

    def _finish(self) -> NoReturn:
        self._take = _ended
        self._stop()
        raise StopIteration

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


class _Samples:
    """See `Samples`."""

    __slots__ = ("_iterator", "_missing", "_number", "draws")

    def __init__(
        self,
        iterator: _NativeIterator,
        number: int,
        missing: Sequence[int],
        draws: Int64Array | None,
    ) -> None:
        self._iterator = iterator
        self._number = number
        self._missing = missing
        self.draws = draws

    def __call__(self) -> Int64Array:
        return self._iterator.samples(self._number, self._missing)


def _raise_stopped(error: StoppedError) -> NoReturn:
    """Raises the error, or SystemExit, which prints nothing, in a daemon thread at exit."""
    # The decode threads may be stopped before the core is notified of the exit.
    exiting = _core.is_exiting() or not threading.main_thread().is_alive()
    if exiting and threading.current_thread().daemon:
        raise SystemExit from None
    raise error


def _ended(timeout_s: float) -> None:
    return None
