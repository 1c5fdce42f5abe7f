"""Height and width of encoded images, read from their headers.

The headers are parsed without an image library, so that the stored sizes depend only on the images.
The size is unknown if the header is damaged, which PNG shows by its checksum, JPEG and WebP by
lengths that do not fit.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fastload.formats.columns import Int64Array

Size = tuple[int, int]
"""Height and width in pixels; (0, 0) if unknown."""

_UNKNOWN = 0, 0
_MAX_SIDE = 2**32 - 1
_PNM_SPACE = rb"(?:\s|#[^\n\r]*[\n\r])+"
_PNM = re.compile(rb"P[1-6]" + _PNM_SPACE + rb"(\d{1,9})" + _PNM_SPACE + rb"(\d{1,9})\s")
_PNM_BYTES = 512
_BMP_HEADERS = frozenset([12, 40, 52, 56, 64, 108, 124])  # sizes in bytes
_NO_FRAMES = frozenset([0xC4, 0xC8, 0xCC])  # markers in C0 to CF that start no frame
_ALONE = frozenset([0x01, *range(0xD0, 0xD8)])  # markers without a segment
_PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_ORIENTATION = 256, 257, 274
_TIFF_TYPES = {3: "H", 4: "I"}


def image_sizes(values: npt.NDArray[np.uint8], offsets: Int64Array) -> npt.NDArray[np.uint32]:
    """Returns the sizes of a column of images, uint32 (samples, 2).

    Args:
        values: uint8, the bytes of all images.
        offsets: int64 (samples + 1), the start of each image in `values`.
    """
    data = memoryview(values.data)
    sizes = [image_size_of(data[start:end]) for start, end in pairwise(offsets.tolist())]
    return np.array(sizes, np.uint32).reshape(-1, 2)


def image_size_of(data: bytes | memoryview) -> Size:
    """Returns height and width of an image as Pillow opens it.

    JPEG, PNG, WebP, GIF, BMP, PNM and TIFF are supported; other contents return (0, 0). EXIF
    orientation is ignored; the orientation tag of TIFF is applied, as in Pillow.

    Example:
        >>> image_size_of(b"P6 640 480 255 ")
        (480, 640)
    """
    head = bytes(data[:12])
    read = _READERS.get(head[:2])
    if read is None or (head[:2] == b"RI" and (head[:4], head[8:]) != (b"RIFF", b"WEBP")):
        return _UNKNOWN
    try:
        height, width = read(memoryview(data))
    except (struct.error, IndexError):  # truncated
        return _UNKNOWN
    return (height, width) if 0 < height <= _MAX_SIDE and 0 < width <= _MAX_SIDE else _UNKNOWN


def _jpeg(data: memoryview) -> Size:
    """Reads the segments up to the first frame."""
    offset = 2
    while data[offset] == 0xFF:
        marker = data[offset + 1]
        if marker == 0xFF:  # padding
            offset += 1
        elif marker in _ALONE:
            offset += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            size, _, height, width, parts = struct.unpack_from(">HBHHB", data, offset + 2)
            return (height, width) if size == 8 + 3 * parts else _UNKNOWN
        elif marker in (0xD9, 0xDA):  # end of image, or start of scan
            break
        else:
            offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
    return _UNKNOWN


def _png(data: memoryview) -> Size:
    start, width, height, crc = struct.unpack_from(">16sII5xI", data)
    is_one = start == _PNG_START and crc == zlib.crc32(data[12:29])
    return (height, width) if is_one else _UNKNOWN


def _gif(data: memoryview) -> Size:
    width, height = struct.unpack_from("<HH", data, 6)
    return (height, width) if bytes(data[:6]) in (b"GIF87a", b"GIF89a") else _UNKNOWN


def _bmp(data: memoryview) -> Size:
    (header,) = struct.unpack_from("<I", data, 14)
    if header not in _BMP_HEADERS:  # text may start with BM, too
        return _UNKNOWN
    width, height = struct.unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return abs(height), width  # negative: the rows are stored from top to bottom


def _webp(data: memoryview) -> Size:
    size_bytes, kind = struct.unpack_from("<4xI4x4s", data)
    if 8 + size_bytes > len(data):
        return _UNKNOWN
    if kind == b"VP8 " and bytes(data[23:26]) == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return height & 0x3FFF, width & 0x3FFF
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8X":
        width, above, height, top = struct.unpack_from("<HBHB", data, 24)
        return (height | top << 16) + 1, (width | above << 16) + 1
    return _UNKNOWN


def _pnm(data: memoryview) -> Size:
    found = _PNM.match(data[:_PNM_BYTES])
    return _UNKNOWN if found is None else (int(found[2]), int(found[1]))


def _tiff(data: memoryview) -> Size:
    """Reads the first directory and applies its orientation tag, as all readers of TIFF do."""
    start = bytes(data[:4])
    if start not in (b"II*\0", b"MM\0*"):
        return _UNKNOWN
    order = "<" if start[0] == ord("I") else ">"
    (offset,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, offset)
    found = {_TIFF_HEIGHT: 0, _TIFF_WIDTH: 0, _TIFF_ORIENTATION: 1}
    for entry in range(offset + 2, offset + 2 + 12 * count, 12):
        tag, kind = struct.unpack_from(f"{order}HH", data, entry)
        if tag in found and kind in _TIFF_TYPES:
            (found[tag],) = struct.unpack_from(f"{order}{_TIFF_TYPES[kind]}", data, entry + 8)
        if tag > _TIFF_ORIENTATION:  # entries are sorted by tag
            break
    height, width, orientation = found.values()
    return (width, height) if 5 <= orientation <= 8 else (height, width)


_READERS: dict[bytes, Callable[[memoryview], Size]] = {
    b"\xff\xd8": _jpeg,
    b"\x89P": _png,
    b"GI": _gif,
    b"BM": _bmp,
    b"RI": _webp,
    b"II": _tiff,
    b"MM": _tiff,
    **{b"P%d" % number: _pnm for number in range(1, 7)},
}
