"""Where the samples of fields lie: sources, columns, and groups of columns."""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.errors import FormatError
from fastload.formats.fields import DTYPES as DTYPES
from fastload.formats.fields import MAX_BYTES as MAX_BYTES
from fastload.formats.fields import Field as Field

if TYPE_CHECKING:
    pass


Int64Array = npt.NDArray[np.int64]


_CASTS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32))


_SIZE = attrgetter("size_bytes")


SIZE_BYTES = 8
"""Of height and width of an image."""


class Blocks(NamedTuple):
    """The part of a file that is cut into blocks with a CRC-32C each.

    Attributes:
        begin: Offset of the first block, after the header.
        end: Offset of the end of the last block, which may be shorter.
        block_bytes: Size in bytes of the other blocks; a power of two.
        crcs: The byte where the blocks' checksums lie, little-endian uint32s. That of the header
            lies right before them.
        lazy: True if a block is checked before it is first read.
    """

    begin: int
    end: int
    block_bytes: int
    crcs: int
    lazy: bool = False


class FileSource(NamedTuple):  # not a dataclass: ten thousand are made in milliseconds
    """A file as it was when it was opened.

    Attributes:
        path: Absolute, undecodable bytes escaped.
        size_bytes: Size in bytes of the file.
        blocks: The part of it that has checksums.
        identity: Device, inode and time of the last change in ns, so that no other file is read
            that was put in its place.
    """

    path: str
    size_bytes: int
    blocks: Blocks | None = None
    identity: tuple[int, int, int] | None = None

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
class Bounds:
    """Where the samples of a ragged field begin and end.

    A shard has int64[rows + 1] of them, counted in elements of its values; sample i lies between
    bounds i and i + 1.

    Attributes:
        sources: One per shard.
        offsets: One per shard: the byte of its source where the bounds start, aligned or not.
        totals: One per shard: the elements that its values hold, which no bound may exceed.
        ends: int64 (shards, 2): the bytes of its source where the first and the last bound of each
            whole shard lie, for checks: a slice leaves them as they are. -1 where they need none.
    """

    sources: tuple[Source, ...]
    offsets: Int64Array
    totals: Int64Array
    ends: Int64Array | None = None


@dataclass(frozen=True, eq=False)
class Column:
    """A field's place in each shard of its group.

    Attributes:
        field: The field.
        row_stride: Bytes from one row to the next; less than a row where windows overlap. Of a
            ragged field the bytes of an element.
        sources: One per shard.
        offsets: One per shard: the byte of its source where row 0 starts, or the ragged values.
        bounds: Bounds of a ragged field; None for other fields.
        stored: The dtype in the sources, where it is not that of the field: an integer narrower
            than 64 bits, which the core casts to int64.
        sizes: Offsets of stored image sizes in the sources, one per shard: uint32 (rows, 2), height
            and width, 0 if unknown. None if no sizes are stored.
        strides: int64 (shards, 1 + axes of a sample): bytes from one row to the next and along each
            axis, possibly 0 or negative, as numpy counts them; None where each row is one block.
            Only memory has them; `row_stride` is then that of dense rows.
    """

    field: Field
    row_stride: int
    sources: tuple[Source, ...]
    offsets: Int64Array
    bounds: Bounds | None = None
    stored: str | None = None
    sizes: Int64Array | None = None
    strides: Int64Array | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the sources; of an element if the field is ragged."""
        if self.stored is None:
            return self.field.row_bytes
        return math.prod(self.field.shape) * np.dtype(self.stored).itemsize

    def shard_strides(self, shard: int) -> tuple[int, ...]:
        """Bytes from one row to the next and along each axis of a sample, as numpy counts them."""
        if self.strides is not None:
            return tuple(self.strides[shard].tolist())
        return self.row_stride, *np.empty(self.field.shape, self.field.storage).strides

    def check(self, shard_rows: Int64Array) -> None:
        """Raises FormatError for the first shard that reaches beyond its source."""
        name, bounds = self.field.name, self.bounds
        if not len(shard_rows) == len(self.sources) == len(self.offsets):
            raise ValueError(f"field {name!r}: sources and shards differ in number")
        if not 0 <= self.row_stride <= MAX_BYTES:
            raise ValueError(f"field {name!r}: bad row stride {self.row_stride}")
        if self.stored is not None and (self.stored not in _CASTS or self.field.dtype != "int64"):
            raise ValueError(f"field {name!r}: {self.stored} cannot be read as {self.field.dtype}")
        if (bounds is not None) != self.field.ragged:
            raise ValueError(f"field {name!r}: ragged fields have bounds, and no others")
        if self.strides is not None:
            self._check_strides(shard_rows)
            return
        if bounds is None:
            self._check_room(self.sources, self.offsets, shard_rows, self.row_bytes, "samples")
            return
        if self.row_stride != self.row_bytes:
            raise ValueError(f"field {name!r}: the elements of a ragged field are packed densely")
        if not len(shard_rows) == len(bounds.sources) == len(bounds.offsets) == len(bounds.totals):
            raise ValueError(f"field {name!r}: bounds and shards differ in number")
        filled = np.where(shard_rows > 0, bounds.totals, 0)
        if (filled < 0).any():
            raise FormatError(f"field {name!r}: a shard has {filled.min()} elements")
        self._check_room(self.sources, self.offsets, filled, self.row_bytes, "elements")
        rows = np.where(shard_rows > 0, shard_rows + 1, 0)
        self._check_room(bounds.sources, bounds.offsets, rows, 8, "bounds")
        if self.sizes is not None:
            self._check_room(self.sources, self.sizes, shard_rows, SIZE_BYTES, "sizes")

    def _check_strides(self, shard_rows: Int64Array) -> None:
        """The core compares them with the memory when it builds the table."""
        name, width = self.field.name, 1 + len(self.field.shape)
        if self.strides is None or self.strides.shape != (len(shard_rows), width):
            raise ValueError(f"field {name!r}: strides and shape do not fit each other")
        if self.bounds is not None or self.stored is not None:
            raise ValueError(f"field {name!r}: only fixed fields have strides")
        if any(isinstance(source, FileSource) for source in self.sources):
            raise ValueError(f"field {name!r}: only memory has strides")

    def _check_room(
        self,
        sources: tuple[Source, ...],
        offsets: Int64Array,
        counts: Int64Array,
        size: int,
        what: str,
    ) -> None:
        stride = size if what in ("bounds", "sizes") else self.row_stride
        sizes = np.fromiter(map(_SIZE, sources), np.int64, len(sources))
        # Divided rather than multiplied, so that nothing overflows.
        room = sizes - offsets - size
        fitting = np.where(room >= 0, room // max(stride, 1) + 1, 0)
        if stride == 0:
            fitting = np.where(room >= 0, counts, 0)
        bad = (offsets < 0) | (offsets > MAX_BYTES) | (fitting < counts)
        for shard in np.flatnonzero(bad & (counts > 0)):
            raise FormatError(
                f"{sources[shard]}: field {self.field.name!r}: {counts[shard]} {what} of {size} "
                f"bytes from byte {offsets[shard]} on do not fit into {sizes[shard]} bytes"
            )

    def slice(self, shards: slice, skip: int) -> Column:
        """The shards of a range, the first one without its first `skip` rows."""
        bounds, offsets, sizes = self.bounds, self.offsets[shards].copy(), self.sizes
        if sizes is not None:
            sizes = sizes[shards].copy()
            sizes[:1] += SIZE_BYTES * skip
        if bounds is not None:
            starts = bounds.offsets[shards].copy()
            starts[:1] += 8 * skip
            ends = None if bounds.ends is None else bounds.ends[shards]
            bounds = Bounds(bounds.sources[shards], starts, bounds.totals[shards], ends)
        else:
            strides = self.strides
            row_stride = self.row_stride if strides is None else strides[shards, 0][:1]
            offsets[:1] += skip * row_stride
        return replace(
            self,
            sources=self.sources[shards],
            offsets=offsets,
            bounds=bounds,
            sizes=sizes,
            strides=None if self.strides is None else self.strides[shards],
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

    def slice(self, start: int, stop: int) -> Group:
        """The samples [start, stop)."""
        if self.index_map is not None:
            return replace(self, index_map=self.index_map[start:stop])
        ends = self.shard_rows.cumsum()
        first, last = np.searchsorted(ends, [start, stop - 1], "right") if start < stop else (0, -1)
        shards = slice(int(first), int(last) + 1)
        begins = ends[shards] - self.shard_rows[shards]
        rows = np.minimum(ends[shards], stop) - np.maximum(begins, start)
        skip = start - int(begins[0]) if len(begins) else 0
        return Group(rows, tuple(column.slice(shards, skip) for column in self.columns))
