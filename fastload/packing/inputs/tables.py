"""Tables that are read in batches of rows, by pyarrow."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.packing.columns import Ragged, inverse
from fastload.packing.inputs.arrow_columns import ArrowField, ArrowSchema, ColumnError, field_names
from fastload.packing.inputs.compressed import drop_half_read
from fastload.packing.inputs.half_read import HalfRead, version_of
from fastload.packing.inputs.kind import library
from fastload.packing.inputs.source import Advance, Part, Rows, RowsCollector, Source
from fastload.packing.inputs.wanted import ALL, Wanted

_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16
_LOOKED_AT_UNITS = 8
_LOOKED_AT_ROWS = 64  # of a unit
_LOOKED_AT_BYTES = 256 << 10  # likewise, if these are 8 rows


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows of a file that can be read without what is before them.

    Attributes:
        path: Of the file.
        number: Of the unit in it.
        rows: In the unit.
        first: The number of its first row in the file.
        offset: Where it lies, for kinds that need it.
        size_bytes: Of it, for kinds that need it.
    """

    path: str
    number: int
    rows: int
    first: int
    offset: int = 0
    size_bytes: int = 0


@contextlib.contextmanager
def damage(what: str) -> Iterator[None]:
    """Makes FormatErrors that say `what` of pyarrow's errors; those of the system stay."""
    failures = (library("pyarrow", "parquet").ArrowException, OSError)
    try:
        yield
    except failures as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise FormatError(f"{what}: {error}") from error


class Reader(abc.ABC):
    """Reads units; pickled to the process that does it."""

    @abc.abstractmethod
    def batches(self, unit: Unit, start: int, each: int, columns: Sequence[str]) -> Iterator[Any]:
        """The rows of a unit from `start` on, in record batches.

        Args:
            unit: To read.
            start: The first row.
            each: Rows of a batch, at most.
            columns: The names of those that are needed; there may be more.

        Raises:
            FormatError: the file is damaged.
        """

    def where(self, unit: Unit, row: int) -> str:
        """The file of a unit, and the place of its row there."""
        return f"{unit.path}: row {unit.first + row}"


@dataclass(frozen=True)
class BatchesPart(Part):
    """Rows of some units, in order.

    Attributes:
        reader: Of the units.
        ranges: Units, each with the range of its rows.
        fields: To read.
        each: Rows that are read at once.
    """

    reader: Reader
    ranges: tuple[tuple[Unit, int, int], ...]
    fields: tuple[ArrowField, ...]
    each: int

    def read(self, advance: Advance) -> Rows:
        """Reads the units one by one.

        Raises:
            FormatError: a file is damaged, or holds fewer rows than it says.
        """
        count = sum(stop - start for _, start, stop in self.ranges)
        made = RowsCollector([of.field for of in self.fields], count)
        for unit, start, stop in self.ranges:
            for row, batch in _rows(self, unit, start, stop):
                made.add(_columns(self.reader, unit, row, batch, self.fields))
                advance(batch.num_rows)
        return made.finish()


@dataclass(frozen=True)
class TakenBatchesPart(Part):
    """Rows from here and there.

    Attributes:
        reader: Of the units.
        wanted: Units, each with the rows that are read of it, upwards.
        order: Where the rows go, in the order in which they are read.
        fields: To read.
        each: Rows that are read at once.
    """

    reader: Reader
    wanted: tuple[tuple[Unit, Int64Array], ...]
    order: Int64Array
    fields: tuple[ArrowField, ...]
    each: int

    def read(self, advance: Advance) -> Rows:
        """Reads the units that have such rows, and puts the rows in order."""
        made = RowsCollector([of.field for of in self.fields], len(self.order))
        for unit, rows in self.wanted:
            for first, batch in _rows(self, unit, int(rows[0]), int(rows[-1]) + 1):
                here = rows[(rows >= first) & (rows < first + batch.num_rows)] - first
                made.add(_columns(self.reader, unit, first, batch, self.fields).take(here))
                advance(len(here))
        return made.finish().take(inverse(self.order))


def _rows(
    part: BatchesPart | TakenBatchesPart, unit: Unit, start: int, stop: int
) -> Iterator[tuple[int, Any]]:
    """The batches of a range, each with the number of its first row."""
    columns = tuple(dict.fromkeys(field.keys[0] for field in part.fields))
    reading = _Reading.of(part.reader, unit, part.each, columns, start)
    while (row := reading.row) < stop:
        batch = reading.next(stop)
        if batch is None:
            short = stop - row
            raise FormatError(
                f"{part.reader.where(unit, row)}: the file ends here, {short} rows short"
            )
        if row + batch.num_rows > start:
            skip = max(start - row, 0)
            yield row + skip, batch.slice(skip)
    reading.leave()


class _Reading:
    """A unit that is being read, which goes on where it stopped: it may be larger than a shard."""

    def __init__(self, key: object, batches: Iterator[Any], path: str, row: int, end: int) -> None:
        self.row = row
        self._path, self._key, self._batches, self._end = path, key, batches, end
        self._rest: Any = None

    @classmethod
    def of(
        cls, reader: Reader, unit: Unit, each: int, columns: tuple[str, ...], start: int
    ) -> _Reading:
        """What this thread left before `start`, or a new one."""
        key = reader, unit, each, columns, version_of(unit.path)
        left = _half_read.take(unit.path, key)
        if left is not None and left.row <= start:
            return left
        batches = reader.batches(unit, start, each, columns)
        return cls(key, batches, unit.path, start, unit.rows)

    def next(self, stop: int) -> Any:
        """The next batch, not beyond `stop`; None if there is no more."""
        batch, self._rest = self._rest, None
        while batch is None or not batch.num_rows:
            if (batch := next(self._batches, None)) is None:
                return None
        if batch.num_rows > stop - self.row:
            batch, self._rest = batch.slice(0, stop - self.row), batch.slice(stop - self.row)
        self.row += batch.num_rows
        return batch

    def leave(self) -> None:
        """Lets this thread go on here later, if there is more."""
        if self.row < self._end:
            _half_read.leave(self._path, self._key, self)


_half_read: HalfRead[_Reading] = HalfRead()


def _columns(
    reader: Reader, unit: Unit, row: int, batch: Any, fields: Sequence[ArrowField]
) -> Rows:
    try:
        read = [field.read(batch) for field in fields]
    except ColumnError as error:
        raise FormatError(f"{reader.where(unit, row + error.row)}: {error}") from None
    except KeyError as error:
        raise FormatError(f"{reader.where(unit, row)}: there is no column {error}") from error
    return Rows(
        [column for column, _ in read],
        missing={number: of for number, (_, of) in enumerate(read) if of is not None},
        where=lambda place: reader.where(unit, row + place),
    )


@dataclass(frozen=True, kw_only=True)
class BatchesSource(Source):
    """Tables of equal columns, one after the other.

    Attributes:
        reader: Of the units.
        units: Which are not empty.
        ends: int64 (units): the rows up to the end of each.
        columns: To read.
        means: What each takes in a sample on average, where it is ragged.
        row_bytes: The least that a row takes.
        shaping: The options that shape the output, in JSON's types.
    """

    reader: Reader
    units: tuple[Unit, ...]
    ends: Int64Array
    columns: tuple[ArrowField, ...]
    means: tuple[int, ...]
    row_bytes: int
    shaping: dict[str, Any] = field(default_factory=dict)

    def part(self, start: int, stop: int) -> BatchesPart:
        """The rows [start, stop)."""
        ranges = []
        number = int(np.searchsorted(self.ends, start, "right"))
        while start < stop and number < len(self.units):
            unit, end = self.units[number], int(self.ends[number])
            first = end - unit.rows
            ranges.append((unit, start - first, min(stop, end) - first))
            start, number = min(stop, end), number + 1
        return BatchesPart(self.reader, tuple(ranges), self.columns, self._each)

    def take(self, indices: Int64Array) -> TakenBatchesPart:
        """The rows at `indices`; each unit that has one of them is read once."""
        order = np.argsort(indices, kind="stable")
        upwards = indices[order]
        numbers = np.searchsorted(self.ends, upwards, "right")
        wanted = []
        for number in np.unique(numbers).tolist():
            unit = self.units[number]
            rows = upwards[numbers == number] - (int(self.ends[number]) - unit.rows)
            wanted.append((unit, rows))
        return TakenBatchesPart(self.reader, tuple(wanted), order, self.columns, self._each)

    @property
    def _each(self) -> int:
        """Rows of a batch."""
        row_bytes = max(self.row_bytes, self.sample_bytes, 1)
        return max(min(_BATCH_BYTES // row_bytes, _BATCH_ROWS), 1)

    def pick(self, columns: Sequence[int]) -> BatchesSource:
        """The same with these columns."""
        read = tuple(self.columns[number] for number in columns)
        means = tuple(self.means[number] for number in columns)
        return replace(
            self,
            fields=tuple(of.field for of in read),
            columns=read,
            means=means,
            ragged_bytes=sum(means),
            row_bytes=0,
        )

    def paths(self) -> Sequence[str]:
        """The files."""
        return list(dict.fromkeys(unit.path for unit in self.units))

    def inputs(self) -> Any:
        """Names and sizes of the files."""
        return [[os.path.basename(path), os.path.getsize(path)] for path in self.paths()]

    def options(self) -> dict[str, Any]:
        """What shapes the samples."""
        return self.shaping

    def close(self) -> None:
        """Closes the files that threads would have gone on in."""
        paths = frozenset(self.paths())
        _half_read.drop(paths)
        drop_half_read(paths)


def open_batches(
    kind: str,
    reader: Reader,
    units: Sequence[Unit],
    schema: Any,
    *,
    ragged: Sequence[str] = (),
    shaping: dict[str, Any] | None = None,
    notices: Sequence[str] = (),
    row_bytes: int = 0,
    wanted: Wanted = ALL,
    guessed: Sequence[str] = (),
) -> BatchesSource:
    """A source of units that have the columns of a pyarrow schema.

    Args:
        kind: Of the input.
        reader: Of the units.
        units: All of them.
        schema: Their columns.
        ragged: Columns whose lists vary in length, whatever the rows that are looked at have.
        shaping: The options that shape the output, in JSON's types.
        notices: As in `Source`.
        row_bytes: What a row takes on average as far as the files say it; rows that are looked at
            may say more.
        wanted: The fields that are read.
        guessed: As in `Source`.

    Raises:
        FormatError: a file is damaged.
        TypeError, ValueError: a column cannot be packed.
    """
    filled = [unit for unit in units if unit.rows]
    step = -(-len(filled) // _LOOKED_AT_UNITS) if filled else 1
    some = min(max(_LOOKED_AT_BYTES // max(row_bytes, 1), 8), _LOOKED_AT_ROWS)
    looked_at = []
    fields = field_names(schema)
    names = [name for name in schema.names if wanted.enters(fields[name])]
    path = units[0].path if units else kind
    if len(set(names)) < len(names):
        raise TypeError(f"{path}: two columns have one name: {names}")
    for unit in filled[::step] if names else ():
        batch = next(reader.batches(unit, 0, some, names), None)
        if batch is not None and batch.num_rows:
            fitting = max(_LOOKED_AT_BYTES * batch.num_rows // max(batch.nbytes, 1), 8)
            looked_at.append((unit, _copied(batch.slice(0, fitting))))
    try:
        found = ArrowSchema.of(schema, [batch for _, batch in looked_at], ragged, wanted)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error
    if not found.fields:
        raise FormatError(f"{path}: there are no columns")
    rows = max(sum(batch.num_rows for _, batch in looked_at), 1)
    means = [0] * len(found.fields)
    seen: dict[str, tuple[Unit, int]] = {}
    for unit, batch in looked_at:
        read = _columns(reader, unit, 0, batch, found.fields)
        for number, column in enumerate(read.columns):
            means[number] += column.values.nbytes if isinstance(column, Ragged) else 0
        for number, missing in read.missing.items():
            place = int(np.argmax(missing.samples))
            seen.setdefault(found.fields[number].field.name, (unit, place))
    means = [mean // rows for mean in means]
    return BatchesSource(
        kind=kind,
        fields=tuple(of.field for of in found.fields),
        structure=found.structure,
        rows=sum(unit.rows for unit in units),
        classes=found.classes,
        notices=(*notices, *_about_names(fields, names)),
        guessed=tuple(guessed),
        ragged_bytes=sum(means),
        nullable=True,
        seen={name: reader.where(*place) for name, place in seen.items()},
        unknown=found.unknown,
        reader=reader,
        units=tuple(filled),
        ends=np.cumsum([unit.rows for unit in filled], dtype=np.int64),
        columns=found.fields,
        means=tuple(means),
        row_bytes=row_bytes,
        shaping={**({"ragged": list(ragged)} if ragged else {}), **(shaping or {})},
    )


def _about_names(fields: Mapping[str, str], columns: Sequence[str]) -> Iterator[str]:
    for column in columns:
        if fields[column] != column:
            yield f"column {column!r} (an index of pandas) is the field {fields[column]!r}"


def _copied(batch: Any) -> Any:
    """Some rows without the memory of those that they were read with."""
    pyarrow = library("pyarrow", "parquet")
    rows = pyarrow.py_buffer(np.arange(batch.num_rows))
    try:
        return batch.take(pyarrow.Array.from_buffers(pyarrow.int64(), batch.num_rows, [None, rows]))
    except pyarrow.ArrowNotImplementedError:  # of a type that it cannot copy so
        return batch
