"""FFCV's `.beton` files, read without FFCV.

A file is a header, a descriptor for each field, a record for each sample, pages with the values
that do not fit into the records, and a table of the entries in the pages. All numbers are
little-endian.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.formats.files import file_source, suffix
from fastload.packing.columns import Array
from fastload.packing.inputs.images import ENCODED, RESIZE, RESIZE_SHORTER, Size, size_and_shaping
from fastload.packing.inputs.inventory import Inventory
from fastload.packing.inputs.kind import RAGGED, Kind
from fastload.packing.inputs.records import RecordsSource, open_records
from fastload.packing.inputs.wanted import ALL, Wanted
from fastload.packing.kinds.beton_columns import (
    JPEG,
    RAW,
    ArrayColumn,
    BetonColumn,
    BetonRecords,
    BytesColumn,
    ImageColumn,
    NumberColumn,
)

_SUFFIX = ".beton"
_VERSION = 2
_LEAST_PAGE_BYTES = 1 << 21
_HEADER = np.dtype(
    [
        ("version", "<u2"),
        ("fields", "<u2"),
        ("page_bytes", "<u4"),
        ("samples", "<u8"),
        ("table", "<u8"),  # start of the table; written last
    ]
)
_DESCRIPTOR = np.dtype([("type", "u1"), ("name", "V16"), ("arguments", "V1024")])
_ARRAY_ARGUMENTS = np.dtype([("shape", "<u8", 32), ("type_bytes", "<u8")])
_TABLE = np.dtype([("sample", "<u8"), ("start", "<u8"), ("size", "<u8")])

_FLOAT, _INT, _IMAGE, _BYTES, _ARRAY, _JSON, _TENSOR = range(7)
_PLACE = np.dtype([("start", "<u8"), ("size", "<u8")])
_IN_RECORD = {
    _FLOAT: np.dtype("<f8"),
    _INT: np.dtype("<i8"),
    _IMAGE: np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("start", "<u8")]),
    _BYTES: _PLACE,
    _ARRAY: np.dtype("<u8"),
    _JSON: _PLACE,
    _TENSOR: np.dtype("<u8"),
}
_UNKNOWN = -1  # a size that only the table has
_MAX = np.uint64(2**62)  # more than a file has


def open_beton(
    inventory: Inventory,
    *,
    resize: int | tuple[int, int] | None = None,
    resize_shorter: int | None = None,
    encoded: bool = False,
    ragged: Sequence[str] = (),
    strict: bool = False,
    wanted: Wanted = ALL,
) -> RecordsSource:
    """Opens a `.beton` file. The samples are dicts of its fields, in file order.

    Args:
        inventory: The file.
        resize: (height, width) of all images; one number is both.
        resize_shorter: The shorter side of all images, of which the square in the middle is kept.
        encoded: Keep images in JPEG; those stored as pixels become PPM, without loss.
        ragged: Fields of JSON that vary in length, though the samples that were checked do not.
        strict: An image or a text in JSON that cannot be read is an error.
        wanted: The fields that are read.

    Raises:
        FormatError: the file is no such file, truncated or damaged, has fields of a kind that FFCV
            lets its users define, or samples differ.
        ValueError: images are to be resized and to be kept encoded.
    """
    size, shaping = size_and_shaping(resize, resize_shorter, encoded)
    full = inventory.path
    columns = _Reader(full).columns(size, encoded, wanted)
    rows = len(columns[0].starts)
    return open_records(
        "beton",
        BetonRecords(full, np.arange(rows), columns),
        strict=strict,
        ragged=ragged,
        images=[] if encoded else [c.name for c in columns if isinstance(c, ImageColumn)],
        shaping=shaping,
    )


class _Reader:
    """Parses the file and checks that its sections are consistent."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size = file_source(path).size_bytes
        header = self._read(0, _HEADER, 1, "its header")[0]
        self._rows, self._table_start = int(header["samples"]), int(header["table"])
        if header["version"] != _VERSION or not _is_page(int(header["page_bytes"])):
            raise self._bad(
                f"no FFCV file of version {_VERSION}: it starts with version {header['version']} "
                f"and pages of {header['page_bytes']} bytes"
            )
        if not self._table_start:
            raise self._bad("incomplete: the program that wrote it did not come to its end")
        if self._table_start > self._size:
            raise self._bad(
                f"truncated: its table of contents starts at byte {self._table_start}, but the "
                f"file has {self._size}"
            )
        place, count = _HEADER.itemsize, int(header["fields"])
        self._fields = self._read(place, _DESCRIPTOR, count, "its descriptions of fields")
        self._records_start = place + count * _DESCRIPTOR.itemsize

    def columns(self, size: Size | None, encoded: bool, wanted: Wanted) -> tuple[BetonColumn, ...]:
        """The wanted fields; arguments as in `open_beton`."""
        names = [self._name(number) for number in range(len(self._fields))]
        kinds = [int(field["type"]) for field in self._fields]
        for name, kind in zip(names, kinds, strict=True):
            if kind not in _IN_RECORD:
                raise self._bad(f"field {name!r} is of type {kind}, which is not known")
            if names.count(name) > 1 and wanted.enters(name):
                raise self._bad(
                    f"two fields are named {name!r}: FFCV keeps 16 characters of a name"
                )
        if not names:
            raise self._bad("it has no fields")
        wanted.check(names, names)
        layout = np.dtype([(str(n), _IN_RECORD[kind]) for n, kind in enumerate(kinds)], align=True)
        end = self._records_start + self._rows * layout.itemsize
        if end > self._table_start:
            raise self._bad(
                f"damaged: {self._rows} samples of {layout.itemsize} bytes do not fit before its "
                f"table of contents at byte {self._table_start}"
            )
        records = self._read(self._records_start, layout, self._rows, "its records")
        pages = _Pages(self._path, *self._table(kinds), end, self._table_start)
        return tuple(
            self._column(number, name, kind, records[str(number)], pages, (size, encoded), wanted)
            for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
            if wanted.enters(name)
        )

    def _column(
        self,
        number: int,
        name: str,
        kind: int,
        records: Array,
        pages: _Pages,
        images: Any,
        wanted: Wanted,
    ) -> BetonColumn:
        if kind in (_FLOAT, _INT):
            nothing = np.zeros(len(records), np.int64)
            return NumberColumn(name, nothing, nothing, records.astype(records.dtype.type))
        if kind == _IMAGE:
            modes = records["mode"]
            if len(odd := np.flatnonzero((modes != JPEG) & (modes != RAW))):
                raise self._bad(
                    f"damaged: field {name!r}: sample {odd[0]} has the mode {modes[odd[0]]}, "
                    "which is neither JPEG nor pixels"
                )
            pixels = 3 * records["width"].astype(np.int64) * records["height"]
            sizes = np.where(modes == RAW, pixels, _UNKNOWN)
            places = pages.find(name, records["start"], sizes)
            return ImageColumn(name, *places, records.copy(), *images)
        if kind in (_BYTES, _JSON):
            sizes = np.minimum(records["size"], _MAX).astype(np.int64)
            places = pages.find(name, records["start"], sizes)
            return BytesColumn(name, *places, kind == _JSON, wanted)
        dtype, shape = self._array(number, name)
        sizes = np.full(len(records), math.prod(shape) * dtype.itemsize, np.int64)
        return ArrayColumn(name, *pages.find(name, records, sizes), dtype, shape)

    def _name(self, number: int) -> str:
        content: bytes = self._fields[number]["name"].tobytes().split(b"\0")[0]
        if not content.isascii():
            raise self._bad(f"damaged: the name of field {number} is {content!r}")
        return content.decode("ascii")

    def _array(self, number: int, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Returns dtype and shape of a field of arrays."""
        content = self._fields[number]["arguments"].tobytes()
        arguments = np.frombuffer(content, _ARRAY_ARGUMENTS, 1)[0]
        begin = _ARRAY_ARGUMENTS.itemsize
        text = content[begin : begin + min(int(arguments["type_bytes"]), len(content))]
        shape = arguments["shape"].tolist()
        while shape and shape[-1] == 0:
            shape.pop()
        try:
            ((_, described),) = json.loads(text.decode("ascii"))
            dtype = np.dtype(described)
            # No page is larger; nor can an array without numbers have an axis that is.
            if math.prod(length or 1 for length in shape) * dtype.itemsize >= 1 << 32:
                raise ValueError(f"its shape is {shape}")
        except (ValueError, TypeError) as error:
            raise self._bad(
                f"field {name!r}: its dtype {text[:50]!r} or its shape is not read: {error}"
            ) from error
        return dtype, tuple(shape)

    def _table(self, kinds: Sequence[int]) -> tuple[Array, Array]:
        """Returns the sorted start offsets and the sizes of the entries in the pages."""
        room = self._size - self._table_start
        expected = self._rows * sum(kind not in (_FLOAT, _INT) for kind in kinds)
        if room != expected * _TABLE.itemsize:
            raise self._bad(
                f"truncated or damaged: its table of contents has {room} bytes, but {self._rows} "
                f"samples need {expected * _TABLE.itemsize}"
            )
        table = self._read(self._table_start, _TABLE, expected, "its table of contents")
        table = table[table["size"] > 0]  # empty entries may share an offset with others
        order = np.argsort(table["start"], kind="stable")
        return table["start"][order], table["size"][order]

    def _read(self, offset: int, dtype: np.dtype[Any], count: int, what: str) -> Array:
        found = np.fromfile(self._path, dtype, count, offset=offset)
        if len(found) != count:
            raise self._bad(
                f"truncated: {what} would end at byte {offset + count * dtype.itemsize}, but the "
                f"file has {self._size}"
            )
        return found

    def _bad(self, what: str) -> FormatError:
        return FormatError(f"{self._path}: {what}")


@dataclass(frozen=True, eq=False)
class _Pages:
    """Table of the entries in the pages: their start offsets, sizes and bounds in the file."""

    path: str
    starts: Array
    sizes: Array
    begin: int
    end: int

    def find(self, name: str, starts: Array, sizes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns the start offsets and sizes of a field; missing sizes are read from the table.

        Raises:
            FormatError: something lies outside of the pages, or is not what the table says.
        """
        there = np.searchsorted(self.starts, starts)
        found = np.append(self.starts, _MAX)[there] == starts
        listed = np.where(found, np.append(self.sizes, _MAX)[there], _MAX)
        listed = np.minimum(listed, _MAX).astype(np.int64)
        places = np.minimum(starts, _MAX).astype(np.int64)
        known = sizes != _UNKNOWN
        sizes = np.where(known, sizes, np.where(found, listed, 1))
        outside = (places < self.begin) | (sizes > self.end - places)
        bad = (sizes > 0) & (outside | ~found | (listed != sizes))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            if outside[row]:
                why = f"outside of its pages, which lie from byte {self.begin} to {self.end}"
            elif not found[row]:
                why = "where it has nothing by its table of contents"
            else:
                why = f"where it has something of {listed[row]} bytes by its table of contents"
            size = f"has {sizes[row]} bytes and " if known[row] else ""
            raise FormatError(
                f"{self.path}: damaged: field {name!r}: sample {row} {size}starts at byte "
                f"{starts[row]}, {why}"
            )
        return places, sizes


def _is_page(size_bytes: int) -> bool:
    return size_bytes >= _LEAST_PAGE_BYTES and size_bytes & (size_bytes - 1) == 0


def _detects(path: Inventory) -> bool:
    if path.is_folder:
        return False
    if suffix(path.path) == _SUFFIX:
        return True
    start = np.frombuffer(path.start[: _HEADER.itemsize].ljust(_HEADER.itemsize, b"\0"), _HEADER)[0]
    return bool(start["version"] == _VERSION and _is_page(int(start["page_bytes"])))


KIND = Kind(
    "beton",
    "a .beton file of FFCV: dicts of the fields",
    open_beton,
    _detects,
    (RESIZE, RESIZE_SHORTER, ENCODED, RAGGED),
    ("PIL",),
    "images",
)
