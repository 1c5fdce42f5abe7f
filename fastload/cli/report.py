"""The command `fastload report`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fastload.cli.arguments import output
from fastload.cli.text import printable
from fastload.formats import strict_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    add(
        "logs",
        nargs="+",
        metavar="[NAME=]LOG",
        help="log of fastload.watch or TrainStep(log=); the others are compared with the first",
    )
    add("--html", type=output, metavar="FILE", help="write a page with tables and charts")
    add(
        "--plot",
        type=output,
        metavar="FILE",
        help="draw the charts into an image: x.png, x.pdf, ...",
    )
    add("--json", action="store_true", help="print the table as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table and writes the files that are requested; returns the exit code.

    Without matplotlib, only tables are printed and written, with advice for installing it.
    """
    from fastload.tools import charts
    from fastload.tools import report as runs
    from fastload.tools import report_charts as run_charts

    found: list[runs.Run] = []
    for log in arguments.logs:
        name, sign, path = log.partition("=")
        found.append(runs.Run(path, name) if sign and not Path(log).exists() else runs.Run(log))
    names = [run.name for run in found]
    for run, log in zip(found, arguments.logs, strict=True):
        if names.count(run.name) > 1 and "=" not in log:
            run.name = log  # files of the same name in different folders
    if len({run.name for run in found}) < len(found):
        raise ValueError("two runs have one name: give others as NAME=LOG")
    if arguments.json:
        summaries = {run.name: run.summary() for run in found}
        sys.stdout.write(strict_json.dumps(summaries, indent=1) + "\n")
    else:
        _show(*runs.table(found))
        for run in found:
            for note in run.notes():
                sys.stdout.write(printable(f"{run.name}: {note}") + "\n")
    if arguments.html:
        arguments.html.write_text(run_charts.page(found), encoding="utf-8")
    if not charts.is_available():
        stream = sys.stderr if arguments.json else sys.stdout
        stream.write(f"No charts: {charts.MISSING}\n")
        return int(arguments.plot is not None)
    if arguments.plot:
        run_charts.plot(found, arguments.plot)
    return 0


def _show(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(titles[0])
    for title in titles[1:]:
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(soft_wrap=True).print(table)
