"""Interface of an opened input: a source, and parts of samples that are read from it."""

from __future__ import annotations

import abc
import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastload.formats.columns import Int64Array
from fastload.formats.dtypes import as_stored
from fastload.formats.fields import Field
from fastload.formats.manifest import Leftover, Skipped
from fastload.formats.missing import MissingCounts
from fastload.formats.structure import Structure
from fastload.packing.columns import AnyColumn as AnyColumn
from fastload.packing.columns import Array as Array
from fastload.packing.columns import Collector as Collector
from fastload.packing.columns import Missing as Missing
from fastload.packing.columns import Ragged as Ragged
from fastload.packing.columns import RaggedBuilder as RaggedBuilder
from fastload.packing.columns import inverse as inverse
from fastload.packing.columns import taken as taken

_PROBES = 64

Advance = Callable[[int], None]
"""Called with the number of samples read since the last call."""


@dataclass(frozen=True, eq=False)
class Streamed:
    """A column that is read while it is written.

    Attributes:
        rows: Number of samples.
        pieces: Bytes of the column in order; each piece is valid until the next one.
    """

    rows: int
    pieces: Iterator[memoryview]

    def __len__(self) -> int:
        return self.rows


@dataclass(frozen=True, eq=False)
class StreamedRagged:
    """A column of encoded images that is read while it is written.

    Attributes:
        offsets: As in `Ragged`.
        pieces: Bytes of the column in order; each piece is valid until the next one. Raises
            `UnstreamableError` if a file is not as expected.
        sizes: uint32 (samples, 2), height and width of each image; filled once all pieces are read.
    """

    offsets: Int64Array
    pieces: Iterator[memoryview]
    sizes: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1


class UnstreamableError(Exception):
    """Raised if a part cannot be streamed; it must be read as a whole."""


AnyStreamed = AnyColumn | Streamed | StreamedRagged


@dataclass(frozen=True)
class Rows:
    """Samples as they will be stored.

    Attributes:
        columns: For each field an array (samples, *shape) of its storage dtype in native byte
            order, or a `Ragged`. Bool fields may have bytes other than 0 and 1.
        skipped: Bad records that were left out of the part.
        left_out: Indices of the left-out samples within the part, dropped ones included.
        missing: Missing values by column number; columns without missing values have no entry.
        where: Returns file and location of a sample of the columns, for errors; None if there are
            none.
        counts: Number of samples dropped and filled because values were missing.
    """

    columns: Sequence[AnyColumn]
    skipped: tuple[Skipped, ...] = ()
    left_out: tuple[int, ...] = ()
    missing: Mapping[int, Missing] = field(default_factory=dict)
    where: Callable[[int], str] | None = None
    counts: MissingCounts = field(default_factory=MissingCounts)

    def take(self, rows: Int64Array) -> Rows:
        """Returns the samples at `rows`, in that order; `skipped` and `left_out` must be empty."""
        where = self.where
        return Rows(
            [taken(column, rows) for column in self.columns],
            missing={number: of.take(rows) for number, of in self.missing.items()},
            where=None if where is None else lambda row: where(int(rows[row])),
        )


class Part(abc.ABC):
    """Contiguous samples of an input; pickled to the process that reads them."""

    @abc.abstractmethod
    def read(self, advance: Advance) -> Rows:
        """Reads the samples and calls `advance` with their number."""

    def stream(self, advance: Advance) -> Sequence[AnyStreamed] | None:
        """Returns columns of which some are read while they are written.

        None if the part must be read as a whole. Streamed parts skip no sample.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Source(abc.ABC):
    """An opened input.

    Attributes:
        kind: Name of a `Kind`, or "arrays" or "samples".
        fields: Fields of a sample.
        structure: Containers of a sample around the numbers of its fields.
        rows: Number of samples to read, some of which may be skipped later.
        classes: Class names of each field that numbers classes.
        local: True if parts can only be read in this process, in order.
        notices: Sentences for the user.
        ragged_bytes: Estimated mean size in bytes of the ragged fields of a sample.
        reason: Why this kind was detected; empty if there is only one.
        leftovers: Entries of the input that are not read.
        guessed: Names of fields whose dtypes were derived from some values, because the input does
            not define them.
        nullable: True if values may be missing.
        seen: For each field known to have a missing value, the location of one.
        unknown: Fields without a value in the probed samples, whose dtype is a guess.
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
    nullable: bool = False
    seen: dict[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()

    @property
    def sample_bytes(self) -> int:
        """Mean size of a sample in bytes, estimated for ragged fields."""
        fixed = sum(8 if field.ragged else field.row_bytes for field in self.fields)
        return fixed + self.ragged_bytes

    @abc.abstractmethod
    def part(self, start: int, stop: int) -> Part:
        """Returns the samples [start, stop)."""

    def take(self, indices: Int64Array) -> Part:
        """Returns the samples at `indices`, in that order."""
        parts = tuple(self.part(index, index + 1) for index in indices.tolist())
        return TakenPart(self.fields, parts)

    def pick(self, columns: Sequence[int]) -> Source | None:
        """Returns the same samples with only these fields, or None if that saves no reading.

        The caller does not use the structure and classes of the result.
        """
        return None

    def names(self, indices: Int64Array) -> Sequence[str] | None:
        """Returns the original file and location of each sample at `indices`.

        Left-out samples have the same names in `Skipped`. None if the names are unknown.
        """
        return None

    def random_access(self) -> Source:
        """Returns the same samples; `take` must not read a stream several times."""
        return self

    def is_copied(self) -> bool:
        """True if bytes are copied without conversion, so one process is as fast as the disk."""
        return False

    def paths(self) -> Sequence[str]:
        """Returns the files that are read."""
        return ()

    @abc.abstractmethod
    def inputs(self) -> Any:
        """Returns names and sizes of the inputs in JSON types, without folders and times."""

    def options(self) -> dict[str, Any]:
        """Returns the options that shape the output, in JSON types."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Closes open files."""


@dataclass(frozen=True)
class TakenPart(Part):
    """Samples at arbitrary indices: parts of `each` samples, except the last."""

    fields: tuple[Field, ...]
    parts: tuple[Part, ...]
    each: int = 1

    def read(self, advance: Advance) -> Rows:
        """Reads the parts in order."""
        made = RowsCollector(self.fields, len(self.parts) * self.each)
        for number, part in enumerate(self.parts):
            made.add(part.read(advance), number * self.each)
        return made.finish()


class RowsCollector:
    """Concatenates the samples of several parts.

    Args:
        fields: Fields of the columns.
        max_samples: Maximum number of samples, for which memory is allocated.
    """

    def __init__(self, fields: Sequence[Field], max_samples: int) -> None:
        self._columns = [Collector(field, max_samples) for field in fields]
        self._missing: dict[int, list[tuple[int, Missing]]] = {}
        self._wheres: list[tuple[int, Callable[[int], str] | None]] = []
        self._skipped: list[Skipped] = []
        self._left_out: list[int] = []
        self._counts = MissingCounts()
        self._rows = 0

    def add(self, rows: Rows, first: int = 0) -> None:
        """Adds samples; `first` is the index of the first one in the whole part."""
        for column, piece in zip(self._columns, rows.columns, strict=True):
            column.add(piece)
        for number, missing in rows.missing.items():
            self._missing.setdefault(number, []).append((self._rows, missing))
        self._wheres.append((self._rows, rows.where))
        self._skipped += rows.skipped
        self._left_out += [first + index for index in rows.left_out]
        self._counts += rows.counts
        self._rows += len(rows.columns[0])

    def finish(self) -> Rows:
        """Returns all samples."""
        columns = [column.finish() for column in self._columns]
        return Rows(
            columns,
            tuple(self._skipped),
            tuple(self._left_out),
            {n: Missing.spread(columns[n], pieces) for n, pieces in self._missing.items()},
            self._where if any(where is not None for _, where in self._wheres) else None,
            self._counts,
        )

    def _where(self, row: int) -> str:
        number = bisect.bisect_right([first for first, _ in self._wheres], row) - 1
        first, where = self._wheres[number]
        return f"sample {row}" if where is None else where(row - first)


def probed(rows: int) -> list[int]:
    """Returns the samples that define fields and sizes: the first, and up to 63 across the rest."""
    return sorted({n * (rows - 1) // (_PROBES - 1) for n in range(_PROBES)}) if rows else []


def stored(values: Array, of: Field) -> Array:
    """Returns the numbers as they are stored: contiguous, native byte order, dates as int64."""
    if values.dtype.kind in "mM":
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        values = np.asarray(values, order="C").view(np.int64)
    return np.asarray(as_stored(values), of.storage, order="C")
