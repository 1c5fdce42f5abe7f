"""Parses blocks of rows of CSV files by pyarrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastload.errors import FormatError
from fastload.packing.inputs.kind import library
from fastload.packing.inputs.tables import Reader, Unit
from fastload.packing.inputs.text_encoding import not_utf8
from fastload.packing.kinds.csv_rows import CsvText

_ROW = re.compile(r"Row #(\d+)(?:: )?")


_COLUMN = re.compile(r"In CSV column #(\d+): ")


@dataclass(frozen=True)
class CsvReader(Reader):
    """Units are blocks of whole rows.

    Attributes:
        names: Names of the columns of the first file.
        text: How rows are written.
        types: Names and pyarrow types of the columns that are read.
        others: The names of the columns of files that have others, or another order, by path.
    """

    names: tuple[str, ...]
    text: CsvText
    types: tuple[tuple[str, Any], ...] = ()
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def batches(self, unit: Unit, start: int, each: int, columns: Sequence[str]) -> Iterator[Any]:
        """Parses the whole block."""
        types = {name: kind for name, kind in self.types if name in columns}
        table = self.parse(self.text.read(unit), types, unit)
        yield from table.combine_chunks().slice(start).to_batches(each)

    def parse(
        self, content: bytes, types: Mapping[str, Any], unit: Unit, more: Sequence[str] = ()
    ) -> Any:
        """Parses a block into a table.

        Args:
            content: Content of the block.
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
                    column_names=list(self._names(unit)),
                    block_size=len(content) + 1,
                ),
                arrow_csv.ParseOptions(delimiter=self.text.delimiter, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types=types,
                    null_values=[""],
                    strings_can_be_null=False,
                    include_columns=list(dict.fromkeys([*types, *more])),
                ),
            )
        except pyarrow.ArrowInvalid as error:
            raise self._failure(str(error), content, unit) from error

    def _names(self, unit: Unit) -> tuple[str, ...]:
        return self.others.get(unit.path, self.names)

    def _failure(self, text: str, content: bytes, unit: Unit) -> FormatError:
        """Returns the error of pyarrow with the number of the line that caused it."""
        found = _ROW.search(text)
        if found is None:
            return FormatError(f"{self.text.line(unit.path, unit.offset)}: from here on: {text}")
        where = self.text.where(unit, content, int(found[1]) - 1)
        text = _ROW.sub("", text)
        if (number := _COLUMN.search(text)) is not None:
            column = f"column {self._names(unit)[int(number[1])]!r}"
            if "invalid UTF8" in text:
                return not_utf8(f"{where}: {column}", "it holds other bytes")
            text = text.replace(number[0], f"{column}: ")
            text += "; --dtypes NAME=DTYPE (dtypes=) says what a column holds"
        return FormatError(f"{where}: {text}")

    def where(self, unit: Unit, row: int) -> str:
        """Returns the file and line of a row."""
        return self.text.where(unit, self.text.read(unit), row)
