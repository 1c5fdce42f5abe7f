"""What a TrainStep writes into its log: the same lines as `fastload.watch`."""

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

    A step lasts from the end of the one before to its own end, but the first one of an epoch of
    groups, or after an error, begins when it is called. The batches of a group are waited for in
    their `next`; a batch that comes alone was waited for since the end of the step before.

    Args:
        path: See `RunLog`. It is opened in the first step: by then ranks know who they are.
        about: Of the first line.
        stalls: Of the device.
        clock: Seconds.

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
        refuse_pipe(path)  # now, rather than at the first step
        self._path, self._about, self._stalls, self._clock = path, about, stalls, clock
        self._append = False
        self._lines: RunLog | None = None
        self._row: Row = {}
        self._ended: float | None = None  # the step that the next one goes on from,
        self._mark: Any = None  # and where the device was then

    def go_on(self) -> None:
        """A checkpoint was loaded: the file is kept, and the steps from there on are added."""
        self.flush()
        self._append, self._lines = True, None
        self._ended = self._mark = None

    @contextlib.contextmanager
    def step(self, number: int, group: Any) -> Iterator[None]:
        """Around a step; an error in it leaves a line with what is known."""
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
        """The batches of a group; what they are waited for is of the step under way."""
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
