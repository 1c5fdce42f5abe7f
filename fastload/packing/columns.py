"""The samples of a field, of equal or varying lengths, and which of them are missing."""

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
        """The samples of a slice without a step."""
        start, stop, _ = rows.indices(len(self))
        bounds = self.offsets[start : max(start, stop) + 1]
        return Ragged(self.values[bounds[0] : bounds[-1]], bounds - bounds[0])

    def take(self, rows: Int64Array) -> Ragged:
        """The samples at `rows`, in that order."""
        # Sample by sample: an index of the elements would be larger than they are.
        starts, ends = self.offsets[rows].tolist(), self.offsets[rows + 1].tolist()
        pieces = [self.values[start:end] for start, end in zip(starts, ends, strict=True)]
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Ragged(np.concatenate([self.values[:0], *pieces]), offsets)

    @staticmethod
    def concatenate(parts: Sequence[Ragged]) -> Ragged:
        """The samples of all parts, one after the other."""
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Ragged(np.concatenate([part.values for part in parts]), offsets)


class RaggedBuilder:
    """Collects the samples of a ragged field in one growing block of memory."""

    def __init__(self, of: Field) -> None:
        self._field = of
        self._data = bytearray()
        self._offsets = array.array("q", [0])

    def append(self, sample: bytes | Array) -> None:
        """Adds a sample: its bytes, or an array (length, *shape) of the storage dtype."""
        self._data += sample if isinstance(sample, bytes) else _bytes_of(sample)
        self._offsets.append(self._offsets[-1] + len(sample))

    def extend(self, samples: Ragged) -> None:
        """Adds samples that lie together."""
        self._data += _bytes_of(samples.values)
        self._offsets.frombytes((samples.offsets[1:] + self._offsets[-1]).tobytes())

    def finish(self) -> Ragged:
        """All samples; the builder must not be used any more."""
        shape = (self._offsets[-1], *self._field.shape)
        values = np.frombuffer(self._data, np.uint8).view(self._field.storage).reshape(shape)
        return Ragged(values, np.frombuffer(self._offsets, np.int64))


def _bytes_of(values: Array) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


AnyColumn = Array | Ragged


class Collector:
    """Puts the columns of several parts together.

    Args:
        of: The field.
        most: Samples for which memory is taken.
    """

    def __init__(self, of: Field, most: int) -> None:
        self._array = np.empty((0 if of.ragged else most, *of.shape), of.storage)
        self._ragged = RaggedBuilder(of)
        self._is_ragged, self._row = of.ragged, 0

    def add(self, piece: AnyColumn) -> None:
        """Adds samples."""
        if isinstance(piece, Ragged):
            self._ragged.extend(piece)
        else:
            self._array[self._row : self._row + len(piece)] = piece
            self._row += len(piece)

    def finish(self) -> AnyColumn:
        """All samples."""
        return self._ragged.finish() if self._is_ragged else self._array[: self._row]


def taken(column: AnyColumn, rows: Int64Array) -> AnyColumn:
    """The samples at `rows`, in that order."""
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def inverse(order: Int64Array) -> Int64Array:
    """Where each of the samples is that were read in an order."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


@dataclass(frozen=True, eq=False)
class Missing:
    """The missing values of a column, which has zeros in their place, or an empty list.

    Attributes:
        samples: bool (samples,): those of which something is missing.
        values: bools like the numbers of the column: those that are missing. None of byte strings.
    """

    samples: Array
    values: AnyColumn | None

    def take(self, rows: Int64Array) -> Missing:
        """The samples at `rows`, in that order."""
        values = None if self.values is None else taken(self.values, rows)
        return Missing(self.samples[rows], values)

    @classmethod
    def of_numbers(cls, mask: Array) -> Missing:
        """Those of a column of numbers of one shape: which numbers are missing."""
        return cls(np.asarray(mask.any(axis=tuple(range(1, mask.ndim)))), mask)

    @classmethod
    def of_lists(cls, mask: Array, offsets: Int64Array, whole: Array | None = None) -> Missing:
        """Those of a ragged column: which of its numbers, and which whole lists, are missing."""
        samples = np.zeros(len(offsets) - 1, bool) if whole is None else whole.copy()
        own = np.flatnonzero(mask.any(axis=tuple(range(1, mask.ndim))))
        samples[np.searchsorted(offsets, own, "right") - 1] = True
        return cls(samples, Ragged(mask, offsets))

    @classmethod
    def spread(cls, column: AnyColumn, pieces: Sequence[tuple[int, Missing]]) -> Missing:
        """Those of a column, of some of its ranges, each with the number of its first sample."""
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
