"""Inputs of tables that pyarrow reads in batches of rows."""

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
_PROBED_UNITS = 8
_PROBED_ROWS = 64  # per unit
_PROBED_BYTES = 256 << 10  # per unit, but at least 8 rows


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows of a file that can be read independently.

    Attributes:
        path: Path of the file.
        number: Number of the unit in the file.
        rows: Number of rows.
        first: Number of the first row in the file.
        offset: Offset in bytes, for kinds that need it.
        size_bytes: Size in bytes, for kinds that need it.
    """

    path: str
    number: int
    rows: int
    first: int
    offset: int = 0
    size_bytes: int = 0


@contextlib.contextmanager
def damage(what: str) -> Iterator[None]:
    """Converts pyarrow's errors to FormatErrors that start with `what`; system errors are kept."""
    failures = (library("pyarrow", "parquet").ArrowException, OSError)
    try:
        yield
    except failures as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise FormatError(f"{what}: {error}") from error


class Reader(abc.ABC):
    """Reads units; pickled to the process that reads."""

    @abc.abstractmethod
    def batches(self, unit: Unit, start: int, each: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yields the rows of a unit from `start` on as record batches.

        Args:
            unit: Unit to read.
            start: First row.
            each: Maximum number of rows of a batch.
            columns: Names of the required columns; batches may have more.

        Raises:
            FormatError: the file is damaged.
        """

    def where(self, unit: Unit, row: int) -> str:
        """Returns file and row, for errors."""
        return f"{unit.path}: row {unit.first + row}"


@dataclass(frozen=True)
class BatchesPart(Part):
    """Rows of some units, in order.

    Attributes:
        reader: Reader of the units.
        ranges: Units, each with the range of its rows.
        fields: Fields to read.
        each: Number of rows read at a time.
    """

    reader: Reader
    ranges: tuple[tuple[Unit, int, int], ...]
    fields: tuple[ArrowField, ...]
    each: int

    def read(self, advance: Advance) -> Rows:
        """Reads the units in order.

        Raises:
            FormatError: a file is damaged, or has fewer rows than its metadata states.
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
    """Rows at arbitrary indices.

    Attributes:
        reader: Reader of the units.
        wanted: Units, each with the rows to read, ascending.
        order: Output position of each row, in the order of reading.
        fields: Fields to read.
        each: Number of rows read at a time.
    """

    reader: Reader
    wanted: tuple[tuple[Unit, Int64Array], ...]
    order: Int64Array
    fields: tuple[ArrowField, ...]
    each: int

    def read(self, advance: Advance) -> Rows:
        """Reads the units that have requested rows, and puts the rows in order."""
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
    """Yields the batches of a range, each with the number of its first row."""
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
    """A partly read unit, which the same thread continues; a unit may be larger than a shard."""

    def __init__(self, key: object, batches: Iterator[Any], path: str, row: int, end: int) -> None:
        self.row = row
        self._path, self._key, self._batches, self._end = path, key, batches, end
        self._rest: Any = None

    @classmethod
    def of(
        cls, reader: Reader, unit: Unit, each: int, columns: tuple[str, ...], start: int
    ) -> _Reading:
        """Returns the state that this thread left at or before `start`, or a new one."""
        key = reader, unit, each, columns, version_of(unit.path)
        left = _half_read.take(unit.path, key)
        if left is not None and left.row <= start:
            return left
        batches = reader.batches(unit, start, each, columns)
        return cls(key, batches, unit.path, start, unit.rows)

    def next(self, stop: int) -> Any:
        """Returns the next batch, which ends at `stop` at the latest; None at the end."""
        batch, self._rest = self._rest, None
        while batch is None or not batch.num_rows:
            if (batch := next(self._batches, None)) is None:
                return None
        if batch.num_rows > stop - self.row:
            batch, self._rest = batch.slice(0, stop - self.row), batch.slice(stop - self.row)
        self.row += batch.num_rows
        return batch

    def leave(self) -> None:
        """Keeps this state for the next part of this thread, unless the unit is finished."""
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
        where=lambda index: reader.where(unit, row + index),
    )


@dataclass(frozen=True, kw_only=True)
class BatchesSource(Source):
    """Source of tables with equal columns, concatenated.

    Attributes:
        reader: Reader of the units.
        units: Units that are not empty.
        ends: int64 (units,), cumulative number of rows at the end of each unit.
        columns: Columns to read.
        means: Mean size in bytes of a sample of each ragged column; 0 for others.
        row_bytes: Lower bound of the size of a row in bytes.
        shaping: Options that shape the output, in JSON types.
    """

    reader: Reader
    units: tuple[Unit, ...]
    ends: Int64Array
    columns: tuple[ArrowField, ...]
    means: tuple[int, ...]
    row_bytes: int
    shaping: dict[str, Any] = field(default_factory=dict)

    def part(self, start: int, stop: int) -> BatchesPart:
        """Returns the rows [start, stop)."""
        ranges = []
        number = int(np.searchsorted(self.ends, start, "right"))
        while start < stop and number < len(self.units):
            unit, end = self.units[number], int(self.ends[number])
            first = end - unit.rows
            ranges.append((unit, start - first, min(stop, end) - first))
            start, number = min(stop, end), number + 1
        return BatchesPart(self.reader, tuple(ranges), self.columns, self._each)

    def take(self, indices: Int64Array) -> TakenBatchesPart:
        """Returns the rows at `indices`; each unit is read once at most."""
        order = np.argsort(indices, kind="stable")
        ascending = indices[order]
        numbers = np.searchsorted(self.ends, ascending, "right")
        wanted = []
        for number in np.unique(numbers).tolist():
            unit = self.units[number]
            rows = ascending[numbers == number] - (int(self.ends[number]) - unit.rows)
            wanted.append((unit, rows))
        return TakenBatchesPart(self.reader, tuple(wanted), order, self.columns, self._each)

    @property
    def _each(self) -> int:
        """Number of rows of a batch."""
        row_bytes = max(self.row_bytes, self.sample_bytes, 1)
        return max(min(_BATCH_BYTES // row_bytes, _BATCH_ROWS), 1)

    def pick(self, columns: Sequence[int]) -> BatchesSource:
        """Returns a source of these columns."""
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
        """Returns the files."""
        return list(dict.fromkeys(unit.path for unit in self.units))

    def inputs(self) -> Any:
        """Returns names and sizes of the files."""
        return [[os.path.basename(path), os.path.getsize(path)] for path in self.paths()]

    def options(self) -> dict[str, Any]:
        """Returns the options that shape the samples."""
        return self.shaping

    def close(self) -> None:
        """Closes the files that threads keep open between parts."""
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
    """Opens units that have the columns of a pyarrow schema.

    Args:
        kind: Input kind.
        reader: Reader of the units.
        units: All units.
        schema: Schema of their columns.
        ragged: Names of columns that are ragged even if the probed rows have equal lengths.
        shaping: Options that shape the output, in JSON types.
        notices: As in `Source`.
        row_bytes: Mean size of a row in bytes, as far as the files define it; 0 if unknown.
        wanted: Fields to read.
        guessed: As in `Source`.

    Raises:
        FormatError: a file is damaged.
        TypeError, ValueError: a column cannot be packed.
    """
    filled = [unit for unit in units if unit.rows]
    step = -(-len(filled) // _PROBED_UNITS) if filled else 1
    some = min(max(_PROBED_BYTES // max(row_bytes, 1), 8), _PROBED_ROWS)
    samples = []
    fields = field_names(schema)
    names = [name for name in schema.names if wanted.enters(fields[name])]
    path = units[0].path if units else kind
    if len(set(names)) < len(names):
        raise TypeError(f"{path}: two columns have the same name: {names}")
    for unit in filled[::step] if names else ():
        batch = next(reader.batches(unit, 0, some, names), None)
        if batch is not None and batch.num_rows:
            fitting = max(_PROBED_BYTES * batch.num_rows // max(batch.nbytes, 1), 8)
            samples.append((unit, _copied(batch.slice(0, fitting))))
    try:
        found = ArrowSchema.of(schema, [batch for _, batch in samples], ragged, wanted)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error
    if not found.fields:
        raise FormatError(f"{path}: there are no columns")
    rows = max(sum(batch.num_rows for _, batch in samples), 1)
    means = [0] * len(found.fields)
    seen: dict[str, tuple[Unit, int]] = {}
    for unit, batch in samples:
        read = _columns(reader, unit, 0, batch, found.fields)
        for number, column in enumerate(read.columns):
            means[number] += column.values.nbytes if isinstance(column, Ragged) else 0
        for number, missing in read.missing.items():
            row = int(np.argmax(missing.samples))
            seen.setdefault(found.fields[number].field.name, (unit, row))
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
        seen={name: reader.where(*location) for name, location in seen.items()},
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
            yield f"column {column!r} (a pandas index) is the field {fields[column]!r}"


def _copied(batch: Any) -> Any:
    """Returns a copy of some rows that does not keep the memory of the whole batch."""
    pyarrow = library("pyarrow", "parquet")
    rows = pyarrow.py_buffer(np.arange(batch.num_rows))
    try:
        return batch.take(pyarrow.Array.from_buffers(pyarrow.int64(), batch.num_rows, [None, rows]))
    except pyarrow.ArrowNotImplementedError:  # pyarrow cannot copy this type
        return batch
