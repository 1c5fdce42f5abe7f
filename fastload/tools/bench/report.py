"""Prints a measurement as a table, and draws it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fastload.tools import charts
from fastload.tools.measured import Range, duration, number
from fastload.training import host

_BUSY = 0.15  # share of the CPUs, used by other processes
_FEW_BATCHES = 50  # starting an epoch costs as much as some of them


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the table and its summary."""
    data, machine, warm, cold = (result[key] for key in ("data", "machine", "warm", "cold"))
    console.print(
        f"{data['samples']:,} samples of {data['sample_bytes']:,} bytes, "
        f"batches of {result['settings']['batch_size']}, shuffled; "
        f"{machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}, {result['date']}"
    )
    fields = "; ".join(f"{_shown(name)}: {what}" for name, what in result["delivers"].items())
    console.print(f"Both sides deliver {fields}.", markup=False, highlight=False)
    limit = warm["limit"]
    titles = ["samples/s", "GB/s", *(["of limit"] if limit else []), "batch", "next()", "1st batch"]
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for name, speed in _warm_rows(warm):
        share = [_percent(speed["samples_per_s"] / limit["samples_per_s"])] if limit else []
        style = "bold" if name == "fastload" else ""
        table.add_row(name, *_rates(speed), *share, *_times(speed), style=style)
    for name, speed in _cold_rows(cold):
        table.add_row(name, *_rates(speed), style="bold" if "fastload" in name else "")
    console.print(table)
    for line in _conclusions(result):
        console.print(line)


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)


def _warm_rows(warm: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    if warm["limit"]:
        yield f"limit, {warm['limit']['threads']} threads", warm["limit"]
    yield "fastload", warm["fastload"]
    for workers, speed in warm["dataloader"].items():
        yield f"DataLoader, {_workers(workers)}", speed


def _cold_rows(cold: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    if "fastload" in cold:
        yield "fastload, cold", cold["fastload"]
    if "dataloader" in cold:
        yield f"DataLoader, {cold['dataloader_workers']}, cold", cold["dataloader"]


def _workers(count: int | str) -> str:
    return f"{count} worker" if int(count) == 1 else f"{count} workers"


def _rates(speed: dict[str, float]) -> tuple[str, str]:
    return number(speed["samples_per_s"]), number(speed["bytes_per_s"] / 1e9)


def _percent(share: float) -> str:
    return f"{number(100 * share, 2)} %"


def _times(speed: dict[str, float]) -> list[str]:
    names = {"batch_us": 1e-6, "next_us": 1e-6, "first_batch_ms": 1e-3}
    return [duration(unit * speed[name]) if name in speed else "" for name, unit in names.items()]


def _ratio(ratios: dict[str, float]) -> Range:
    return Range(ratios["low"], ratios["high"])


def _conclusions(result: dict[str, Any]) -> Iterator[str]:
    warm, cold, rounds = result["warm"], result["cold"], result["settings"]["rounds"]
    where = "Warm (files in the page cache)"
    if not warm["in_page_cache"]:
        where = "Partly from the disk (the data do not fit into memory)"
    found = []
    if "of_limit" in warm:
        found.append(f"{_ratio(warm['of_limit']).percent()} of the machine's limit")
    if "times_dataloader" in warm:
        best = _workers(warm["dataloader_workers"])
        ratio = _ratio(warm["times_dataloader"]).text()
        found.append(f"{ratio} times DataLoader at its best ({best})")
    yield f"{where}, fastload reaches {', '.join(found) or 'the speed in the table'}."
    if "times_dataloader" in cold:
        ratio = _ratio(cold["times_dataloader"]).text()
        yield f"Cold (not in the page cache, at most one epoch): {ratio} times DataLoader."
    elif "skipped" in cold:
        yield f"No cold figures: {cold['skipped']}."
    yield from _cautions(result)
    if not warm["dataloader"]:
        yield "DataLoader was not measured: its shuffle creates a Python list of all indices."
    else:
        yield (
            "DataLoader's dataset maps the same files, and its __getitem__ copies each sample as a "
            "numpy array" + ("; images are decoded by Pillow." if warm["limit"] is None else ".")
        )
    yield (
        f"Ratios: minimum and maximum of {rounds} interleaved round{'s' * (rounds != 1)}; the "
        f"table has medians. GB/s: with {result['data']['sample_bytes']:,} bytes a sample."
        + (" Limit: threads that only gather these samples." if warm["limit"] else "")
    )
    yield (
        "next(): median wait of a consumer that is slower than the loader. 1st batch: time from "
        "opening to the first batch."
    )


def _cautions(result: dict[str, Any]) -> Iterator[str]:
    """Yields reasons why the figures may be inaccurate."""
    batches = result["data"]["samples"] // result["settings"]["batch_size"]
    if batches < _FEW_BATCHES:
        yield (
            f"An epoch has only {batches} full batch{'es' * (batches != 1)}: the figures "
            "mostly measure the start of epochs. Use more data or a smaller --batch-size."
        )
    others, average = result["load"]["others"], result["load"]["load_average"]
    if others is None:
        yield "The load of the machine is unknown."
    else:
        busy = ": figures are too low, and ratios are uncertain" if others >= _BUSY else ""
        yield (
            f"Other processes used {others:.0%} of the CPUs meanwhile (load average "
            f"{number(average, 2)}){busy}."
        )
    if result["settings"]["rounds"] < 2:
        yield "One round shows no spread; omit --quick for reliable ratios."


def plot(result: dict[str, Any], path: Path) -> None:
    """Draws the speed of every contender into an image file: GB/s, or samples/s of images.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the suffix.
    """
    footer = f"{result['date']}, {host.sentence(result['machine'])}"
    charts.save(path, [partial(_draw, result)], footer, height=1.2 + 0.35 * len(_bars(result)))


def _bars(result: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    return [*_warm_rows(result["warm"]), *_cold_rows(result["cold"])]


def _draw(result: dict[str, Any], axes: Any) -> None:
    rows = _bars(result)
    is_decoded = result["warm"]["limit"] is None
    figure, size, unit = ("samples_per_s", 1.0, "samples/s")
    if not is_decoded:
        figure, size, unit = ("bytes_per_s", 1e9, "GB/s")
    speeds = [speed[figure] / size for _, speed in rows]
    colors = [charts.COLORS[1] if name.startswith("fastload") else "#888888" for name, _ in rows]
    bars = axes.barh([name for name, _ in rows], speeds, color=colors)
    axes.bar_label(bars, [number(speed) for speed in speeds], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    data, batch_size = result["data"], result["settings"]["batch_size"]
    axes.set_title(
        f"{data['samples']:,} samples of {data['sample_bytes']:,} bytes, batches of {batch_size}"
        + (", images decoded" if is_decoded else ""),
        fontsize="medium",
    )
    axes.set_xlabel(unit)
