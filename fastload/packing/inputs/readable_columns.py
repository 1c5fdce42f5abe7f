"""Columns whose samples are read in ranges, from files or from memory."""

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
        """Returns the samples [start, stop) in the field's storage dtype and native byte order."""

    def take(self, indices: Int64Array) -> AnyColumn:
        """Returns the samples at `indices`."""
        taken = Collector(self.field, len(indices))
        for index in indices.tolist():
            taken.add(self.read(index, index + 1))
        return taken.finish()

    def missing(self, rows: slice | Int64Array) -> Missing | None:
        """Returns the missing values of some samples; None if there are none."""
        return None

    @property
    def nullable(self) -> bool:
        """True if values may be missing."""
        return False

    def loaded(self) -> Column:
        """Returns the column; one that can only be read in order is loaded into memory."""
        return self

    def paths(self) -> Sequence[str]:
        """Returns the files of the column."""
        return ()

    def streamed(self, start: int, stop: int) -> AnyColumn | Streamed:
        """Returns the samples [start, stop), which are read while they are written if possible."""
        return self.read(start, stop)

    def mean_bytes(self) -> int:
        """Returns the estimated mean size in bytes of a sample of a ragged field; 0 for others."""
        return 0

    @abc.abstractmethod
    def describe(self) -> Any:
        """Returns names and sizes of the inputs in JSON types."""


@dataclass(frozen=True)
class ArrayColumn(Column):
    """An array in memory."""

    array: Array

    def read(self, start: int, stop: int) -> Array:
        """Returns a view if the array is native and contiguous, otherwise a copy."""
        return stored(self.array[start:stop], self.field)

    def take(self, indices: Int64Array) -> Array:
        """Returns a copy of the samples."""
        return stored(self.array[indices], self.field)

    def describe(self) -> Any:
        """Returns None: an input in memory has no name."""
        return None


@dataclass(frozen=True)
class MaskedColumn(ArrayColumn):
    """A masked array in memory, with zeros at masked values.

    Attributes:
        mask: Mask of the array, True for missing values.
    """

    mask: Array

    def missing(self, rows: slice | Int64Array) -> Missing | None:
        """Returns the masked values."""
        mask = self.mask[rows]
        return Missing.of_numbers(mask) if mask.any() else None

    @property
    def nullable(self) -> bool:
        """True."""
        return True


@dataclass(frozen=True)
class ListColumn(Column):
    """Texts, bytes, arrays of varying length or Python numbers in memory.

    Attributes:
        values: One value per sample.
        mean: Mean size in bytes of a sample of a ragged field.
        incomplete: True if values are missing.
    """

    values: Any
    mean: int
    incomplete: bool = False

    def read(self, start: int, stop: int) -> AnyColumn:
        """Returns a copy of the samples."""
        return self._rows(range(start, stop)).columns[0]

    def take(self, indices: Int64Array) -> AnyColumn:
        """Returns a copy of the samples."""
        return self._rows(indices.tolist()).columns[0]

    def _rows(self, indices: Sequence[int]) -> Rows:
        samples = SampleCollector([self.field], 0, len(indices))
        for index in indices:
            samples.add(self.values[index], index)
        return samples.finish()

    def missing(self, rows: slice | Int64Array) -> Missing | None:
        """Returns the missing values."""
        if not self.incomplete:
            return None
        return self._rows(np.arange(self.rows)[rows].tolist()).missing.get(0)

    @property
    def nullable(self) -> bool:
        """True if values are missing."""
        return self.incomplete

    def mean_bytes(self) -> int:
        """Returns the mean size of some samples."""
        return self.mean

    def describe(self) -> Any:
        """Returns None: an input in memory has no name."""
        return None


@dataclass(frozen=True)
class SeriesColumn(Column):
    """A column of pandas, polars or pyarrow.

    Attributes:
        source: Source that has only this column.
    """

    source: Source

    @classmethod
    def of(cls, name: str, series: Any) -> SeriesColumn:
        """Returns a column of pandas, polars or pyarrow as a Column.

        Raises:
            TypeError: the column cannot be packed as one field.
        """
        source = open_frame(series)
        if len(source.fields) != 1:
            raise TypeError(
                f"field {name!r}: a column of structs cannot be packed; pass its members as columns"
            )
        return cls(replace(source.fields[0], name=name), source.rows, source)

    def read(self, start: int, stop: int) -> AnyColumn:
        """Returns a copy of the samples."""
        return self._rows(np.arange(start, stop)).columns[0]

    def take(self, indices: Int64Array) -> AnyColumn:
        """Returns a copy of the samples."""
        return self._rows(indices).columns[0]

    def _rows(self, indices: Int64Array) -> Rows:
        return self.source.take(indices).read(lambda _: None)

    def missing(self, rows: slice | Int64Array) -> Missing | None:
        """Returns the nulls."""
        return self._rows(np.arange(self.rows)[rows]).missing.get(0)

    @property
    def nullable(self) -> bool:
        """True."""
        return True

    def mean_bytes(self) -> int:
        """Returns the mean size of some samples."""
        return self.source.ragged_bytes

    def describe(self) -> Any:
        """Returns None: an input in memory has no name."""
        return None
