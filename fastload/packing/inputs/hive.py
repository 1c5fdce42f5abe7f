"""Hive partitions: columns in folder names, such as `cls=0/part.parquet`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from fastload.errors import FormatError
from fastload.formats.walk import sort_key
from fastload.packing.inputs.inventory import Inventory
from fastload.packing.inputs.kind import library
from fastload.packing.inputs.tables import Reader, Unit
from fastload.packing.inputs.wanted import Wanted

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True)
class Partitions:
    """Columns that are encoded in the folder names of an input.

    Attributes:
        root: Input folder.
        types: Pairs of column name and type, in order: "int32" if all values fit, otherwise
            "string".

    Example:
        >>> Partitions("/d", (("cls", "int32"),)).values("/d/cls=7/part.parquet")
        {'cls': '7'}
    """

    root: str
    types: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, inventory: Inventory) -> Partitions:
        """Returns the partition columns of an input; none for a single file.

        Raises:
            FormatError: a percent-decoded name is not UTF-8.
        """
        if not inventory.is_folder:
            return cls("", ())
        found: dict[str, dict[str | None, None]] = {}
        folders = {path.rpartition("/")[0] for path in inventory.chosen}
        for folder in sorted(folders, key=sort_key):
            for name, value in _values(folder).items():
                found.setdefault(name, {})[value] = None
        types = (
            (name, "int32" if _are_int32(values) else "string") for name, values in found.items()
        )
        return cls(inventory.path, tuple(types))

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [name for name, _ in self.types]

    def values(self, path: str) -> dict[str, str | None]:
        """Returns the values of the columns for a file; None for missing ones."""
        found = _values(os.path.relpath(os.path.dirname(path), self.root))
        return {name: found.get(name) for name in self.names}

    def added_to(
        self, reader: Reader, schema: Any, path: str, wanted: Wanted
    ) -> tuple[Reader, Any]:
        """Returns a reader and a schema with the partition columns after those of the files.

        Args:
            reader: Reader of the files.
            schema: Schema of the files.
            path: Path of one file, for messages.
            wanted: Fields to read.

        Raises:
            FormatError: a wanted column is in the files and in the folder names.
        """
        if not self.types:
            return reader, schema
        pyarrow = library("pyarrow", "parquet")
        for name, kind in self.types:
            if name in schema.names and wanted.enters(name):
                raise FormatError(
                    f"{path}: the column {name!r} is in the file and in the name of its folder; "
                    "--fields (fields=) selects the other columns"
                )
            if name not in schema.names:
                schema = schema.append(pyarrow.field(name, pyarrow.type_for_alias(kind)))
        some = next(name for name in schema.names if name not in self.names)
        return PartitionedReader(reader, self, some), schema


@dataclass(frozen=True)
class PartitionedReader(Reader):
    """Reader that adds partition columns to the columns of the files.

    Attributes:
        inner: Reader of the files.
        partitions: The partition columns.
        some: A column of the files, read for the number of rows if no other is needed.
    """

    inner: Reader
    partitions: Partitions
    some: str

    def batches(self, unit: Unit, start: int, each: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yields the rows of a unit, with constant values in the partition columns."""
        pyarrow = library("pyarrow", "parquet")
        values = self.partitions.values(unit.path)
        read = [name for name in columns if name not in values]
        for batch in self.inner.batches(unit, start, each, read or [self.some]):
            arrays, schema = list(batch.columns), batch.schema
            for name, kind in self.partitions.types:
                if name in columns:
                    of, value = pyarrow.type_for_alias(kind), values[name]
                    number = int(value) if value is not None and kind == "int32" else value
                    arrays.append(pyarrow.repeat(pyarrow.scalar(number, of), batch.num_rows))
                    schema = schema.append(pyarrow.field(name, of))
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

    def where(self, unit: Unit, row: int) -> str:
        """Returns the location as the reader of the files describes it."""
        return self.inner.where(unit, row)


def _values(folder: str) -> dict[str, str | None]:
    """Returns the values in the path of a folder relative to the input."""
    found: dict[str, str | None] = {}
    for part in folder.split("/"):
        name, sign, value = part.partition("=")
        if sign and name:
            try:
                name, value = (unquote(text, errors="strict") for text in (name, value))
            except UnicodeDecodeError as error:
                raise FormatError(f"{folder}: its name is not UTF-8: {error}") from error
            if name in found:
                raise FormatError(f"{folder}: the folder names contain two values of {name!r}")
            found[name] = None if value == _NULL else value
    return found


def _are_int32(values: dict[str | None, None]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(
        _INTEGER.fullmatch(value) and -(2**31) <= int(value) < 2**31 for value in known
    )
