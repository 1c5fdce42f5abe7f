"""Files of images, read one after the other."""

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

_PIECE_BYTES = 512 << 10  # which stay in the processor's cache
_AHEAD = 8  # files that the disk is told of before they are read
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe would wait for ever


def read_image(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        BadRecordError: it is a folder, a pipe or the like.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, _FLAGS)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadRecordError("not a file")
        return file.read()


def stream_images(
    paths: Sequence[str], lengths: Sequence[int], sizes: Array, advance: Advance
) -> Iterator[memoryview]:
    """The bytes of files, one after the other; a piece is valid until the next one.

    Args:
        paths: Of the files.
        lengths: The bytes of each.
        sizes: uint32 (files, 2): gets height and width of each.
        advance: Told how many files more were read.

    Raises:
        UnstreamableError: a file is none, no image, or of another length.
        OSError: one cannot be read.
    """
    buffer = memoryview(bytearray(max(_PIECE_BYTES, max(lengths)) + 1))
    filled = told = 0
    with _Opened(paths) as files:
        for place, length in enumerate(lengths):
            if filled + length >= len(buffer):
                yield buffer[:filled]
                advance(place - told)
                filled, told = 0, place
            # A byte more than there should be, which tells that there is no more.
            image = buffer[filled : filled + length + 1]
            if _filled(files.next(), image) != length:
                advance(-told)
                raise UnstreamableError
            sizes[place] = size = image_size_of(image[:length])
            if size == (0, 0):
                try:
                    open_image(bytes(image[:length]))
                except BadRecordError as error:
                    advance(-told)
                    raise UnstreamableError from error
            filled += length
    yield buffer[:filled]
    advance(len(lengths) - told)


def _filled(descriptor: int, room: memoryview) -> int:
    """How many bytes were read; -1 of a folder, a pipe or the like."""
    try:
        return os.readv(descriptor, [room])
    except (IsADirectoryError, BlockingIOError):
        return -1


class _Opened:
    """Opens files some time before they are read, so that the disk has more than one to fetch."""

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
        """The descriptor of the next file, valid until the next call."""
        while len(self._ahead) <= _AHEAD and (path := next(self._remaining, None)) is not None:
            descriptor = os.open(path, _FLAGS)
            self._ahead.append(descriptor)
            with contextlib.suppress(OSError):  # of a pipe
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        self._advance()
        return self._last

    def _advance(self) -> None:
        """Closes the last file; the next one takes its place."""
        if self._last >= 0:
            os.close(self._last)
        self._last = self._ahead.popleft() if self._ahead else -1
