"""Types of CSV columns: inferred from the first megabytes, then required of all rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.dtypes import TEXT_NAMES
from fastload.packing.cast import cast_target
from fastload.packing.inputs.arrow_columns import numbers
from fastload.packing.inputs.exact import changed
from fastload.packing.inputs.kind import library
from fastload.packing.inputs.tables import Unit
from fastload.packing.inputs.text_encoding import not_utf8
from fastload.packing.inputs.wanted import Wanted

if TYPE_CHECKING:
    from fastload.packing.kinds.csv_reader import CsvReader

_ADVICE = "--dtypes NAME=DTYPE (dtypes=) says what the column holds"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_ZERO_LED = r"^[ \t]*[+-]?0([0-9]+|[xX][0-9a-fA-F]+)[ \t]*$"  # also hexadecimal
_TINY = re.compile(rb"[0-9](?:\.?[eE]-0*[0-9]{3}|[0-9]{199})")  # what may be a number next to 0
_EXACT = 2.0**53  # float64 holds all integers below


@dataclass(frozen=True)
class ColumnTypes:
    """The types of the columns that are read.

    Attributes:
        by_name: pyarrow's types by column.
        given: The columns whose dtypes the caller named.
        zero_led: Finds a number with a leading zero in a block.
    """

    by_name: dict[str, Any]
    given: frozenset[str]
    zero_led: re.Pattern[bytes]

    @classmethod
    def of(
        cls, reader: CsvReader, head: Sequence[Unit], dtypes: Mapping[str, Any], wanted: Wanted
    ) -> ColumnTypes:
        """Infers the types of the columns from some blocks, unless the caller specified them.

        Raises:
            FormatError: a column holds no value, or is not UTF-8.
            ValueError: a dtype or column is not known.
        """
        pyarrow = library("pyarrow", "parquet")
        wanted.check(reader.names)
        read = [name for name in reader.names if wanted.takes(name)]
        given = {name: _given_type(pyarrow, reader, name, of) for name, of in dtypes.items()}
        known = {name: kind for name, kind in given.items() if name in read}
        delimiter = re.escape(reader.text.delimiter.encode())
        zero_led = re.compile(rb'(?:^|[%s\r\n"])[ \t]*[+-]?0[0-9xX]' % delimiter)
        made = cls(known, frozenset(given), zero_led)
        seen: dict[str, set[Any]] = {name: set() for name in read}
        for unit in head:
            for of in reader.parse(reader.text.read(unit), known, unit, read).schema:
                seen[of.name] |= set() if pyarrow.types.is_null(of.type) else {of.type}
        for name, kinds in seen.items():
            if name not in given:
                known[name] = _guessed(pyarrow, reader, head, name, kinds, zero_led)
        return made

    def check(self, reader: CsvReader, table: Any, content: bytes, unit: Unit) -> None:
        """Raises FormatError for a number whose text the type of its column cannot represent."""
        pyarrow = library("pyarrow", "parquet")
        columns = [of for of in table.schema if _is_number(pyarrow, of.type)]
        floats = {of.name for of in columns if pyarrow.types.is_floating(of.type)}
        guessed = {of.name for of in columns if of.name not in self.given}
        has_tiny = bool(floats) and _TINY.search(content) is not None
        has_zero_led = bool(guessed) and self.zero_led.search(content) is not None
        for of in columns:
            rows: set[int] = set()
            if of.name in floats:
                values = numbers(table.column(of.name).combine_chunks().fill_null(1))
                is_exact = of.type == pyarrow.float64()
                large = np.abs(values) >= _EXACT if is_exact else np.isinf(values)
                rows.update(np.flatnonzero(large | (values == 0) if has_tiny else large).tolist())
            if has_zero_led and of.name in guessed:
                rows.update(_zero_led_rows(_texts(reader, content, unit, of.name)))
            if rows:
                self._check_rows(reader, content, unit, of, sorted(rows))

    def _check_rows(
        self, reader: CsvReader, content: bytes, unit: Unit, of: Any, rows: Iterable[int]
    ) -> None:
        texts = _texts(reader, content, unit, of.name)
        is_guessed = of.name not in self.given
        for row in rows:
            text = texts[row].as_py()
            if is_guessed and re.match(_ZERO_LED, text):
                what = (
                    f"{text} begins with a zero, which a number does not keep; --dtypes "
                    f"{of.name}=text (dtypes=) keeps it, --dtypes {of.name}=int64 takes the number"
                )
            elif is_guessed and _INTEGER.fullmatch(text) and not -(2**63) <= int(text) < 2**63:
                what = f"{text} is an integer that int64 does not hold; {_ADVICE}"
            elif (reason := changed(text)) is not None:
                what = f"{text} {reason}; {_ADVICE}"
            else:
                continue
            where = reader.text.where(unit, content, row)
            raise FormatError(f"{where}: column {of.name!r}: {what}")


def _texts(reader: CsvReader, content: bytes, unit: Unit, name: str) -> Any:
    pyarrow = library("pyarrow", "parquet")
    return reader.parse(content, {name: pyarrow.string()}, unit).column(name)


def _zero_led_rows(texts: Any) -> list[int]:
    """Returns the rows of numbers with leading zeros or in hexadecimal digits."""
    compute = library("pyarrow.compute", "parquet", "pyarrow")
    found = compute.match_substring_regex(texts, _ZERO_LED)
    return [row for row, is_one in enumerate(found.to_pylist()) if is_one]


def _is_number(pyarrow: Any, kind: Any) -> bool:
    return bool(pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind))


def _guessed(
    pyarrow: Any,
    reader: CsvReader,
    head: Sequence[Unit],
    name: str,
    kinds: set[Any],
    zero_led: re.Pattern[bytes],
) -> Any:
    """Returns the type of a column from the types that pyarrow infers for its blocks."""
    if not kinds:
        raise FormatError(
            f"{head[0].path}: column {name!r} holds no value in the rows that were sampled, so "
            f"that its type cannot be known; --dtypes {shlex.quote(f'{name}=DTYPE')} (dtypes=) "
            "says it, --fields leaves it out"
        )
    # A block that holds a later kind cannot be read as an earlier one.
    inferred = _inferred(pyarrow)
    first = max((inferred.index(kind) for kind in kinds if kind in inferred), default=0)
    fitting = (kind for kind in inferred[first:] if _fits(reader, head, name, kind))
    kind = kinds.pop() if len(kinds) == 1 else next(fitting)
    if kind == pyarrow.binary():
        raise _not_utf8(reader, head, name)
    if _is_number(pyarrow, kind):
        for unit in head:
            content = reader.text.read(unit)
            if zero_led.search(content) and _zero_led_rows(_texts(reader, content, unit, name)):
                return pyarrow.string()  # such as zip codes
    return kind


def _not_utf8(reader: CsvReader, head: Sequence[Unit], name: str) -> FormatError:
    """Returns the error for a column that is not UTF-8."""
    pyarrow = library("pyarrow", "parquet")
    for unit in head:
        try:
            reader.parse(reader.text.read(unit), {name: pyarrow.string()}, unit)
        except FormatError as error:
            return error
    return not_utf8(f"{head[0].path}: column {name!r}", "it holds other bytes")


def _given_type(pyarrow: Any, reader: CsvReader, name: str, dtype: Any) -> Any:
    """Returns the pyarrow type to parse a column as; dtypes that pyarrow lacks are cast later.

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
    """Candidate types of a column; the first one that can represent all values is used."""
    times = [pyarrow.timestamp("s"), pyarrow.timestamp("ns")]
    zoned = [pyarrow.timestamp("s", "UTC"), pyarrow.timestamp("ns", "UTC")]
    numbers = [pyarrow.int64(), pyarrow.bool_(), pyarrow.date32(), pyarrow.time32("s")]
    return [*numbers, *times, *zoned, pyarrow.float64(), pyarrow.string(), pyarrow.binary()]


def _fits(reader: CsvReader, head: Sequence[Unit], name: str, kind: Any) -> bool:
    """Returns whether a column of some blocks can be read as this type."""
    try:
        for unit in head:
            reader.parse(reader.text.read(unit), {name: kind}, unit)
    except FormatError:
        return False
    return True
