"""A report of the doctor, on a terminal and as a page."""

from __future__ import annotations

from typing import Any

from fastload import nvml, svg
from fastload.doctor.phases import PHASES

_NAMES = {
    "real": "real batches",
    "cached": "cached on the host",
    "device": "cached on the device",
    "alone": "ranks alone",
}
_BAR = 40


def bars(report: dict[str, Any]) -> list[tuple[str, float, str]]:
    """For each phase its name, the time of a step in milliseconds, and a bar of it."""
    found = []
    for name in PHASES:
        phases = [r["phases"][name] for r in report["ranks"] if name in r["phases"]]
        if not phases:
            continue
        step = max(phase["step_ms"] for phase in phases)
        wait = max(phase["wait_ms"] for phase in phases) if name == "real" else 0.0
        full = round(_BAR * min(1.0, step / report["step_ms"]))
        waits = min(full, round(full * wait / step))
        found.append((_NAMES[name], step, "█" * (full - waits) + "░" * waits))
    return found


def quoted(report: dict[str, Any]) -> list[str]:
    """What NVML says of the GPUs, with what that means; empty where it says nothing."""
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
    for name, step, bar in bars(report):
        console.print(f"  {name:<21}{step:9.2f} ms |{bar:<{_BAR}}|")
    console.print(" " * 34 + "█ the step  ░ waiting for data")
    for advice in report["advice"]:
        console.print(f"  -> {advice}")
    for note in [*quoted(report), *report["notes"]]:
        console.print(f"  note: {note}")


def page(report: dict[str, Any]) -> str:
    """The report as a page of HTML."""
    shares = [(name, f"{share:.1%}") for name, share in report["shares"].items()]
    steps = [(name, f"{step:.2f}") for name, step, _ in bars(report)]
    parts = [svg.paragraph(report["sentence"])]
    if report["advice"]:
        items = "".join(svg.item(advice) for advice in report["advice"])
        parts += [svg.heading("What to change"), f"<ul>{items}</ul>"]
    parts += [svg.heading("Where the time goes"), svg.table(("share", "of a step"), shares)]
    parts += [svg.heading("A step"), svg.table(("batches", "ms"), steps)]
    parts += [svg.heading("Timeline"), svg.legend(("the step", "waiting for data"))]
    for rank in report["ranks"]:
        if len(report["ranks"]) > 1:
            parts.append(svg.paragraph(f"rank {rank['rank']}"))
        parts.append(svg.bands(_timeline(rank["timeline"])))
    parts += [svg.paragraph(note) for note in [*quoted(report), *report["notes"]]]
    return svg.page(f"fastload doctor: {report['verdict']}", parts)


def _timeline(steps: list[list[Any]]) -> list[tuple[str, list[tuple[float, float, int]]]]:
    """Each phase a row, from its first step on."""
    rows = []
    for name in PHASES:
        taken = [step[1:] for step in steps if step[0] == name]
        if not taken:
            continue
        begin, bars = taken[0][0], []
        for start, wait, step in taken:
            bars.append((start - begin, start - begin + wait, 1))
            bars.append((start - begin + wait, start - begin + step, 0))
        rows.append((name, bars))
    return rows
