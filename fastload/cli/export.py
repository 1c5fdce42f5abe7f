"""The command `fastload export`."""

from __future__ import annotations

import argparse

from fastload.cli.arguments import add_raw
from fastload.cli.text import count, printable, readable
from fastload.cli.writing import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    add("dataset", metavar="DATASET", help="anything that FastLoader reads")
    add("out", metavar="OUT", help="folder to write; with --to parquet, the file")
    add("--to", required=True, choices=("npy", "tar", "parquet"), help="format of the files")
    add("--split", metavar="NAME", help="one split of a packed dataset")
    add_raw(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exports; returns the exit code."""
    from fastload.datasets.file_datasets import open as open_dataset
    from fastload.packing.export.export import export

    dataset = open_dataset(
        arguments.dataset, dtype=arguments.dtype, shape=arguments.shape, split=arguments.split
    )
    screen = console()
    with screen.status("") as status:
        report = export(
            dataset,
            arguments.out,
            to=arguments.to,
            progress=lambda rows, total: status.update(f"{rows:,} of {total:,} rows"),
        )
    for notice in report.notices:
        screen.print(printable(notice))
    files = count(len(report.files), "file")
    screen.print(f"wrote {count(report.rows, 'row')} into {files}, {readable(report.bytes)}")
    return 0
