"""The command `fastload report`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from fastload.cli.arguments import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    add(
        "logs",
        nargs="+",
        metavar="[NAME=]LOG",
        help="written by fastload.watch or TrainStep(log=), each by one rank; the first one is "
        "what others are compared with",
    )
    add("--html", type=output, metavar="FILE", help="write a page with the curves of all runs")
    add("--plot", type=output, metavar="FILE", help="draw them: x.png, x.pdf, ...")
    add("--json", action="store_true", help="print the table as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table and writes the files asked for; returns the exit code."""
    from fastload import runs

    found = []
    for log in arguments.logs:
        name, sign, path = log.partition("=")
        found.append(runs.Run(path, name) if sign and not Path(log).exists() else runs.Run(log))
    if arguments.json:
        summaries = {run.name: run.summary() for run in found}
        sys.stdout.write(json.dumps(summaries, indent=1) + "\n")
    else:
        _show(*runs.table(found))
    if arguments.html:
        arguments.html.write_text(runs.page(found))
    if arguments.plot:
        runs.plot(found, arguments.plot)
    return 0


def _show(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fastload.cli.text import printable

    table = Table(titles[0])
    for title in titles[1:]:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(soft_wrap=True).print(table)
