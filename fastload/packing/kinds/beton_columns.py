"""The fields of FFCV's `.beton` files: locations and decoding of their samples."""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.formats.columns import Int64Array
from fastload.packing.columns import Array
from fastload.packing.inputs.images import (
    BadRecordError,
    Size,
    check_image,
    decode,
    pillow,
    pixels_of,
    ppm,
)
from fastload.packing.inputs.json_values import parse_json
from fastload.packing.inputs.leaves import Leaf
from fastload.packing.inputs.open_files import OpenFiles
from fastload.packing.inputs.records import Records
from fastload.packing.inputs.wanted import ALL, Wanted

JPEG, RAW = 0, 1
"""The modes of an image: a file in JPEG, or its pixels."""


@dataclass(frozen=True, eq=False)
class BetonColumn(abc.ABC):
    """A field of the file.

    Attributes:
        name: Name of the field.
        starts: int64 (samples): file offset of each sample in bytes.
        sizes: int64 (samples): size of each sample in bytes.
    """

    name: str
    starts: Int64Array
    sizes: Int64Array

    def take(self, rows: Int64Array) -> BetonColumn:
        """The samples at `rows`."""
        return replace(self, starts=self.starts[rows], sizes=self.sizes[rows])

    def read(self, row: int, path: str, files: OpenFiles) -> Any:
        """The value of a sample.

        Raises:
            BadRecordError: its bytes are not what they should be.
        """
        start = int(self.starts[row])
        content = files.read(path, start, int(self.sizes[row]))
        try:
            return self.value(content, row)
        except BadRecordError as error:
            raise BadRecordError(f"field {self.name!r} at byte {start}: {error}") from error

    @abc.abstractmethod
    def value(self, content: bytes, row: int) -> Any:
        """Decodes the bytes of one sample."""


@dataclass(frozen=True, eq=False)
class NumberColumn(BetonColumn):
    """Numbers, which lie in the records."""

    numbers: Array

    def take(self, rows: Int64Array) -> NumberColumn:
        """The numbers at `rows`."""
        return replace(self, numbers=self.numbers[rows])

    def read(self, row: int, path: str, files: OpenFiles) -> Any:
        """A number."""
        return self.numbers[row]

    def value(self, content: bytes, row: int) -> Any:
        """A number."""
        return self.numbers[row]


@dataclass(frozen=True, eq=False)
class BytesColumn(BetonColumn):
    """Bytes, or JSON, of which the wanted fields are read."""

    is_json: bool
    wanted: Wanted = ALL

    def value(self, content: bytes, row: int) -> Any:
        """The bytes, or what the text says, behind which there is a zero."""
        if not self.is_json:
            return content
        return parse_json(content.removesuffix(b"\0"), self.wanted, self.name)


@dataclass(frozen=True, eq=False)
class ArrayColumn(BetonColumn):
    """Arrays of one shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def value(self, content: bytes, row: int) -> Array:
        """An array."""
        return np.frombuffer(content, self.dtype).reshape(self.shape)


@dataclass(frozen=True, eq=False)
class ImageColumn(BetonColumn):
    """Images, each in JPEG or as its pixels.

    Attributes:
        records: Mode, width and height of each.
        size: (height, width) that they are resized to.
        encoded: They stay encoded; pixels become a file in PPM, which is a line and the pixels.
    """

    records: Array
    size: Size | None
    encoded: bool

    def take(self, rows: Int64Array) -> ImageColumn:
        """The images at `rows`."""
        records = self.records[rows]
        return replace(self, starts=self.starts[rows], sizes=self.sizes[rows], records=records)

    def value(self, content: bytes, row: int) -> Any:
        """Pixels, or an encoded image."""
        mode, width, height, _ = self.records[row].tolist()
        if mode == RAW:
            pixels = np.frombuffer(content, np.uint8).reshape(height, width, 3)
            return Leaf(ppm(pixels), "uint8", "image") if self.encoded else self._sized(pixels)
        if self.encoded:
            check_image(content)
            return Leaf(content, "uint8", "image")
        return decode(content, self.size)

    def _sized(self, pixels: Array) -> Array:
        if self.size is None or pixels.shape[:2] == self.size[:2]:
            return pixels
        return pixels_of(pillow().fromarray(pixels), self.size)


@dataclass(frozen=True, eq=False)
class BetonRecords(Records):
    """The samples of a file.

    Attributes:
        path: Path of the file.
        numbers: int64 (samples): the number of each in the file.
        columns: The fields.
    """

    path: str
    numbers: Int64Array
    columns: tuple[BetonColumn, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, row: int, files: OpenFiles) -> Any:
        """A dict of the fields."""
        return {column.name: column.read(row, self.path, files) for column in self.columns}

    def where(self, row: int) -> str:
        """File and number."""
        return f"{self.path}: sample {self.numbers[row]}"

    def name(self, row: int) -> str:
        """Description of the sample, without the folder of the file."""
        return f"{os.path.basename(self.path)}: sample {self.numbers[row]}"

    def take(self, rows: Int64Array) -> BetonRecords:
        """The samples at `rows`."""
        columns = tuple(column.take(rows) for column in self.columns)
        return replace(self, numbers=self.numbers[rows], columns=columns)

    def files(self) -> Sequence[str]:
        """The file."""
        return [self.path]
