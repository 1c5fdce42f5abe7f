"""Reads, summarises and compares training logs."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastload.errors import refuse_pipe
from fastload.tools.measured import Range, mean_range, number

LAST = 20
"""Steps at the end of a run whose mean loss is reported."""

_NEEDED = ("step", "start_s", "step_s", "wait_s", "samples")
_OPTIONAL = ("loss", "gpu_wait_s", "nvml_utilisation_percent")


class Epoch(NamedTuple):
    """The steps of one epoch.

    Attributes:
        number: Number in the log.
        steps: Number of steps in the log.
        seconds: Duration of these steps.
        finished: True if the log holds the whole epoch, as far as the log shows.
    """

    number: int
    steps: int
    seconds: float
    finished: bool


class Run:
    """One training run, read from its log.

    If the training resumed from a checkpoint, repeated steps replace the earlier ones. Unfinished
    steps are left out.

    Args:
        path: File written by `fastload.watch` or `TrainStep`.
        name: Name in tables; the name of the file by default.

    Raises:
        ValueError: the file is not a log, or has no steps.
    """

    def __init__(self, path: str, name: str = "") -> None:
        self.name = name or os.path.splitext(os.path.basename(path))[0]
        self.about: dict[str, Any] = {}  # the first line
        self.steps: list[dict[str, Any]] = []
        self._first: set[int] = set()  # first step of each process, which includes start-up
        self._broken: set[Any] = set()  # epochs whose last step is unfinished
        started = False
        refuse_pipe(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file):
                try:
                    row = json.loads(line, parse_constant=_not_finite)
                    if number == 0 or "fastload_log" in row:
                        _, started = row["fastload_log"], True
                        self.about = self.about or row
                        continue
                    _check(row)
                except (ValueError, KeyError, TypeError):
                    if number and not line.endswith("\n"):
                        break  # the training was killed while it wrote
                    raise ValueError(
                        f"{path}: line {number + 1} was not written by fastload"
                    ) from None
                if row.get("unfinished"):
                    self._broken.add(row.get("epoch"))
                else:
                    started = self._add(row, started)
        if not self.steps:
            raise ValueError(f"{path} has no steps")

    def _add(self, row: dict[str, Any], started: bool) -> bool:
        while self.steps and self.steps[-1]["step"] >= row["step"]:
            self._first.discard(self.steps.pop()["step"])
        if started:
            self._first.add(row["step"])
            last = self.steps[-1] if self.steps else None
            self._before_s = last["start_s"] + last["step_s"] if last else 0.0
        self._broken.discard(row.get("epoch"))
        self.steps.append(row | {"start_s": row["start_s"] + self._before_s})
        return False

    @property
    def resumed(self) -> list[int]:
        """Numbers of the steps at which the training resumed."""
        return sorted(self._first - {self.steps[0]["step"]})

    def epochs(self) -> list[Epoch]:
        """Epochs of the log; empty if its lines have no epoch.

        An epoch is finished if a later one follows and all of its steps are finished. The last
        epoch is finished if the log says so, or if it has as many steps as the previous epoch or
        as the loader has batches. An epoch that started before the log is not finished.
        """
        parts: dict[int, list[dict[str, Any]]] = {}
        for step in self.steps:
            if step.get("epoch") is None:
                return []
            parts.setdefault(step["epoch"], []).append(step)
        found: list[Epoch] = []
        for place, (epoch, steps) in enumerate(parts.items()):
            least = self.about.get("batches")
            if found and found[-1].finished:
                least = found[-1].steps
            whole = steps[-1].get("epoch_done") or place < len(parts) - 1
            whole = whole or (isinstance(least, int) and len(steps) >= least > 0)
            begun = place > 0 or self.steps[0]["step"] == 0
            finished = bool(whole) and begun and epoch not in self._broken
            seconds = sum(step["step_s"] for step in steps)
            found.append(Epoch(epoch, len(steps), seconds, finished))
        return found

    def counted(self) -> list[dict[str, Any]]:
        """All steps except the first of each process, which includes start-up."""
        return [step for step in self.steps if step["step"] not in self._first] or self.steps

    def summary(self) -> dict[str, Any]:
        """Returns means over the counted steps, in JSON types; None if the log lacks them.

        `mean_loss` is over the last `mean_loss_steps` steps that have a loss, and None if one of
        these is not finite (`not_finite_losses` counts all such steps of the run).
        """
        steps = self.counted()
        total = sum(step["step_s"] for step in steps) or 1e-9
        done = [epoch.seconds for epoch in self.epochs() if epoch.finished]
        open_epochs = [epoch.seconds for epoch in self.epochs() if not epoch.finished]
        losses = [step["loss"] for step in self.steps if "loss" in step]
        key = "nvml_utilisation_percent"
        utilisation = [step[key] for step in steps if step.get(key) is not None]
        return {
            "steps": len(self.steps),
            "samples_per_s": sum(step["samples"] for step in steps) / total,
            "step_ms": 1e3 * total / len(steps),
            "wait_share": sum(step["wait_s"] for step in steps) / total,
            "gpu_busy": gpu_busy(steps),
            "nvml_utilisation_percent": statistics.fmean(utilisation) if utilisation else None,
            "epoch_s": statistics.fmean(done) if done else None,
            "epochs_finished": len(done),
            "unfinished_epochs_s": open_epochs,
            "last_loss": losses[-1] if losses else None,
            "mean_loss": _mean(losses[-LAST:]),
            "mean_loss_steps": len(losses[-LAST:]),
            "not_finite_losses": losses.count(None),
        }

    def notes(self) -> list[str]:
        """Notes on the numbers for the reader."""
        found = [f"went on from a checkpoint at step {step:,}" for step in self.resumed]
        losses = [(step["step"], step["loss"]) for step in self.steps if "loss" in step]
        bad = [step for step, loss in losses if loss is None]
        if bad:
            count = f"{len(bad):,} of {len(losses):,} losses are"
            found.append(f"{count} not finite, the first at step {bad[0]:,}")
        for epoch in self.epochs():
            if not epoch.finished:
                found.append(f"epoch {epoch.number} is not finished, or its end is not in the log")
        return found


def _not_finite(_: str) -> None:
    """Reads NaN and infinities of older logs as null, as new logs store them."""


def _mean(losses: Sequence[float | None]) -> float | None:
    values = [loss for loss in losses if loss is not None]
    if not values or len(values) < len(losses):
        return None
    try:
        mean = statistics.fmean(values)
    except OverflowError:
        return None
    return mean if math.isfinite(mean) else None


def _check(row: dict[str, Any]) -> None:
    """Raises unless the line of a step has the required numbers."""
    for name in _NEEDED:
        if not isinstance(row[name], (int, float)):
            raise TypeError(name)
    for name in _OPTIONAL:
        if not isinstance(row.get(name), (int, float, type(None))):
            raise TypeError(name)


def gpu_busy(steps: Sequence[dict[str, Any]]) -> float | None:
    """Returns the share of time in which the GPU did not wait for data; None if unknown."""
    timed = [step for step in steps if step.get("gpu_wait_s") is not None]
    if not timed:
        return None
    total = sum(step["step_s"] for step in timed) or 1e-9
    return float(1 - sum(step["gpu_wait_s"] for step in timed) / total)


def table(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns titles with units, and rows of the runs, without empty columns."""
    titles = (
        *("run", "samples/s", "step, ms", "waiting for data", "GPU busy", "NVML", "epoch, s"),
        f"mean loss of the last {LAST} steps",
        "speed / first run",
    )
    rows = [_cells(run, runs[0]) for run in runs]
    kept = [column for column in zip(titles, *rows, strict=True) if any(column[1:])]
    titles, *rows = zip(*kept, strict=True)
    return titles, rows


def _cells(run: Run, base: Run) -> tuple[str, ...]:
    summary = run.summary()
    busy, utilisation = summary["gpu_busy"], summary["nvml_utilisation_percent"]
    return (
        run.name,
        number(summary["samples_per_s"]),
        number(summary["step_ms"]),
        f"{number(100 * summary['wait_share'], 2)} %",
        "" if busy is None else f"{number(100 * busy, 2)} %",
        "" if utilisation is None else f"{utilisation:.0f} %",
        _epoch(summary),
        _loss(summary),
        "1x" if run is base else _speed(run).over(_speed(base)).text().replace(" to ", "-") + "x",
    )


def _speed(run: Run) -> Range:
    """Returns samples per second with the spread over steps."""
    steps = run.counted()
    times = [step["step_s"] or 1e-9 for step in steps]
    spread = mean_range(times).between(min(times), max(times))
    samples = sum(step["samples"] for step in steps) / len(steps)
    return Range(samples / spread.high, samples / spread.low)


def _epoch(summary: dict[str, Any]) -> str:
    if summary["epoch_s"] is not None:
        return number(summary["epoch_s"])
    longest = max(summary["unfinished_epochs_s"], default=None)
    return "" if longest is None else f"> {number(longest)} (unfinished)"


def _loss(summary: dict[str, Any]) -> str:
    count, mean = summary["mean_loss_steps"], summary["mean_loss"]
    if not count:
        return ""
    value = "not finite" if mean is None else number(mean, 4)
    return value if count == LAST else f"{value} ({count} step{'s' * (count != 1)})"
