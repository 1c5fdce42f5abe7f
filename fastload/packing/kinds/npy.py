"""`.npy` files and folders of them, in any byte and axis order."""

from __future__ import annotations

import bisect
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats import npy
from fastload.formats.columns import FileSource, Int64Array
from fastload.formats.dtypes import dtype_name
from fastload.formats.files import file_source
from fastload.formats.structure import BARE_NAME
from fastload.packing.columns import Array
from fastload.packing.inputs.arrays import Column, ColumnsSource, columns_source
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import DTYPE, Kind
from fastload.packing.inputs.ranges import read_array, read_pieces, read_rows
from fastload.packing.inputs.source import Streamed, stored
from fastload.packing.inputs.wanted import ALL, Wanted


@dataclass(frozen=True)
class NpyColumn(Column):
    """The arrays of several files, one after the other."""

    files: tuple[FileSource, ...]
    headers: tuple[npy.Header, ...]

    def read(self, start: int, stop: int) -> Array:
        """Reads from the files that hold the range."""
        pieces = [np.empty((0, *self.field.shape), self.field.storage)]
        for number, first, last in self._ranges(start, stop):
            pieces.append(stored(self._read(number, first, last), self.field))
        return pieces[-1] if len(pieces) <= 2 else np.concatenate(pieces)

    def streamed(self, start: int, stop: int) -> Array | Streamed:
        """Returns the unchanged bytes of the files, if shards store the same bytes."""
        plain = all(header.dtype.isnative and not header.fortran for header in self.headers)
        if not plain or self.field.dtype == "bool":
            return self.read(start, stop)
        return Streamed(stop - start, self._pieces(start, stop))

    def _pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        for number, first, last in self._ranges(start, stop):
            offset = self.headers[number].data_offset + first * self.field.row_bytes
            size = (last - first) * self.field.row_bytes
            yield from read_pieces(self.files[number].path, offset, size)

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yields the files that hold the samples, each with its row range."""
        ends = list(accumulate(header.shape[0] for header in self.headers))
        number = bisect.bisect_right(ends, start)
        while start < stop:
            first = ends[number] - self.headers[number].shape[0]
            last = min(stop, ends[number])
            yield number, start - first, last - first
            start, number = last, number + 1

    def take(self, indices: Int64Array) -> Array:
        """Reads the samples one by one, file after file."""
        ends = np.cumsum([header.shape[0] for header in self.headers])
        numbers = np.searchsorted(ends, indices, "right")
        taken = np.empty((len(indices), *self.field.shape), self.field.storage)
        for number in np.unique(numbers).tolist():
            header, rows = self.headers[number], np.flatnonzero(numbers == number)
            own = indices[rows] - (ends[number] - header.shape[0])
            if header.fortran:
                for row, index in zip(rows.tolist(), own.tolist(), strict=True):
                    taken[row] = stored(self._read(number, index, index + 1), self.field)[0]
            else:
                offsets = header.data_offset + own * self.field.row_bytes
                path = self.files[number].path
                piece = read_rows(path, offsets, header.dtype, self.field.shape)
                taken[rows] = stored(piece, self.field)
        return taken

    def paths(self) -> list[str]:
        """The files."""
        return [file.path for file in self.files]

    def _read(self, number: int, start: int, stop: int) -> Array:
        path, header = self.files[number].path, self.headers[number]
        dtype, shape, offset = header.dtype, header.shape, header.data_offset
        if not header.fortran:
            offset += start * self.field.row_bytes
            return read_array(path, offset, dtype, (stop - start, *shape[1:]))
        # In Fortran order the samples of each element follow each other.
        elements = [
            read_array(
                path, offset + (n * shape[0] + start) * dtype.itemsize, dtype, [stop - start]
            )
            for n in range(math.prod(shape[1:]))
        ]
        return np.reshape(elements, (*reversed(shape[1:]), stop - start)).T

    def describe(self) -> Any:
        """Names and sizes of the files."""
        return [[os.path.basename(f.path), f.size_bytes] for f in self.files]


def open_npy(
    inventory: Inventory,
    *,
    dtype: Any = None,
    strict: bool = False,
    wanted: Wanted = ALL,
) -> ColumnsSource:
    """Opens a `.npy` file, or all below a folder in natural order. A sample is a bare array.

    Args:
        inventory: The file or folder.
        dtype: Dtype of ml_dtypes arrays, which `.npy` headers do not store.
        strict: Nothing is left out in any case.
        wanted: The fields that are read.

    Raises:
        FormatError: a file is damaged, holds no plain numbers, has no first axis, or differs from
            the first one in dtype or shape.
    """
    files = tuple(file_source(path) for path in inventory.need_files())
    meaning = None if dtype is None else dtype_name(dtype)
    headers = tuple(npy.read_header(file, meaning) for file in files)
    fields = []
    for file, header in zip(files, headers, strict=True):
        if not header.shape:
            raise FormatError(f"{file}: shape () has no sample axis")
        fields.append(header.field(BARE_NAME))
        npy.check_dtype(file.path, fields[-1], meaning)
        if fields[-1] != fields[0]:
            raise FormatError(
                f"{files[0]} holds samples of {fields[0]}, but {file} of {fields[-1]}; "
                "all files of a dataset must agree"
            )
    rows = sum(header.shape[0] for header in headers)
    source = columns_source("npy", [NpyColumn(fields[0], rows, files, headers)], 0)
    return replace(source, notices=tuple(_bytes_behind(files, headers)))


def _bytes_behind(files: Sequence[FileSource], headers: Sequence[npy.Header]) -> Iterator[str]:
    for file, header in zip(files, headers, strict=True):
        end = header.data_offset + math.prod(header.shape) * header.dtype.itemsize
        if file.size_bytes > end:
            yield f"{file}: {file.size_bytes - end} bytes behind its array are not read"


KIND = Kind(
    "npy",
    "a .npy file or a folder of them: bare arrays",
    open_npy,
    lambda path: path.holds(".npy") or path.start.startswith(npy.MAGIC),
    (DTYPE,),
    names=Names((".npy",)),
)
