"""CSV and TSV files, and folders of them, parsed by pyarrow."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastload.errors import FormatError
from fastload.formats.files import suffix
from fastload.packing.inputs.compressed import drop_half_read, or_compressed, plain_name, text_files
from fastload.packing.inputs.hive import Partitions
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import DTYPES, ENCODING, Kind, Option, library
from fastload.packing.inputs.tables import BatchesSource, Unit, open_batches
from fastload.packing.inputs.text_encoding import encoding_named
from fastload.packing.inputs.wanted import ALL, Wanted
from fastload.packing.kinds.csv_reader import CsvReader
from fastload.packing.kinds.csv_rows import CsvText
from fastload.packing.kinds.csv_types import ColumnTypes

_SUFFIXES = (".csv", ".tsv", ".tab")
_INFERRED_BYTES = 8 << 20


def open_csv(
    inventory: Inventory,
    *,
    delimiter: str | None = None,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    encoding: str | None = None,
    strict: bool = False,
    wanted: Wanted = ALL,
) -> BatchesSource:
    r"""Opens a file, or the `.csv`, `.tsv` and `.tab` files below a folder.

    Compressed files are detected from the suffixes `.gz` and `.zst`.

    A sample is a dict with a key for each column; columns without a name are named as pandas does
    it, such as "Unnamed: 0". What a column holds follows from the first megabytes: int64, float64,
    bool, dates, times, text.

    Args:
        inventory: The file or folder.
        delimiter: Between values; None takes tabs for `.tsv` and `.tab`, else commas. "\t" and
            "tab" are tabs.
        columns: Their names, for files without a line of them.
        dtypes: Dtypes of columns, by name; "text" keeps the text.
        encoding: Encoding of the text; None is UTF-8.
        strict: Nothing is left out in any case.
        wanted: The fields that are read.

    Raises:
        FormatError: with the line: it has more or fewer values, or one of another kind, or none; or
            the text is not in its encoding.
        ValueError: a dtype, column or encoding is not known.
        ImportError: pyarrow, or the package of Zstandard, is not installed.
    """
    pyarrow = library("pyarrow", "parquet")
    paths = text_files(inventory)
    partitions = Partitions.of(inventory)

    def read_of(names: Sequence[str]) -> Wanted:
        """Returns the columns to read: at least one, since it yields the number of rows."""
        left = wanted.without(partitions.names)
        return Wanted(tuple(names[:1])) if left.names == () else left

    encoding = encoding_named(encoding)
    text = CsvText(
        _delimiter(delimiter, paths[0]),
        encoding,
        is_checked=encoding is None and wanted.names is None,
    )
    given = {name: of for name, of in (dtypes or {}).items() if name not in partitions.names}
    names = _named(columns or ())
    if columns is not None:
        _check_names("columns", names, wanted)
    reader = CsvReader(names, text)
    types: ColumnTypes | None = None
    units: list[Unit] = []
    for file in paths:
        first, number = 0, 0
        for unit, content in text.blocks(file, has_names=columns is None):
            if unit.rows < 0:  # the names of the columns
                found = _names(unit, content, text.delimiter, wanted)
                if not names:
                    names, reader = found, CsvReader(found, text)
                elif found != names:
                    _check_same(file, found, paths[0], names, read_of(names))
                    reader = replace(reader, others={**reader.others, file: found})
                continue
            if types is None:
                try:
                    types = ColumnTypes.of(reader, _head(text, unit), given, read_of(names))
                finally:
                    drop_half_read((file,))  # an error would leave it open
            table = reader.parse(content, types.by_name, unit)
            types.check(reader, table, content, unit)
            rows = table.num_rows
            units.append(Unit(file, number, rows, first, unit.offset, unit.size_bytes))
            first, number = first + rows, number + 1
    if not names:
        raise FormatError(f"{paths[0]}: there is no line of column names")
    wanted.check([*names, *partitions.names])
    known = types.by_name if types is not None else {}
    taken = read_of(names)
    read = [(name, known.get(name, pyarrow.string())) for name in names if taken.takes(name)]
    shaping: dict[str, Any] = {} if encoding is None else {"encoding": encoding}
    if given:
        shaping["dtypes"] = {name: str(dtype) for name, dtype in given.items()}
    partitioned, schema = partitions.added_to(
        replace(reader, types=tuple(read)), pyarrow.schema(read), paths[0], wanted
    )
    return open_batches(
        "csv",
        partitioned,
        units,
        schema,
        shaping=shaping,
        wanted=wanted,
        guessed=[name for name, _ in read if name not in given],
    )


def _delimiter(given: str | None, path: str) -> str:
    if given is None:
        return "\t" if suffix(plain_name(path)) in (".tsv", ".tab") else ","
    delimiter = {"\t": "\t", "tab": "\t"}.get(given, given)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise ValueError(f"delimiter must be one character of ASCII, not {given!r}")
    return delimiter


def _head(text: CsvText, first: Unit) -> list[Unit]:
    """Returns the blocks of the first megabytes."""
    end = first.offset + _INFERRED_BYTES
    units = (unit for unit, _ in text.blocks(first.path, has_names=False, offset=first.offset))
    return list(itertools.takewhile(lambda unit: unit.offset < end, units))


def _names(unit: Unit, content: bytes, delimiter: str, wanted: Wanted) -> tuple[str, ...]:
    text = content.decode("utf-8-sig", "replace").lstrip("\r\n")
    if "\0" in text:
        raise FormatError(
            f"{unit.path}: its first line holds zero bytes, as text in UTF-16 does; --encoding "
            "utf-16-le (encoding=) reads that"
        )
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        names, more = tuple(next(lines, ())), next(lines, None)
    except csv.Error as error:
        raise FormatError(f"{unit.path}: line 1: {error}") from error
    if more is not None:
        raise FormatError(
            f"{unit.path}: its lines end in a carriage return alone; write it again with newlines"
        )
    names = _named(names)
    _check_names(f"{unit.path}: line 1", names, wanted)
    return names


def _check_same(
    path: str, names: Sequence[str], first: str, first_names: Sequence[str], read: Wanted
) -> None:
    """Raises FormatError if one of two files lacks a requested column; order is ignored."""
    for name in dict.fromkeys((*first_names, *names)):
        if read.takes(name) and not (name in names and name in first_names):
            odd = path if name in names else first
            raise FormatError(
                f"{first} and {path} differ in their columns: only {odd} has {name!r}"
            )


def _named(names: Sequence[str]) -> tuple[str, ...]:
    """Names the columns without a name as pandas does."""
    return tuple(name or f"Unnamed: {number}" for number, name in enumerate(names))


def _check_names(where: str, names: Sequence[str], wanted: Wanted) -> None:
    """Raises FormatError if two requested columns have the same name, or there is no column."""
    taken = [name for name in names if wanted.takes(name)]
    if not names or len(set(taken)) < len(taken):
        raise FormatError(
            f"{where}: the names of the columns are {', '.join(map(repr, names))}; each needs one "
            "of its own (--columns gives them, where the file has none; --fields leaves columns "
            "out)"
        )


KIND = Kind(
    "csv",
    "a .csv or .tsv file (.gz, .zst), or a folder of them: dicts of the columns",
    open_csv,
    lambda path: path.holds(*or_compressed(*_SUFFIXES)),
    (
        DTYPES,
        ENCODING,
        Option("delimiter", "separator of values (default: tab for .tsv, otherwise comma)"),
        Option("columns", "names of the columns, if the files have no header line", "names"),
    ),
    ("pyarrow",),
    "parquet",
    Names(or_compressed(*_SUFFIXES)),
)
