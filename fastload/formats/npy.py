"""`.npy` files and folders of them, read in place."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fastload.errors import FormatError
from fastload.formats.arrays import number_field
from fastload.formats.columns import FileSource
from fastload.formats.dense import single_group
from fastload.formats.extents import Extents
from fastload.formats.fields import MAX_BYTES, STORED_AS, Field
from fastload.formats.files import Paths, file_source
from fastload.formats.structure import BARE_NAME
from fastload.formats.walk import with_suffix

MAGIC = b"\x93NUMPY"
_VERSIONS = ((1, 0), (2, 0), (3, 0))
# numpy's own limit for files it does not trust: the header goes through Python's parser.
_MAX_HEADER_BYTES = 10_000
_NAMELESS = re.compile(r"[|<>]V([12])|[|<]f(1)")


@dataclass(frozen=True)
class Header:
    """Header of a `.npy` file, and the offset of its data.

    Attributes:
        dtype: Dtype of the numbers in the file.
        fortran: True if they are in Fortran order.
        shape: Shape of the array.
        data_offset: Where the numbers begin.
        meaning: The name of the dtype, where numpy has none for it: "bfloat16" of uint16.
    """

    dtype: np.dtype[Any]
    fortran: bool
    shape: tuple[int, ...]
    data_offset: int
    meaning: str | None = None

    def field(self, name: str) -> Field:
        """The field of samples along the first axis."""
        if self.meaning is not None:
            return Field(name, self.meaning, self.shape[1:])
        return number_field(name, self.dtype, self.shape[1:])


class Readable(Protocol):
    """A file, or a member of an archive, from which a header is read."""

    @property
    def path(self) -> str:
        """For messages."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes, header included."""

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of it, fewer at its end."""


def read_header(source: Readable, meaning: str | None = None) -> Header:
    """Reads and checks the header of a `.npy` file; never unpickles.

    Args:
        source: Source of the header.
        meaning: The dtype of arrays that numpy writes as bytes without a name ("|V2"), which it
            does with those of ml_dtypes.

    Raises:
        FormatError: no `.npy` file, a damaged or unknown header, a dtype that is no plain number,
            fewer bytes than the header promises, or a second array behind the first.
    """
    path, size = source.path, source.size_bytes
    start = source.read(0, len(MAGIC) + 6)
    if not start.startswith(MAGIC):
        what = "empty file (0 bytes)" if size == 0 else "does not start like a .npy file"
        if MAGIC.startswith(start) and start:
            what = f"truncated: only {size} bytes, not even a .npy header"
        raise FormatError(f"{path}: {what}; expected {MAGIC!r} and a header")
    version = tuple(start[6:8])
    if len(version) == 2 and version not in _VERSIONS:
        raise FormatError(f"{path}: .npy version {version[0]}.{version[1]} is not known (1 to 3)")
    width = 2 if version == (1, 0) else 4
    length_at = len(MAGIC) + 2
    length = int.from_bytes(start[length_at : length_at + width], "little")
    data_offset = length_at + width + length
    if size < data_offset:
        raise FormatError(f"{path}: truncated: the header ends at byte {data_offset} of {size}")
    if length > _MAX_HEADER_BYTES:
        raise FormatError(f"{path}: header of {length} bytes, more than {_MAX_HEADER_BYTES}")
    text = source.read(length_at + width, length)
    if len(text) != length:
        raise FormatError(f"{path}: truncated while it was read")
    descr, fortran, shape = _parse(path, text.decode("utf-8" if version[0] == 3 else "latin-1"))
    nameless = _NAMELESS.fullmatch(descr) if isinstance(descr, str) else None
    if nameless and meaning is None:
        raise FormatError(
            f"{path}: descr {descr!r} names no dtype; numpy writes arrays of ml_dtypes so: "
            "`fastload pack --dtype bfloat16` (dtype=) says which it is"
        )
    if nameless:
        dtype = np.dtype(STORED_AS.get(meaning or "", "V8"))
        if str(dtype.itemsize) not in nameless.groups():
            raise FormatError(f"{path}: descr {descr!r}: {meaning} has another number of bytes")
    else:
        dtype, meaning = _plain_dtype(path, descr), None
    if math.prod(n for n in shape if n) * dtype.itemsize > MAX_BYTES:
        raise FormatError(f"{path}: shape {shape} is too large")
    expected = data_offset + math.prod(shape) * dtype.itemsize
    if size < expected:
        raise FormatError(
            f"{path}: truncated: shape {shape} of {dtype} needs {expected} bytes, the file has "
            f"{size}"
        )
    if size > expected and source.read(expected, len(MAGIC)) == MAGIC:
        raise FormatError(
            f"{path}: a second array starts at byte {expected}, which is not read; write each to a "
            "file of its own, or all as one array"
        )
    return Header(dtype, fortran, shape, data_offset, meaning)


def _parse(path: str, text: str) -> tuple[object, bool, tuple[int, ...]]:
    try:
        try:
            header = ast.literal_eval(text.strip())
        except SyntaxError:  # Python 2 wrote long integers as 2L
            header = ast.literal_eval(re.sub(r"(?<=[0-9])L\b", "", text.strip()))
        descr, fortran, shape = (header.pop(k) for k in ("descr", "fortran_order", "shape"))
        well_formed = not header and type(fortran) is bool and type(shape) is tuple
    except (SyntaxError, ValueError, TypeError, AttributeError, KeyError, MemoryError) as error:
        raise FormatError(f"{path}: damaged .npy header {text!r:.100}") from error
    if not well_formed or not all(type(n) is int and n >= 0 for n in shape):
        raise FormatError(f"{path}: damaged .npy header {text!r:.100}")
    return descr, fortran, shape


def check_dtype(path: str, field: Field, wanted: str | None) -> None:
    """Raises ValueError if an array has another dtype than the one that was given for it."""
    if wanted is not None and field.dtype != wanted:
        raise ValueError(
            f"{path}: holds {field.dtype}, not dtype={wanted!r}; --cast (cast=) converts numbers"
        )


def _plain_dtype(path: str, descr: object) -> np.dtype[Any]:
    dtype: np.dtype[Any] | None = None
    try:
        if isinstance(descr, str) and "," not in descr:  # numpy 1.24 takes "<f4," for one number
            dtype = np.dtype(descr)
    except (TypeError, ValueError, SyntaxError) as error:
        raise FormatError(f"{path}: unknown dtype, descr {descr!r:.100}") from error
    try:
        number_field(BARE_NAME, dtype or np.dtype(object), ())
    except TypeError as error:
        raise FormatError(f"{path}: descr {descr!r:.100} is no dtype of plain numbers") from error
    assert dtype is not None
    return dtype


def read_extents(paths: Paths) -> Extents:
    """The samples along the first axis of a `.npy` file, a folder of them or a sequence of files.

    The files of a folder are taken in natural order (1, 2, 10); hidden ones are ignored. They may
    differ in length. A sample is a bare array, field `data`. Bytes behind the data are ignored, as
    numpy does, unless they are a second array.

    Raises:
        FormatError: a file is damaged, is no array of plain little-endian numbers in C order, or
            differs from the first one in dtype or shape. The message names the files.
        OSError: a file cannot be read.
    """
    sources = [file_source(path) for path in with_suffix(paths, ".npy")]
    headers = [_readable_in_place(source) for source in sources]
    fields = [header.field(BARE_NAME) for header in headers]
    for source, field in zip(sources, fields, strict=True):
        if field != fields[0]:
            raise FormatError(
                f"{sources[0]} holds samples of {fields[0]}, but {source} of {field}; "
                "all files of a dataset must agree"
            )
    rows = [header.shape[0] for header in headers]
    offsets = [header.data_offset for header in headers]
    return single_group(fields[:1], rows, sources, [offsets], 0)


def _readable_in_place(source: FileSource) -> Header:
    header = read_header(source)
    if not header.shape:
        raise FormatError(f"{source}: shape () has no sample axis")
    advice = "`fastload pack` converts it"
    if header.dtype.kind in "mM":
        raise FormatError(f"{source}: descr {header.dtype.str!r} is of dates or times; {advice}")
    if not header.dtype.isnative:
        raise FormatError(f"{source}: {header.dtype.str!r} is big-endian; {advice}")
    in_one_order = sum(n > 1 for n in header.shape) <= 1 or 0 in header.shape
    if header.fortran and not in_one_order:
        raise FormatError(f"{source}: the array is in Fortran order; {advice}")
    return header
