"""The command `fastload verify`."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from fastload.cli.arguments import add_raw
from fastload.cli.text import count, printable, readable
from fastload.formats import strict_json
from fastload.formats.verify import VerifyReport, verify

_LINE_SECONDS = 5.0
_DAMAGED = 1  # the exit code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    add("path", metavar="PATH", help="a packed folder, a shard, or anything that FastLoader reads")
    levels = parser.add_mutually_exclusive_group()
    levels.add_argument(
        "--quick",
        action="store_true",
        help="check sizes, headers, bounds and the manifest, without reading data (default)",
    )
    levels.add_argument(
        "--full", action="store_true", help="also compare all data with their checksums"
    )
    add_raw(parser)
    add("--threads", type=int, metavar="N", help="number of threads (default: one per CPU core)")
    add("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints what is damaged; returns 0 if nothing is, else 1."""
    start = time.monotonic()
    show = _Display()
    try:
        report = verify(
            arguments.path,
            full=arguments.full,
            dtype=arguments.dtype,
            shape=arguments.shape,
            threads=arguments.threads,
            progress=show,
        )
    finally:
        show.close()
    write = sys.stdout.write
    if arguments.json:
        write(strict_json.dumps(_in_json(report), indent=1) + "\n")
        return 0 if report.ok else _DAMAGED
    for problem in report.problems:
        write(printable(str(problem)) + "\n")
    checked = {
        "full": "every byte was compared with its checksum",
        "quick": "sizes, headers and bounds were checked; --full compares every byte",
        "sizes": "without checksums, only sizes and headers were checked; `pack` adds them",
    }[report.level]
    verdict = "no damage found" if report.ok else count(len(report.problems), "problem")
    files, took = count(report.files, "file"), time.monotonic() - start
    write(f"{verdict} in {files}, {readable(report.bytes)}, in {took:.1f} s: {checked}\n")
    return 0 if report.ok else _DAMAGED


class _Display:
    """Prints progress to stderr: in one line on a terminal, else a new line now and then."""

    def __init__(self) -> None:
        self._start = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown < (0.1 if self._terminal else _LINE_SECONDS):
            return
        self._shown = now
        speed = readable(int(done / max(now - self._start, 1e-3)))
        text = f"{readable(done)} of {readable(total)}, {speed}/s"
        sys.stderr.write(f"\r{text}\x1b[K" if self._terminal else f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Clears the progress line."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")


def _in_json(report: VerifyReport) -> dict[str, Any]:
    return {
        "path": report.path,
        "level": report.level,
        "ok": report.ok,
        "files": report.files,
        "bytes": report.bytes,
        "problems": [
            {
                "file": problem.file,
                "what": problem.what,
                "block": problem.block,
                "bytes": problem.span,
                "rows": problem.rows,
            }
            for problem in report.problems
        ],
    }
