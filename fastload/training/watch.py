"""A training log: duration, waiting time and loss of each step."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fastload.loader.groups import Groups
from fastload.training.log_writer import Row, RunLog, count_samples
from fastload.training.stalls import Stalls


class Watch:
    """Iterates over a loader and writes a line of JSON for each step.

    The first line describes the loader and the machine. Each other line has `epoch`, `step`
    (counted from 0 over all epochs), `start_s` (since the start of the first step), `step_s` (until
    the next batch is requested), `wait_s` (until the batch was available), `samples`, and the
    values passed to `log`. Times are in seconds. If CUDA is in use, `gpu_wait_s` is the part of
    `wait_s` in which the device was idle.
    The line of an interrupted step (`break` or an error) has `unfinished` and the values known by
    then; reports ignore it.
    Ranks other than 0 write `run.1.jsonl` and so on next to `run.jsonl`.

    Args:
        loader: Any iterable of batches.
        log: The file; an existing file is replaced.
        clock: Function that returns seconds.

    Raises:
        TypeError: the loader yields groups, whose batches are loaded during their steps; pass
            `log=` to `TrainStep` for them.

    Example:
        >>> watched = Watch(torch.utils.data.DataLoader(range(4)), log="run.jsonl")
        >>> for batch in watched:
        ...     watched.log(loss=batch.float().sum())
        >>> from fastload.tools.report import Run
        >>> [step["loss"] for step in Run("run.jsonl").steps]
        [0.0, 1.0, 2.0, 3.0]
    """

    def __init__(
        self,
        loader: Any,
        log: str | os.PathLike[str],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if isinstance(loader, Groups):
            raise TypeError(
                "watch needs a loader of batches, not of groups, whose batches are loaded during "
                "their step: TrainStep(..., log=) writes the same lines"
            )
        self._loader, self._epochs = loader, 0
        about: Row = {"loader": type(loader).__name__}
        about |= {name: getattr(loader, name, None) for name in ("batch_size", "num_workers")}
        with contextlib.suppress(TypeError):  # an IterableDataset may have no length
            about["batches"] = len(loader)
        device = getattr(loader, "device", None)
        stalls = Stalls(None if device is None else torch.device(device))
        self._lines = RunLog(log, about, stalls=stalls, clock=clock)
        weakref.finalize(self, self._lines.close)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epochs = self._epochs, self._epochs + 1
        lines, clock = self._lines, self._lines.clock
        row: Row = {}
        asked = clock()
        try:
            batches = iter(self._loader)
            while True:
                before = lines.mark()
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                came, after = clock(), lines.mark()
                row = lines.begin(asked, epoch)
                row["wait_s"] = came - asked
                row["samples"] = count_samples(batch)
                lines.stalled(before, after)
                yield batch
                del batch
                lines.end(row)
                asked = clock()
            lines.flush()
        finally:
            lines.break_off(row)

    def log(self, **values: Any) -> None:
        """Adds numbers, such as `loss`, to the line of the current step.

        Tensors of one number are read later, many in one copy, so that no step waits for the
        device.

        Raises:
            ValueError: a tensor does not hold exactly one number.
            TypeError: a value is not a number.
        """
        self._lines.put(**values)

    def flush(self) -> None:
        """Writes all pending lines; called at the end of each epoch as well."""
        self._lines.flush()


def watch(loader: Any, log: str | os.PathLike[str]) -> Watch:
    """Iterates over a loader and writes duration and waiting time of each step; see `Watch`.

    Args:
        loader: Any iterable of batches.
        log: File of JSON lines, which `fastload report` reads.

    Example:
        >>> loader = torch.utils.data.DataLoader(range(4))
        >>> [int(batch) for batch in watch(loader, log="run.jsonl")]
        [0, 1, 2, 3]
    """
    return Watch(loader, log)
