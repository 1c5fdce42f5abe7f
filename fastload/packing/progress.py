"""Shows the progress of a pack on stderr: a bar on a terminal, otherwise a line every 5 seconds."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from fastload.packing.shards import Progress

_LINE_SECONDS = 5.0


class ProgressDisplay:
    """Callback for the `progress` argument of `pack`; a context manager.

    Example:
        >>> with ProgressDisplay(Console(stderr=True)) as display:  # doctest: +SKIP
        ...     fastload.pack("photos", "data/photos", progress=display)
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()
        self._shown = self._start
        self._done = self._row_bytes = 0  # of this run
        self._bars: Bars | None = None
        if console.is_terminal:
            columns = ("{task.completed:,} of {task.total:,} rows", "{task.fields[speed]}")
            self._bars = Bars(
                BarColumn(),
                *map(TextColumn, columns),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=console,
            )
        self._task: Any = None

    def __enter__(self) -> ProgressDisplay:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        """Prints a notice, and updates the bar or prints a line."""
        if progress.notice:
            self._console.print(progress.notice, highlight=False)
        now = time.monotonic()
        self._row_bytes = progress.row_bytes
        self._done = done = progress.rows - progress.rows_kept
        text = self.pace
        if self._bars is not None:
            if self._task is None:
                self._task = self._bars.add_task(
                    "", total=progress.rows_total, completed=progress.rows_kept, speed=""
                )
            self._bars.update(self._task, completed=progress.rows, speed=text)
        elif now - self._shown >= _LINE_SECONDS and done:
            self._shown = now
            left = (now - self._start) * (progress.rows_total - progress.rows) / done
            rows = f"{progress.rows:,} of {progress.rows_total:,} rows"
            self._console.print(f"{rows}, {text}, {left:.0f} s left", highlight=False)

    @property
    def pace(self) -> str:
        """Rows and megabytes per second that this run has read."""
        rows_s = self._done / max(time.monotonic() - self._start, 1e-3)
        return f"{rows_s:,.0f} rows/s, {rows_s * self._row_bytes / 1e6:,.1f} MB/s"
