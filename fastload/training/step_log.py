"""The log of a TrainStep, with the same lines as `fastload.watch`."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fastload.errors import refuse_pipe
from fastload.loader.groups import Group
from fastload.training.log_writer import Row, RunLog, count_samples
from fastload.training.stalls import Stalls


class StepLog:
    """Times the steps of one training.

    A step lasts from the end of the previous step to its own end. The first step of an epoch of
    groups, and the first one after an error, start when they are called. For groups, the waiting
    time is measured in the `next` of the group; for single batches, it starts at the end of the
    previous step.

    Args:
        path: See `RunLog`. The file is opened in the first step, when the rank is known.
        about: Members of the first line.
        stalls: Event pairs of the device.
        clock: Function that returns seconds.

    Example:
        >>> log = StepLog("run.jsonl", {})
        >>> with log.step(0, torch.zeros(4)):
        ...     log.put(loss=0.5)
        >>> log.flush()
        >>> from fastload.tools.report import Run
        >>> Run("run.jsonl").steps[0]["samples"]
        4
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        about: Mapping[str, Any],
        stalls: Stalls | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        refuse_pipe(path)  # fail now, not in the first step
        self._path, self._about, self._stalls, self._clock = path, about, stalls, clock
        self._append = False
        self._lines: RunLog | None = None
        self._row: Row = {}
        self._ended: float | None = None  # end of the previous step,
        self._mark: Any = None  # and the event recorded at that time

    def go_on(self) -> None:
        """Appends to the existing file from now on; called after a checkpoint was loaded."""
        self.flush()
        self._append, self._lines = True, None
        self._ended = self._mark = None

    @contextlib.contextmanager
    def step(self, number: int, group: Any) -> Iterator[None]:
        """Context for a step; after an error its line holds the values known by then."""
        if self._lines is None:
            self._lines = self._open(number)
        lines, now, is_group = self._lines, self._clock(), isinstance(group, Group)
        asked = now if self._ended is None else self._ended
        mark, self._mark = self._mark, None
        self._row = lines.begin(asked, group.epoch if is_group else None)
        if not is_group:
            self._row["wait_s"] = now - asked
            self._row["samples"] = count_samples(group)
            lines.stalled(mark, lines.mark())
        try:
            yield
        except BaseException:
            self._ended = None
            lines.break_off(self._row)
            raise
        if is_group and group.last:
            self._row["epoch_done"] = True
        lines.end(self._row)
        self._ended = self._clock()
        if not is_group:
            self._mark = lines.mark()
        elif group.last:
            self._ended = None
            lines.flush()

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of a group, adding the waiting time to the current step."""
        lines, rest = self._lines, iter(batches)
        assert lines is not None
        while True:
            asked, before = self._clock(), lines.mark()
            try:
                batch = next(rest)
            except StopIteration:
                return
            lines.stalled(before, lines.mark())
            self._row["wait_s"] += self._clock() - asked
            self._row["samples"] += count_samples(batch)
            yield batch

    def put(self, **values: Any) -> None:
        """Adds numbers to the line of the step."""
        assert self._lines is not None
        self._lines.put(**values)

    def flush(self) -> None:
        """Writes the lines of all steps so far; waits for the device."""
        if self._lines is not None:
            self._lines.flush()

    def _open(self, number: int) -> RunLog:
        lines = RunLog(
            self._path,
            self._about,
            append=self._append,
            step=number,
            stalls=self._stalls,
            clock=self._clock,
        )
        weakref.finalize(self, lines.close)
        return lines
