"""Runs a command that writes a dataset, with progress, summary and advice for resuming."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fastload.cli.arguments import engine, given
from fastload.cli.text import INTERRUPTED, complain, count, explained, printable, readable

if TYPE_CHECKING:
    from rich.console import Console

    from fastload.packing import PackReport

SKIPPED = 3


def console() -> Console:
    """Returns a console on stderr without markup and highlighting."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, markup=False, highlight=False)


def write(
    done: str, arguments: argparse.Namespace, out: str, function: Callable[..., PackReport]
) -> int:
    """Calls a function that packs, and prints its report; returns the exit code.

    Args:
        done: Summary with `{rows}` and `{shards}`.
        arguments: Arguments of the command.
        out: The output folder.
        function: Called with the arguments and a progress display.
    """
    from fastload.packing.jobs.engines import connected
    from fastload.packing.progress import ProgressDisplay

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for module:object, as `python -m` does
    start = time.monotonic()
    options = given(arguments)
    where = engine(options)
    display = ProgressDisplay(console())
    try:
        with display, connected(**where) as executor:  # later output is printed below the bar
            if executor is not None:
                options["executor"] = executor
            report = function(**options, progress=display)
    except KeyboardInterrupt:
        return complain(f"interrupted{_resume_advice(out, arguments.words)}", INTERRUPTED)
    except FileExistsError as error:  # its message has the advice
        return complain(explained(error), 1)
    except (OSError, RuntimeError, MemoryError) as error:
        return complain(f"{explained(error)}{_resume_advice(out, arguments.words)}", 1)
    return print_report(done, report, f"{time.monotonic() - start:.1f} s: {display.pace}")


def print_report(done: str, report: PackReport, took: str) -> int:
    """Prints rows, shards, size and duration; returns the exit code."""
    from fastload.packing.convert import COMPLETE

    screen = console()
    print_input(report)
    for notice in report.notices:
        screen.print(printable(notice))
    for skipped in report.skipped:
        screen.print(printable(f"skipped {skipped.path}: {skipped.reason}"))
    for line in _about_missing(report):
        screen.print(printable(line))
    rows, shards = count(report.rows, "row"), count(report.shards, "shard")
    size = readable(report.bytes)
    if COMPLETE in report.notices:
        screen.print(f"{rows} in {shards}, {size}")
    else:
        screen.print(f"{done.format(rows=rows, shards=shards)}, {size}, in {took}")
    if not report.skipped:
        return 0
    skipped_count = count(len(report.skipped), "bad input")
    return complain(f"{skipped_count} left out; the manifest lists them", SKIPPED)


def print_input(report: PackReport) -> None:
    """Prints the detected kind of the input, and the files that were not read."""
    screen = console()
    if report.reason:
        screen.print(printable(f"read as {report.kind}: {report.reason}"))
    for of in report.leftovers:
        files = count(of.count, "file")
        screen.print(printable(f"not read: {files}, such as {of.paths[0]}: {of.reason}"))


def _about_missing(report: PackReport) -> Iterator[str]:
    """Yields lines about samples with missing values."""
    if report.dropped_rows:
        yield f"left out {count(report.dropped_rows, 'row')} with missing values:"
    for name, rows in report.dropped.items():
        yield f"  {name} is missing in {count(rows, 'row')}"
    for name, rows in report.filled.items():
        yield f"filled in missing values of {name} in {count(rows, 'row')}"


def _resume_advice(out: str, words: list[str]) -> str:
    from fastload.packing.output.folder import unfinished

    if (shards := unfinished(out)) is None:
        return ""
    kept = [word for word in words if word not in ("--overwrite", "--resume")]
    command = shlex.join(["fastload", *kept, "--resume"])
    return f"; {shards[0]} of {shards[1]} shards are written; to continue: {command}"
