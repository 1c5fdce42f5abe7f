"""The command `fastload pack`."""

from __future__ import annotations

import argparse
import os
import shutil
from typing import TYPE_CHECKING

from fastload.cli import arguments as shared
from fastload.cli.text import count, printable, readable
from fastload.cli.writing import console, print_input, write

if TYPE_CHECKING:
    from fastload.packing import PackReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    shared.add_source(parser)
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    shared.add_selection(parser)
    shared.add_splits(parser)
    shared.add_writing(parser)
    add = parser.add_argument
    add("--overwrite", action="store_true", help="replace the packed dataset in OUT")
    add("--dry-run", action="store_true", help="write nothing; print what would be written")


def run(arguments: argparse.Namespace) -> int:
    """Packs; returns the exit code."""
    from fastload.packing import pack

    if arguments.dry_run:
        options = shared.given(arguments)
        shared.engine(options)  # no executor is needed
        return _show(pack(**options))
    return write("packed {rows} into {shards}", arguments, arguments.out, pack)


def _show(report: PackReport) -> int:
    screen = console()
    print_input(report)
    for notice in report.notices:
        screen.print(printable(notice))
    for field in report.fields:
        screen.print(printable(f"{field.name}: {field}"))
    for name, (start, stop) in report.splits.items():
        screen.print(printable(f"split {name}: {count(stop - start, 'row')}, from row {start:,}"))
    folder = report.path
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    screen.print(
        f"would write {count(report.rows, 'row')} into {count(report.shards, 'shard')}, "
        f"{readable(report.bytes)}; {readable(free)} are free"
    )
    if report.bytes > free:
        screen.print("that is not enough room")
    return 0
