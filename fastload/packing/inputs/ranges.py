"""Reads byte ranges, arrays and rows of files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.packing.columns import AnyColumn as AnyColumn
from fastload.packing.columns import Array as Array
from fastload.packing.columns import Collector as Collector
from fastload.packing.columns import Missing as Missing
from fastload.packing.columns import Ragged as Ragged
from fastload.packing.columns import RaggedBuilder as RaggedBuilder
from fastload.packing.columns import inverse as inverse
from fastload.packing.columns import taken as taken

_PIECE_BYTES = 512 << 10


def read_pieces(path: str, offset: int, size_bytes: int) -> Iterator[memoryview]:
    """Yields the bytes of a range of a file, in pieces that fit the CPU cache.

    Raises:
        FormatError: the file ends before the range.
        OSError: the file cannot be read.
    """
    buffer = memoryview(bytearray(min(size_bytes, _PIECE_BYTES)))
    with open(path, "rb", buffering=0) as file:
        while size_bytes:
            try:
                count = os.preadv(file.fileno(), [buffer[:size_bytes]], offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from error
            if count == 0:
                raise FormatError(f"{path}: truncated while it was read, at byte {offset}")
            yield buffer[:count]
            offset, size_bytes = offset + count, size_bytes - count


def read_array(path: str, offset: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Reads an array from a file.

    The file is not memory-mapped: if it shrinks, this raises, but access to a map would crash.

    Raises:
        FormatError: the file ends before the array.
        OSError: the file cannot be read.
    """
    made: Array = read_rows(path, np.array([offset]), dtype, shape)[0]
    return made


def read_rows(path: str, offsets: Int64Array, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Reads one array of `shape` at each offset of a file.

    Raises:
        FormatError: the file ends before one of the arrays.
        OSError: the file cannot be read.
    """
    made = np.empty((len(offsets), *shape), dtype)
    if made.size == 0:
        return made
    rows = made.reshape(len(offsets), -1).view(np.uint8)
    with open(path, "rb", buffering=0) as file:
        for row, offset in zip(rows, offsets.tolist(), strict=True):
            view = memoryview(row.data)
            while view:
                count = os.preadv(file.fileno(), [view], offset)
                if count == 0:
                    raise FormatError(f"{path}: truncated while it was read, at byte {offset}")
                view, offset = view[count:], offset + count
    return made
