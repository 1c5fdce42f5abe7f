"""Arrays whose first axes are the samples: in memory, or columns that read themselves."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastload.formats.arrays import is_tensor, number_field, tensor_array
from fastload.formats.extents import Field, Int64Array
from fastload.pack.sources.base import (
    Advance,
    AnyColumn,
    AnyStreamed,
    Array,
    Collector,
    Part,
    Ragged,
    RaggedBuilder,
    Rows,
    Source,
    Streamed,
    probed,
    stored,
)
from fastload.pack.sources.frames import is_series
from fastload.pack.sources.leaves import field_of_leaves, fit, mean_bytes, read_leaf
from fastload.pack.sources.wanted import ALL, Wanted
from fastload.structure import (
    Structure,
    children,
    flatten,
    is_leaf,
    leaf_names,
    map_leaves,
    pruned,
    rebuild,
)


@dataclass(frozen=True)
class Column(abc.ABC):
    """A field whose samples can be read in ranges."""

    field: Field
    rows: int

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> AnyColumn:
        """The samples [start, stop), of the field's storage dtype in native order."""

    def take(self, indices: Int64Array) -> AnyColumn:
        """The samples at `indices`."""
        taken = Collector(self.field, len(indices))
        for index in indices.tolist():
            taken.add(self.read(index, index + 1))
        return taken.finish()

    def loaded(self) -> Column:
        """The column, or the whole of it in memory where it can only be read in order."""
        return self

    def paths(self) -> Sequence[str]:
        """The files that are read."""
        return ()

    def streamed(self, start: int, stop: int) -> AnyColumn | Streamed:
        """The samples [start, stop), read while they are written where that is possible."""
        return self.read(start, stop)

    def mean_bytes(self) -> int:
        """The mean size of a sample of a ragged field, estimated; 0 of others."""
        return 0

    @abc.abstractmethod
    def describe(self) -> Any:
        """Names and sizes of the inputs, in JSON's types."""


@dataclass(frozen=True)
class ArrayColumn(Column):
    """An array in memory."""

    array: Array

    def read(self, start: int, stop: int) -> Array:
        """A view where the array is native and contiguous."""
        return stored(self.array[start:stop], self.field)

    def take(self, indices: Int64Array) -> Array:
        """A copy of the samples."""
        return stored(self.array[indices], self.field)

    def describe(self) -> Any:
        """Nothing: memory has no name."""
        return None


@dataclass(frozen=True)
class ListColumn(Column):
    """Texts, bytes or arrays of varying length in memory."""

    values: Any
    mean: int

    def read(self, start: int, stop: int) -> Ragged:
        """Copies the samples."""
        return self.take(np.arange(start, stop))

    def take(self, indices: Int64Array) -> Ragged:
        """Copies the samples."""
        builder = RaggedBuilder(self.field)
        for index in indices.tolist():
            leaf = read_leaf(self.values[index], self.field.name, index)
            builder.append(fit(leaf, self.field, index))
        return builder.finish()

    def mean_bytes(self) -> int:
        """As some samples had it."""
        return self.mean

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

    def stream(self, advance: Advance) -> list[AnyStreamed]:
        """The range of each column."""
        columns: list[AnyStreamed] = [
            column.streamed(self.start, self.stop) for column in self.columns
        ]
        advance(self.stop - self.start)
        return columns


@dataclass(frozen=True)
class TakenColumnsPart(Part):
    """Samples from here and there, of all columns."""

    columns: tuple[Column, ...]
    indices: Int64Array

    def read(self, advance: Advance) -> Rows:
        """Reads the samples of each column."""
        columns = [column.take(self.indices) for column in self.columns]
        advance(len(self.indices))
        return Rows(columns)


@dataclass(frozen=True, kw_only=True)
class ColumnsSource(Source):
    """Columns of equally many samples."""

    columns: tuple[Column, ...]
    resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def part(self, start: int, stop: int) -> ColumnsPart:
        """The samples [start, stop)."""
        return ColumnsPart(self.columns, start, stop)

    def take(self, indices: Int64Array) -> TakenColumnsPart:
        """The samples at `indices`."""
        return TakenColumnsPart(self.columns, indices)

    def pick(self, columns: Sequence[int]) -> ColumnsSource:
        """The same with these columns."""
        read = tuple(self.columns[number] for number in columns)
        fields = tuple(column.field for column in read)
        mean = sum(column.mean_bytes() for column in read)
        return replace(self, fields=fields, columns=read, ragged_bytes=mean)

    def is_copied(self) -> bool:
        """Nearly always."""
        return True

    def random_access(self) -> ColumnsSource:
        """The same columns, those of streams loaded."""
        return replace(self, columns=tuple(column.loaded() for column in self.columns))

    def paths(self) -> Sequence[str]:
        """The files that the columns are read from."""
        return list(dict.fromkeys(path for column in self.columns for path in column.paths()))

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
        ragged_bytes=sum(column.mean_bytes() for column in columns),
        columns=tuple(columns),
    )


def open_arrays(arrays: Any, wanted: Wanted = ALL) -> ColumnsSource:
    """Arrays, CPU tensors and lists of texts in memory, in dicts, lists and tuples nested freely.

    Lists of texts, of bytes and of arrays that differ in length hold a sample in each member; so
    do object arrays, arrays of texts or bytes and nested tensors. Other lists are containers.

    Raises:
        TypeError: a leaf is none of these, or its dtype is not one of plain numbers.
        ValueError: there is no array, one has no first axis, or they differ in length.
    """
    template = _hidden_lists(arrays)
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
    """A list that is no container."""

    values: list[Any]


def _hidden_lists(arrays: Any) -> Any:
    if is_leaf(arrays):
        return arrays
    members = children(arrays)
    if type(arrays) is list and members:
        texts = any(isinstance(member, (str, bytes, bytearray)) for member in members)
        lengths = {
            len(member)
            if is_tensor(member) or (isinstance(member, np.ndarray) and member.ndim)
            else -1
            for member in members
        }
        if texts or (len(lengths) > 1 and -1 not in lengths):
            return _Samples(arrays)
    return rebuild(arrays, [_hidden_lists(member) for member in members])


def _column(name: str, leaf: Any) -> Column:
    if isinstance(leaf, _Samples):
        return _list_column(name, leaf.values)
    dtype = None
    if is_series(leaf):
        leaf = np.asarray(leaf)
    if is_tensor(leaf):
        if leaf.is_nested:
            return _list_column(name, leaf.detach().cpu().unbind())
        leaf, dtype = tensor_array(leaf.detach().cpu().resolve_conj().resolve_neg(), name)
    if not isinstance(leaf, np.ndarray) or isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(f"field {name!r}: an array or tensor is needed, not {type(leaf).__name__}")
    if leaf.ndim == 0:
        raise ValueError(f"field {name!r}: an array of shape () has no sample axis")
    if leaf.dtype.kind in "OUS" and leaf.ndim == 1:
        return _list_column(name, leaf)
    field = number_field(name, leaf.dtype, leaf.shape[1:])
    if dtype is not None:
        field = Field(name, dtype, field.shape)
    return ArrayColumn(field, len(leaf), leaf)


def _list_column(name: str, values: Any) -> ListColumn:
    if len(values) == 0:
        raise ValueError(f"field {name!r}: no samples, which leaves open what they are")
    indices = probed(len(values))
    leaves = [read_leaf(values[index], name, index) for index in indices]
    field = field_of_leaves(name, leaves, indices)
    if not field.ragged:  # of equal lengths by chance
        if not field.shape:
            raise TypeError(f"field {name!r}: dtype object, but plain numbers; give it their dtype")
        field = Field(name, field.dtype, field.shape[1:], True, field.logical)
    return ListColumn(field, len(values), values, mean_bytes(field, leaves))
