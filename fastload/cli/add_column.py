"""The command `fastload add-column`."""

from __future__ import annotations

import argparse

from fastload.cli import arguments as shared
from fastload.cli.writing import write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("dataset", metavar="DATASET", help="packed dataset to extend")
    shared.add_source(parser)
    shared.add_selection(parser)
    shared.add_writing(parser)
    parser.add_argument("--name", help="name of the new field (default: name of the file)")


def run(arguments: argparse.Namespace) -> int:
    """Adds fields; returns the exit code."""
    from fastload.packing.grow import add_column

    return write("now {rows} in {shards}", arguments, arguments.dataset, add_column)
