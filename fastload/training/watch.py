"""A log of a training: what each step took, how long it waited for data, and its loss."""

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

    The first line describes the loader and the machine. Each other has `epoch`, `step` (counted
    from 0 over all epochs), `start_s` (since the first step), `step_s` (until the following batch
    is asked for), `wait_s` (until the batch was there), `samples`, and what `log` was given. Times
    are in seconds. Where CUDA is in use, `gpu_wait_s` is how long the device had nothing to do in
    `wait_s`.
    The line of a step that was broken off (by `break`, or an error) has `unfinished` and what was
    known by then; it counts for nothing in a report.
    Ranks other than the first write `run.1.jsonl` and so on beside `run.jsonl`.

    Args:
        loader: Any iterable of batches.
        log: The file; an old one is replaced.
        clock: Seconds.

    Raises:
        TypeError: the loader gives groups, whose batches come during their steps: `TrainStep` has
            a log for them.

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
                "watch takes a loader: the batches of a group come during its step, and "
                "TrainStep(..., log=) writes the same lines"
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
        """Adds numbers to the line of the step under way: `loss`, say.

        Tensors of one number are read later, many at once: a device is not stopped in each step.

        Raises:
            ValueError: a tensor holds more or fewer numbers than one.
            TypeError: a value is no number.
        """
        self._lines.put(**values)

    def flush(self) -> None:
        """Writes what is not yet written; the end of each epoch does it, too."""
        self._lines.flush()


def watch(loader: Any, log: str | os.PathLike[str]) -> Watch:
    """Iterates over a loader and writes what each step took; see `Watch`.

    Args:
        loader: Any loader.
        log: The file of JSON lines; `fastload report` draws it.

    Example:
        >>> loader = torch.utils.data.DataLoader(range(4))
        >>> [int(batch) for batch in watch(loader, log="run.jsonl")]
        [0, 1, 2, 3]
    """
    return Watch(loader, log)
