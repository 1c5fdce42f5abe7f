"""What every kind of input is turned into: parts of consecutive samples, read one by one."""

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
"""Told how many samples more were read."""


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


AnyStreamed = AnyColumn | Streamed | StreamedRagged


@dataclass(frozen=True)
class Rows:
    """Samples as they will be stored.

    Attributes:
        columns: For each field an array (samples, *shape) of its storage dtype, in native order,
            or what is `Ragged`; those of bool fields may hold other bytes than 0 and 1.
        skipped: What was left out of the part.
        places: Where that was among the samples of the part, dropped ones included.
        missing: By the number of the column; those without missing values are not in it.
        where: Names file and place of a sample of the columns, for errors; None if it has none.
        counts: What was dropped and filled because values were missing.
    """

    columns: Sequence[AnyColumn]
    skipped: tuple[Skipped, ...] = ()
    places: tuple[int, ...] = ()
    missing: Mapping[int, Missing] = field(default_factory=dict)
    where: Callable[[int], str] | None = None
    counts: MissingCounts = field(default_factory=MissingCounts)

    def take(self, rows: Int64Array) -> Rows:
        """The samples at `rows`, in that order, of rows of which nothing was left out."""
        where = self.where
        return Rows(
            [taken(column, rows) for column in self.columns],
            missing={number: of.take(rows) for number, of in self.missing.items()},
            where=None if where is None else lambda row: where(int(rows[row])),
        )


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
        nullable: Values may be missing.
        seen: The fields of which values are known to be missing, and where one is.
        unknown: Fields of which no value was seen, so that their dtype is a guess.
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
        made = RowsCollector(self.fields, len(self.parts) * self.each)
        for number, part in enumerate(self.parts):
            made.add(part.read(advance), number * self.each)
        return made.finish()


class RowsCollector:
    """Puts the samples of several parts together.

    Args:
        fields: Of the columns.
        most: Samples for which memory is taken.
    """

    def __init__(self, fields: Sequence[Field], most: int) -> None:
        self._columns = [Collector(field, most) for field in fields]
        self._missing: dict[int, list[tuple[int, Missing]]] = {}
        self._wheres: list[tuple[int, Callable[[int], str] | None]] = []
        self._skipped: list[Skipped] = []
        self._places: list[int] = []
        self._counts = MissingCounts()
        self._rows = 0

    def add(self, rows: Rows, first: int = 0) -> None:
        """Adds samples; `first` is the place of the first of them in the whole part."""
        for column, piece in zip(self._columns, rows.columns, strict=True):
            column.add(piece)
        for number, missing in rows.missing.items():
            self._missing.setdefault(number, []).append((self._rows, missing))
        self._wheres.append((self._rows, rows.where))
        self._skipped += rows.skipped
        self._places += [first + place for place in rows.places]
        self._counts += rows.counts
        self._rows += len(rows.columns[0])

    def finish(self) -> Rows:
        """All samples."""
        columns = [column.finish() for column in self._columns]
        return Rows(
            columns,
            tuple(self._skipped),
            tuple(self._places),
            {n: Missing.spread(columns[n], pieces) for n, pieces in self._missing.items()},
            self._where if any(where is not None for _, where in self._wheres) else None,
            self._counts,
        )

    def _where(self, row: int) -> str:
        number = bisect.bisect_right([first for first, _ in self._wheres], row) - 1
        first, where = self._wheres[number]
        return f"sample {row}" if where is None else where(row - first)


def probed(rows: int) -> list[int]:
    """The samples that decide what a field is and how large: the first, and 63 across the rest."""
    return sorted({place * (rows - 1) // (_PROBES - 1) for place in range(_PROBES)}) if rows else []


def stored(values: Array, of: Field) -> Array:
    """The numbers as they are stored: contiguous, in native byte order, dates as int64."""
    if values.dtype.kind in "mM":
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        values = np.asarray(values, order="C").view(np.int64)
    return np.asarray(as_stored(values), of.storage, order="C")
