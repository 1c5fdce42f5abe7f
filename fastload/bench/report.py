"""A measurement as a table for the terminal and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fastload import charts, host

_FEW_BATCHES = 50  # starting an epoch costs as much as some of them


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the table and what it comes to."""
    data, machine, warm, cold = (result[key] for key in ("data", "machine", "warm", "cold"))
    console.print(
        f"{data['samples']:,} samples of {data['sample_bytes']:,} bytes, "
        f"batches of {result['settings']['batch_size']}, shuffled; "
        f"{machine['cores']} cores of {machine['cpu']}"
    )
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for title in ("samples/s", "GB/s", "limit", "µs/batch", "next() µs", "1st ms"):
        table.add_column(title, justify="right", no_wrap=True)
    limit = warm["limit"]["samples_per_s"]
    for name, speed in _warm_rows(warm):
        share = f"{speed['samples_per_s'] / limit:.1%}"
        style = "bold" if name == "fastload" else ""
        table.add_row(name, *_rates(speed), share, *_times(speed), style=style)
    for name, speed in _cold_rows(cold):
        table.add_row(name, *_rates(speed), style="bold" if "fastload" in name else "")
    console.print(table)
    for line in _conclusions(result):
        console.print(line)


def _warm_rows(warm: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
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
    return f"{speed['samples_per_s']:,.0f}", f"{speed['bytes_per_s'] / 1e9:#.3g}"


def _times(speed: dict[str, float]) -> list[str]:
    names = ("batch_us", "next_us", "first_batch_ms")
    return [_short(speed[name]) if name in speed else "" for name in names]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _conclusions(result: dict[str, Any]) -> Iterator[str]:
    warm, cold = result["warm"], result["cold"]
    where = "warm (files in the page cache)"
    if not warm["in_page_cache"]:
        where = "with more data than memory, so partly from the disk"
    against = ""
    if "times_dataloader" in warm:
        best = _workers(warm["dataloader_workers"])
        against = f", {warm['times_dataloader']:.3g} times DataLoader at its best ({best})"
    yield f"fastload, {where}: {warm['of_limit']:.0%} of the machine's limit{against}."
    batches = result["data"]["samples"] // result["settings"]["batch_size"]
    if batches < _FEW_BATCHES:
        yield (
            f"An epoch has only {batches} full batch{'es' * (batches != 1)}: what is measured is "
            "mostly the start of epochs. More data, or a smaller --batch-size, shows the speed of "
            "loading."
        )
    if not warm["dataloader"]:
        yield "DataLoader was left out: its shuffle makes a Python list of all indices."
    if "skipped" in cold:
        yield f"No cold figures: {cold['skipped']}."
    else:
        yield "Cold: one epoch at most, right after the files were dropped from the page cache."
    yield "Limit: threads that only gather these samples. 1st: from opening to the first batch."
    yield (
        "next(): what a consumer waits that is slower than the loader. The table compares medians, "
        "the sentences medians of the ratios within a round."
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Draws GB/s of every contender into an image file.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
        ValueError: it draws no such files.
    """
    footer = f"{result['date']}, {host.sentence(result['machine'])}"
    charts.save(path, [partial(_draw, result)], footer, height=1.2 + 0.35 * len(_bars(result)))


def _bars(result: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    return [*_warm_rows(result["warm"]), *_cold_rows(result["cold"])]


def _draw(result: dict[str, Any], axes: Any) -> None:
    rows = _bars(result)
    colors = [charts.COLORS[1] if name.startswith("fastload") else "#888888" for name, _ in rows]
    bars = axes.barh(
        [name for name, _ in rows], [s["bytes_per_s"] / 1e9 for _, s in rows], color=colors
    )
    axes.bar_label(bars, [_rates(speed)[1] for _, speed in rows], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    data, batch_size = result["data"], result["settings"]["batch_size"]
    axes.set_title(
        f"{data['samples']:,} samples of {data['sample_bytes']:,} bytes, batches of {batch_size}"
    )
    axes.set_xlabel("GB/s")
