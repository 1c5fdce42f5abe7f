"""Parquet files, and folders of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastload.errors import FormatError
from fastload.packing.inputs.hive import Partitions
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import RAGGED, Kind, library
from fastload.packing.inputs.tables import BatchesSource, Reader, Unit, damage, open_batches
from fastload.packing.inputs.wanted import ALL, Wanted
from fastload.packing.kinds.arrow_schemas import check_same

_READ_BYTES = 4 << 20  # of all columns
_MIN_READ_BYTES, _MAX_READ_BYTES = 32 << 10, 1 << 20
_SUFFIXES = (".parquet", ".pq")


@dataclass(frozen=True)
class ParquetReader(Reader):
    """Units are row groups; checksums of pages are checked where files have them."""

    def batches(self, unit: Unit, start: int, each: int, columns: Sequence[str]) -> Iterator[Any]:
        """Decodes the row group from its start."""
        row = 0
        place = f"row group {unit.number} (rows {unit.first} to {unit.first + unit.rows - 1})"
        with damage(f"{unit.path}: {place} is damaged"), _open(unit.path, len(columns)) as file:
            for batch in file.iter_batches(
                each, row_groups=[unit.number], columns=list(columns), use_threads=False
            ):
                if row + batch.num_rows > start:
                    yield batch.slice(max(start - row, 0))
                row += batch.num_rows


def open_parquet(
    inventory: Inventory,
    *,
    ragged: Sequence[str] = (),
    strict: bool = False,
    wanted: Wanted = ALL,
) -> BatchesSource:
    """Opens a file, or the `.parquet` and `.pq` files below a folder in natural order.

    A sample is a dict with a key for each column; structs are dicts in it. The names of folders
    such as `cls=0` are columns, too.

    Args:
        inventory: The file or folder.
        ragged: Columns whose lists vary in length, though all rows checked have one length.
        strict: Nothing is left out in any case.
        wanted: The fields that are read.

    Raises:
        FormatError: a file is damaged, or files differ in their columns.
        TypeError, ValueError: a column cannot be packed.
        ImportError: pyarrow is not installed.
    """
    units: list[Unit] = []
    paths = inventory.need_files()
    first, size = None, 0
    for file in paths:
        with damage(f"{file}: no Parquet file, or a damaged one"), _open(file) as opened:
            schema, metadata = opened.schema_arrow, opened.metadata
        first = schema if first is None else first
        check_same(file, schema, paths[0], first, wanted)
        row = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            units.append(Unit(file, number, group.num_rows, row))
            row, size = row + group.num_rows, size + group.total_byte_size
        if row != metadata.num_rows:
            raise FormatError(
                f"{file}: its footer says {metadata.num_rows} rows, its row groups {row}"
            )
    rows = sum(unit.rows for unit in units)
    row_bytes = size // max(rows, 1)
    partitions = Partitions.of(inventory)
    reader, first = partitions.added_to(ParquetReader(), first, paths[0], wanted)
    return open_batches(
        "parquet",
        reader,
        units,
        first,
        ragged=ragged,
        row_bytes=row_bytes,
        wanted=wanted,
    )


def _open(path: str, columns: int = 1) -> Any:
    parquet = library("pyarrow.parquet", "parquet", "pyarrow")
    return parquet.ParquetFile(
        path,
        memory_map=False,
        buffer_size=min(max(_READ_BYTES // max(columns, 1), _MIN_READ_BYTES), _MAX_READ_BYTES),
        pre_buffer=False,  # else a whole row group is in memory before its first row is decoded
        page_checksum_verification=True,
    )


KIND = Kind(
    "parquet",
    "a .parquet file or a folder of them: dicts of the columns",
    open_parquet,
    lambda path: path.holds(*_SUFFIXES) or path.start.startswith(b"PAR1"),
    (RAGGED,),
    ("pyarrow",),
    "parquet",
    Names(_SUFFIXES),
)
