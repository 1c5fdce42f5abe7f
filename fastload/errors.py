"""The exceptions fastload adds to Python's own, and how it warns."""

from __future__ import annotations

import inspect
import os
import stat
import warnings

_PASSED_OVER = ("fastload", "torch", "contextlib")


class FormatError(ValueError):
    """A file is not what it says it is.

    The message names the file, the field and, where there is one, the sample, and says what to do.

    Example:
        >>> import fastload
        >>> issubclass(fastload.FormatError, ValueError)
        True
    """

    __module__ = "fastload"


def refuse_pipe(path: str | os.PathLike[str]) -> None:
    """Raises FormatError for a pipe or a socket: opening it would wait for another process.

    Other paths pass, also those that do not exist: opening them raises its own error.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        what = "a pipe" if stat.S_ISFIFO(mode) else "a socket"
        raise FormatError(f"{os.fspath(path)}: {what} where a file is needed")


def add_note(error: BaseException, note: str) -> None:
    """Adds to what an error says: a note, or before Python 3.11 in its message."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.args = (" ".join(map(str, (*error.args, f"({note})"))),)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns of the line that led here: the nearest that is none of fastload's or torch's."""
    frame, level = inspect.currentframe(), 1
    while frame and str(frame.f_globals.get("__name__")).split(".")[0] in _PASSED_OVER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


class StoppedError(RuntimeError):
    """An iterator was used after it was stopped, or in a process forked from its owner.

    Example:
        >>> import fastload
        >>> issubclass(fastload.StoppedError, RuntimeError)
        True
    """

    __module__ = "fastload"


class CudaError(RuntimeError):
    """The CUDA driver cannot be used, or one of its calls failed.

    After some errors a device is lost to the process: then every loader that uses it raises this
    one. CUDA reports errors late; it may come from a kernel that is none of fastload's.

    Example:
        >>> import fastload
        >>> issubclass(fastload.CudaError, RuntimeError)
        True
    """

    __module__ = "fastload"
