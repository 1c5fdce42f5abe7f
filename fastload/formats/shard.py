"""Shard profile 1: the layout of a shard, as a function of its fields, rows and totals.

A shard is a safetensors file whose columns are aligned and followed by checksums. Writer and
reader both ask this module, so a shard of which the manifest tells these is opened without
reading its header. `docs/reference/format.md` is the specification.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.formats.columns import SIZE_BYTES, Blocks, Int64Array
from fastload.formats.fields import MAX_BYTES, Field, schema
from fastload.formats.safetensors import CHECKSUMS as CHECKSUMS
from fastload.formats.safetensors import CRC_BLOCK_BYTES as CRC_BLOCK_BYTES
from fastload.formats.safetensors import DTYPES, OFFSETS, SIZES, VALUES

PROFILE = "1"
MAX_ROWS = 2**31 - 1
"""Of one shard."""
DATASET_ID_LENGTH = 64
"""Hexadecimal digits of the id that all shards of a dataset share."""

_PAGE_BYTES = 4096
_COLUMN_ALIGNMENT = 64
_LARGE_COLUMN_BYTES = 64 << 10
_SHARD_DIGITS = 10  # fixed, so that the header's length does not depend on the number
_TENSOR_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}
_POWERS_OF_TEN = 10 ** np.arange(1, 19)


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
    """Layout of one shard.

    Attributes:
        fields: The columns' fields.
        rows: Number of rows of the shard.
        totals: For each ragged field, the elements of all samples.
        tensors: All entries of the header, pads and checksums too, in the order of the file.
        columns: For each field, the byte of the file where its column starts, or its values.
        bounds: For each field, the byte of the file where its offsets start; 0 if not ragged.
        sizes: For each field, the byte of the file where its images' sizes start; 0 without.
        data_start: The byte of the file where the data section starts.
        crc: The tensor of the checksums.
        file_bytes: The size of the whole file.
    """

    fields: tuple[Field, ...]
    rows: int
    totals: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    columns: tuple[int, ...]
    bounds: tuple[int, ...]
    sizes: tuple[int, ...]
    data_start: int
    crc: Tensor
    file_bytes: int

    def header(self, dataset: str, shard: int) -> bytes:
        """Returns the bytes before the data section.

        Args:
            dataset: The id of the dataset, 64 hexadecimal digits.
            shard: The number of the shard.
        """
        header: dict[str, object] = {
            "__metadata__": _metadata(self.fields, self.rows, dataset, shard)
        }
        for t in self.tensors:
            header[t.name] = _entry(t.dtype, t.shape, t.begin, t.begin + t.size_bytes)
        text = _compact(header).encode("ascii").ljust(self.data_start - 8)
        return (self.data_start - 8).to_bytes(8, "little") + text


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


def shard_layout(fields: Sequence[Field], rows: int, totals: Sequence[int] = ()) -> Layout:
    """Lays out a shard.

    Args:
        fields: The columns, in the order of the dataset.
        rows: Number of rows of this shard.
        totals: For each ragged field, the elements of all its samples in this shard.

    Raises:
        ValueError: too many rows or bytes for one file.

    Example:
        >>> layout = shard_layout([Field("x", "uint8", (100,)), Field("y", "int64", ())], 10)
        >>> layout.columns, layout.file_bytes
        ((4224, 4096), 8192)
    """
    placed = place_shards(fields, [rows], [[total] for total in totals])
    data_start, file_bytes = int(placed.data_start[0]), int(placed.file_bytes[0])
    tensors = [
        Tensor(
            part.name,
            part.dtype,
            (int(part.counts[0]), *part.shape),
            int(begins[0]),
            int(part.counts[0]) * part.item_bytes,
        )
        for part, begins in placed.parts.values()
    ]
    return Layout(
        fields=tuple(fields),
        rows=rows,
        totals=tuple(totals),
        tensors=_tiled(tensors, file_bytes - data_start),
        columns=tuple(int(placed.column(field)[0]) for field in fields),
        bounds=tuple(int(placed.bounds(f)[0]) if f.ragged else 0 for f in fields),
        sizes=tuple(int(placed.sizes(f)[0]) if f.sized else 0 for f in fields),
        data_start=data_start,
        crc=tensors[-1],
        file_bytes=file_bytes,
    )


@dataclass(frozen=True, eq=False)
class Part:
    """One tensor in all shards: `counts` is its length in each shard, `shape` that of an item."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    item_bytes: int
    counts: Int64Array


@dataclass(frozen=True, eq=False)
class Places:
    """Layouts of many shards; the arrays have one entry per shard.

    Attributes:
        parts: The tensors by name, in the order of the file, and where they begin in the data
            section; without pads.
        data_start: The byte of the file where the data section starts.
        file_bytes: The size of the file.
    """

    parts: dict[str, tuple[Part, Int64Array]]
    data_start: Int64Array
    file_bytes: Int64Array

    def column(self, field: Field) -> Int64Array:
        """Returns the file offsets of a column, or of the values of a ragged field."""
        return self.data_start + self.parts[field.name + VALUES * field.ragged][1]

    def bounds(self, field: Field) -> Int64Array:
        """Returns the file offsets of the bounds of a ragged field."""
        return self.data_start + self.parts[field.name + OFFSETS][1]

    def sizes(self, field: Field) -> Int64Array:
        """Returns the file offsets of the image sizes of a field."""
        return self.data_start + self.parts[field.name + SIZES][1]

    def blocks(self) -> list[Blocks]:
        """The blocks that the checksums are of; entry 0 of these is the header's."""
        ends = self.data_start + self.parts[CHECKSUMS][1]
        rows = zip(self.data_start.tolist(), ends.tolist(), strict=True)
        return [Blocks(begin, end, CRC_BLOCK_BYTES, end + 4) for begin, end in rows]


def place_shards(
    fields: Sequence[Field], shard_rows: Sequence[int], totals: Sequence[Sequence[int]]
) -> Places:
    """Lays out the shards of a group at once, ten thousand in milliseconds.

    Args:
        fields: The columns, in the order of the dataset.
        shard_rows: Number of rows of each shard.
        totals: For each ragged field, its elements in each shard.

    Raises:
        ValueError: too many rows or bytes for one file.
    """
    rows = _counts(shard_rows, MAX_ROWS, "rows in one shard")
    parts = _parts(fields, rows, [_counts(each, MAX_BYTES, "elements") for each in totals])
    size = sum(part.counts * float(part.item_bytes) for part in parts)
    if np.max(size, initial=0) > MAX_BYTES:
        raise ValueError(f"{rows.max()} rows are too many bytes for one shard")
    placed: dict[str, tuple[Part, Int64Array]] = {}
    end = np.zeros(len(rows), np.int64)
    for part in parts:
        large = part.counts * part.item_bytes >= _LARGE_COLUMN_BYTES
        begins = _aligned(end, np.where(large, _PAGE_BYTES, _COLUMN_ALIGNMENT))
        placed[part.name] = part, begins
        end = begins + part.counts * part.item_bytes
    begins = _aligned(end, _COLUMN_ALIGNMENT)
    crc = Part(CHECKSUMS, "U32", (), 4, 1 - -begins // CRC_BLOCK_BYTES)
    placed[crc.name] = crc, begins
    data_bytes = _aligned(begins + 4 * crc.counts, _PAGE_BYTES)
    text_bytes = _header_bytes(fields, rows, placed, data_bytes)
    data_start = _aligned(8 + text_bytes, _PAGE_BYTES)
    return Places(placed, data_start, data_start + data_bytes)


def _counts(values: Sequence[int], most: int, what: str) -> Int64Array:
    for value in (min(values, default=0), max(values, default=0)):
        if not 0 <= value <= most:
            raise ValueError(f"{value} {what}; at most {most} are allowed")
    return np.array(values, np.int64)


def _parts(fields: Sequence[Field], rows: Int64Array, totals: Sequence[Int64Array]) -> list[Part]:
    """Returns the tensors of the columns in file order."""
    if len(totals) != sum(field.ragged for field in fields):
        raise ValueError(f"{len(totals)} totals, but not as many ragged fields")
    small, large, remaining = [], [], iter(totals)
    for field in fields:
        dtype, shape = field.dtype, field.shape
        if dtype == "complex128":  # safetensors lacks this dtype
            dtype, shape = "float64", (*shape, 2)
        kind = _TENSOR_DTYPES[dtype], shape, field.row_bytes
        if field.ragged:
            small.append(Part(field.name + OFFSETS, "I64", (), 8, rows + 1))
            if field.sized:
                small.append(Part(field.name + SIZES, "U32", (2,), SIZE_BYTES, rows))
            large.append(Part(field.name + VALUES, *kind, next(remaining)))
        else:
            small.append(Part(field.name, *kind, rows))
    # Small columns first: they share the pages that the first read brings in. Values last, because
    # their share is another in each shard.
    return sorted(small, key=lambda part: part.item_bytes) + large


def _header_bytes(
    fields: Sequence[Field],
    rows: Int64Array,
    placed: dict[str, tuple[Part, Int64Array]],
    data_bytes: Int64Array,
) -> Int64Array:
    """Returns the header size of each shard: the text without its numbers, plus their digits."""
    metadata = _metadata(fields, 0, "0" * DATASET_ID_LENGTH, 0)
    length = len(_compact({"__metadata__": metadata})) - 2 + _digits(rows)
    end, pads = np.zeros_like(rows), np.zeros_like(rows)

    def pad(begins: Int64Array) -> Int64Array:
        text = len(_compact({"__pad__.0": _entry("U8", [0], 0, 0)})) - 1 - 4
        digits = _digits(pads) + _digits(begins - end) + _digits(end) + _digits(begins)
        return np.where(begins > end, text + digits, 0)

    for part, begins in placed.values():
        length = length + pad(begins)
        pads = pads + (begins > end)
        end = begins + part.counts * part.item_bytes
        text = len(_compact({part.name: _entry(part.dtype, [0, *part.shape], 0, 0)})) - 1 - 3
        length = length + text + _digits(part.counts) + _digits(begins) + _digits(end)
    return length + pad(data_bytes) + 1


def _digits(numbers: Int64Array) -> Int64Array:
    return 1 + np.searchsorted(_POWERS_OF_TEN, numbers, "right")


def _tiled(tensors: Sequence[Tensor], data_bytes: int) -> tuple[Tensor, ...]:
    """Inserts pads between the tensors, so that they cover the data section without holes."""
    tiles: list[Tensor] = []
    end = pads = 0
    for tensor in [*tensors, Tensor("", "", (), data_bytes, 0)]:
        if gap := tensor.begin - end:
            tiles.append(Tensor(f"__pad__.{pads}", "U8", (gap,), end, gap))
            pads += 1
        tiles.append(tensor)
        end = tensor.begin + tensor.size_bytes
    return tuple(tiles[:-1])


def _aligned(offset: Any, alignment: Any) -> Any:
    return -(-offset // alignment) * alignment


def _metadata(fields: Sequence[Field], rows: int, dataset: str, shard: int) -> dict[str, str]:
    return {
        "fastload": PROFILE,
        "fastload.rows": str(rows),
        "fastload.schema": _compact(schema(fields)),
        "fastload.dataset": dataset,
        "fastload.shard": str(shard).zfill(_SHARD_DIGITS),
        "fastload.crc_block": str(CRC_BLOCK_BYTES),
    }


def _entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
