"""Fields whose samples are read in ranges: from files, or from memory in any of its forms."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.formats.columns import Int64Array
from fastload.formats.fields import Field
from fastload.packing.columns import AnyColumn, Array, Collector, Missing
from fastload.packing.inputs.frames import open_frame
from fastload.packing.inputs.samples import SampleCollector
from fastload.packing.inputs.source import Rows, Source, Streamed, stored


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

    def missing(self, rows: slice | Int64Array) -> Missing | None:
        """The missing values of some samples, which are zero or empty; None if none is missing."""
        return None

    @property
    def nullable(self) -> bool:
        """Whether values may be missing."""
        return False

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
class MaskedColumn(ArrayColumn):
    """A masked array in memory, whose masked values are zero.

    Attributes:
        mask: Of the array.
    """

    mask: Array

    def missing(self, rows: slice | Int64Array) -> Missing | None:
        """The masked values."""
        mask = self.mask[rows]
        return Missing.of_numbers(mask) if mask.any() else None

    @property
    def nullable(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class ListColumn(Column):
    """Texts, bytes, arrays of varying length or Python's numbers in memory.

    Attributes:
        values: A sample each.
        mean: Bytes of a sample of a ragged field.
        incomplete: Values are missing.
    """

    values: Any
    mean: int
    incomplete: bool = False

    def read(self, start: int, stop: int) -> AnyColumn:
        """Copies the samples."""
        return self._rows(range(start, stop)).columns[0]

    def take(self, indices: Int64Array) -> AnyColumn:
        """Copies the samples."""
        return self._rows(indices.tolist()).columns[0]

    def _rows(self, indices: Sequence[int]) -> Rows:
        samples = SampleCollector([self.field], 0, len(indices))
        for index in indices:
            samples.add(self.values[index], index)
        return samples.finish()

    def missing(self, rows: slice | Int64Array) -> Missing | None:
        """The missing values."""
        if not self.incomplete:
            return None
        return self._rows(np.arange(self.rows)[rows].tolist()).missing.get(0)

    @property
    def nullable(self) -> bool:
        """As it was found."""
        return self.incomplete

    def mean_bytes(self) -> int:
        """As some samples had it."""
        return self.mean

    def describe(self) -> Any:
        """Nothing: memory has no name."""
        return None


@dataclass(frozen=True)
class SeriesColumn(Column):
    """A column of a library of tables.

    Attributes:
        source: Of the column alone.
    """

    source: Source

    @classmethod
    def of(cls, name: str, series: Any) -> SeriesColumn:
        """A column of pandas, polars or pyarrow.

        Raises:
            TypeError: it cannot be packed as one field.
        """
        source = open_frame(series)
        if len(source.fields) != 1:
            raise TypeError(f"field {name!r}: a column of structs; give its members as columns")
        return cls(replace(source.fields[0], name=name), source.rows, source)

    def read(self, start: int, stop: int) -> AnyColumn:
        """Copies the samples."""
        return self._rows(np.arange(start, stop)).columns[0]

    def take(self, indices: Int64Array) -> AnyColumn:
        """Copies the samples."""
        return self._rows(indices).columns[0]

    def _rows(self, indices: Int64Array) -> Rows:
        return self.source.take(indices).read(lambda _: None)

    def missing(self, rows: slice | Int64Array) -> Missing | None:
        """The nulls."""
        return self._rows(np.arange(self.rows)[rows]).missing.get(0)

    @property
    def nullable(self) -> bool:
        """Always."""
        return True

    def mean_bytes(self) -> int:
        """As some samples had it."""
        return self.source.ragged_bytes

    def describe(self) -> Any:
        """Nothing: memory has no name."""
        return None
