"""Walks a folder once: every file, link and special file below it, hidden ones included."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fastload.errors import FormatError
from fastload.formats.files import Paths, absolute_paths, natural_key, special

_SYSTEM_FILES = frozenset(["thumbs.db", "ehthumbs.db", "desktop.ini"])

BROKEN_LINK = "a link whose target cannot be resolved"
"""How what such an entry is begins."""

_SPLIT = re.compile(r"(train|training|val|valid|validation|dev|eval|test|testing)[-_]?\d*", re.I)

LINK_ABOVE = "a link to a folder above"
"""What an entry is that would lead into a circle."""


class Entry(NamedTuple):
    """A file of a folder, or what stands in the place of one.

    Attributes:
        path: Below the folder that was walked.
        what: "" for a regular file; else "a pipe", "a socket", "a device", `LINK_ABOVE`, or
            `BROKEN_LINK` and the reason.
        hidden: True if its name, or that of a folder on its path, starts with a dot, or if it is a
            file that operating systems create.
    """

    path: str
    what: str
    hidden: bool

    @property
    def name(self) -> str:
        """Without its folders."""
        return self.path.rpartition("/")[2]


def sort_key(path: str) -> tuple[tuple[object, ...], ...]:
    """Orders paths naturally, folder by folder."""
    return tuple(map(natural_key, path.split("/")))


def walk(folder: str) -> Iterator[Entry]:
    """All entries below a folder but regular folders, in no particular order.

    Links to folders are followed, except to the folder itself and to those above it or above
    themselves: these would lead into a circle, and are entries.

    Raises:
        OSError: a folder cannot be read.
    """
    status = os.stat(folder)
    yield from _walk(folder, "", False, _above(folder) | {(status.st_dev, status.st_ino)})


def folders(folder: str) -> list[str]:
    """The names of the visible folders in a folder, links to folders included; sorted."""
    with os.scandir(folder) as found:
        names = [entry.name for entry in found if not entry.name.startswith(".")]
    return sorted(name for name in names if os.path.isdir(os.path.join(folder, name)))


def _above(folder: str) -> frozenset[tuple[int, int]]:
    found = set()
    path = os.path.realpath(folder)
    while (parent := os.path.dirname(path)) != path:
        path = parent
        try:
            status = os.stat(path)
        except OSError:  # no right to look at it, nor to link to it
            break
        found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def _walk(
    root: str, below: str, hidden: bool, above: frozenset[tuple[int, int]]
) -> Iterator[Entry]:
    inner: list[tuple[str, bool, int, int | None]] = []
    with os.scandir(os.path.join(root, below)) as found:
        for entry in found:
            path = f"{below}/{entry.name}" if below else entry.name
            is_hidden = hidden or entry.name.startswith(".")
            if entry.is_dir(follow_symlinks=False):
                inner.append((path, is_hidden, entry.inode(), None))
            elif entry.is_file(follow_symlinks=False):
                is_hidden = is_hidden or entry.name.lower() in _SYSTEM_FILES
                yield Entry(path, "", is_hidden)
            else:
                try:
                    status = os.stat(os.path.join(root, path))
                except OSError as error:
                    if error.errno == errno.ENOENT and not entry.is_symlink():
                        continue  # gone since the folder was listed
                    reason = os.strerror(error.errno or 0)
                    yield Entry(path, f"{BROKEN_LINK} ({reason})", is_hidden)
                    continue
                if not stat.S_ISDIR(status.st_mode):
                    yield Entry(path, special(status), is_hidden)
                elif (status.st_dev, status.st_ino) in above:
                    yield Entry(path, LINK_ABOVE, is_hidden)
                else:
                    inner.append((path, is_hidden, status.st_ino, status.st_dev))
    for path, is_hidden, inode, device in inner:
        if device is None:
            device = os.stat(os.path.join(root, path)).st_dev
        yield from _walk(root, path, is_hidden, above | {(device, inode)})


def data_files(folder: str, *suffixes: str) -> list[str]:
    """Absolute paths of the visible files below a folder that have one of the suffixes.

    They are in the natural order of their paths below the folder.

    Raises:
        FormatError: an entry of such a name is no file, there are packed datasets below, or the
            files lie in folders such as train and val.
        OSError: a folder cannot be read.
    """
    found, packed = [], []
    for entry in walk(folder):
        if below := packed_folder(entry):
            packed.append(below)
        if entry.hidden:
            continue
        if entry.name.lower().endswith(suffixes):
            if entry.what.startswith(BROKEN_LINK):
                os.stat(os.path.join(folder, entry.path))  # raises the system's error
            if entry.what:
                raise FormatError(f"{folder}/{entry.path}: {entry.what} where a file is needed")
            found.append(entry)
    check_not_above(folder, packed)
    above, splits = find_splits(of.path for of in found)
    if splits:
        where = os.path.join(folder, above) if above else folder
        raise FormatError(
            f"{where}: {' and '.join(splits)} look like splits of a dataset; take one of them"
        )
    return [os.path.join(folder, of.path) for of in sorted(found, key=lambda of: sort_key(of.path))]


def is_split(name: str) -> bool:
    """Returns True if a folder is named like a split of a dataset, such as "train"."""
    return _SPLIT.fullmatch(name) is not None


def find_splits(paths: Iterable[str]) -> tuple[str, list[str]]:
    """A folder in which files lie in several folders named as splits are, and these names.

    Args:
        paths: Paths of the files, below some folder.

    Returns:
        The path of the folder below that one, and two names or more; or "" and none.
    """
    inner: dict[str, set[str]] = {}
    for folder in {path.rpartition("/")[0] for path in paths}:
        while folder:
            above, _, name = folder.rpartition("/")
            inner.setdefault(above, set()).add(name)
            folder = above
    for above in sorted(inner):
        if len(splits := sorted(filter(is_split, inner[above]))) > 1:
            return above, splits
    return "", []


def packed_folder(entry: Entry) -> str:
    """The folder of the packed dataset, complete or not, that an entry is part of; else ""."""
    folder, _, name = entry.path.rpartition("/")
    if name == "fastload.json":
        return folder
    return folder.removesuffix("/.fastload") if folder.endswith("/.fastload") else ""


def check_not_above(folder: str, packed: list[str]) -> None:
    """Raises FormatError if there are packed datasets below a folder, naming them."""
    if packed:
        names = [os.path.join(folder, path) for path in sorted(set(packed), key=natural_key)]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise FormatError(
            f"{folder}: holds packed datasets: {', '.join(names[:3])}{more}; take one of them"
        )


def with_suffix(paths: Paths, wanted: str) -> list[str]:
    """The files meant by `paths`: one file, all files below a folder, or a sequence of files.

    Raises:
        FormatError: a folder holds no file with the suffix `wanted`, or the sequence is empty; or
            as `data_files`.
    """
    where = absolute_paths(paths)
    if not where:
        raise FormatError("no files: the sequence of paths is empty")
    if not isinstance(where, str):
        return where
    if not os.path.isdir(where):
        return [where]
    found = data_files(where, wanted)
    if not found:
        raise FormatError(f"{where}: no {wanted} files in this folder")
    return found
