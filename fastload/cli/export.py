"""The command `fastload export`."""

from __future__ import annotations

import argparse

from fastload.cli.text import count, printable, readable
from fastload.cli.writing import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    add("dataset", metavar="DATASET", help="anything that FastLoader reads")
    add("out", metavar="OUT", help="the folder to write; a file for parquet")
    add("--to", required=True, choices=("npy", "tar", "parquet"), help="what to write")
    add("--split", metavar="NAME", help="one split of a packed dataset")


def run(arguments: argparse.Namespace) -> int:
    """Exports; returns the exit code."""
    from fastload.pack.export import export

    screen = console()
    with screen.status("") as status:
        report = export(
            arguments.dataset,
            arguments.out,
            to=arguments.to,
            split=arguments.split,
            progress=lambda rows, total: status.update(f"{rows:,} of {total:,} rows"),
        )
    for notice in report.notices:
        screen.print(printable(notice))
    files = count(len(report.files), "file")
    screen.print(f"wrote {count(report.rows, 'row')} into {files}, {readable(report.bytes)}")
    return 0
