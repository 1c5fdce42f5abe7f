"""Columns of samples with equal or varying lengths, and their missing values."""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.formats.columns import Int64Array
from fastload.formats.fields import Field

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Samples of a ragged field.

    Attributes:
        values: (elements, *shape), contiguous.
        offsets: (samples + 1), starting at 0; sample i is `values[offsets[i] : offsets[i + 1]]`.

    Example:
        >>> column = Ragged(np.arange(5), np.array([0, 2, 2, 5]))
        >>> len(column), column.take(np.array([2, 0])).values
        (3, array([2, 3, 4, 0, 1]))
    """

    values: Array
    offsets: Int64Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> Ragged:
        """Returns the samples of a slice without a step."""
        start, stop, _ = rows.indices(len(self))
        bounds = self.offsets[start : max(start, stop) + 1]
        return Ragged(self.values[bounds[0] : bounds[-1]], bounds - bounds[0])

    def take(self, rows: Int64Array) -> Ragged:
        """Returns a copy of the samples at `rows`, in that order."""
        # One copy per sample: an index of all elements may need more memory than the elements.
        starts, ends = self.offsets[rows].tolist(), self.offsets[rows + 1].tolist()
        pieces = [self.values[start:end] for start, end in zip(starts, ends, strict=True)]
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Ragged(np.concatenate([self.values[:0], *pieces]), offsets)

    @staticmethod
    def concatenate(parts: Sequence[Ragged]) -> Ragged:
        """Returns the samples of all parts in one column."""
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Ragged(np.concatenate([part.values for part in parts]), offsets)


class RaggedBuilder:
    """Collects the samples of a ragged field in one growing buffer."""

    def __init__(self, of: Field) -> None:
        self._field = of
        self._data = bytearray()
        self._offsets = array.array("q", [0])

    def append(self, sample: bytes | Array) -> None:
        """Adds a sample, given as bytes or as an array (length, *shape) of the storage dtype."""
        self._data += sample if isinstance(sample, bytes) else _bytes_of(sample)
        self._offsets.append(self._offsets[-1] + len(sample))

    def extend(self, samples: Ragged) -> None:
        """Adds all samples of a column."""
        self._data += _bytes_of(samples.values)
        self._offsets.frombytes((samples.offsets[1:] + self._offsets[-1]).tobytes())

    def finish(self) -> Ragged:
        """Returns all samples; the builder must not be used afterwards."""
        shape = (self._offsets[-1], *self._field.shape)
        values = np.frombuffer(self._data, np.uint8).view(self._field.storage).reshape(shape)
        return Ragged(values, np.frombuffer(self._offsets, np.int64))


def _bytes_of(values: Array) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


AnyColumn = Array | Ragged


class Collector:
    """Concatenates the columns of several parts.

    Args:
        of: Field of the columns.
        max_samples: Maximum number of samples, for which memory is allocated.
    """

    def __init__(self, of: Field, max_samples: int) -> None:
        self._array = np.empty((0 if of.ragged else max_samples, *of.shape), of.storage)
        self._ragged = RaggedBuilder(of)
        self._is_ragged, self._row = of.ragged, 0

    def add(self, piece: AnyColumn) -> None:
        """Adds the samples of a column."""
        if isinstance(piece, Ragged):
            self._ragged.extend(piece)
        else:
            self._array[self._row : self._row + len(piece)] = piece
            self._row += len(piece)

    def finish(self) -> AnyColumn:
        """Returns all samples as one column."""
        return self._ragged.finish() if self._is_ragged else self._array[: self._row]


def taken(column: AnyColumn, rows: Int64Array) -> AnyColumn:
    """Returns the samples at `rows`, in that order."""
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def inverse(order: Int64Array) -> Int64Array:
    """Returns the inverse of a permutation."""
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return positions


@dataclass(frozen=True, eq=False)
class Missing:
    """Missing values of a column; the column itself has zeros or an empty list there.

    Attributes:
        samples: bool (samples,), True for samples with a missing value.
        values: bools in the layout of the column, True for missing numbers. None for columns of
            byte strings.
    """

    samples: Array
    values: AnyColumn | None

    def take(self, rows: Int64Array) -> Missing:
        """Returns the entries of the samples at `rows`, in that order."""
        values = None if self.values is None else taken(self.values, rows)
        return Missing(self.samples[rows], values)

    @classmethod
    def of_numbers(cls, mask: Array) -> Missing:
        """Returns the missing values of a column with a fixed sample shape.

        Args:
            mask: bool (samples, *shape), True for missing numbers.
        """
        return cls(np.asarray(mask.any(axis=tuple(range(1, mask.ndim)))), mask)

    @classmethod
    def of_lists(cls, mask: Array, offsets: Int64Array, whole: Array | None = None) -> Missing:
        """Returns the missing values of a ragged column.

        Args:
            mask: bool (elements, *shape), True for missing numbers.
            offsets: int64 (samples + 1) of the column.
            whole: bool (samples,), True for samples whose list itself is missing.
        """
        samples = np.zeros(len(offsets) - 1, bool) if whole is None else whole.copy()
        own = np.flatnonzero(mask.any(axis=tuple(range(1, mask.ndim))))
        samples[np.searchsorted(offsets, own, "right") - 1] = True
        return cls(samples, Ragged(mask, offsets))

    @classmethod
    def spread(cls, column: AnyColumn, pieces: Sequence[tuple[int, Missing]]) -> Missing:
        """Returns the missing values of a column from those of some of its ranges.

        Args:
            column: The whole column.
            pieces: Pairs of a range's first sample and the range's missing values.
        """
        samples = np.zeros(len(column), bool)
        ragged = column.offsets if isinstance(column, Ragged) else None
        numbers = column.values if isinstance(column, Ragged) else column
        known = any(piece.values is not None for _, piece in pieces)
        values = np.zeros(numbers.shape if known else 0, bool)
        for first, piece in pieces:
            samples[first : first + len(piece.samples)] = piece.samples
            own = piece.values.values if isinstance(piece.values, Ragged) else piece.values
            if own is not None:
                start = first if ragged is None else int(ragged[first])
                values[start : start + len(own)] = own
        if not known:
            return cls(samples, None)
        return cls(samples, values if ragged is None else Ragged(values, ragged))
