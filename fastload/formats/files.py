"""Paths, listings and first bytes of files, for all formats."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

from fastload.errors import FormatError
from fastload.formats.extents import FileSource

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Paths = AnyPath | Sequence[AnyPath]


def absolute(path: AnyPath) -> str:
    """The path as str, made absolute but otherwise as given: `..` may follow a symlink."""
    return os.path.join(os.getcwd(), os.fsdecode(path))


def absolute_paths(paths: Paths) -> str | list[str]:
    """One path, or a list of them for a sequence; all absolute."""
    if isinstance(paths, Sequence) and not isinstance(paths, (str, bytes)):
        return [absolute(path) for path in paths]
    return absolute(paths)


def natural_key(name: str) -> tuple[object, ...]:
    """A sort key that orders numbers by their value: 1, 2, 10."""
    parts = re.split(r"([0-9]+)", name)  # texts and numbers in turn
    return (*(int(part) if place % 2 else part for place, part in enumerate(parts)), name)


def identity_of(status: os.stat_result) -> tuple[int, int, int]:
    """What tells a file from another one that takes its name."""
    return status.st_dev, status.st_ino, status.st_mtime_ns


def file_source(path: AnyPath) -> FileSource:
    """The file at `path`, symlinks followed.

    Raises:
        OSError: with the path, if there is none or it may not be read.
        FormatError: it is not a regular file.
    """
    full = absolute(path)
    status = os.stat(full)
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise FormatError(f"{full}: {kind} where a data file is needed")
    with open(full, "rb"):  # now, rather than at the first batch
        return FileSource(full, status.st_size, identity=identity_of(status))


def list_files(folder: AnyPath) -> list[str]:
    """Absolute paths of the visible files in a folder, in natural order of their names."""
    full = absolute(folder)
    with os.scandir(full) as entries:
        names = [e.name for e in entries if not e.name.startswith(".") and not e.is_dir()]
    return [os.path.join(full, name) for name in sorted(names, key=natural_key)]


def suffix(path: str) -> str:
    """The lower-case suffix of a file name, with its dot."""
    return os.path.splitext(path)[1].lower()


def with_suffix(paths: Paths, wanted: str) -> list[str]:
    """The files meant by `paths`: one file, the files of a folder, or a sequence of files.

    Raises:
        FormatError: a folder holds no file with the suffix `wanted`, or the sequence is empty.
    """
    where = absolute_paths(paths)
    if not where:
        raise FormatError("no files: the sequence of paths is empty")
    if not isinstance(where, str):
        return where
    if not os.path.isdir(where):
        return [where]
    found = [path for path in list_files(where) if suffix(path) == wanted]
    if not found:
        raise FormatError(f"{where}: no {wanted} files in this folder")
    return found
