"""Descriptions of input kinds: detection, options, packages, and how to open an input."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from fastload.packing.inputs.inventory import NO_NAMES, Inventory, Names
from fastload.packing.inputs.source import Source


@dataclass(frozen=True)
class Option:
    """An option of input kinds: a keyword of `pack`, and `--like-this` on the command line.

    Attributes:
        name: Name of the keyword.
        help: Help text.
        value: "flag", "text", "count", "shape", "size" (height, width), "names" or "pairs".
    """

    name: str
    help: str
    value: str = "text"


DTYPE = Option(
    "dtype",
    "dtype of a raw file ('>i4' is big-endian), of tokens, or of .npy arrays of ml_dtypes",
)
ENCODING = Option("encoding", "encoding of text that is not UTF-8, such as latin-1 or utf-16")
DTYPES = Option("dtypes", "dtypes to read fields as, such as x=float32", "pairs")
VOCAB_SIZE = Option("vocab_size", "check that every number is a token id in [0, N)", "count")
RAGGED = Option("ragged", "fields that vary in length, even if the first samples do not", "names")


_PIP_NAMES = {"PIL": "pillow"}


@dataclass(frozen=True)
class Kind:
    """An input kind.

    Attributes:
        name: Value of `--from`.
        reads: Short description of the input.
        open: Called with the inventory of the input and, as keywords, the given options and
            `wanted`, the fields to read. The function reads all of the inventory's `files`, or
            records those that it does not read. If bad records can be left out, it takes `strict`.
        detects: Returns whether a file, or a folder with files of such `names`, is of this kind.
            The kinds in `KINDS` are tried in order.
        options: Options of the kind, in addition to `strict`.
        packages: Import names of the packages that read it, in addition to numpy.
        extra: Extra of fastload that installs these packages.
        names: Names of the files that it reads in a folder; none if it reads only single files.

    Example:
        >>> from fastload.packing.kinds import raw
        >>> [option.name for option in raw.KIND.options]
        ['dtype', 'shape', 'vocab_size']
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
        """Names of its packages on PyPI."""
        return tuple(_PIP_NAMES.get(name, name) for name in self.packages)


def library(name: str, extra: str, package: str = "") -> ModuleType:
    """Imports and returns a module of an optional package.

    Args:
        name: Name of the module.
        extra: Extra of fastload that installs the package.
        package: Name of the package on PyPI, if it differs from the module.

    Raises:
        ImportError: the package is not installed; the message names the command that installs it.
    """
    try:
        importlib.import_module(name.partition(".")[0])
        return importlib.import_module(name)
    except ImportError as error:
        package = package or name.partition(".")[0]
        raise ImportError(
            f"{package} reads this input and is not installed: "
            f"pip install {package} (or, in fastload's folder, pip install '.[{extra}]')"
        ) from error
