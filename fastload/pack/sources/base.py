"""What every kind of input is turned into: parts of consecutive samples, read one by one."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import FormatError
from fastload.formats.extents import DTYPES, Field
from fastload.formats.packed import Skipped
from fastload.structure import Structure

Array = npt.NDArray[Any]
Advance = Callable[[int], None]
"""Told how many samples more were read."""


@dataclass(frozen=True)
class Rows:
    """Samples as they will be stored.

    Attributes:
        columns: For each field an array (samples, *shape) of its storage dtype, in native order;
            those of bool fields may hold other bytes than 0 and 1.
        skipped: What was left out of the part.
    """

    columns: Sequence[Array]
    skipped: tuple[Skipped, ...] = ()


class Part(abc.ABC):
    """Consecutive samples of an input; pickled to the process that reads them."""

    @abc.abstractmethod
    def read(self, advance: Advance) -> Rows:
        """Reads the samples; `advance` is told of the progress."""


@dataclass(frozen=True, kw_only=True)
class Source(abc.ABC):
    """An input.

    Attributes:
        kind: "imagefolder", "npy", "npz", "raw", "arrays" or "samples".
        fields: Of a sample.
        structure: The containers of a sample around the numbers of its fields.
        rows: Samples to read; some may be skipped later.
        classes: For each field that numbers classes, their names.
        local: Parts can only be read in this process, in order.
        notices: What the user should know, in sentences.
    """

    kind: str
    fields: tuple[Field, ...]
    structure: Structure
    rows: int
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    local: bool = False
    notices: tuple[str, ...] = ()

    @abc.abstractmethod
    def part(self, start: int, stop: int) -> Part:
        """The samples [start, stop)."""

    @abc.abstractmethod
    def inputs(self) -> Any:
        """Names and sizes of what is read, in JSON's types; no folders, no times."""

    def options(self) -> dict[str, Any]:
        """The options that shape the output, in JSON's types."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Closes what is open."""


@dataclass(frozen=True)
class Options:
    """How to read an input; None where the input says it itself."""

    dtype: Any = None
    shape: Any = None
    resize: tuple[int, int] | None = None
    allow_empty: bool = False
    strict: bool = False


def field_of(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Field:
    """The field of arrays of a numpy dtype, in any byte order.

    Raises:
        TypeError: the dtype is not one of plain numbers.
    """
    native = dtype.newbyteorder("=").name
    if native not in DTYPES or dtype.fields:
        raise TypeError(
            f"field {name!r}: dtype {dtype.str!r} cannot be packed: object, structured, string, "
            "date and long double values are no plain numbers"
        )
    return Field(name, native, tuple(shape))


def read_array(path: str, offset: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Reads an array from a file. Not mapped, so that a file that shrinks cannot do more harm.

    Raises:
        FormatError: the file ends before the array does.
        OSError: it cannot be read.
    """
    array = np.empty(shape, dtype)
    view = memoryview(array.reshape(-1).view(np.uint8).data)
    with open(path, "rb", buffering=0) as file:
        while view:
            count = os.preadv(file.fileno(), [view], offset)
            if count == 0:
                raise FormatError(f"{path}: truncated while it was read, at byte {offset}")
            view, offset = view[count:], offset + count
    return array
