"""The command `fastload`.

Exit codes: 0 success; 1 failure, with one line that gives the reason; 2 wrong usage; 3 packed, but
some inputs were skipped; 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from fastload.cli.text import INTERRUPTED, complain, explained, write_all_text

Run = Callable[[argparse.Namespace], int]

# Module and help of each command; the module is imported when the command is called.
_COMMANDS = {
    "pack": ("fastload.cli.pack", "convert a dataset into a folder of shards"),
    "info": ("fastload.cli.info", "show fields, size and splits of a dataset"),
    "head": ("fastload.cli.head", "show the first samples of a dataset"),
    "append": ("fastload.cli.append", "add samples to a packed dataset"),
    "add-column": ("fastload.cli.add_column", "add fields to the samples of a packed dataset"),
    "merge": (
        "fastload.cli.merge",
        "merge packed datasets into one, with hard links where possible",
    ),
    "export": ("fastload.cli.export", "write a dataset as .npy, tar or Parquet files"),
    "verify": ("fastload.cli.verify", "check a dataset for damage"),
    "bench": (
        "fastload.cli.bench",
        "measure the loading speed of a dataset, compared with DataLoader and the machine",
    ),
    "doctor": ("fastload.cli.doctor", "find out why a training script or its data are slow"),
    "report": ("fastload.cli.report", "compare training runs by their logs"),
    "demo": (
        "fastload.tools.demo",
        "pack a small dataset and train on it with DataLoader and FastLoader",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code.

    Args:
        arguments: Without the program's name; None takes those of the process.

    Raises:
        SystemExit: help was requested, or the usage is wrong.

    Example:
        >>> main(["info", "data/train"])  # doctest: +SKIP
        0
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser, run = _parser(next((word for word in words if not word.startswith("-")), ""))
    parsed = parser.parse_args(words)
    parsed.words = words
    write_all_text()
    try:
        return run(parsed)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ImportError,
        RuntimeError,
        MemoryError,
    ) as error:
        return complain(explained(error), 1)


def _parser(command: str) -> tuple[argparse.ArgumentParser, Run]:
    """Returns a parser with the arguments of one command; others would import their modules."""
    parser = argparse.ArgumentParser(
        prog="fastload", description="A data loading engine for PyTorch."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser
    )
    parsers = {
        name: subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for name, (_, text) in _COMMANDS.items()
    }
    if command not in parsers:
        return parser, lambda _: 2
    module = import_module(_COMMANDS[command][0])
    module.add_arguments(parsers[command])
    return parser, module.run


class _CommandParser(argparse.ArgumentParser):
    """Parser that accepts options anywhere, as in `head DATASET --split val 1`."""

    _is_mixing = False
    _takes_rest = False

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Extends argparse: options of another program's command line are not parsed."""
        self._takes_rest |= options.get("nargs") == argparse.REMAINDER
        return super().add_argument(*names, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Extends argparse, which accepts no option between optional positional arguments."""
        if self._is_mixing or self._takes_rest:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True  # before Python 3.12 the mixed parser calls this one
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from fastload import _core

        sys.stdout.write(f"fastload {_core.__version__}\n")
        parser.exit()
