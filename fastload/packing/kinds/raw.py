"""Raw binary files of one dtype and shape."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.formats import raw
from fastload.formats.columns import FileSource, Int64Array
from fastload.formats.dtypes import parse_dtype
from fastload.formats.extents import Extents
from fastload.formats.tokens import DTYPES as TOKEN_DTYPES
from fastload.formats.tokens import TokenFile, check_vocabulary
from fastload.packing.columns import Array
from fastload.packing.inputs.arrays import Column, ColumnsSource, columns_source
from fastload.packing.inputs.checks import check_counts
from fastload.packing.inputs.inventory import Inventory
from fastload.packing.inputs.kind import DTYPE, VOCAB_SIZE, Kind, Option
from fastload.packing.inputs.ranges import read_array, read_pieces, read_rows
from fastload.packing.inputs.source import Streamed, stored
from fastload.packing.inputs.wanted import ALL, Wanted


@dataclass(frozen=True)
class RawColumn(Column):
    """A file that holds only samples, without a header."""

    path: str
    big_endian: bool

    def read(self, start: int, stop: int) -> Array:
        """Reads the samples; big-endian numbers are byte-swapped."""
        shape = (stop - start, *self.field.shape)
        array = read_array(self.path, start * self.field.row_bytes, self._dtype, shape)
        return stored(array, self.field)

    def take(self, indices: Int64Array) -> Array:
        """Reads the samples one by one."""
        offsets = indices * self.field.row_bytes
        return stored(read_rows(self.path, offsets, self._dtype, self.field.shape), self.field)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return self.field.storage.newbyteorder(">" if self.big_endian else "=")

    def paths(self) -> list[str]:
        """The file."""
        return [self.path]

    def streamed(self, start: int, stop: int) -> Array | Streamed:
        """Returns the unchanged bytes of the file, if shards store the same bytes."""
        if self.big_endian or self.field.dtype == "bool":
            return self.read(start, stop)
        size = self.field.row_bytes
        return Streamed(stop - start, read_pieces(self.path, start * size, (stop - start) * size))

    def describe(self) -> Any:
        """Name and size of the file."""
        return [os.path.basename(self.path), self.rows * self.field.row_bytes]


def open_raw(
    inventory: Inventory,
    *,
    dtype: Any = None,
    shape: Any = None,
    vocab_size: int | None = None,
    strict: bool = False,
    wanted: Wanted = ALL,
) -> ColumnsSource:
    """Opens a raw file of samples of `dtype` (">i4": big-endian) and `shape`.

    Raises:
        FormatError: the size is no multiple of a sample's, the file is of another format, or a
            token is not in [0, vocab_size).
        ValueError: dtype or shape is missing or not supported.
    """
    if dtype is None or shape is None:
        raise ValueError(
            f"{inventory.path}: raw numbers need both --dtype and --shape (dtype=, shape=)"
        )
    dtype, big_endian = parse_dtype(dtype)
    extents = raw.read_extents([inventory.path], dtype, shape)
    if vocab_size is not None:
        _check_tokens(extents, vocab_size, big_endian)
    column = RawColumn(extents.fields[0], extents.rows, inventory.path, big_endian)
    return columns_source("raw", [column], 0)


def _check_tokens(extents: Extents, vocab_size: int, big_endian: bool) -> None:
    """Checks that all tokens are in the vocabulary, and that the dtype is one of tokens.

    Raises:
        FormatError: a token is not in [0, vocab_size).
        ValueError: the dtype is not one of tokens, or the size is not positive.
    """
    check_counts(vocab_size=vocab_size)
    column = extents.columns[0]
    source, field = column.sources[0], column.field
    if field.dtype not in TOKEN_DTYPES or not isinstance(source, FileSource):
        raise ValueError(f"vocab_size is for tokens: {', '.join(TOKEN_DTYPES)}, not {field.dtype}")
    count = source.size_bytes // field.storage.itemsize
    check_vocabulary(TokenFile(source, 0, field.dtype, count), vocab_size, big_endian=big_endian)


KIND = Kind(
    "raw",
    "a raw file of numbers of one --dtype and --shape: bare arrays",
    open_raw,
    lambda path: not path.is_folder and not path.given.keys().isdisjoint(("dtype", "shape")),
    (
        DTYPE,
        Option("shape", "shape of a sample in a raw file, such as 3,32,32", "shape"),
        VOCAB_SIZE,
    ),
)
