"""What a kind of input is: how it is known, which options it takes, what it needs, how it opens."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from fastload.packing.inputs.inventory import NO_NAMES, Inventory, Names
from fastload.packing.inputs.source import Source


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
ENCODING = Option("encoding", "of text that is not UTF-8, such as latin-1 or utf-16")
DTYPES = Option("dtypes", "what numbers are stored as, by field, such as x=float32", "pairs")
VOCAB_SIZE = Option(
    "vocab_size", "every number is a token id in [0, N), or it is an error with its place", "count"
)
RAGGED = Option("ragged", "fields that vary in length, though the first samples do not", "names")


_PIP_NAMES = {"PIL": "pillow"}


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        name: For `--from`.
        reads: What it is, in a few words.
        open: Called with the inventory of the input and, by name, the options that were given and
            `wanted`: the fields that are read. It reads all of the inventory's `files`, or says
            what it does not read. A source whose bad records can be left out takes `strict`.
        detects: Whether a file is of this kind, or a folder that holds files of such `names`;
            those of `KINDS` are asked in turn.
        options: It takes, beside `strict`.
        packages: That read it, beside numpy, as they are imported.
        extra: The one that installs them with fastload.
        names: Of the files that it reads in a folder; none if it reads single files only.

    Example:
        >>> [option.name for option in kind_named("raw").options]  # doctest: +SKIP
        ['dtype', 'shape']
    """

    name: str
    reads: str
    open: Callable[..., Source]
    detects: Callable[[Inventory], bool]
    options: tuple[Option, ...] = ()
    packages: tuple[str, ...] = ()
    extra: str | None = None
    names: Names = NO_NAMES

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of its packages for pip."""
        return tuple(_PIP_NAMES.get(name, name) for name in self.packages)


def library(name: str, extra: str, package: str = "") -> ModuleType:
    """A module of a package that is not installed with fastload.

    Args:
        name: Of the module.
        extra: The one that installs the package with fastload.
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
            f"pip install {package} (or, in fastload's folder, pip install '.[{extra}]')"
        ) from error
