"""`.npz` archives, in any byte and axis order."""

from __future__ import annotations

import contextlib
import math
import zipfile
import zlib
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats import npy
from fastload.formats.dtypes import dtype_name
from fastload.packing.columns import Array
from fastload.packing.inputs.arrays import ArrayColumn, Column, ColumnsSource, columns_source
from fastload.packing.inputs.inventory import HIDDEN, Inventory
from fastload.packing.inputs.kind import DTYPE, Kind
from fastload.packing.inputs.source import stored
from fastload.packing.inputs.wanted import ALL, Wanted

_OF_MACOS = "__MACOSX/"  # what its archiver adds
_START_BYTES = 16 << 10  # more than the longest header that is accepted


@dataclass(frozen=True)
class ArchiveColumn(Column):
    """An array of an archive; sequential reads are fastest."""

    path: str
    dtype: np.dtype[Any]
    data_offset: int
    stream: IO[bytes]

    def read(self, start: int, stop: int) -> Array:
        """Continues if `start` is the end of the last range; else reads from the array's start."""
        size = (stop - start) * self.field.row_bytes
        offset = self.data_offset + start * self.field.row_bytes
        try:
            if self.stream.tell() != offset:
                self.stream.seek(offset)
            data = self.stream.read(size)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise FormatError(f"{self.path}: array {self.field.name!r}: {error}") from error
        if len(data) != size:
            raise FormatError(f"{self.path}: array {self.field.name!r} is truncated")
        array = np.frombuffer(data, self.dtype).reshape(stop - start, *self.field.shape)
        return stored(array, self.field)

    def loaded(self) -> Column:
        """Reads the whole array into memory."""
        return ArrayColumn(self.field, self.rows, self.read(0, self.rows))

    def paths(self) -> list[str]:
        """The archive."""
        return [self.path]

    def describe(self) -> Any:
        """The array's name; its size follows from the schema."""
        return self.field.name


def open_npz(
    inventory: Inventory, *, dtype: Any = None, strict: bool = False, wanted: Wanted = ALL
) -> ColumnsSource:
    """Opens an `.npz` archive; a sample is a dict with a key for each array.

    Arrays are streamed, whatever their size; only those in Fortran order are read at once.

    Args:
        inventory: The file.
        dtype: Dtype of ml_dtypes arrays, which `.npy` headers do not store.
        strict: Nothing is left out in any case.
        wanted: The fields that are read.

    Raises:
        FormatError: the archive is damaged, empty, or holds something else than arrays of plain
            numbers.
        ValueError: the arrays differ in length.
    """
    full = inventory.path
    meaning = None if dtype is None else dtype_name(dtype)
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(full))
        except zipfile.BadZipFile as error:
            raise FormatError(f"{full}: damaged .npz archive: {error}") from error
        names = []
        for name in archive.namelist():
            shown = f"{inventory.below(full)}: {name}"
            if name.startswith(_OF_MACOS):
                inventory.leave(shown, HIDDEN)
            elif name.endswith(".npy"):
                names.append(name)
            elif not name.endswith("/"):  # a folder holds nothing itself
                inventory.leave(shown, "npz does not read members of this name")
        if not names:
            raise FormatError(f"{full}: no arrays in this archive")
        wanted.check(name.removesuffix(".npy") for name in names)
        names = [name for name in names if wanted.takes(name.removesuffix(".npy"))]
        # An opened archive for each: some Pythons 3.12 and 3.13 seek in one array from where
        # another was read, which gives wrong numbers.
        columns = [
            _member(full, stack.enter_context(zipfile.ZipFile(full)), name, meaning, stack)
            for name in names
        ]
        structure = {column.field.name: number for number, column in enumerate(columns)}
        opened = columns_source("npz", columns, structure, local=True)
        return replace(opened, resources=stack.pop_all())


def _member(
    path: str,
    archive: zipfile.ZipFile,
    member: str,
    meaning: str | None,
    stack: contextlib.ExitStack,
) -> ArrayColumn | ArchiveColumn:
    name = member.removesuffix(".npy")
    where = f"{path}: array {name!r}"
    try:
        stream = stack.enter_context(archive.open(member))
        head = stream.read(_START_BYTES)
        header = npy.read_header(_Member(where, archive.getinfo(member).file_size, head), meaning)
        if not header.shape:
            raise FormatError(f"{where}: shape () has no sample axis")
        field = header.field(name)
        stream.seek(0)
        if header.fortran:
            content = stream.read()[header.data_offset :]
            array = np.frombuffer(content, header.dtype, math.prod(header.shape))
            array = array.reshape(header.shape, order="F")
            return ArrayColumn(field, len(array), array)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise FormatError(f"{where}: {error}") from error
    return ArchiveColumn(field, header.shape[0], path, header.dtype, header.data_offset, stream)


@dataclass(frozen=True)
class _Member:
    """The first bytes of an archive member, with the interface of a file."""

    path: str
    size_bytes: int
    start: bytes

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of the start."""
        return self.start[offset : offset + size_bytes]


KIND = Kind(
    "npz",
    "an .npz file: dicts of its arrays",
    open_npz,
    lambda path: path.start.startswith(b"PK") or (not path.is_folder and path.holds(".npz")),
    (DTYPE,),
)
