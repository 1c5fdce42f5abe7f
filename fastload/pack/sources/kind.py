"""What a kind of input is: how it is known, which options it takes, what it needs, how it opens."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fastload.formats.files import file_source, list_files
from fastload.pack.sources.base import Source

_START_BYTES = 512


@dataclass(frozen=True)
class Option:
    """An option of kinds: a keyword of `pack`, and `--like-this` on the command line.

    Attributes:
        name: Of the keyword.
        help: What it does.
        value: "flag", "text", "count", "shape", "size" (height, width), "names" or "pairs".
    """

    name: str
    help: str
    value: str = "text"


DTYPE = Option(
    "dtype",
    "of the numbers of a raw file ('>i4': big-endian), of tokens, or of .npy arrays of ml_dtypes",
)
DTYPES = Option("dtypes", "what numbers are stored as, by field, such as x=float32", "pairs")
RAGGED = Option("ragged", "fields that vary in length, though the first samples do not", "names")


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        name: For `--from`.
        reads: What it is, in a few words.
        open: Called with the path and, by name, the options that were given and `wanted`: the
            fields that are read. A source whose bad records can be left out takes `strict`.
        detects: Whether a file or folder is of this kind; those of `KINDS` are asked in turn.
        options: It takes, beside `strict`.
        packages: That read it, beside numpy, as they are imported.
        extra: Of fastload, which installs them.

    Example:
        >>> [option.name for option in kind_named("raw").options]  # doctest: +SKIP
        ['dtype', 'shape']
    """

    name: str
    reads: str
    open: Callable[..., Source]
    detects: Callable[[Candidate], bool]
    options: tuple[Option, ...] = ()
    packages: tuple[str, ...] = ()
    extra: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A file or folder whose kind is looked for.

    Attributes:
        path: Absolute.
        given: The options that were given.
    """

    path: str
    given: Mapping[str, Any]

    @functools.cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return os.path.isdir(self.path)

    @functools.cached_property
    def start(self) -> bytes:
        """The first bytes of a file; none of a folder."""
        if self.is_folder:
            return b""
        with open(self.path, "rb") as file:
            return file.read(_START_BYTES)

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of the visible files in a folder; none of a file."""
        return frozenset(map(os.path.basename, list_files(self.path) if self.is_folder else ()))

    def holds(self, *suffixes: str) -> bool:
        """Whether the file, or a file in the folder, has one of the suffixes."""
        names = self.names if self.is_folder else [self.path]
        return any(name.lower().endswith(suffixes) for name in names)


def files_of(path: str, *suffixes: str) -> list[str]:
    """The file itself, or those files of a folder that have one of the suffixes, in natural order.

    Raises:
        FileNotFoundError: a folder has none.
        OSError: there is no such path.
        FormatError: it is a pipe or a device, which cannot be read twice.
    """
    if not os.path.isdir(path):
        return [file_source(path).path]
    found = [file for file in list_files(path) if file.lower().endswith(suffixes)]
    if not found:
        raise FileNotFoundError(f"{path}: no {' or '.join(suffixes)} files in this folder")
    return found


def library(name: str, extra: str, package: str = "") -> ModuleType:
    """A module of a package that is not installed with fastload.

    Args:
        name: Of the module.
        extra: Of fastload, which installs the package.
        package: Its name for pip, if it is not that of the module.

    Raises:
        ImportError: it is not there; the message says how to get it.
    """
    try:
        importlib.import_module(name.partition(".")[0])
        return importlib.import_module(name)
    except ImportError as error:
        package = package or name.partition(".")[0]
        raise ImportError(
            f"this input is read by {package}, which is not installed: "
            f"pip install 'fastload[{extra}]', or pip install {package}"
        ) from error
