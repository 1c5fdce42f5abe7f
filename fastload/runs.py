"""What logs of trainings come to: a table of several, and their curves over one another."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastload import svg
from fastload.plotting import plotter

Points = list[tuple[float, float]]

_POINTS = 200  # of a curve
_NEEDED = ("step", "start_s", "step_s", "wait_s", "samples")
_READ = (*_NEEDED, "loss", "gpu_wait_s", "nvml_utilisation_percent")
_SPEED = ("run", "samples/s", "step ms", "waiting", "gpu busy", "NVML")
TITLES = (*_SPEED, "s/epoch", "last loss", "speed")


class Run:
    """One training, read from its log.

    Where it went on from a checkpoint, the steps that were made again take the place of those that
    were lost; a step that was broken off is left out.

    Args:
        path: A file that `fastload.watch` or `TrainStep` wrote.
        name: In tables; by default the file's name.

    Raises:
        ValueError: it is no such log, or has no steps.
    """

    def __init__(self, path: str, name: str = "") -> None:
        self.name = name or os.path.splitext(os.path.basename(path))[0]
        self.steps: list[dict[str, Any]] = []
        self._first: set[int] = set()  # steps of each process, which start things
        started = False
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file):
                try:
                    row = json.loads(line)
                    if number == 0 or "fastload_log" in row:
                        _, started = row["fastload_log"], True
                        continue
                    _check(row)
                except (ValueError, KeyError, TypeError):
                    if number and not line.endswith("\n"):
                        break  # the training was killed while it wrote
                    raise ValueError(
                        f"{path}: line {number + 1} was not written by fastload"
                    ) from None
                if not row.get("unfinished"):
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
        self.steps.append(row | {"start_s": row["start_s"] + self._before_s})
        return False

    def summary(self) -> dict[str, float | None]:
        """Means over all steps but the first of each process, which starts things."""
        steps = [step for step in self.steps if step["step"] not in self._first] or self.steps
        total = sum(step["step_s"] for step in steps) or 1e-9
        epochs: dict[int | None, float] = {}
        for step in self.steps:
            epoch = step.get("epoch")
            epochs[epoch] = epochs.get(epoch, 0.0) + step["step_s"]
        losses = [step["loss"] for step in steps if "loss" in step]
        key = "nvml_utilisation_percent"
        utilisation = [step[key] for step in steps if key in step]
        return {
            "samples_per_s": sum(step["samples"] for step in steps) / total,
            "step_ms": 1e3 * total / len(steps),
            "wait_share": sum(step["wait_s"] for step in steps) / total,
            "gpu_busy": _gpu_busy(steps),
            "nvml_utilisation_percent": statistics.fmean(utilisation) if utilisation else None,
            "epoch_s": None if None in epochs else statistics.fmean(epochs.values()),
            "loss": _mean_loss(losses[-20:]) if losses else None,
        }

    def curves(self) -> dict[str, Points]:
        """Throughput and waiting share over the steps, the loss over steps and over seconds."""
        found: dict[str, Points] = {name: [] for name in CURVES}
        chunk = -(-len(self.steps) // _POINTS)
        for first in range(0, len(self.steps), chunk):
            part = self.steps[first : first + chunk]
            total = sum(step["step_s"] for step in part) or 1e-9
            at = float(first + len(part))
            found["samples/s"].append((at, sum(step["samples"] for step in part) / total))
            found["waiting, % of a step"].append(
                (at, 100 * sum(step["wait_s"] for step in part) / total)
            )
            busy = _gpu_busy(part)
            if busy is not None:
                found["gpu busy, % of the time"].append((at, 100 * busy))
            losses = [step["loss"] for step in part if "loss" in step]
            if losses:
                found["loss"].append((at, _mean_loss(losses)))
                found["loss over time"].append((part[-1]["start_s"], found["loss"][-1][1]))
        return found


def _mean_loss(losses: Sequence[float]) -> float:
    """The mean; not a number if the losses of a run that diverged have none."""
    try:
        return statistics.fmean(losses)
    except (ValueError, OverflowError):  # of both infinities, or beyond what a float holds
        return math.nan


def _check(row: dict[str, Any]) -> None:
    """Raises unless the line of a step has what is read of it, as numbers."""
    for name in _NEEDED:
        _ = row[name]
    for name in _READ:
        if not isinstance(row.get(name, 0), (int, float)):
            raise TypeError(name)


def _gpu_busy(steps: Sequence[dict[str, Any]]) -> float | None:
    """The share of the time in which the GPU did not wait for data; None where nobody knows."""
    timed = [step for step in steps if "gpu_wait_s" in step]
    if not timed:
        return None
    total = sum(step["step_s"] for step in timed) or 1e-9
    return float(1 - sum(step["gpu_wait_s"] for step in timed) / total)


CURVES = {
    "samples/s": "steps",
    "waiting, % of a step": "steps",
    "gpu busy, % of the time": "steps",
    "loss": "steps",
    "loss over time": "seconds",
}
"""What is drawn, over what."""


def table(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Titles and rows of the runs, beside the first; without columns that nobody fills."""
    found: list[tuple[str, ...]] = [TITLES]
    base = runs[0].summary()["samples_per_s"] or 1e-9
    for run in runs:
        summary = run.summary()
        speed, loss = summary["samples_per_s"] or 0.0, summary["loss"]
        busy, epoch_s = summary["gpu_busy"], summary["epoch_s"]
        utilisation = summary["nvml_utilisation_percent"]
        found.append(
            (
                run.name,
                f"{speed:,.0f}",
                f"{summary['step_ms']:.2f}",
                f"{summary['wait_share']:.1%}",
                "" if busy is None else f"{busy:.1%}",
                "" if utilisation is None else f"{utilisation:.0f}%",
                "" if epoch_s is None else f"{epoch_s:.3g}",
                "" if loss is None else f"{loss:.4g}",
                f"{speed / base:.2f}x",
            )
        )
    kept = [column for column in zip(*found, strict=True) if any(column[1:])]
    titles, *rows = zip(*kept, strict=True)
    return titles, rows


def page(runs: Sequence[Run]) -> str:
    """The runs as a page of HTML."""
    parts = [svg.table(*table(runs)), svg.legend([run.name for run in runs])]
    for name, over in CURVES.items():
        curves = [run.curves()[name] for run in runs]
        if any(curves):
            parts += [svg.heading(name), svg.lines(curves, x=over, y=name)]
    return svg.page("fastload report", parts)


def plot(runs: Sequence[Run], path: Path) -> None:
    """Draws the same into an image file.

    Raises:
        ModuleNotFoundError: matplotlib is missing; says how to install it.
        ValueError: it draws no such files.
    """
    figure_class = plotter(path)
    drawn = [name for name in CURVES if any(run.curves()[name] for run in runs)]
    figure = figure_class(figsize=(10, 3.5 * -(-len(drawn) // 2)), layout="constrained")
    for number, name in enumerate(drawn):
        axes = figure.add_subplot(-(-len(drawn) // 2), 2, number + 1)
        for run, color in zip(runs, svg.COLORS * len(runs), strict=False):
            points = run.curves()[name]
            axes.plot([p[0] for p in points], [p[1] for p in points], label=run.name, color=color)
        axes.set(title=name, xlabel=CURVES[name])
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    figure.axes[0].legend()
    figure.savefig(path, dpi=120)
