"""How the commands put things for people."""

from __future__ import annotations

import io
import os
import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


_FAILING = ("strict", "surrogateescape")  # the latter in the C locale


def write_all_text() -> None:
    """Lets stdout and stderr write out what their encoding lacks, as in an ASCII locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _FAILING:
            stream.reconfigure(errors="backslashreplace")


def complain(message: str, code: int) -> int:
    """Says on stderr, in one line, why a command did not do all; gives the exit code."""
    sys.stderr.write(f"fastload: {printable(message)}\n")
    return code


def explained(error: BaseException) -> str:
    """What an error says, with the path it is about."""
    if isinstance(error, OSError):
        path = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return f"error: {path}{error.strerror or error}"
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return f"error: {text or type(error).__name__}"


def printable(text: str) -> str:
    """The text in one line, with what cannot be printed written out."""
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(escaped)


def count(number: int, one: str, many: str = "") -> str:
    """A number of things in words."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def readable(size_bytes: int) -> str:
    """A size in the unit that fits."""
    size, unit = float(size_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "bytes" else count(size_bytes, "byte")
