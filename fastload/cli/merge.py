"""The command `fastload merge`."""

from __future__ import annotations

import argparse
import time

from fastload.cli.writing import print_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    add("out", metavar="OUT", help="the folder to write")
    add("inputs", metavar="IN", nargs="+", help="packed datasets with the same fields")
    add("--overwrite", action="store_true", help="replace the packed dataset in OUT")


def run(arguments: argparse.Namespace) -> int:
    """Merges; returns the exit code."""
    from fastload.packing.merge import merge

    start = time.monotonic()
    report = merge(arguments.out, arguments.inputs, overwrite=arguments.overwrite)
    return print_report("merged {rows} into {shards}", report, f"{time.monotonic() - start:.1f} s")
