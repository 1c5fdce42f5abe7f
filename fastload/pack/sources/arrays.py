"""Arrays whose first axes are the samples: in memory, or columns that read themselves."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastload.formats.arrays import is_tensor, tensor_array
from fastload.formats.extents import Field
from fastload.pack.sources.base import Advance, Array, Part, Rows, Source, field_of
from fastload.structure import Structure, flatten, leaf_names, map_leaves


@dataclass(frozen=True)
class Column(abc.ABC):
    """A field whose samples can be read in ranges."""

    field: Field
    rows: int

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """The samples [start, stop), of the field's storage dtype in native order."""

    @abc.abstractmethod
    def describe(self) -> Any:
        """Names and sizes of the inputs, in JSON's types."""


@dataclass(frozen=True)
class ArrayColumn(Column):
    """An array in memory."""

    array: Array

    def read(self, start: int, stop: int) -> Array:
        """A view where the array is native and contiguous."""
        return np.ascontiguousarray(self.array[start:stop], self.field.storage)

    def describe(self) -> Any:
        """Nothing: memory has no name."""
        return None


@dataclass(frozen=True)
class ColumnsPart(Part):
    """A range of samples of all columns."""

    columns: tuple[Column, ...]
    start: int
    stop: int

    def read(self, advance: Advance) -> Rows:
        """Reads the range of each column."""
        columns = [column.read(self.start, self.stop) for column in self.columns]
        advance(self.stop - self.start)
        return Rows(columns)


@dataclass(frozen=True, kw_only=True)
class ColumnsSource(Source):
    """Columns of equally many samples."""

    columns: tuple[Column, ...]
    resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def part(self, start: int, stop: int) -> ColumnsPart:
        """The samples [start, stop)."""
        return ColumnsPart(self.columns, start, stop)

    def inputs(self) -> Any:
        """What each column says of itself."""
        return [column.describe() for column in self.columns]

    def close(self) -> None:
        """Closes the files that columns are read from in order."""
        self.resources.close()


def columns_source(
    kind: str, columns: Sequence[Column], structure: Structure, *, local: bool = False
) -> ColumnsSource:
    """A source of columns, numbered by the structure.

    Raises:
        ValueError: the columns differ in length.
    """
    first = columns[0]
    for other in columns[1:]:
        if other.rows != first.rows:
            raise ValueError(
                f"arrays differ in length: {first.field.name!r} has {first.rows} samples, "
                f"{other.field.name!r} has {other.rows}"
            )
    return ColumnsSource(
        kind=kind,
        fields=tuple(column.field for column in columns),
        structure=structure,
        rows=first.rows,
        local=local,
        columns=tuple(columns),
    )


def open_arrays(arrays: Any) -> ColumnsSource:
    """Arrays and CPU tensors in memory, in dicts, lists and tuples nested freely.

    Raises:
        TypeError: a leaf is no array, or its dtype is not one of plain numbers.
        ValueError: there is no array, one has no first axis, or they differ in length.
    """
    names = leaf_names(arrays)
    if not names:
        raise ValueError("there are no arrays to pack")
    columns = [_column(name, leaf) for name, leaf in zip(names, flatten(arrays), strict=True)]
    numbers = iter(range(len(columns)))
    structure = map_leaves(lambda _: next(numbers), arrays)
    return columns_source("arrays", columns, structure, local=True)


def _column(name: str, leaf: Any) -> ArrayColumn:
    dtype = None
    if is_tensor(leaf):
        leaf, dtype = tensor_array(leaf.detach().cpu().resolve_conj().resolve_neg(), name)
    if not isinstance(leaf, np.ndarray) or isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(f"field {name!r}: an array or tensor is needed, not {type(leaf).__name__}")
    if leaf.ndim == 0:
        raise ValueError(f"field {name!r}: an array of shape () has no sample axis")
    field = field_of(name, leaf.dtype, leaf.shape[1:])
    if dtype is not None:
        field = Field(name, dtype, leaf.shape[1:])
    return ArrayColumn(field, len(leaf), leaf)
