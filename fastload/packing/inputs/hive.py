"""Columns in the names of folders, such as `cls=0/part.parquet`, as pyarrow.dataset has them."""

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
    """The columns that the folders of an input have in their names.

    Attributes:
        root: The folder below which they lie.
        types: Of the columns, by name in their order: "int32" if all values are such, else
            "string".

    Example:
        >>> Partitions("/d", (("cls", "int32"),)).values("/d/cls=7/part.parquet")
        {'cls': '7'}
    """

    root: str
    types: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, inventory: Inventory) -> Partitions:
        """The columns of an input; none of a single file.

        Raises:
            FormatError: a name is not UTF-8 behind its percent signs.
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
        """Of the columns."""
        return [name for name, _ in self.types]

    def values(self, path: str) -> dict[str, str | None]:
        """The values of the columns in a file; None where there is none."""
        found = _values(os.path.relpath(os.path.dirname(path), self.root))
        return {name: found.get(name) for name in self.names}

    def added_to(
        self, reader: Reader, schema: Any, path: str, wanted: Wanted
    ) -> tuple[Reader, Any]:
        """A reader and a schema that have these columns, too, behind those of the files.

        Args:
            reader: Of the files.
            schema: Their columns.
            path: Of one of them, for messages.
            wanted: The fields that are read.

        Raises:
            FormatError: a column is in the files, too.
        """
        if not self.types:
            return reader, schema
        pyarrow = library("pyarrow", "parquet")
        for name, kind in self.types:
            if name in schema.names and wanted.enters(name):
                raise FormatError(
                    f"{path}: the column {name!r} is in the file and in the name of its folder; "
                    "--fields (fields=) without it leaves it out"
                )
            if name not in schema.names:
                schema = schema.append(pyarrow.field(name, pyarrow.type_for_alias(kind)))
        some = next(name for name in schema.names if name not in self.names)
        return PartitionedReader(reader, self, some), schema


@dataclass(frozen=True)
class PartitionedReader(Reader):
    """Adds the columns of folders to those of the files in them.

    Attributes:
        inner: Reads the files.
        partitions: The columns.
        some: The name of a column of the files, which tells how many rows there are.
    """

    inner: Reader
    partitions: Partitions
    some: str

    def batches(self, unit: Unit, start: int, each: int, columns: Sequence[str]) -> Iterator[Any]:
        """The rows of a unit, each with the same values in the added columns."""
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
        """As the reader of the files has it."""
        return self.inner.where(unit, row)


def _values(folder: str) -> dict[str, str | None]:
    """The values in the path of a folder below the input."""
    found: dict[str, str | None] = {}
    for part in folder.split("/"):
        name, sign, value = part.partition("=")
        if sign and name:
            try:
                name, value = (unquote(text, errors="strict") for text in (name, value))
            except UnicodeDecodeError as error:
                raise FormatError(f"{folder}: its name is not UTF-8: {error}") from error
            if name in found:
                raise FormatError(f"{folder}: the names of folders give {name!r} two values")
            found[name] = None if value == _NULL else value
    return found


def _are_int32(values: dict[str | None, None]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(
        _INTEGER.fullmatch(value) and -(2**31) <= int(value) < 2**31 for value in known
    )
