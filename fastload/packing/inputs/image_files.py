"""Reads image files one after the other."""

from __future__ import annotations

import collections
import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

from fastload.packing.columns import Array
from fastload.packing.image_headers import image_size_of
from fastload.packing.inputs.images import BadRecordError, open_image
from fastload.packing.inputs.source import Advance, UnstreamableError

_PIECE_BYTES = 512 << 10  # fits the CPU cache
_AHEAD = 8  # number of files with readahead
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without O_NONBLOCK, opening a pipe blocks


def read_image(path: str) -> bytes:
    """Returns the bytes of a file.

    Raises:
        BadRecordError: the path is not a regular file.
        OSError: the file cannot be read.
    """
    descriptor = os.open(path, _FLAGS)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadRecordError("not a file")
        return file.read()


def stream_images(
    paths: Sequence[str], lengths: Sequence[int], sizes: Array, advance: Advance
) -> Iterator[memoryview]:
    """Yields the bytes of all files in order; a piece is valid until the next one.

    Args:
        paths: Paths of the files.
        lengths: Sizes of the files in bytes.
        sizes: uint32 (files, 2), filled with height and width of each image.
        advance: Called with the number of files read since the last call.

    Raises:
        UnstreamableError: a path is not a regular file, not an image, or has another length.
        OSError: a file cannot be read.
    """
    buffer = memoryview(bytearray(max(_PIECE_BYTES, max(lengths)) + 1))
    filled = reported = 0
    with _Opened(paths) as files:
        for number, length in enumerate(lengths):
            if filled + length >= len(buffer):
                yield buffer[:filled]
                advance(number - reported)
                filled, reported = 0, number
            # Reads one byte more than expected, which shows if the file is longer.
            image = buffer[filled : filled + length + 1]
            if _filled(files.next(), image) != length:
                advance(-reported)
                raise UnstreamableError
            sizes[number] = size = image_size_of(image[:length])
            if size == (0, 0):
                try:
                    open_image(bytes(image[:length]))
                except BadRecordError as error:
                    advance(-reported)
                    raise UnstreamableError from error
            filled += length
    yield buffer[:filled]
    advance(len(lengths) - reported)


def _filled(descriptor: int, buffer: memoryview) -> int:
    """Returns the number of bytes read; -1 for a folder or a pipe."""
    try:
        return os.readv(descriptor, [buffer])
    except (IsADirectoryError, BlockingIOError):
        return -1


class _Opened:
    """Opens some files before they are read, so that the disk can read ahead."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._remaining = iter(paths)
        self._ahead: collections.deque[int] = collections.deque()
        self._last = -1

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        while self._last >= 0 or self._ahead:
            self._advance()

    def next(self) -> int:
        """Returns the descriptor of the next file, valid until the next call."""
        while len(self._ahead) <= _AHEAD and (path := next(self._remaining, None)) is not None:
            descriptor = os.open(path, _FLAGS)
            self._ahead.append(descriptor)
            with contextlib.suppress(OSError):  # pipes have no readahead
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        self._advance()
        return self._last

    def _advance(self) -> None:
        """Closes the current file and moves to the next one."""
        if self._last >= 0:
            os.close(self._last)
        self._last = self._ahead.popleft() if self._ahead else -1
