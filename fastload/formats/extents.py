"""Where samples lie: fields, and the byte ranges of files and memory that hold them.

Every format is read into `Extents`, which is all that the core ever sees of it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastload.errors import FormatError
from fastload.structure import flatten, to_json

if TYPE_CHECKING:
    from fastload import _core

Int64Array = npt.NDArray[np.int64]

# What numpy lacks is stored as integers of the same width; torch views it afterwards.
_STORED_AS = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_OTHERS = ["bool", "float16", "float32", "float64", "complex64", "complex128"]
DTYPES = frozenset([*_INTEGERS, *_OTHERS, *_STORED_AS])
"""The names of the supported dtypes, as torch and numpy spell them."""

MAX_BYTES = 2**62
"""A cap on every size and offset: sums of two of them still fit 64 bits."""

_SAMPLE_BYTES = 4096  # of either end of an extent, for the fingerprint


@dataclass(frozen=True)
class Field:
    """One array of a sample.

    Attributes:
        name: For messages and listings; the sample's keys joined by dots.
        dtype: As torch and numpy spell it: "uint8", "bool", "bfloat16", "float8_e4m3fn", ...
        shape: Of one sample; `()` for a number.

    Raises:
        ValueError: the dtype is not supported, or the shape is negative or too large.

    Example:
        >>> Field("image", "uint8", (224, 224, 3)).row_bytes
        150528
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"field {self.name!r}: dtype {self.dtype!r} is not supported")
        if any(length < 0 for length in self.shape):
            raise ValueError(f"field {self.name!r}: negative shape {self.shape}")
        # Also without its empty axes: a numpy array must be able to carry the shape.
        if max(math.prod(n for n in self.shape if n) * self.storage.itemsize, 1) > MAX_BYTES:
            raise ValueError(f"field {self.name!r}: shape {self.shape} is too large")

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy dtype that carries the bytes: uint16 for bfloat16, uint8 for float8."""
        return np.dtype(_STORED_AS.get(self.dtype, self.dtype))

    @property
    def row_bytes(self) -> int:
        """Bytes of the field in one sample."""
        return math.prod(self.shape) * self.storage.itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class FileSource:
    """A file as it was when it was opened; `path` is absolute, undecodable bytes escaped."""

    path: str
    size_bytes: int

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of the file, fewer at its end."""
        with open(self.path, "rb") as file:
            return os.pread(file.fileno(), size_bytes, offset)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, eq=False)
class MemorySource:
    """Memory from `address` on, kept alive by `array`."""

    array: npt.NDArray[Any] = field(repr=False)
    address: int
    size_bytes: int

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of the memory, fewer at its end."""
        count = max(0, min(size_bytes, self.size_bytes - offset))
        return ctypes.string_at(self.address + offset, count) if count else b""

    def __str__(self) -> str:
        return "memory"


Source = FileSource | MemorySource


@dataclass(frozen=True, eq=False)
class Column:
    """A field's place in each shard of its group.

    Attributes:
        field: What lies there.
        row_stride: Bytes from one row to the next; less than a row where windows overlap.
        sources: One per shard.
        offsets: One per shard: the byte of its source where row 0 starts.
    """

    field: Field
    row_stride: int
    sources: tuple[Source, ...]
    offsets: Int64Array

    def check(self, shard_rows: Int64Array) -> None:
        """Raises FormatError for the first shard that reaches beyond its source."""
        if not len(shard_rows) == len(self.sources) == len(self.offsets):
            raise ValueError(f"field {self.field.name!r}: sources and shards differ in number")
        if not 0 <= self.row_stride <= MAX_BYTES:
            raise ValueError(f"field {self.field.name!r}: bad row stride {self.row_stride}")
        sizes = np.fromiter((s.size_bytes for s in self.sources), np.int64, len(self.sources))
        # Divided rather than multiplied, so that nothing overflows.
        room = sizes - self.offsets - self.field.row_bytes
        fitting = np.where(room >= 0, room // max(self.row_stride, 1) + 1, 0)
        if self.row_stride == 0:
            fitting = np.where(room >= 0, shard_rows, 0)
        bad = (self.offsets < 0) | (self.offsets > MAX_BYTES) | (fitting < shard_rows)
        for shard in np.flatnonzero(bad & (shard_rows > 0)):
            raise FormatError(
                f"{self.sources[shard]}: field {self.field.name!r}: {shard_rows[shard]} samples of "
                f"{self.field.row_bytes} bytes from byte {self.offsets[shard]} on do not fit into "
                f"{sizes[shard]} bytes"
            )


@dataclass(frozen=True, eq=False)
class Group:
    """Columns that share their shard boundaries.

    Attributes:
        shard_rows: Rows of each shard.
        columns: The fields.
        index_map: Row for each sample, counted through all shards; None for every row in order.
    """

    shard_rows: Int64Array
    columns: tuple[Column, ...]
    index_map: Int64Array | None = None

    @cached_property
    def rows(self) -> int:
        """Samples: of the index map if there is one, else of all shards."""
        return int(self.shard_rows.sum()) if self.index_map is None else len(self.index_map)


@dataclass(frozen=True, eq=False)
class Extents:
    """A whole dataset as byte ranges.

    Attributes:
        groups: Each with equally many samples.
        structure: The containers of a sample (see `fastload.structure`); its leaves number the
            columns in the order of the groups, then of their columns.
        content: The fingerprint of the content where it is known already, as in a manifest.

    Raises:
        ValueError: groups of unequal length, or a structure that does not fit the columns.
        FormatError: a shard reaches beyond its source.

    Example:
        >>> from fastload.formats import arrays
        >>> extents = arrays.read_extents(np.zeros((10, 3), "float32"), "x")
        >>> extents.rows, extents.fields
        (10, (Field(name='x', dtype='float32', shape=(3,)),))
    """

    groups: tuple[Group, ...]
    structure: Any
    content: str | None = None

    def __post_init__(self) -> None:
        leaves = flatten(self.structure)
        if not leaves or sorted(leaves) != list(range(len(self.columns))):
            raise ValueError(f"structure {self.structure} does not fit {len(self.columns)} columns")
        for group in self.groups:
            if (group.shard_rows < 0).any() or float(group.shard_rows.sum(dtype=float)) > MAX_BYTES:
                raise ValueError("rows of a shard are negative or too many")
            for column in group.columns:
                column.check(group.shard_rows)
        if any(group.rows != self.rows for group in self.groups):
            raise ValueError(f"groups differ in length: {[group.rows for group in self.groups]}")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns, as the structure numbers them."""
        return tuple(column for group in self.groups for column in group.columns)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The field of each column."""
        return tuple(column.field for column in self.columns)

    @cached_property
    def rows(self) -> int:
        """Samples of the dataset."""
        return self.groups[0].rows

    def take(self, indices: Int64Array) -> Extents:
        """The samples at `indices`, as int64 in [0, rows), in that order.

        Raises:
            IndexError: an index is out of range.
        """
        indices = np.ascontiguousarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.rows:
            raise IndexError(f"an index is outside the {self.rows} samples")
        groups = [
            replace(g, index_map=indices if g.index_map is None else g.index_map[indices])
            for g in self.groups
        ]
        return replace(self, groups=tuple(groups))

    def build(self, io: str = "auto") -> _core.Table:
        """The core's table over these bytes. `io` is "auto", "mmap" or "pread"."""
        from fastload import _core

        builder = _core.TableBuilder(io)
        numbers: dict[Source, int] = {}
        for group_ in self.groups:
            group = builder.add_group(group_.shard_rows, group_.index_map)
            for column in group_.columns:
                for source in column.sources:
                    if source not in numbers:
                        numbers[source] = _add_source(builder, source)
                builder.add_column(
                    group,
                    column.field.name,
                    column.field.row_bytes,
                    column.row_stride,
                    np.array([numbers[source] for source in column.sources], np.int64),
                    column.offsets,
                    column.field.dtype == "bool",
                )
        return builder.build()

    def fingerprint(self) -> str:
        """A hash of the content that does not depend on paths, times or the machine.

        It covers schema, lengths, index maps and, of every shard of every field, the size and the
        first and last 4 KiB; it is not a checksum of all bytes.
        """
        if self.content is not None and all(group.index_map is None for group in self.groups):
            return self.content
        described = [
            [(f.name, f.dtype, f.shape) for f in self.fields],
            to_json(self.structure),
            self.rows,
            self.content,
        ]
        digest = hashlib.sha256(json.dumps(described).encode())
        for group in self.groups:
            if self.content is None:
                digest.update(group.shard_rows.tobytes())
                for column in group.columns:
                    _update_with_column(digest, column, group.shard_rows)
            if group.index_map is not None:
                digest.update(hashlib.sha256(group.index_map.data).digest())
        return f"sha256:{digest.hexdigest()}"


def _add_source(builder: _core.TableBuilder, source: Source) -> int:
    if isinstance(source, MemorySource):
        return builder.add_memory(source.array, source.address, source.size_bytes)
    return builder.add_file(os.fsencode(source.path), source.size_bytes)


def _update_with_column(digest: hashlib._Hash, column: Column, shard_rows: Int64Array) -> None:
    for source, start, rows in zip(column.sources, column.offsets, shard_rows, strict=True):
        if rows == 0:
            continue
        size = (int(rows) - 1) * column.row_stride + column.field.row_bytes
        digest.update(size.to_bytes(8, "little"))
        digest.update(source.read(int(start), min(size, _SAMPLE_BYTES)))
        if size > _SAMPLE_BYTES:
            digest.update(source.read(int(start) + size - _SAMPLE_BYTES, _SAMPLE_BYTES))


def single_group(
    fields: Sequence[Field],
    shard_rows: Sequence[int],
    sources: Sequence[Source],
    offsets: Sequence[Sequence[int]],
    structure: Any,
) -> Extents:
    """Extents of densely packed columns, where each shard is one source.

    Args:
        fields: One per column.
        shard_rows: Rows of each shard.
        sources: One per shard.
        offsets: For each field, where it starts in each source.
        structure: Containers of a sample.
    """
    columns = tuple(
        Column(field, field.row_bytes, tuple(sources), np.array(starts, np.int64))
        for field, starts in zip(fields, offsets, strict=True)
    )
    return Extents((Group(np.array(shard_rows, np.int64), columns),), structure)
