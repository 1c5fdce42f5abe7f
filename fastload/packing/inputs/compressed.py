"""Text in compressed files (gzip, Zstandard), which are detected by their suffixes.

Such a file can only be decompressed from its start. A thread that reads several parts of an input
keeps its decompressor between them, so that it does not start again for each part.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from fastload.errors import FormatError
from fastload.formats.files import suffix
from fastload.packing.inputs.half_read import HalfRead, version_of
from fastload.packing.inputs.inventory import Inventory
from fastload.packing.inputs.kind import library
from fastload.packing.inputs.text_encoding import as_utf8

_FORMATS = {".gz": "gzip", ".zst": "Zstandard"}
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_EMPTY_FRAME = b"\x2a\x4d\x18"  # bytes 1 to 3 of a skippable Zstandard frame
_HAS_ZSTD = sys.version_info >= (3, 14)
_HEAD_BYTES = 4
_PACKED_BYTES = 64 << 10
_PIECE_BYTES = 256 << 10


def is_compressed(path: str) -> bool:
    """Returns whether a file name has the suffix of a compressed file."""
    return suffix(path) in _FORMATS


def plain_name(path: str) -> str:
    """Returns the file name without the suffix of a compressed file."""
    return os.path.splitext(path)[0] if is_compressed(path) else path


def or_compressed(*suffixes: str) -> tuple[str, ...]:
    """Returns the suffixes, each also followed by the suffixes of compressed files."""
    return tuple(name + more for more in ("", *_FORMATS) for name in suffixes)


def text_files(inventory: Inventory) -> list[str]:
    """Returns the files of an input.

    Raises:
        FileNotFoundError: the folder has no files to read.
        FormatError: the folder has a file twice, with and without compression.
    """
    found = inventory.need_files()
    seen: dict[str, str] = {}
    for file in found:
        if (other := seen.setdefault(plain_name(file), file)) != file:
            names = " and ".join(map(os.path.basename, (other, file)))
            raise FormatError(f"{inventory.path}: {names} would both be read; remove one of them")
    return found


def is_unpacked(path: str, encoding: str | None = None) -> bool:
    """Returns whether a text must be read from its start by `Unpacked`."""
    return encoding is not None or is_compressed(path)


def byte_of(path: str, offset: int, encoding: str | None = None) -> str:
    """Describes an offset; offsets in decompressed or decoded files are those of their text."""
    text = " of its text" if is_compressed(path) else ""
    return f"byte {offset}{text}" if encoding is None else f"byte {offset} of its text in UTF-8"


def blocks(
    path: str, size_bytes: int, offset: int = 0, encoding: str | None = None
) -> Iterator[bytes]:
    """Yields the text of a file in UTF-8 in blocks of equal size; the last may be smaller.

    Args:
        path: Path of the file, which may be compressed.
        size_bytes: Size of a block.
        offset: Offset of the first block in the text.
        encoding: Encoding of the file; None is UTF-8, which is not checked.

    Raises:
        FormatError: the file is damaged, or not in its encoding.
        OSError: the file cannot be read.
    """
    if is_unpacked(path, encoding):
        text = Unpacked(path, encoding)
        while block := text.read(offset, size_bytes):
            yield block
            offset += len(block)
        return
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while block := file.read(size_bytes):
            yield block


class Unpacked:
    """Text in UTF-8 of a file that is compressed or has another encoding.

    Not thread-safe. Reading backwards decompresses the file from its start again.

    Args:
        path: Path of the file.
        encoding: Encoding of the text; None is UTF-8.

    Example:
        >>> import gzip
        >>> with gzip.open("a.jsonl.gz", "wt") as file:
        ...     count = file.write("text")
        >>> Unpacked("a.jsonl.gz").read(1, 2)
        b'ex'
    """

    def __init__(self, path: str, encoding: str | None = None) -> None:
        self._path, self._encoding, self._key = path, encoding, (version_of(path), encoding)
        self._pieces, self._buffer, self._start = _text_of(path, encoding), b"", 0

    @classmethod
    def resumed(cls, path: str, encoding: str | None = None) -> Unpacked:
        """Returns the object that this thread left for the same file, or a new one."""
        return _half_read.take(path, (version_of(path), encoding)) or cls(path, encoding)

    def leave(self) -> None:
        """Keeps this object for the next part that this thread reads."""
        _half_read.leave(self._path, self._key, self)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Returns a range of the text; shorter only at the end of the text.

        Raises:
            FormatError: the file is damaged.
            OSError: the file cannot be read.
        """
        if offset < self._start:
            self._pieces, self._buffer, self._start = _text_of(self._path, self._encoding), b"", 0
        found = []
        while size_bytes:
            first = offset - self._start
            part = self._buffer[first : first + size_bytes]
            found.append(part)
            offset, size_bytes = offset + len(part), size_bytes - len(part)
            if size_bytes:
                if (following := next(self._pieces, None)) is None:
                    break
                self._start, self._buffer = self._start + len(self._buffer), following
        return b"".join(found)


_half_read: HalfRead[Unpacked] = HalfRead()


def drop_half_read(paths: Collection[str]) -> None:
    """Closes the files that threads keep open between parts."""
    _half_read.drop(paths)


def _text_of(path: str, encoding: str | None) -> Iterator[bytes]:
    pieces = _pieces(path) if is_compressed(path) else blocks(path, _PIECE_BYTES)
    return pieces if encoding is None else as_utf8(path, encoding, pieces)


def _pieces(path: str) -> Iterator[bytes]:
    """Yields the text of all members (gzip) or frames (Zstandard) of a file."""
    is_gzip, text, members = suffix(path) == ".gz", 0, 0
    name, (new_member, failure) = _FORMATS[suffix(path)], _decompressor(is_gzip)
    with open(path, "rb", buffering=0) as file:
        packed = _Packed(path, file.fileno())
        while (head := packed.head(after_pad=is_gzip and members > 0)) or not members:
            if not (head[:2] == _GZIP if is_gzip else head == _ZSTD or head[1:] == _EMPTY_FRAME):
                if members:
                    raise FormatError(f"{path}: garbage after its {name} data, at {packed.where}")
                raise FormatError(
                    f"{path}: not a {name} file despite its name: it starts with {head!r}"
                )
            member = new_member()
            while not member.eof:
                wants_more = member.needs_input
                given = packed.take() if wants_more else b""
                where = f"{packed.where} ({byte_of(path, text)})"
                try:
                    piece = member.decompress(given, _PIECE_BYTES)
                except failure as error:
                    what = f"damaged {name} data before {where}"
                    raise FormatError(f"{path}: {what}: {error}") from error
                if piece:
                    text += len(piece)
                    yield piece
                elif wants_more and not given and not member.eof:
                    raise FormatError(f"{path}: truncated: its {name} data end at {where}")
            packed.give_back(member.unused_data)
            members += 1


class _Packed:
    """Sequential reader of a file's bytes; forked processes may share its descriptor."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._ahead, self._offset = b"", 0

    @property
    def where(self) -> str:
        """Offset of the next byte, as text."""
        return f"byte {self._offset}"

    def head(self, *, after_pad: bool) -> bytes:
        """Returns the next bytes without consuming them; `after_pad` skips zeros first."""
        while True:
            if after_pad:
                self.give_back(self.take().lstrip(b"\0"))
            if len(self._ahead) >= _HEAD_BYTES or not (more := self._read()):
                return self._ahead[:_HEAD_BYTES]
            self._ahead += more

    def take(self) -> bytes:
        """Returns and consumes some bytes; empty at the end."""
        taken, self._ahead = self._ahead or self._read(), b""
        self._offset += len(taken)
        return taken

    def give_back(self, rest: bytes) -> None:
        """Returns unused bytes of the last `take`."""
        self._ahead = rest + self._ahead
        self._offset -= len(rest)

    def _read(self) -> bytes:
        try:
            return os.pread(self._descriptor, _PACKED_BYTES, self._offset + len(self._ahead))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error


class _GzipMember:
    """zlib decompressor of one member with the interface of Python's other decompressors."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self._left = b""

    @property
    def eof(self) -> bool:
        """True after the last byte, if checksum and length were right."""
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        """True if more output needs more input."""
        return not self._left

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the member."""
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Returns the next bytes, at most `max_length`."""
        made = self._inner.decompress(self._left + data, max_length)
        self._left = self._inner.unconsumed_tail
        return made


def _decompressor(is_gzip: bool) -> tuple[Callable[[], Any], type[Exception]]:
    """Returns the decompressor class of a member or frame, and the error that it raises.

    Raises:
        ImportError: the package for Zstandard is not installed.
    """
    if is_gzip:
        return _GzipMember, zlib.error
    module = library(
        "compression.zstd" if _HAS_ZSTD else "backports.zstd", "zstd", "backports.zstd"
    )
    return module.ZstdDecompressor, module.ZstdError
