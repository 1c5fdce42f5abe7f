"""Formats messages, counts and sizes for the terminal."""

from __future__ import annotations

import io
import os
import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


_FAILING = ("strict", "surrogateescape")  # the latter in the C locale


def write_all_text() -> None:
    """Makes stdout and stderr escape characters that their encoding lacks (ASCII locales)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _FAILING:
            stream.reconfigure(errors="backslashreplace")


def complain(message: str, code: int) -> int:
    """Prints a one-line message to stderr; returns `code`."""
    sys.stderr.write(f"fastload: {printable(message)}\n")
    return code


def explained(error: BaseException) -> str:
    """Returns the message of an error, with its path."""
    if isinstance(error, OSError):
        path = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return f"error: {path}{error.strerror or error}"
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return f"error: {text or type(error).__name__}"


def printable(text: str) -> str:
    """Returns the text in one line, with unprintable characters escaped."""
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(escaped)


def count(number: int, one: str, many: str = "") -> str:
    """Returns a count with its noun, such as `2 rows`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def readable(size_bytes: int) -> str:
    """Returns a size in bytes, KiB, MiB, GiB or TiB."""
    size, unit = float(size_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "bytes" else count(size_bytes, "byte")
