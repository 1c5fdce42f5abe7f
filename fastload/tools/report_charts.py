"""Charts of training logs: smoothed curves over faint raw ones, as files or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.tools import charts
from fastload.tools.report import Run, table
from fastload.training import host

Array = npt.NDArray[np.float64]

_WINDOWS = 40  # a smooth line has about as many independent points
_FAINT = 400  # intervals of a faint line; of each the least and the greatest value are drawn
_NAMED = 6  # runs below an image
_TIMES = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


class Curve(NamedTuple):
    """One quantity of one run, over steps or seconds.

    Attributes:
        x: Step or seconds of each step.
        y: Value of each step; NaN if the log has no finite number.
        smooth: Weighted means over neighbouring steps; NaN where `y` is.
        window: Number of steps that dominate such a mean.
    """

    x: Array
    y: Array
    smooth: Array
    window: int


class Chart(NamedTuple):
    """One chart with a curve per run.

    Attributes:
        title: Title of the vertical axis, with the unit.
        over: Title of the horizontal axis.
        curves: Curves by run; None for runs without this quantity.
    """

    title: str
    over: str
    curves: list[Curve | None]


def find_charts(runs: Sequence[Run]) -> list[Chart]:
    """Returns the charts for which at least one run has numbers."""
    columns = [_Columns(run) for run in runs]
    longest = max(found.seconds[-1] for found in columns)
    size, unit = next((t for t in _TIMES if longest >= 3 * t[0]), _TIMES[-1])
    found = [
        Chart("samples/s", "step", [c.ratio("samples", "step_s") for c in columns]),
        Chart(
            "waiting for data, % of a step",
            "step",
            [c.ratio("wait_s", "step_s", 100) for c in columns],
        ),
        Chart("GPU busy, % of the time", "step", [c.busy() for c in columns]),
        Chart("loss", "step", [c.loss() for c in columns]),
        Chart("loss", f"{unit} of training", [c.loss(size) for c in columns]),
    ]
    return [chart for chart in found if any(chart.curves)]


class _Columns:
    """Steps of a run as arrays."""

    def __init__(self, run: Run) -> None:
        steps = run.steps
        self.steps = np.array([step["step"] for step in steps], np.float64)
        names = ("start_s", "step_s", "wait_s", "samples", "gpu_wait_s", "loss")
        self._columns = {
            name: np.array([_finite(step.get(name)) for step in steps]) for name in names
        }
        self.seconds = self._columns["start_s"] + self._columns["step_s"]
        self._window = max(1, len(steps) // _WINDOWS)

    def ratio(self, over: str, under: str, factor: float = 1.0) -> Curve | None:
        a, b = factor * self._columns[over], np.maximum(self._columns[under], 1e-9)
        smooth = _sums(a, self._window) / np.maximum(_sums(b, self._window), 1e-9)
        return self._curve(self.steps, a / b, smooth)

    def busy(self) -> Curve | None:
        wait, step = self._columns["gpu_wait_s"], np.maximum(self._columns["step_s"], 1e-9)
        known = np.where(np.isnan(wait), np.nan, step)
        smooth = _sums(wait, self._window) / np.maximum(_sums(known, self._window), 1e-9)
        return self._curve(self.steps, 100 * (1 - wait / step), 100 * (1 - smooth))

    def loss(self, second: float | None = None) -> Curve | None:
        loss = self._columns["loss"]
        count = _sums(np.where(np.isnan(loss), np.nan, 1.0), self._window)
        smooth = _sums(loss, self._window) / np.maximum(count, 1)
        x = self.steps if second is None else self.seconds / second
        return self._curve(x, loss, smooth)

    def _curve(self, x: Array, y: Array, smooth: Array) -> Curve | None:
        if np.isnan(y).all():
            return None
        return Curve(x, y, np.where(np.isnan(y), np.nan, smooth), self._window)


def _finite(value: Any) -> float:
    """Returns a number as float; NaN if no axis can show it."""
    return float(value) if value is not None and abs(value) < 1e300 else np.nan


def _sums(values: Array, window: int) -> Array:
    """Returns sums around each value with triangular weights; NaN counts as 0."""
    total = np.nan_to_num(values)
    place = np.arange(len(values))
    first = np.maximum(place - window // 2, 0)
    last = np.minimum(place - window // 2 + window, len(values))
    for _ in range(2):
        summed = np.concatenate([[0.0], np.cumsum(total)])
        total = summed[last] - summed[first]
    return total


# --- Drawing ------------------------------------------------------------------------------------


def draw(chart: Chart, runs: Sequence[Run], axes: Any) -> None:
    """Draws a chart: each step faintly, means over several steps as a line."""
    shown = []
    for number, (run, curve) in enumerate(zip(runs, chart.curves, strict=True)):
        if curve is None:
            continue
        color = charts.COLORS[number % len(charts.COLORS)]
        dash = charts.DASHES[number // len(charts.COLORS) % len(charts.DASHES)]
        mark = "o" if np.count_nonzero(~np.isnan(curve.y)) < 3 else None
        if curve.window > 1:
            axes.plot(*_faint(curve), color=color, alpha=0.25, linewidth=0.7)
        (line,) = axes.plot(curve.x, curve.smooth, dash, color=color, linewidth=1.6, marker=mark)
        shown.append((line, charts.label(run.name)))
        for step in run.resumed:
            at = curve.x[next(i for i, s in enumerate(run.steps) if s["step"] == step)]
            axes.axvline(at, color=color, linestyle=":", linewidth=1)
    axes.set(xlabel=chart.over, ylabel=chart.title)
    if chart.over == "step":
        axes.xaxis.get_major_locator().set_params(integer=True)
    _set_limits(chart, axes)
    if len(runs) > 1:
        axes.legend(*zip(*shown, strict=True), fontsize="small", frameon=False)


def _faint(curve: Curve) -> tuple[Array, Array]:
    """Reduces a curve to at most 800 points that keep all extremes."""
    size = -(-len(curve.y) // _FAINT)
    if size < 3:
        return curve.x, curve.y
    keep = []
    for first in range(0, len(curve.y), size):
        part = curve.y[first : first + size]
        if np.isnan(part).all():
            keep.append(first)
        else:
            keep += sorted({first + int(np.nanargmin(part)), first + int(np.nanargmax(part))})
    return curve.x[keep], curve.y[keep]


def _set_limits(chart: Chart, axes: Any) -> None:
    """Sets limits that ignore a few spikes; the chart shows how many lie outside."""
    curves = [curve for curve in chart.curves if curve is not None]
    y = np.concatenate([curve.y[~np.isnan(curve.y)] for curve in curves])
    smooth = np.concatenate([curve.smooth[~np.isnan(curve.smooth)] for curve in curves])
    low = min(np.percentile(y, 0.2), smooth.min()) if chart.title == "loss" else 0.0
    high = max(np.percentile(y, 99.8), smooth.max())
    if "%" in chart.title:
        high = max(high, 1.0)
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    bottom = low - margin if chart.title == "loss" else low
    axes.set_ylim(bottom, high + margin)
    outside = int(np.count_nonzero((y < bottom) | (y > high + margin)))
    if outside:
        text = f"{outside:,} of {len(y):,} steps lie outside"
        axes.annotate(text, (0.01, 1.01), xycoords="axes fraction", fontsize="x-small")


def plot(runs: Sequence[Run], path: Path) -> None:
    """Draws all charts into an image file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the suffix.
    """
    lines = []
    for name, started, length, settings, machine in _settings(runs)[1][:_NAMED]:
        known = [part for part in (started, machine, length, settings) if part]
        lines.append(f"{charts.label(name)}: {charts.label(', '.join(known), 200)}")
    footer = "\n".join(lines)
    charts.save(path, [partial(draw, chart, runs) for chart in find_charts(runs)], footer)


def page(runs: Sequence[Run]) -> str:
    """Returns an HTML page of the runs; without matplotlib it has only tables."""
    colors = [charts.COLORS[i % len(charts.COLORS)] for i in range(len(runs))]
    parts = [charts.table(*table(runs), colors=colors)]
    parts.append(charts.heading("Charts"))
    if charts.is_available():
        found = find_charts(runs)
        parts.append(
            charts.grid(
                [charts.chart(partial(draw, c, runs), f"{c.title}, by {c.over}") for c in found]
            )
        )
        windows = {c.window for chart in found for c in chart.curves if c is not None}
        parts.append(charts.paragraph(_legend(windows), note=True))
    else:
        parts.append(charts.paragraph(charts.MISSING))
    parts += [charts.heading("Runs"), charts.table(*_settings(runs), colors=colors, text=True)]
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes()]
    if notes:
        parts += [charts.heading("Notes"), charts.items(notes)]
    made = f"Made {host.now()} by fastload {host.version('fastload')}."
    return charts.page("fastload report", [*parts, charts.paragraph(made, note=True)])


def _legend(windows: set[int]) -> str:
    most = max(windows)
    if most == 1:
        return "Lines join the values of each step."
    steps = str(most) if len(windows) == 1 else f"{min(windows)} to {most}"
    return (
        f"Lines are running means of about {steps} steps, the faint ones behind them are the "
        "values of each step. A dotted vertical line: the training went on from a checkpoint."
    )


def _settings(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns time, machine and settings of the runs from their logs."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        about = {k: v for k, v in run.about.items() if k not in ("fastload_log", "batches")}
        started, machine = about.pop("started", None), about.pop("machine", None)
        named = ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
        where = host.sentence(machine) if isinstance(machine, dict) else ""
        length = _count(len(run.steps), "step")
        if run.epochs():
            length += ", " + _count(len(run.epochs()), "epoch")
        rows.append((run.name, str(started or "unknown"), length, named, where or "unknown"))
    return ("run", "started", "length", "settings", "machine"), rows


def _count(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count != 1)}"
