"""CSV and TSV files, and folders of them, by pyarrow."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.dtypes import TEXT_NAMES
from fastload.formats.extents import Int64Array
from fastload.formats.files import suffix
from fastload.pack.cast import cast_target
from fastload.pack.inventory import Inventory, Names
from fastload.pack.sources.arrow_columns import numbers
from fastload.pack.sources.batches import BatchesSource, Reader, Unit, open_batches
from fastload.pack.sources.kind import DTYPES, Kind, Option, library
from fastload.pack.sources.records import OpenFiles
from fastload.pack.sources.unpacked import (
    blocks,
    byte_of,
    drop_half_read,
    or_compressed,
    plain_name,
    text_files,
)
from fastload.pack.sources.wanted import ALL, Wanted

_SUFFIXES = (".csv", ".tsv", ".tab")
_BLOCK_BYTES = 1 << 20
_INFERRED_BYTES = 8 << 20
_LONGEST_ROW = 256 << 20
_ROW = re.compile(r"Row #(\d+)(?:: )?")


@dataclass(frozen=True)
class CsvReader(Reader):
    """Units are blocks of whole rows.

    Attributes:
        names: Of the columns.
        delimiter: Between values.
        types: Names and pyarrow types of the columns that are read.
    """

    names: tuple[str, ...]
    delimiter: str
    types: tuple[tuple[str, Any], ...]

    def batches(self, unit: Unit, start: int, each: int, columns: Sequence[str]) -> Iterator[Any]:
        """Parses the whole block."""
        types = {name: kind for name, kind in self.types if name in columns}
        table = self.parse(_read(unit), types, unit)
        yield from table.combine_chunks().slice(start).to_batches(each)

    def parse(
        self, content: bytes, types: Mapping[str, Any], unit: Unit, more: Sequence[str] = ()
    ) -> Any:
        """The table of a block.

        Args:
            content: Of the block.
            types: The types of the columns that are read.
            unit: The block.
            more: Columns that are read, too, with types that pyarrow chooses.

        Raises:
            FormatError: with the line that cannot be parsed.
        """
        pyarrow = library("pyarrow", "parquet")
        arrow_csv = library("pyarrow.csv", "parquet", "pyarrow")
        try:
            return arrow_csv.read_csv(
                pyarrow.BufferReader(content),
                arrow_csv.ReadOptions(
                    use_threads=False,
                    column_names=list(self.names),
                    block_size=len(content) + 1,
                ),
                arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types=types,
                    null_values=[""],
                    strings_can_be_null=False,
                    include_columns=list(dict.fromkeys([*types, *more])),
                ),
            )
        except pyarrow.ArrowInvalid as error:
            text = str(error)
            found = _ROW.search(text)
            where = f"{unit.path}: from {byte_of(unit.path, unit.offset)} on"
            if found is not None:
                where = _line(unit, content, int(found[1]) - 1)
                text = _ROW.sub("", text)
            number = re.search(r"In CSV column #(\d+): ", text)
            if number is not None:
                name = self.names[int(number[1])]
                text = text.replace(number[0], f"column {name!r}: ")
                text += "; --dtypes NAME=DTYPE (dtypes=) says what a column holds"
            raise FormatError(f"{where}: {text}") from error

    def where(self, unit: Unit, row: int) -> str:
        """The line of a row."""
        return _line(unit, _read(unit), row)


def open_csv(
    inventory: Inventory,
    *,
    delimiter: str | None = None,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    strict: bool = False,
    wanted: Wanted = ALL,
) -> BatchesSource:
    r"""The rows of a file, or of the `.csv`, `.tsv` and `.tab` files below a folder.

    Files may be compressed, as `.gz` or `.zst` behind that tells.

    A sample is a dict with a key for each column. What a column holds follows from the first
    megabytes: int64, float64, bool, dates, text.

    Args:
        inventory: The file or folder.
        delimiter: Between values; None takes tabs for `.tsv` and `.tab`, else commas. "\t" and
            "tab" are tabs.
        columns: Their names, for files without a line of them.
        dtypes: What columns hold, by name; "text" leaves them as they are.
        strict: Nothing is left out in any case.
        wanted: The fields that are read.

    Raises:
        FormatError: with the line: it has more or fewer values, or one of another kind, or none.
        ValueError: a dtype or column is not known.
        ImportError: pyarrow, or the package of Zstandard, is not installed.
    """
    pyarrow = library("pyarrow", "parquet")
    paths = text_files(inventory)
    if delimiter is None:
        delimiter = "\t" if suffix(plain_name(paths[0])) in (".tsv", ".tab") else ","
    delimiter = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
    if len(delimiter) != 1:
        raise ValueError(f"delimiter must be one character, not {delimiter!r}")
    names: tuple[str, ...] = tuple(columns or ())
    reader = CsvReader(names, delimiter, ())
    known: dict[str, Any] | None = None
    units: list[Unit] = []
    for file in paths:
        first, number = 0, 0
        for unit, content in _blocks(file, names if columns is not None else None):
            if unit.rows < 0:  # the names of the columns
                found = _names(unit, content, delimiter, wanted)
                if names and found != names:
                    raise FormatError(f"{paths[0]} and {file} differ in their columns")
                names, reader = found, CsvReader(found, delimiter, ())
                continue
            if known is None:
                try:
                    known = _types(pyarrow, reader, _head(unit), dict(dtypes or {}), wanted)
                finally:
                    drop_half_read((file,))  # an error would leave it open
            table = reader.parse(content, known, unit)
            _check_integers(pyarrow, table, reader, content, unit, dtypes or {})
            rows = table.num_rows
            units.append(Unit(file, number, rows, first, unit.offset, unit.size_bytes))
            first, number = first + rows, number + 1
    if not names:
        raise FormatError(f"{paths[0]}: there is no line of column names")
    wanted.check(names)
    read = [name for name in names if wanted.takes(name)]
    types = tuple((name, (known or {}).get(name, pyarrow.string())) for name in read)
    reader = CsvReader(names, delimiter, types)
    schema = pyarrow.schema(types)
    shaping = {"dtypes": {name: str(dtype) for name, dtype in dtypes.items()}} if dtypes else {}
    return open_batches("csv", reader, units, schema, shaping=shaping, wanted=wanted)


def _head(first: Unit) -> list[Unit]:
    """The blocks of the first megabytes."""
    end = first.offset + _INFERRED_BYTES
    units = (unit for unit, _ in _blocks(first.path, (), first.offset))
    return list(itertools.takewhile(lambda unit: unit.offset < end, units))


def _types(
    pyarrow: Any, reader: CsvReader, head: Sequence[Unit], dtypes: dict[str, Any], wanted: Wanted
) -> dict[str, Any]:
    """What the wanted columns hold, as some blocks have it, unless it is given."""
    wanted.check(reader.names)
    read = [name for name in reader.names if wanted.takes(name)]
    given = {name: _given_type(pyarrow, reader, name, dtype) for name, dtype in dtypes.items()}
    given = {name: kind for name, kind in given.items() if name in read}
    seen: dict[str, set[Any]] = {name: set() for name in read}
    for unit in head:
        for of in reader.parse(_read(unit), given, unit, read).schema:
            seen[of.name] |= set() if pyarrow.types.is_null(of.type) else {of.type}
    known = dict(given)
    for name, kinds in seen.items():
        if name not in given:
            # A block that holds a later kind cannot be read as an earlier one.
            inferred = _inferred(pyarrow)
            first = max((inferred.index(kind) for kind in kinds if kind in inferred), default=0)
            fitting = (kind for kind in inferred[first:] if _fits(reader, head, name, kind))
            kind = kinds.pop() if len(kinds) == 1 else next(fitting) if kinds else pyarrow.string()
            known[name] = kind
    return known


def _given_type(pyarrow: Any, reader: CsvReader, name: str, dtype: Any) -> Any:
    """The type of pyarrow that a column is parsed as; what pyarrow lacks is cast afterwards.

    Raises:
        ValueError: there is no such column, or text cannot be read as that dtype.
    """
    if name not in reader.names:
        names = ", ".join(reader.names)
        raise ValueError(f"dtypes: there is no column {name!r}; the columns are {names}")
    if str(dtype) in TEXT_NAMES:
        return pyarrow.string()
    if str(dtype).startswith("datetime64"):
        try:
            return pyarrow.from_numpy_dtype(np.dtype(dtype))
        except (TypeError, pyarrow.ArrowException) as error:
            raise ValueError(f"dtypes: column {name!r}: {dtype!r} is no time: {error}") from error
    try:
        known = cast_target(dtype)
    except ValueError as error:
        raise ValueError(f"dtypes: column {name!r}: {error}; text and datetime64[s] too") from None
    if known.startswith("complex"):
        raise ValueError(f"dtypes: column {name!r}: {known} cannot be read from text")
    wide = "float" in known and known not in ("float32", "float64")
    return pyarrow.from_numpy_dtype(np.dtype("float64" if wide else known))


def _inferred(pyarrow: Any) -> list[Any]:
    """What pyarrow takes a column for, if all of it can be read so; the first that fits."""
    times = [pyarrow.timestamp("s"), pyarrow.timestamp("ns")]
    zoned = [pyarrow.timestamp("s", "UTC"), pyarrow.timestamp("ns", "UTC")]
    numbers = [pyarrow.int64(), pyarrow.bool_(), pyarrow.date32(), pyarrow.time32("s")]
    return [*numbers, *times, *zoned, pyarrow.float64(), pyarrow.string(), pyarrow.binary()]


def _fits(reader: CsvReader, head: Sequence[Unit], name: str, kind: Any) -> bool:
    """Whether a column of some blocks can be read so."""
    try:
        for unit in head:
            reader.parse(_read(unit), {name: kind}, unit)
    except FormatError:
        return False
    return True


def _check_integers(
    pyarrow: Any,
    table: Any,
    reader: CsvReader,
    content: bytes,
    unit: Unit,
    dtypes: Mapping[str, Any],
) -> None:
    """Raises FormatError for an integer that pyarrow rounds, for it takes large ones for floats."""
    for of in table.schema:
        if of.type != pyarrow.float64() or of.name in dtypes:
            continue
        values = numbers(table.column(of.name).combine_chunks().fill_null(0))
        large = np.flatnonzero(np.abs(values) > 2.0**53)
        if len(large):
            texts = reader.parse(content, {of.name: pyarrow.string()}, unit).column(of.name)
            for row in large.tolist():
                if re.fullmatch(r"[+-]?\d+", texts[row].as_py()):
                    raise FormatError(
                        f"{_line(unit, content, row)}: column {of.name!r}: {texts[row]} is an "
                        "integer that neither int64 nor float64 holds, or stands among floats; "
                        "--dtypes NAME=DTYPE (dtypes=) says what the column holds"
                    )


def _names(unit: Unit, content: bytes, delimiter: str, wanted: Wanted) -> tuple[str, ...]:
    text = content.decode("utf-8-sig", "replace").lstrip("\r\n")
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        names, more = tuple(next(lines, ())), next(lines, None)
    except csv.Error as error:
        raise FormatError(f"{unit.path}: line 1: {error}") from error
    if more is not None:
        raise FormatError(
            f"{unit.path}: its lines end in a carriage return alone; write it anew with newlines"
        )
    taken = [name for name in names if wanted.takes(name)]
    if not names or "" in taken or len(set(taken)) < len(taken):
        raise FormatError(
            f"{unit.path}: line 1: the names of the columns are {', '.join(map(repr, names))}; "
            "each needs one of its own (--columns gives them, where the file has none)"
        )
    return names


def _blocks(
    path: str, names: tuple[str, ...] | None, offset: int = 0
) -> Iterator[tuple[Unit, bytes]]:
    """Whole rows of some megabytes each; before them, with -1 rows, the names of the columns."""
    content = bytearray()  # in which no row ends, before more is read
    is_named, is_open = names is not None, False
    for piece in itertools.chain(blocks(path, _BLOCK_BYTES, offset), [b""]):
        ends, is_open = _row_ends(piece, is_open)
        ends += len(content)
        content += piece
        if not is_named:  # blank lines before the names belong to them
            ends = ends[ends >= len(content) - len(content.lstrip(b"\r\n"))]
        if not is_named and (len(ends) or not piece):
            size = int(ends[0]) + 1 if len(ends) else len(content)
            if content[:size].strip(b"\r\n"):
                yield Unit(path, -1, -1, 0, offset, size), bytes(content[:size])
            del content[:size]
            offset, is_named, ends = offset + size, True, ends[1:] - size
        size = int(ends[-1]) + 1 if len(ends) else 0
        if not piece:
            if is_open:
                where = f"from {byte_of(path, offset)} on"
                raise FormatError(f"{path}: {where}: a quote is never closed")
            size = len(content)
        rows = bytes(content[:size])
        if rows.strip(b"\r\n"):
            yield Unit(path, 0, 0, 0, offset, size), rows
        del content[:size]
        offset += size
        if len(content) > _LONGEST_ROW:  # else all that is left of the file would be held
            what = "a quote that is never closed" if is_open else "no newline"
            raise FormatError(
                f"{path}: from {byte_of(path, offset)} on: a row of more than "
                f"{_LONGEST_ROW >> 20} MiB, or {what}"
            )


def _row_ends(content: bytes, is_open: bool = False) -> tuple[Int64Array, bool]:
    """Where rows end, and whether a quote is open at the end; newlines in quotes end nothing.

    Args:
        content: To look at.
        is_open: Whether a quote is, at its start.
    """
    if b'"' not in content:
        end = b"" if is_open else content
        return np.flatnonzero(np.frombuffer(end, np.uint8) == ord("\n")), is_open
    codes = np.frombuffer(content, np.uint8)
    is_end = codes == ord("\n")
    inside = np.logical_xor.accumulate(codes == ord('"')) ^ is_open
    return np.flatnonzero(is_end & ~inside), bool(inside[-1])


def _line(unit: Unit, content: bytes, row: int) -> str:
    """The place of a row of a block, counted without blank lines."""
    ends, _ = _row_ends(content)
    start = 0
    for end in [*ends.tolist(), len(content)]:
        if content[start : end + 1].strip(b"\r\n"):
            if row == 0:
                break
            row -= 1
        start = end + 1
    before, left = content[:start].count(b"\n"), unit.offset
    for piece in blocks(unit.path, _BLOCK_BYTES):
        before, left = before + piece[:left].count(b"\n"), max(left - len(piece), 0)
        if not left:
            break
    return f"{unit.path}: line {before + 1}, at {byte_of(unit.path, unit.offset + start)}"


def _read(unit: Unit) -> bytes:
    with OpenFiles() as files:
        content = files.read(unit.path, unit.offset, unit.size_bytes)
        files.leave()
    return content


KIND = Kind(
    "csv",
    "a .csv or .tsv file (.gz, .zst), or a folder of them: dicts of the columns",
    open_csv,
    lambda path: path.holds(*or_compressed(*_SUFFIXES)),
    (
        DTYPES,
        Option("delimiter", "between values (default: tabs for .tsv, else commas)"),
        Option("columns", "their names, where the files have no line of them", "names"),
    ),
    ("pyarrow",),
    "parquet",
    Names(or_compressed(*_SUFFIXES)),
)
