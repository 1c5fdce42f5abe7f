"""Inventory of an input: which entries are read, refused or left over.

No input kind skips a file, link or archive member silently. An entry whose name matches the chosen
kind is read or refused; all other entries are reported with a reason.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastload.errors import FormatError
from fastload.formats.files import file_source
from fastload.formats.manifest import MAX_LEFTOVER_PATHS, Leftover
from fastload.formats.walk import (
    BROKEN_LINK,
    Entry,
    check_not_above,
    find_splits,
    folders,
    packed_folder,
    sort_key,
    walk,
)

HIDDEN = "hidden, or a file of the operating system"
IGNORED = "named by --ignore"
_EXCUSED = (HIDDEN, IGNORED)
_START_BYTES = 512
_SHOWN = 3  # paths in a message


@dataclass(frozen=True)
class Names:
    """File names that a kind reads in a folder, compared in lower case.

    Attributes:
        suffixes: Suffixes of names.
        names: Whole names.
        infix: Text that names contain.
        companions: Names of files that belong to such an input but hold no samples.
        nested: Files in subfolders are read, too; otherwise they are refused.

    Example:
        >>> Names((".csv",)).match("sub/A.CSV")
        True
    """

    suffixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    infix: str = ""
    companions: tuple[str, ...] = ()
    nested: bool = True

    def match(self, path: str) -> bool:
        """Returns whether the kind reads a file of this path."""
        name = path.rpartition("/")[2].lower()
        is_named = name in self.names or (bool(self.infix) and self.infix in name)
        return is_named or (bool(self.suffixes) and name.endswith(self.suffixes))

    def __str__(self) -> str:
        return " or ".join([*self.suffixes, *self.names, *([self.infix] if self.infix else [])])


NO_NAMES = Names()


class Inventory:
    """A file, or a folder with all its entries, found by one walk.

    The kind that reads the input reads all of `files`, except those that it passes to `leave` or
    `refuse`. `leftovers` returns all other entries.

    Args:
        path: Absolute path of the file or folder.
        given: Options of the user.
        ignore: Patterns of entries that are left out, as for --ignore.

    Attributes:
        path: Absolute path of the file or folder.
        given: Options of the user.
        is_folder: True for a folder.
        chosen: Paths below the folder that the chosen kind reads, unordered; set by `choose`.

    Raises:
        OSError: the path does not exist or cannot be read.
        FormatError: the path is a pipe, a socket or a device.

    Example:
        >>> os.makedirs("d", exist_ok=True)
        >>> for name in ("d/x2.csv", "d/x10.csv", "d/notes.txt"):
        ...     open(name, "w").close()
        >>> inventory = Inventory(os.path.abspath("d"), {})
        >>> inventory.choose("csv", Names((".csv",)))
        >>> [os.path.basename(file) for file in inventory.files]
        ['x2.csv', 'x10.csv']
        >>> [(left.reason, left.paths) for left in inventory.leftovers()]
        [('csv does not read files of this name', ('notes.txt',))]
    """

    def __init__(self, path: str, given: Mapping[str, Any], ignore: Iterable[str] = ()) -> None:
        self.path, self.given = path, given
        self.is_folder = os.path.isdir(path)
        self.chosen: list[str] = []
        self._patterns = _Patterns(ignore)
        self._left: dict[str, tuple[int, list[str]]] = {}
        self._kind, self._names = "", NO_NAMES
        self._also_read: set[str] = set()
        self._entries: list[Entry] = []
        self._hidden: list[Entry] = []
        self._excluded: list[Entry] = []
        self._packed: list[Entry] = []
        self._packed_folders: list[str] = []
        if not self.is_folder:
            file_source(path)
            return
        entries = list(walk(path))
        within = tuple({f"{folder}/" for of in entries if (folder := packed_folder(of))})
        for entry in entries:
            is_ignored = self._patterns.match(entry.path)
            if entry.hidden:
                self._hidden.append(entry)
            elif is_ignored:
                self._excluded.append(entry)
            elif within and entry.path.startswith(within):
                self._packed.append(entry)
            else:
                self._entries.append(entry)
        kept = {of.path for of in self._packed}
        self._packed_folders = [
            folder for of in entries if of.path in kept and (folder := packed_folder(of))
        ]

    # --- Entries ------------------------------------------------------------------------------

    @functools.cached_property
    def start(self) -> bytes:
        """First 512 bytes of a file; empty for a folder."""
        if self.is_folder:
            return b""
        with open(self.path, "rb") as file:
            return file.read(_START_BYTES)

    @property
    def root(self) -> str:
        """Folder that paths are relative to: the input, or the folder of the file."""
        return self.path if self.is_folder else os.path.dirname(self.path)

    @functools.cached_property
    def folders(self) -> list[str]:
        """Names of the visible folders in the folder, except those with only ignored entries."""
        ignored = {os.path.dirname(entry.path) for entry in self._excluded}
        kept = {entry.path.split("/")[0] for entry in self._entries}
        above = {entry.path for entry in self._entries if entry.what}
        names = [name for name in folders(self.path) if name not in above]
        return [name for name in names if name in kept or not _is_within(name, ignored)]

    @functools.cached_property
    def paths(self) -> frozenset[str]:
        """Paths of all visible entries below the folder."""
        return frozenset(entry.path for entry in self._entries)

    @functools.cached_property
    def ignored(self) -> frozenset[str]:
        """Paths of the visible entries that match `ignore`."""
        return frozenset(entry.path for entry in self._excluded)

    @functools.cached_property
    def broken(self) -> list[str]:
        """Paths of visible links whose targets cannot be resolved."""
        return [entry.path for entry in self._entries if entry.what.startswith(BROKEN_LINK)]

    @property
    def total(self) -> int:
        """Number of all entries of the folder, including hidden ones."""
        others = (self._hidden, self._excluded, self._packed)
        return len(self._entries) + sum(map(len, others))

    def holds(self, *suffixes: str) -> bool:
        """Returns whether the file, or a visible entry of the folder, has one of the suffixes."""
        if not self.is_folder:
            return self.path.lower().endswith(suffixes)
        return any(entry.path.lower().endswith(suffixes) for entry in self._entries)

    def absolute(self, path: str) -> str:
        """Returns the absolute path of an entry."""
        return os.path.join(self.path, path)

    def below(self, path: str) -> str:
        """Returns the path of a file relative to the folder; for a single file, its name."""
        return os.path.relpath(path, self.path) if self.is_folder else os.path.basename(path)

    def count(self, kinds: Mapping[str, Names]) -> dict[str, tuple[int, str]]:
        """Returns, for each kind that matches entries, their number and the first entry."""
        matches = _matcher(kinds)
        found: dict[str, tuple[int, str]] = {}
        for entry in self._entries:
            for kind in matches(entry.name):
                count, first = found.get(kind, (0, entry.path))
                found[kind] = count + 1, min(first, entry.path)
        return found

    # --- How entries are handled --------------------------------------------------------------

    def choose(self, kind: str, names: Names) -> None:
        """Sets `files` for the kind that reads the input.

        Raises:
            FormatError: an entry with a matching name cannot be read; or the kind would read files
                of a packed dataset; or the folder holds only packed datasets.
        """
        self._kind, self._names = kind, names
        if not self.is_folder:
            return
        found = [entry for entry in self._entries if names.match(entry.path)]
        if not found or any(names.match(entry.path) for entry in self._packed):
            self.refuse_packed()
        for entry in found:
            if entry.what:
                raise FormatError(
                    f"{self.absolute(entry.path)}: {entry.what}, but {kind} reads files of this "
                    "name; remove it, or leave it out by --ignore (ignore=)"
                )
        if not names.nested and (inner := [of.path for of in found if "/" in of.path]):
            where = sorted({os.path.dirname(path) for path in inner})
            shown = ", ".join(map(self.absolute, where[:_SHOWN]))
            files = "1 file of such a name lies"
            if len(inner) > 1:
                files = f"{len(inner)} files of such names lie"
            raise FormatError(
                f"{self.path}: {kind} does not read subfolders, but {files} in {shown}; pack one "
                "of these, or leave them out by --ignore (ignore=)"
            )
        self.chosen = [entry.path for entry in found]

    @property
    def files(self) -> list[str]:
        """Absolute paths of the files that the chosen kind reads, in natural order."""
        if not self.is_folder:
            return [self.path]
        return list(map(self.absolute, sorted(self.chosen, key=sort_key)))

    def need_files(self) -> list[str]:
        """Returns the files.

        Raises:
            FileNotFoundError: the folder has no files for the chosen kind.
        """
        if self.is_folder and not self.chosen:
            raise FileNotFoundError(f"{self.path}: no {self._names} files in this folder")
        return self.files

    def refuse_packed(self) -> None:
        """Raises FormatError if the folder contains packed datasets."""
        check_not_above(self.path, self._packed_folders)

    def need_folder(self) -> None:
        """Raises FormatError unless the input is a folder."""
        if not self.is_folder:
            raise FormatError(f"{self.path}: {self._kind} needs a folder")

    def check_splits(self, advice: str = "") -> None:
        """Raises FormatError if the files lie in folders such as train and val.

        Args:
            advice: Another option for the user, added to the message.
        """
        above, found = find_splits(self.chosen)
        if found:
            raise self.splits_error([os.path.join(above, name) for name in found], advice)

    def splits_error(self, found: Sequence[str], advice: str = "") -> FormatError:
        """Returns the error about folders that are splits of a dataset, given by their paths."""
        first, second = self.absolute(found[0]), self.absolute(found[-1])
        name = os.path.basename(second)
        more = f", then append {second} with --split {name}" if len(found) > 1 else ""
        verb = "look like splits" if len(found) > 1 else "looks like a split"
        return FormatError(
            f"{self.path}: {' and '.join(found)} {verb} of a dataset; pack {first}{more}"
            f"{'; ' if advice else ''}{advice}"
        )

    def leave(self, path: str, reason: str) -> None:
        """Records that an entry, or a member of an archive, is not read."""
        match, name = self._patterns.match, path.rpartition(": ")[2]
        self._note(path, IGNORED if match(path) or match(name) else reason)

    def not_read(self, paths: Sequence[str], reason: str) -> None:
        """Removes files from `files` and records why they are not read.

        Args:
            paths: Paths relative to the folder.
            reason: As for `leave`.
        """
        gone = set(paths)
        self.chosen = [path for path in self.chosen if path not in gone]
        for path in paths:
            self._note(path, reason)

    def also_read(self, paths: Iterable[str]) -> None:
        """Records that the kind reads entries whose names do not match.

        Args:
            paths: Paths relative to the folder; others are ignored.
        """
        self._also_read.update(paths)

    def refuse(self, paths: Collection[str], why: str) -> None:
        """Raises FormatError if there are entries that the kind should read but cannot.

        Args:
            paths: Paths relative to the folder.
            why: Reason why they are not read.
        """
        if paths:
            first = self.absolute(min(paths))
            count = "1 file" if len(paths) == 1 else f"{len(paths)} files"
            raise FormatError(
                f"{self.path}: {count} that {self._kind} should read, such as {first}: {why}; "
                "--ignore GLOB (ignore=) leaves them out"
            )

    def leftovers(self) -> tuple[Leftover, ...]:
        """Returns the entries that are not read: for each reason a count and some paths."""
        read = self._also_read
        names = self._names
        others = [of for of in self._entries if not names.match(of.path)]
        others = [of for of in others if of.name.lower() not in names.companions]
        unknown = f"{self._kind} does not read files of this name"
        left = [(of.path, of.what or unknown) for of in others]
        left += [(of.path, IGNORED) for of in self._excluded]
        left += [(of.path, HIDDEN) for of in self._hidden]
        left += [(of.path, "part of a packed dataset") for of in self._packed]
        for path, reason in sorted(left, key=lambda of: sort_key(of[0])):
            if path not in read:
                self._note(path, reason)
        noted = self._left.items()
        return tuple(Leftover(reason, n, tuple(paths)) for reason, (n, paths) in noted)

    def notices(self) -> list[str]:
        """Returns notices about patterns of --ignore that match nothing."""
        return [
            f"--ignore {text} (ignore=) matches nothing; paths are relative to the input folder"
            for text in self._patterns.unused
        ]

    def _note(self, path: str, reason: str) -> None:
        count, paths = self._left.get(reason, (0, []))
        if count < MAX_LEFTOVER_PATHS:
            paths.append(path)
        self._left[reason] = count + 1, paths


def check_strict(leftovers: Sequence[Leftover]) -> None:
    """Raises FormatError if there are leftovers other than hidden and ignored entries."""
    left = [of for of in leftovers if of.reason not in _EXCUSED]
    if left:
        number = sum(of.count for of in left)
        count = "1 entry" if number == 1 else f"{number} entries"
        verb = "is" if number == 1 else "are"
        reasons = "; ".join(f"{of.reason}: {', '.join(of.paths[:_SHOWN])}" for of in left)
        raise FormatError(
            f"strict: {count} of the input {verb} not read: {reasons}; "
            "--ignore GLOB (ignore=) leaves entries out"
        )


def _is_within(name: str, ignored: Collection[str]) -> bool:
    return any(path == name or path.startswith(f"{name}/") for path in ignored)


class _Patterns:
    """Patterns of --ignore, which match a path, a name, or a folder above it."""

    def __init__(self, texts: Iterable[str]) -> None:
        pairs = ((text, text.removeprefix("./").rstrip("/")) for text in texts)
        self._unused = {text: re.compile(fnmatch.translate(plain)) for text, plain in pairs}
        self._any = re.compile("|".join(of.pattern for of in self._unused.values()) or "(?!)")

    @property
    def unused(self) -> list[str]:
        """Patterns that have matched nothing so far."""
        return list(self._unused)

    def match(self, path: str) -> bool:
        """Returns whether a pattern matches."""
        parts = path.split("/")
        names = [*parts, *("/".join(parts[:end]) for end in range(2, len(parts) + 1))]
        if not any(map(self._any.match, names)):
            return False
        self._unused = {
            text: of for text, of in self._unused.items() if not any(map(of.match, names))
        }
        return True


def _matcher(kinds: Mapping[str, Names]) -> Callable[[str], Sequence[str]]:
    """Returns a function from a name to the kinds that read it, cached by suffix."""
    exact = {name for names in kinds.values() for name in names.names}
    infixes = [names.infix for names in kinds.values() if names.infix]
    known: dict[str, list[str]] = {}

    def matches(name: str) -> list[str]:
        name = name.lower()
        key = ".".join(name.rsplit(".", 2)[1:])
        if name in exact or any(infix in name for infix in infixes):
            key = name
        if key not in known:
            known[key] = [kind for kind, names in kinds.items() if names.match(name)]
        return known[key]

    return matches
