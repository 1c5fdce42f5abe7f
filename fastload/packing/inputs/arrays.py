"""Inputs of arrays whose first axes are the samples: in memory, or columns read from files."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastload.formats.arrays import is_tensor, number_field, tensor_array
from fastload.formats.columns import Int64Array
from fastload.formats.fields import Field
from fastload.formats.structure import (
    Structure,
    children,
    flatten,
    is_leaf,
    leaf_names,
    map_leaves,
    pruned,
    rebuild,
)
from fastload.packing.columns import Missing
from fastload.packing.inputs.frames import is_series
from fastload.packing.inputs.leaves import (
    MISSING,
    field_of_leaves,
    has_missing,
    is_missing,
    mean_bytes,
    read_leaf,
)
from fastload.packing.inputs.readable_columns import ArrayColumn as ArrayColumn
from fastload.packing.inputs.readable_columns import Column as Column
from fastload.packing.inputs.readable_columns import ListColumn, MaskedColumn, SeriesColumn
from fastload.packing.inputs.source import Advance, AnyStreamed, Part, Rows, Source, probed
from fastload.packing.inputs.wanted import ALL, Wanted


@dataclass(frozen=True)
class ColumnsPart(Part):
    """Range of samples of all columns."""

    columns: tuple[Column, ...]
    start: int
    stop: int

    def read(self, advance: Advance) -> Rows:
        """Reads the range of each column."""
        columns = [column.read(self.start, self.stop) for column in self.columns]
        advance(self.stop - self.start)
        return Rows(columns, missing=_missing(self.columns, slice(self.start, self.stop)))

    def stream(self, advance: Advance) -> list[AnyStreamed]:
        """Returns the range of each column, streamed if possible."""
        columns: list[AnyStreamed] = [
            column.streamed(self.start, self.stop) for column in self.columns
        ]
        advance(self.stop - self.start)
        return columns


@dataclass(frozen=True)
class TakenColumnsPart(Part):
    """Samples of all columns at arbitrary indices."""

    columns: tuple[Column, ...]
    indices: Int64Array

    def read(self, advance: Advance) -> Rows:
        """Reads the samples of each column."""
        columns = [column.take(self.indices) for column in self.columns]
        advance(len(self.indices))
        return Rows(columns, missing=_missing(self.columns, self.indices))


def _missing(columns: Sequence[Column], rows: slice | Int64Array) -> dict[int, Missing]:
    found = {number: column.missing(rows) for number, column in enumerate(columns)}
    return {number: missing for number, missing in found.items() if missing is not None}


@dataclass(frozen=True, kw_only=True)
class ColumnsSource(Source):
    """Source of columns with equally many samples."""

    columns: tuple[Column, ...]
    resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def part(self, start: int, stop: int) -> ColumnsPart:
        """Returns the samples [start, stop)."""
        return ColumnsPart(self.columns, start, stop)

    def take(self, indices: Int64Array) -> TakenColumnsPart:
        """Returns the samples at `indices`."""
        return TakenColumnsPart(self.columns, indices)

    def pick(self, columns: Sequence[int]) -> ColumnsSource:
        """Returns a source of these columns."""
        read = tuple(self.columns[number] for number in columns)
        fields = tuple(column.field for column in read)
        mean = sum(column.mean_bytes() for column in read)
        return replace(self, fields=fields, columns=read, ragged_bytes=mean)

    def is_copied(self) -> bool:
        """True: bytes are copied without conversion, with few exceptions."""
        return True

    def random_access(self) -> ColumnsSource:
        """Returns a source in which columns that are streams are loaded into memory."""
        return replace(self, columns=tuple(column.loaded() for column in self.columns))

    def paths(self) -> Sequence[str]:
        """Returns the files of the columns."""
        return list(dict.fromkeys(path for column in self.columns for path in column.paths()))

    def inputs(self) -> Any:
        """Returns the descriptions of the columns."""
        return [column.describe() for column in self.columns]

    def close(self) -> None:
        """Closes the files of streamed columns."""
        self.resources.close()


def columns_source(
    kind: str, columns: Sequence[Column], structure: Structure, *, local: bool = False
) -> ColumnsSource:
    """Returns a source of columns, numbered by the structure.

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
        ragged_bytes=sum(column.mean_bytes() for column in columns),
        nullable=any(column.nullable for column in columns),
        columns=tuple(columns),
    )


def open_arrays(arrays: Any, wanted: Wanted = ALL) -> ColumnsSource:
    """Opens arrays, CPU tensors and lists in memory, in nested dicts, lists and tuples.

    Lists of text, bytes or arrays of unequal length, object arrays, arrays of text or bytes, and
    nested tensors hold one sample per member. Other lists are containers.

    Raises:
        TypeError: a leaf has another type, or its dtype is not numeric.
        ValueError: there is no array, an array has no first axis, or lengths differ.
    """
    template = _wrap_sample_lists(arrays)
    names = leaf_names(template)
    if not names:
        raise ValueError("there are no arrays to pack")
    wanted.check(names)
    taken = [number for number, name in enumerate(names) if wanted.takes(name)]
    leaves = flatten(template)
    columns = [_column(names[number], leaves[number]) for number in taken]
    numbers = iter(range(len(names)))
    numbered = map_leaves(lambda _: next(numbers), template)
    if len(taken) < len(names):
        numbered = pruned(numbered, lambda number: number in taken)
    structure = map_leaves(taken.index, numbered)
    return columns_source("arrays", columns, structure, local=True)


@dataclass(frozen=True)
class _Samples:
    """A list whose members are samples, as opposed to a container."""

    values: list[Any]


def _wrap_sample_lists(arrays: Any) -> Any:
    if is_leaf(arrays):
        return arrays
    members = children(arrays)
    if type(arrays) is list and members:
        texts = any(isinstance(member, (str, bytes, bytearray)) for member in members)
        members = [member for member in members if not is_missing(member)] or members
        lengths = {
            len(member)
            if is_tensor(member) or (isinstance(member, np.ndarray) and member.ndim)
            else -1
            for member in members
        }
        if texts or (len(lengths) > 1 and -1 not in lengths):
            return _Samples(arrays)
    return rebuild(arrays, [_wrap_sample_lists(member) for member in members])


def _column(name: str, leaf: Any) -> Column:
    if isinstance(leaf, _Samples):
        return _list_column(name, leaf.values)
    dtype = None
    if is_series(leaf):
        if not isinstance(getattr(leaf, "dtype", None), np.dtype) or leaf.dtype.kind == "O":
            return SeriesColumn.of(name, leaf)  # numpy has no nulls
        leaf = np.asarray(leaf)
    if is_tensor(leaf):
        if leaf.is_nested:
            return _list_column(name, leaf.detach().cpu().unbind())
        leaf, dtype = tensor_array(leaf.detach().cpu().resolve_conj().resolve_neg(), name)
    if not isinstance(leaf, np.ndarray):
        raise TypeError(f"field {name!r} must be an array or tensor, not {type(leaf).__name__}")
    if leaf.ndim == 0:
        raise ValueError(f"field {name!r}: an array of shape () has no sample axis")
    if leaf.dtype.kind in "OUS" and leaf.ndim == 1:
        return _list_column(name, leaf)
    field = number_field(name, leaf.dtype, leaf.shape[1:])
    if dtype is not None:
        field = Field(name, dtype, field.shape)
    if not isinstance(leaf, np.ma.MaskedArray):
        return ArrayColumn(field, len(leaf), leaf)
    plain = leaf.filled(leaf.dtype.type(0))
    return MaskedColumn(field, len(leaf), plain, np.ma.getmaskarray(leaf))


def _list_column(name: str, values: Any) -> ListColumn:
    if len(values) == 0:
        raise ValueError(f"field {name!r}: there are no samples, so the dtype is unknown")
    indices = probed(len(values))
    leaves = [read_leaf(values[index], name, index) for index in indices]
    if all(leaf is MISSING for leaf in leaves):
        raise ValueError(f"field {name!r}: all values are missing, so the dtype is unknown")
    field = field_of_leaves(name, leaves, indices)
    incomplete = any(map(has_missing, values))
    if not field.ragged and field.shape:  # equal lengths are a coincidence
        field = Field(name, field.dtype, field.shape[1:], True, field.logical)
    elif not field.ragged and not incomplete:
        raise TypeError(
            f"field {name!r}: dtype object, but the values are numbers; convert it to their dtype"
        )
    return ListColumn(field, len(values), values, mean_bytes(field, leaves), incomplete)
