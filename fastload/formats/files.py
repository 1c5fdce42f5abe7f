"""Paths, listings and first bytes of files, for all formats."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence

from fastload.errors import FormatError
from fastload.formats.columns import FileSource

_SPECIAL = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_PSEUDO_SIZES = (0, 4096)  # that /proc and /sys report

# A URL; with one slash where pathlib made a path of it.
_URL = re.compile(
    r"([a-z][a-z0-9+.-]+(?=://)|(?:s3a?|gs|gcs|hf|https?|az|abfss?|hdfs|ftp|file|r2|oss)(?=:/))",
    re.IGNORECASE,
)

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Paths = AnyPath | Sequence[AnyPath]


def absolute(path: AnyPath) -> str:
    """The path as str, made absolute but otherwise as given: `..` may follow a symlink.

    Raises:
        ValueError: a remote path, such as "s3://bucket/key", or an empty one.
    """
    text = os.fsdecode(path)
    if not text:
        raise ValueError("the path is empty; '.' is the current folder")
    if (remote := _URL.match(text)) and not os.path.lexists(text):
        if remote[1].lower() == "file":
            raise ValueError(f"{text}: is a URL; give the path alone")
        raise ValueError(
            f"{text}: remote paths are not supported yet ({remote[1]}); copy the data to a local "
            "disk, or mount it"
        )
    return os.path.join(os.getcwd(), text)


def absolute_paths(paths: Paths) -> str | list[str]:
    """One path, or a list of them for a sequence; all absolute."""
    if isinstance(paths, Sequence) and not isinstance(paths, (str, bytes)):
        return [absolute(path) for path in paths]
    return absolute(paths)


def natural_key(name: str) -> tuple[object, ...]:
    """A sort key that orders numbers by their value: 1, 2, 10."""
    parts = re.split(r"([0-9]+)", name)  # texts and numbers in turn
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), name


def identity_of(status: os.stat_result) -> tuple[int, int, int]:
    """Returns device, inode and change time, which identify a file."""
    return status.st_dev, status.st_ino, status.st_mtime_ns


def special(status: os.stat_result) -> str:
    """Returns the type of a special file, such as "a pipe"; "" for a regular file."""
    if stat.S_ISREG(status.st_mode):
        return ""
    return next((what for test, what in _SPECIAL if test(status.st_mode)), "no regular file")


def file_source(path: AnyPath) -> FileSource:
    """The file at `path`, symlinks followed.

    Raises:
        OSError: with the path, if there is none or it may not be read.
        FormatError: it is not a regular file.
    """
    full = absolute(path)
    status = os.stat(full)
    if what := special(status):
        raise FormatError(f"{full}: {what} where a data file is needed")
    descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # not at the first batch
    try:
        if status.st_size in _PSEUDO_SIZES:
            _check_size(full, descriptor, status.st_size)
    finally:
        os.close(descriptor)
    return FileSource(full, status.st_size, identity=identity_of(status))


def _check_size(path: str, descriptor: int, size: int) -> None:
    """Raises FormatError for a file of /proc or /sys, whose size is not that of its content."""
    try:
        fits = bool(os.pread(descriptor, 1, size - 1)) if size else not os.pread(descriptor, 1, 0)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ESPIPE):  # those of streams of the kernel
            error.filename = path
            raise
        fits = False
    if not fits and os.fstat(descriptor).st_size == size:  # an ordinary file may grow meanwhile
        raise FormatError(
            f"{path}: its size is reported as {size} bytes, but its content is of another length, "
            "as in /proc and /sys; copy it to an ordinary file"
        )


def suffix(path: str) -> str:
    """The lower-case suffix of a file name, with its dot."""
    return os.path.splitext(path)[1].lower()
