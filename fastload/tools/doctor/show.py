"""Prints a report of the doctor, or renders it as HTML."""

from __future__ import annotations

from typing import Any

from fastload.tools import charts
from fastload.tools.doctor.phases import PHASES
from fastload.tools.measured import Range
from fastload.training import host, nvml

_NAMES = {
    "real": "real batches",
    "cached": "cached on the host",
    "device": "cached on the device",
    "alone": "ranks alone",
}
_BAR = 40
_LEVELS = {"high": "sure", "medium": "fairly sure", "low": "not sure"}


def bars(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Yields name, mean step time with its 95 % interval, and a bar for each phase."""
    found = []
    for name in PHASES:
        phases = [r["phases"][name] for r in report["ranks"] if name in r["phases"]]
        if not phases:
            continue
        longest = max(phases, key=lambda phase: float(phase["step_ms"]))
        step = longest["step_ms"]
        wait = max(phase["wait_ms"] for phase in phases) if name == "real" else 0.0
        full = round(_BAR * min(1.0, step / report["step_ms"]))
        waits = min(full, round(full * wait / step)) if step else 0
        time = Range(*(ms / 1e3 for ms in longest["step_range_ms"])).duration()
        found.append((_NAMES[name], time, "█" * (full - waits) + "░" * waits))
    return found


def confidence(report: dict[str, Any]) -> str:
    """Returns the confidence of the verdict, and its reason."""
    level, reasons = report["confidence"]["level"], report["confidence"]["reasons"]
    others = [
        load["others"]
        for rank in report["ranks"]
        for load in rank["loads"].values()
        if load["others"] is not None
    ]
    if reasons:
        return f"How sure: {_LEVELS[level]}, since " + "; ".join(reasons) + "."
    used = f"other processes used at most {max(others):.0%} of the CPUs"
    return f"How sure: {_LEVELS[level]}; {used}."


def quoted(report: dict[str, Any]) -> list[str]:
    """Returns the utilisation that NVML reports, with its meaning; empty if unknown."""
    said = {r["rank"]: r.get("nvml_utilisation_percent") for r in report["ranks"]}
    told = [f"{p:.0f} % (rank {rank})" for rank, p in said.items() if p is not None]
    if not told:
        return []
    figures = ", ".join(told) if len(said) > 1 else told[0].partition(" (")[0]
    return [f"NVML's GPU utilisation: {figures}: {nvml.MEANING}. The verdict is not from it."]


def show(report: dict[str, Any]) -> None:
    """Prints a report."""
    from rich.console import Console

    console = Console(soft_wrap=True, markup=False, highlight=False)
    console.print(report["sentence"], style="bold")
    filled, empty = "█░" if console.encoding.startswith("utf") else "#."
    for name, step, bar in bars(report):
        drawn = f"{bar:<{_BAR}}".replace("█", filled).replace("░", empty)
        console.print(f"  {name:<21}{step:>16} |{drawn}|")
    console.print(" " * 38 + f"{filled} the step  {empty} waiting for data")
    console.print(confidence(report))
    for advice in report["advice"]:
        console.print(f"  -> {advice}")
    for note in [*quoted(report), *report["notes"]]:
        console.print(f"  note: {note}")


def page(report: dict[str, Any]) -> str:
    """Returns the report as an HTML page; without matplotlib it has no timeline."""
    shares = [(name, Range(**share).percent()) for name, share in report["shares"].items()]
    steps = [(name, step) for name, step, _ in bars(report)]
    parts = [charts.paragraph(report["sentence"]), charts.paragraph(confidence(report))]
    if report["advice"]:
        parts += [charts.heading("What to change"), charts.items(report["advice"])]
    parts += [charts.heading("Where the time goes"), charts.table(("share", "of a step"), shares)]
    parts += [charts.heading("A step"), charts.table(("batches", "mean time"), steps)]
    parts.append(charts.heading("Timeline"))
    if charts.is_available():
        parts.append(charts.grid([_timeline(rank) for rank in report["ranks"]]))
    else:
        parts.append(charts.paragraph(charts.MISSING))
    parts += [charts.paragraph(note) for note in [*quoted(report), *report["notes"]]]
    machine = host.sentence(host.describe())
    parts.append(charts.paragraph(f"Measured {host.now()} on {machine}.", note=True))
    return charts.page(f"fastload doctor: {report['verdict']}", parts)


def _timeline(rank: dict[str, Any]) -> str:
    """Draws a row per phase, from its first step."""
    phases = [name for name in PHASES if any(step[0] == name for step in rank["timeline"])]

    def draw(axes: Any) -> None:
        for row, phase in enumerate(phases):
            taken = [step[1:] for step in rank["timeline"] if step[0] == phase]
            first = taken[0][0]
            waits = [(start - first, wait) for start, wait, _ in taken]
            own = [(start - first + wait, step - wait) for start, wait, step in taken]
            axes.broken_barh(own, (row - 0.35, 0.7), color=charts.COLORS[0], lw=0, label="the step")
            axes.broken_barh(
                waits, (row - 0.35, 0.7), color=charts.COLORS[1], lw=0, label="waiting"
            )
        axes.set_yticks(range(len(phases)), [_NAMES[phase] for phase in phases])
        axes.invert_yaxis()
        axes.set_xlabel("ms since the first step of the phase")
        above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "frameon": False}
        axes.legend(*_first_of_each(axes), fontsize="small", ncols=2, **above)

    return charts.chart(draw, f"Timeline of rank {rank['rank']}", height=0.9 + 0.5 * len(phases))


def _first_of_each(axes: Any) -> tuple[list[Any], list[str]]:
    handles, labels = axes.get_legend_handles_labels()
    return handles[:2], labels[:2]
