"""Reads ranges of files, including the text of compressed and encoded files."""

from __future__ import annotations

import os

from fastload.errors import FormatError, refuse_pipe
from fastload.packing.inputs.compressed import Unpacked, byte_of, is_unpacked


class OpenFiles:
    """Reader of file ranges; of compressed or encoded files, ranges of their text in UTF-8.

    The last file stays open.

    Args:
        encoding: Encoding of texts; None is UTF-8.
    """

    def __init__(self, encoding: str | None = None) -> None:
        self._encoding = encoding
        self._path, self._descriptor = "", -1
        self._unpacked: Unpacked | None = None

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        """Returns the bytes of a range.

        Raises:
            FormatError: the file ends before the range.
            OSError: the file cannot be read; the error names its path.
        """
        if path != self._path:
            self._close()
            refuse_pipe(path)
            if is_unpacked(path, self._encoding):
                self._unpacked = Unpacked.resumed(path, self._encoding)
            else:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._path = path
        if self._unpacked is not None:
            text = self._unpacked.read(offset, size_bytes)
            if len(text) < size_bytes:
                where = byte_of(path, offset + len(text), self._encoding)
                raise FormatError(f"{path}: truncated while it was read, at {where}")
            return text
        pieces, end = [], offset + size_bytes
        while offset < end:
            try:
                piece = os.pread(self._descriptor, end - offset, offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from error
            if not piece:
                raise FormatError(f"{path}: truncated while it was read, at byte {offset}")
            pieces.append(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def leave(self) -> None:
        """Keeps the position in a compressed file for the next part of this thread."""
        if self._unpacked is not None:
            self._unpacked.leave()
        self._close()

    def _close(self) -> None:
        if self._path and self._unpacked is None:
            os.close(self._descriptor)
        self._path, self._unpacked = "", None
