"""Shard profile 1: where everything lies in a shard, as a function of its fields and rows.

A shard is a safetensors file whose columns are aligned and followed by checksums. Writer and
reader both ask this module, so a shard whose fields and rows are known (they are in the manifest)
is opened without reading its header. `docs/format.md` is the specification.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fastload.formats.extents import MAX_BYTES, Field
from fastload.formats.safetensors import DTYPES

PROFILE = "1"
CRC_BLOCK_BYTES = 1 << 20
"""Each block of the data section of this size has its own checksum."""
MAX_ROWS = 2**31 - 1
"""Of one shard."""
DATASET_ID_LENGTH = 64
"""Hexadecimal digits of the id that all shards of a dataset share."""

_PAGE_BYTES = 4096
_COLUMN_ALIGNMENT = 64
_LARGE_COLUMN_BYTES = 64 << 10
_SHARD_DIGITS = 10  # fixed, so that the header's length does not depend on the number
_TENSOR_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}


@dataclass(frozen=True)
class Tensor:
    """An entry of the header; `begin` counts from the start of the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size_bytes: int


@dataclass(frozen=True)
class Layout:
    """Where the parts of a shard lie.

    Attributes:
        fields: The columns' fields.
        rows: Of the shard.
        tensors: All entries of the header, pads and checksums too, in the order of the file.
        columns: For each field, the byte of the file where its column starts.
        data_start: The byte of the file where the data section starts.
        crc: The tensor of the checksums.
        file_bytes: The size of the whole file.
    """

    fields: tuple[Field, ...]
    rows: int
    tensors: tuple[Tensor, ...]
    columns: tuple[int, ...]
    data_start: int
    crc: Tensor
    file_bytes: int

    def header(self, dataset: str, shard: int) -> bytes:
        """The bytes before the data section.

        Args:
            dataset: The id of the dataset, 64 hexadecimal digits.
            shard: The number of the shard.
        """
        text = _header_text(self.fields, self.rows, self.tensors, dataset, shard)
        return (self.data_start - 8).to_bytes(8, "little") + text.ljust(self.data_start - 8)


def check_fields(fields: Sequence[Field]) -> None:
    """Raises ValueError unless the fields can be the columns of a shard."""
    names = [field.name for field in fields]
    for name in names:
        if "::" in name or name.startswith("__") or "\0" in name:
            raise ValueError(
                f"field {name!r}: names with '::' or a leading '__' are kept for the format"
            )
        if not name.isascii() and name != name.encode("utf-8", "replace").decode("utf-8"):
            raise ValueError(f"field {name!r}: the name is not valid text")
        if names.count(name) > 1:
            raise ValueError(f"field {name!r}: two fields have this name")


def shard_layout(fields: Sequence[Field], rows: int) -> Layout:
    """Lays out a shard.

    Args:
        fields: The columns, in the order of the dataset.
        rows: Of this shard.

    Raises:
        ValueError: too many rows or bytes for one file.

    Example:
        >>> layout = shard_layout([Field("x", "uint8", (100,)), Field("y", "int64", ())], 10)
        >>> layout.columns, layout.file_bytes
        ((4224, 4096), 8192)
    """
    if not 0 <= rows <= MAX_ROWS:
        raise ValueError(f"{rows} rows in one shard; at most {MAX_ROWS} are allowed")
    if sum(field.row_bytes for field in fields) * rows > MAX_BYTES:
        raise ValueError(f"{rows} rows are too many bytes for one shard")
    columns: dict[int, Tensor] = {}
    end = 0
    # Small columns first: they share the pages that the first read brings in.
    for number in sorted(range(len(fields)), key=lambda number: fields[number].row_bytes):
        columns[number] = _column(fields[number], rows, end)
        end = columns[number].begin + columns[number].size_bytes
    begin = _aligned(end, _COLUMN_ALIGNMENT)
    count = 1 + -(-begin // CRC_BLOCK_BYTES)
    crc = Tensor("__crc__", "U32", (count,), begin, 4 * count)
    data_bytes = _aligned(begin + crc.size_bytes, _PAGE_BYTES)
    tensors = _tiled([*columns.values(), crc], data_bytes)
    text = _header_text(fields, rows, tensors, "0" * DATASET_ID_LENGTH, 0)
    data_start = _aligned(8 + len(text), _PAGE_BYTES)
    starts = tuple(data_start + columns[number].begin for number in range(len(fields)))
    return Layout(tuple(fields), rows, tensors, starts, data_start, crc, data_start + data_bytes)


def _column(field: Field, rows: int, end: int) -> Tensor:
    dtype, shape = field.dtype, (rows, *field.shape)
    if dtype == "complex128":  # which safetensors lacks
        dtype, shape = "float64", (*shape, 2)
    size = rows * field.row_bytes
    alignment = _PAGE_BYTES if size >= _LARGE_COLUMN_BYTES else _COLUMN_ALIGNMENT
    return Tensor(field.name, _TENSOR_DTYPES[dtype], shape, _aligned(end, alignment), size)


def _tiled(tensors: Sequence[Tensor], data_bytes: int) -> tuple[Tensor, ...]:
    """The tensors with pads before and behind them, so that no byte belongs to none."""
    tiles: list[Tensor] = []
    end = pads = 0
    for tensor in [*tensors, Tensor("", "", (), data_bytes, 0)]:
        if gap := tensor.begin - end:
            tiles.append(Tensor(f"__pad__.{pads}", "U8", (gap,), end, gap))
            pads += 1
        tiles.append(tensor)
        end = tensor.begin + tensor.size_bytes
    return tuple(tiles[:-1])


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _header_text(
    fields: Sequence[Field], rows: int, tensors: Sequence[Tensor], dataset: str, shard: int
) -> bytes:
    metadata = {
        "fastload": PROFILE,
        "fastload.rows": str(rows),
        "fastload.schema": _compact(schema(fields)),
        "fastload.dataset": dataset,
        "fastload.shard": str(shard).zfill(_SHARD_DIGITS),
        "fastload.crc_block": str(CRC_BLOCK_BYTES),
    }
    header: dict[str, object] = {"__metadata__": metadata}
    for t in tensors:
        offsets = [t.begin, t.begin + t.size_bytes]
        header[t.name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": offsets}
    return _compact(header).encode("ascii")


def schema(fields: Sequence[Field]) -> list[dict[str, object]]:
    """The fields in JSON's types, as manifest and shards record them."""
    return [
        {"name": f.name, "kind": "fixed", "dtype": f.dtype, "shape": list(f.shape)} for f in fields
    ]


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
