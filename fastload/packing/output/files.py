"""Atomic file writes: after a crash, a file is complete or does not exist."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

TEMPORARY_PREFIX = ".tmp-"


@contextlib.contextmanager
def new_file(path: str) -> Iterator[int]:
    """Yields a descriptor to write to; the file appears at `path` when the block succeeds.

    The data is written to a temporary file in the same folder, flushed to the disk, and renamed to
    `path`; an existing file is replaced.

    Raises:
        OSError: the file cannot be written; the error names `path`, and the temporary file is
            removed.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{os.getpid()}-{name}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666)
        try:
            try:
                yield descriptor
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        if error.filename not in (None, temporary):  # an error about another file
            raise
        raise OSError(error.errno, error.strerror, path) from error


def write_all(descriptor: int, data: memoryview) -> None:
    """Writes all bytes at the current offset."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync_folder(path: str) -> None:
    """Flushes the entries of a folder to the disk.

    Raises:
        OSError: the folder cannot be opened or flushed; names the folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with errors_name(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def errors_name(path: str) -> Iterator[None]:
    """Adds `path` to an OSError of a descriptor, which names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, path) from error
