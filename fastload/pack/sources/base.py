"""What every kind of input is turned into: parts of consecutive samples, read one by one."""

from __future__ import annotations

import abc
import array
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import FormatError
from fastload.formats.dtypes import as_stored
from fastload.formats.extents import Field, Int64Array
from fastload.formats.manifest import Leftover, Skipped
from fastload.structure import Structure

_PROBES = 64
_PIECE_BYTES = 512 << 10

Array = npt.NDArray[Any]
Advance = Callable[[int], None]
"""Told how many samples more were read."""


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


@dataclass(frozen=True, eq=False)
class Streamed:
    """A column that is read while it is written.

    Attributes:
        rows: Its length.
        pieces: Its bytes, in order; each piece is valid until the next one is asked for.
    """

    rows: int
    pieces: Iterator[memoryview]

    def __len__(self) -> int:
        return self.rows


@dataclass(frozen=True, eq=False)
class StreamedRagged:
    """A column of encoded images that is read while it is written.

    Attributes:
        offsets: As those of `Ragged`.
        pieces: Its bytes, in order; each piece is valid until the next one is asked for. Raises
            `UnstreamableError` if they are not what the part seemed to be.
        sizes: uint32 (samples, 2): height and width of each; known when all pieces were taken.
    """

    offsets: Int64Array
    pieces: Iterator[memoryview]
    sizes: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1


class UnstreamableError(Exception):
    """A part cannot be streamed after all; it must be read at once."""


AnyColumn = Array | Ragged
AnyStreamed = AnyColumn | Streamed | StreamedRagged


@dataclass(frozen=True)
class Rows:
    """Samples as they will be stored.

    Attributes:
        columns: For each field an array (samples, *shape) of its storage dtype, in native order,
            or what is `Ragged`; those of bool fields may hold other bytes than 0 and 1.
        skipped: What was left out of the part.
        places: Where that was among the samples of the part.
    """

    columns: Sequence[AnyColumn]
    skipped: tuple[Skipped, ...] = ()
    places: tuple[int, ...] = ()


class Part(abc.ABC):
    """Consecutive samples of an input; pickled to the process that reads them."""

    @abc.abstractmethod
    def read(self, advance: Advance) -> Rows:
        """Reads the samples; `advance` is told of the progress."""

    def stream(self, advance: Advance) -> Sequence[AnyStreamed] | None:
        """The columns of a part of which nothing is skipped, some to be read while written.

        None if they are to be read at once.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Source(abc.ABC):
    """An input.

    Attributes:
        kind: The name of a `Kind`, or "arrays" or "samples".
        fields: Of a sample.
        structure: The containers of a sample around the numbers of its fields.
        rows: Samples to read; some may be skipped later.
        classes: For each field that numbers classes, their names.
        local: Parts can only be read in this process, in order.
        notices: What the user should know, in sentences.
        ragged_bytes: The mean size of the ragged fields of a sample, estimated.
        reason: Why it is of this kind; empty where there is no other one.
        leftovers: What is not read of the input.
        guessed: Names of fields whose dtypes the input does not say, so that they follow from some
            of its values.
    """

    kind: str
    fields: tuple[Field, ...]
    structure: Structure
    rows: int
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    local: bool = False
    notices: tuple[str, ...] = ()
    ragged_bytes: int = 0
    reason: str = ""
    leftovers: tuple[Leftover, ...] = ()
    guessed: tuple[str, ...] = ()

    @property
    def sample_bytes(self) -> int:
        """The mean size of a sample, estimated where fields are ragged."""
        fixed = sum(8 if field.ragged else field.row_bytes for field in self.fields)
        return fixed + self.ragged_bytes

    @abc.abstractmethod
    def part(self, start: int, stop: int) -> Part:
        """The samples [start, stop)."""

    def take(self, indices: Int64Array) -> Part:
        """The samples at `indices`, in that order."""
        parts = tuple(self.part(index, index + 1) for index in indices.tolist())
        return TakenPart(self.fields, parts)

    def pick(self, columns: Sequence[int]) -> Source | None:
        """The same samples of these fields alone, whose structure and classes are not used.

        None if they are read with the others in any case.
        """
        return None

    def names(self, indices: Int64Array) -> Sequence[str] | None:
        """The original file of each of the samples at `indices`, and the place in it.

        Those that are left out have the same names in `Skipped`. None if they are not known.
        """
        return None

    def random_access(self) -> Source:
        """The same samples, where `take` does not read a stream again and again."""
        return self

    def is_copied(self) -> bool:
        """Whether bytes are copied as they are, which one process can do as fast as a disk."""
        return False

    def paths(self) -> Sequence[str]:
        """The files that are read."""
        return ()

    @abc.abstractmethod
    def inputs(self) -> Any:
        """Names and sizes of what is read, in JSON's types; no folders, no times."""

    def options(self) -> dict[str, Any]:
        """The options that shape the output, in JSON's types."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Closes what is open."""


@dataclass(frozen=True)
class TakenPart(Part):
    """Samples from here and there: parts of `each` samples, but for the last."""

    fields: tuple[Field, ...]
    parts: tuple[Part, ...]
    each: int = 1

    def read(self, advance: Advance) -> Rows:
        """Reads part after part."""
        columns = [Collector(field, len(self.parts) * self.each) for field in self.fields]
        skipped: list[Skipped] = []
        places: list[int] = []
        for number, part in enumerate(self.parts):
            rows = part.read(advance)
            for column, piece in zip(columns, rows.columns, strict=True):
                column.add(piece)
            skipped += rows.skipped
            places += [number * self.each + place for place in rows.places]
        return Rows([column.finish() for column in columns], tuple(skipped), tuple(places))


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


def probed(rows: int) -> list[int]:
    """The samples that decide what a field is and how large: the first, and 63 across the rest."""
    return sorted({place * (rows - 1) // (_PROBES - 1) for place in range(_PROBES)}) if rows else []


def stored(values: Array, of: Field) -> Array:
    """The numbers as they are stored: contiguous, in native byte order, dates as int64."""
    if values.dtype.kind in "mM":
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        values = np.asarray(values, order="C").view(np.int64)
    return np.asarray(as_stored(values), of.storage, order="C")


def read_pieces(path: str, offset: int, size_bytes: int) -> Iterator[memoryview]:
    """The bytes of a range of a file, in pieces that stay in the processor's cache.

    Raises:
        FormatError: the file ends before the range does.
        OSError: it cannot be read.
    """
    buffer = memoryview(bytearray(min(size_bytes, _PIECE_BYTES)))
    with open(path, "rb", buffering=0) as file:
        while size_bytes:
            try:
                count = os.preadv(file.fileno(), [buffer[:size_bytes]], offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from error
            if count == 0:
                raise FormatError(f"{path}: truncated while it was read, at byte {offset}")
            yield buffer[:count]
            offset, size_bytes = offset + count, size_bytes - count


def read_array(path: str, offset: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Reads an array from a file. Not mapped, so that a file that shrinks cannot do more harm.

    Raises:
        FormatError: the file ends before the array does.
        OSError: it cannot be read.
    """
    made: Array = read_rows(path, np.array([offset]), dtype, shape)[0]
    return made


def read_rows(path: str, offsets: Int64Array, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Reads an array of `shape` from each of the offsets of a file.

    Raises:
        FormatError: the file ends before one of the arrays does.
        OSError: it cannot be read.
    """
    made = np.empty((len(offsets), *shape), dtype)
    if made.size == 0:
        return made
    rows = made.reshape(len(offsets), -1).view(np.uint8)
    with open(path, "rb", buffering=0) as file:
        for row, offset in zip(rows, offsets.tolist(), strict=True):
            view = memoryview(row.data)
            while view:
                count = os.preadv(file.fileno(), [view], offset)
                if count == 0:
                    raise FormatError(f"{path}: truncated while it was read, at byte {offset}")
                view, offset = view[count:], offset + count
    return made
