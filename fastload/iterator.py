"""The iterator over data that the core gathers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy.typing as npt
import torch
from torch._C._autograd import _profiler_enabled

from fastload import _core
from fastload.errors import StoppedError
from fastload.formats.extents import Extents
from fastload.native import torch_dtype
from fastload.state import Bookmark
from fastload.streams import Stream, make_stream
from fastload.structure import batch_builder

Arrays = list[npt.NDArray[Any]]
Take = Callable[[float], "Arrays | None"]

_DEPTH_BYTES = 64 << 20
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Run:
    """What an iterator needs of its loader.

    Attributes:
        extents: Where the samples lie.
        table: The same for the core.
        pool: Memory that outlives the iterator.
        index_sampler: Gives batches of indices.
        mark: Is told when the epoch begins.
        generator: For torch's base seed.
        draws_base_seed: Whether that is drawn at all.
        worker_rules: torch's number of workers, which says when indices are drawn.
        pulls_ahead: Batches of indices that torch draws before the first batch is asked for.
        threads: The engine's.
        depth: Batches that the engine keeps ready.
        timeout: Seconds to wait for a batch; 0 for ever.
        pin: Copy batches to pinned memory.
        device: Copy batches there; None: leave them.
    """

    extents: Extents
    table: _core.Table
    pool: _core.SlotPool
    index_sampler: Any
    mark: Bookmark
    generator: torch.Generator | None
    draws_base_seed: bool
    worker_rules: int
    pulls_ahead: int
    threads: int
    depth: int
    timeout: float
    pin: bool
    device: torch.device | None


def default_depth(batch_bytes: int, threads: int) -> int:
    """Batches to keep ready: 64 MiB of them, but enough for every thread, and at most 64."""
    return max(2, threads + 1, min(_MAX_DEPTH, _DEPTH_BYTES // max(1, batch_bytes)))


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
        self._engine: _core.Engine | None = None
        self._begin(run, is_new=True)

    def restart(self, run: Run) -> None:
        """Begins again at the first batch of a new epoch, as torch's persistent workers do."""
        if self._engine is not None:
            self._engine.stop()
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
        self._make = batch_maker(run.extents, run.pin, run.device)
        self._timeout = float(run.timeout)
        # Until the first pull; these three change together.
        self._take: Take | None = None
        self._pull: Callable[[], bool] | None = None
        self._progress = self._stream.progress
        self._errors = self._stream.errors
        if run.worker_rules and not self._stream.waits_for_next:
            if is_new:  # torch makes an iterator over its sampler twice
                self._stream = make_stream(run.index_sampler, run.mark, run.extents.rows)
            self._start(run.pulls_ahead)

    def _start(self, pulls: int) -> Take:
        stream, run = self._stream, self._run
        more = True
        for _ in range(pulls):
            more = more and stream.pull()
        self._progress, self._errors = stream.progress, stream.errors
        self._pull = stream.pull if more else None
        self._warn_if_empty()
        self._engine = _core.Engine(
            run.table,
            run.pool,
            [(field.storage, field.shape) for field in run.extents.fields],
            stream.order,
            run.threads,
            run.depth,
        )
        self._take = self._engine.next
        return self._take

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
                stacklevel=5,
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
        take = self._take
        if take is None:
            take = self._start(1)
        elif self._pull is not None and not self._run.worker_rules and not self._pull():
            self._pull = None
        try:
            arrays = take(self._timeout)
        except Exception as error:
            self._fail(error)
        if arrays is None:
            self._finish()
        if self._pull is not None or self._errors:
            self._after_batch()
        progress = self._progress
        progress.handed = progress.turns = progress.turns + 1
        return self._make(arrays)

    def _after_batch(self) -> None:
        """What torch does between receiving a batch and handing it out."""
        if self._pull is not None and self._run.worker_rules and not self._pull():
            self._pull = None
        if error := self._errors.pop(self._progress.turns, None):
            self._progress.turns += 1
            raise error

    def _fail(self, error: Exception) -> NoReturn:
        # A read may time out as well; that is the batch's own error and has an errno.
        if isinstance(error, TimeoutError) and error.errno is None:
            raise RuntimeError(
                f"DataLoader timed out after {self._run.timeout} seconds: {error}"
            ) from None
        if isinstance(error, StoppedError) and self._progress.finished:
            raise StopIteration from None  # another thread took the last batch
        if not isinstance(error, StoppedError):
            self._progress.turns += 1
            if self._pull is not None and self._run.worker_rules and not self._pull():
                self._pull = None
        raise error

    def _finish(self) -> NoReturn:
        self._progress.finished = True
        if self._engine is not None:
            self._engine.stop()
        self._take = _ended
        raise StopIteration

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


def _ended(timeout_s: float) -> None:
    return None


def batch_maker(
    extents: Extents, pin: bool = False, device: torch.device | None = None
) -> Callable[[Arrays], Any]:
    """A function from the arrays of a batch, one per field, to what the loader hands out.

    Args:
        extents: The dataset.
        pin: Copy to pinned memory.
        device: Copy there.
    """
    build = batch_builder(extents.structure)
    from_numpy = torch.from_numpy
    viewed = [
        torch_dtype(field) if field.storage.name != field.dtype else None
        for field in extents.fields
    ]
    if not pin and device is None and not any(viewed):
        return lambda arrays: build(list(map(from_numpy, arrays)))

    def tensor(array: npt.NDArray[Any], dtype: torch.dtype | None) -> torch.Tensor:
        made = from_numpy(array)
        if dtype is not None:
            made = made.view(dtype)
        if pin:
            made = made.pin_memory()
        return made if device is None else made.to(device, non_blocking=True)

    return lambda arrays: build(list(map(tensor, arrays, viewed)))
