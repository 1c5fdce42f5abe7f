"""The command `fastload doctor`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fastload.cli.arguments import output
from fastload.formats import strict_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    add("--steps", type=int, default=40, metavar="N", help="steps per phase (default: 40)")
    add("--json", action="store_true", help="print all figures as JSON")
    add("--html", type=output, metavar="FILE", help="write a page with the timeline of a script")
    add("path", metavar="SCRIPT|PATH", help="training script (.py), or dataset")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")


def run(arguments: argparse.Namespace) -> int:
    """Examines a script or data and prints the report; returns the exit code.

    Raises:
        ValueError: arguments do not fit what is examined.
    """
    if arguments.steps < 1:
        raise ValueError(f"--steps must be at least 1, not {arguments.steps}")
    if not arguments.path.endswith(".py"):
        return _check_data(arguments)
    from fastload.tools.doctor import show
    from fastload.tools.doctor.phases import Probe
    from fastload.tools.doctor.script import examine

    report = examine(arguments.path, arguments.arguments, Probe(arguments.steps))
    if report is None:  # rank 0 has it
        return 0
    _put(report, arguments, show.show)
    if arguments.html:
        arguments.html.write_text(show.page(report), encoding="utf-8")
    return 0


def _check_data(arguments: argparse.Namespace) -> int:
    from fastload.tools.doctor import data

    if arguments.arguments or arguments.html:
        raise ValueError(
            "data have no timeline for --html, and nothing may stand behind their path"
        )
    _put(data.check(arguments.path), arguments, data.show)
    return 0


def _put(report: dict[str, Any], arguments: argparse.Namespace, show: Any) -> None:
    if arguments.json:
        sys.stdout.write(strict_json.dumps(report, indent=1) + "\n")
    else:
        show(report)
