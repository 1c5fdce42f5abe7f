"""The command `fastload append`."""

from __future__ import annotations

import argparse

from fastload.cli import arguments as shared
from fastload.cli.writing import write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    shared.add_source(parser)
    parser.add_argument("dataset", metavar="DATASET", help="packed dataset to extend")
    shared.add_selection(parser)
    shared.add_writing(parser)
    parser.add_argument("--split", metavar="NAME", help="split of the new samples")


def run(arguments: argparse.Namespace) -> int:
    """Appends; returns the exit code."""
    from fastload.packing.grow import append

    return write("now {rows} in {shards}", arguments, arguments.dataset, append)
