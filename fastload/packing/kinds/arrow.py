"""Arrow files and streams, Feather, and what Hugging Face's datasets save to disk."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastload.errors import FormatError, refuse_pipe
from fastload.formats.files import file_source
from fastload.packing.inputs.arrow_columns import field_names
from fastload.packing.inputs.hive import Partitions
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import RAGGED, Kind, library
from fastload.packing.inputs.tables import BatchesSource, Reader, Unit, damage, open_batches
from fastload.packing.inputs.wanted import ALL, Wanted
from fastload.packing.kinds.arrow_schemas import check_same

_SUFFIXES = (".arrow", ".feather", ".ipc")
_FILE, _FEATHER_1, _STREAM = b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"
_STREAM_END = _STREAM + bytes(4)
_STATE, _SPLITS = "state.json", "dataset_dict.json"


@dataclass(frozen=True)
class ArrowReader(Reader):
    """Units are record batches."""

    def batches(self, unit: Unit, start: int, each: int, columns: Sequence[str]) -> Iterator[Any]:
        """The batch, mapped where it is not compressed."""
        pyarrow = library("pyarrow", "parquet")
        place = f"record batch {unit.number} (from row {unit.first} on)"
        with damage(f"{unit.path}: {place} is damaged"), pyarrow.memory_map(unit.path) as file:
            if unit.size_bytes:  # of a stream
                schema = _without_dictionaries(pyarrow, pyarrow.ipc.read_schema(file), columns)
                file.seek(unit.offset)
                message = pyarrow.ipc.read_message(file)
                batch = pyarrow.ipc.read_record_batch(message, schema).select(list(columns))
            else:
                schema = pyarrow.ipc.open_file(file).schema
                numbers = [n for n, name in enumerate(schema.names) if name in columns]
                options = pyarrow.ipc.IpcReadOptions(included_fields=numbers)
                batch = pyarrow.ipc.open_file(file, options=options).get_batch(unit.number)
            batch.validate(full=True)
            for row in range(start, batch.num_rows, each):
                yield batch.slice(row, each)


def open_arrow(
    inventory: Inventory,
    *,
    ragged: Sequence[str] = (),
    strict: bool = False,
    wanted: Wanted = ALL,
) -> BatchesSource:
    """Opens an Arrow file or stream, a folder of them, or a saved Hugging Face dataset.

    A sample is a dict with a key for each column; structs are dicts in it. Images and sounds of
    Hugging Face's features are the bytes of their files; class names are kept.

    Args:
        inventory: The file or folder.
        ragged: Columns whose lists vary in length, though all rows checked have one length.
        strict: Nothing is left out in any case.
        wanted: The fields that are read.

    Raises:
        FormatError: a file is damaged or ends early, or files differ in their columns.
        TypeError, ValueError: a column cannot be packed.
        ImportError: pyarrow is not installed.
    """
    pyarrow = library("pyarrow", "parquet")
    paths = _saved(inventory) if inventory.is_folder else inventory.files
    units: list[Unit] = []
    first = None
    for file in paths:
        with damage(f"{file}: no Arrow file, or a damaged one"):
            schema, found = _units(pyarrow, file, wanted)
        first = schema if first is None else first
        check_same(file, schema, paths[0], first, wanted)
        units += found
    reader, first = Partitions.of(inventory).added_to(ArrowReader(), first, paths[0], wanted)
    return open_batches("arrow", reader, units, first, ragged=ragged, wanted=wanted)


def _saved(inventory: Inventory) -> list[str]:
    """Returns the files of a folder; for a saved dataset, the files that its state lists."""
    folder = inventory.path
    if _SPLITS in inventory.paths:
        splits = ", ".join(inventory.folders)
        raise FormatError(f"{folder}: holds several splits ({splits}); pack one of its folders")
    if _STATE not in inventory.paths:
        return inventory.need_files()
    state = os.path.join(folder, _STATE)
    refuse_pipe(state)
    try:
        with open(state, "rb") as file:
            names = [str(entry["filename"]) for entry in json.load(file)["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{state}: damaged: {error!r}") from error
    if any(os.path.basename(name) != name for name in names) or not names:
        raise FormatError(f"{state}: its files must lie next to it, not {names}")
    own = set(map(inventory.absolute, names))
    others = [os.path.relpath(file, folder) for file in inventory.files if file not in own]
    # Cache files that `Dataset.map` writes next to a dataset that was loaded from the disk.
    caches = [path for path in others if re.match(r"(cache|tmp)[^/]*$", path)]
    inventory.not_read(caches, f"a cache that {_STATE} does not name")
    inventory.refuse(set(others) - set(caches), f"{_STATE} does not name it")
    return [os.path.join(folder, name) for name in names]


def _units(pyarrow: Any, path: str, wanted: Wanted) -> tuple[Any, list[Unit]]:
    """Returns the schema and the record batches of a file."""
    source = file_source(path)
    start = source.read(0, 8)
    if start.startswith(_FEATHER_1):
        raise FormatError(f"{path}: Feather version 1; write it again as version 2")
    units: list[Unit] = []
    row = 0
    with pyarrow.memory_map(path) as file:
        if start.startswith(_FILE):
            reader = pyarrow.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                units.append(Unit(path, number, reader.get_batch(number).num_rows, row))
                row += units[-1].rows
            return reader.schema, units
        if not start.startswith(_STREAM):
            raise FormatError(f"{path}: neither an Arrow file nor a stream: starts with {start!r}")
        # A stream that is cut between two batches opens without an error.
        if source.read(source.size_bytes - 8, 8) != _STREAM_END:
            raise FormatError(f"{path}: truncated: the stream has no end mark")
        schema = pyarrow.ipc.read_schema(file)
        read = [name for name, of in field_names(schema).items() if wanted.enters(of)]
        plain = _without_dictionaries(pyarrow, schema, read)
        has_dictionaries = any(map(_has_dictionary, plain.types))
        while (offset := file.tell()) < source.size_bytes - 8:
            try:
                message = pyarrow.ipc.read_message(file)
            except EOFError as error:
                raise FormatError(
                    f"{path}: the stream ends at byte {offset}, but there is data behind it"
                ) from error
            if message.type == "dictionary" and not has_dictionaries:
                continue
            if message.type != "record batch":
                raise FormatError(
                    f"{path}: a {message.type} at byte {offset}, which is not read from streams; "
                    "write it as an Arrow file (Feather)"
                )
            batch = pyarrow.ipc.read_record_batch(message, plain)
            size = file.tell() - offset
            units.append(Unit(path, len(units), batch.num_rows, row, offset, size))
            row += batch.num_rows
    return schema, units


def _without_dictionaries(pyarrow: Any, schema: Any, columns: Sequence[str]) -> Any:
    """Replaces dictionary types by their index types, except in the given columns."""
    for number, of in enumerate(schema):
        if of.name not in columns and pyarrow.types.is_dictionary(of.type):
            schema = schema.set(number, pyarrow.field(of.name, of.type.index_type))
    return schema


def _has_dictionary(kind: Any) -> bool:
    inner = [kind.field(n).type for n in range(kind.num_fields)]
    return hasattr(kind, "index_type") or any(map(_has_dictionary, inner))


def _detects(path: Inventory) -> bool:
    magic = path.start.startswith((_FILE, _FEATHER_1))
    return magic or path.holds(*_SUFFIXES)


KIND = Kind(
    "arrow",
    "an Arrow or Feather file, a folder of them, or a saved Hugging Face dataset: dicts",
    open_arrow,
    _detects,
    (RAGGED,),
    ("pyarrow",),
    "parquet",
    Names(_SUFFIXES, companions=(_STATE, _SPLITS, "dataset_info.json")),
)
