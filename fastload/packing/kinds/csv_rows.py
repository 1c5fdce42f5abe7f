"""Splits CSV files into blocks of whole rows, each of which can be read alone."""

from __future__ import annotations

import codecs
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.packing.inputs.compressed import blocks, byte_of
from fastload.packing.inputs.open_files import OpenFiles
from fastload.packing.inputs.tables import Unit
from fastload.packing.inputs.text_encoding import Utf8Check

_BLOCK_BYTES = 1 << 20
_MAX_ROW_BYTES = 256 << 20
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'
_INSIDE_A_FIELD = ord("x")


class RowScanner:
    r"""Finds the ends of rows in a text that is passed in chunks.

    A quote opens only at the start of a field, and in an open one two quotes are a character, as
    pyarrow, pandas and Python's csv have it; newlines between quotes end no row.

    Args:
        delimiter: Between values.

    Example:
        >>> scanner = RowScanner(",")
        >>> scanner.ends(b'1,12" vinyl\n2,"two').tolist(), scanner.is_open
        ([11], True)
        >>> scanner.ends(b'\nlines"\n').tolist()
        [7]
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter.encode()[-1]
        field = rb'(?<![^%s\r\n])"[^"]*(?:""[^"]*)*("?)' % re.escape(delimiter.encode())
        self._quoted = re.compile(field)
        self._before = _NEWLINE  # stands in for the text before the next chunk
        self.is_open = False
        """True if a quote is open after the last chunk."""

    def ends(self, content: bytes, *, returns: bool = False) -> Int64Array:
        r"""Returns the offsets of the newlines that end rows in the next chunk.

        Args:
            content: The chunk.
            returns: Also those of `\r` without a `\n` behind it, which pyarrow reads as such.
        """
        codes = np.frombuffer(content, np.uint8)
        is_end = codes == _NEWLINE
        if returns:
            is_end |= (codes == _RETURN) & (np.append(codes[1:], 0) != _NEWLINE)
        if not len(codes):
            return np.zeros(0, np.int64)
        quotes = codes == _QUOTE
        if self.is_open or quotes.any():
            inside = np.logical_xor.accumulate(quotes) ^ self.is_open
            opening = np.flatnonzero(quotes & inside)
            before = np.where(opening > 0, codes[opening - 1], np.uint8(self._before))
            starts = np.isin(before, [self._delimiter, _NEWLINE, _RETURN, _QUOTE])
            if not starts.all():  # some are characters
                return self._slow_ends(content, np.flatnonzero(is_end))
            is_end &= ~inside
            self.is_open = bool(inside[-1])
        self._note(int(codes[-1]), was_closed=codes[-1] == _QUOTE)
        return np.flatnonzero(is_end)

    def _note(self, last: int, *, was_closed: bool) -> None:
        if was_closed:
            self._before = _QUOTE
        elif last in (self._delimiter, _NEWLINE, _RETURN):
            self._before = last
        else:
            self._before = _INSIDE_A_FIELD

    def _slow_ends(self, content: bytes, newlines: Int64Array) -> Int64Array:
        """Returns the newlines outside of quoted fields, which are found one by one."""
        head = bytes([self._delimiter]) + b'"' if self.is_open else bytes([self._before])
        if not self.is_open and self._before == _QUOTE:
            head = bytes([self._delimiter]) + b'""'
        found = list(self._quoted.finditer(head + content))
        spans = np.array([match.span() for match in found], np.int64).reshape(-1, 2) - len(head)
        place = np.searchsorted(spans[:, 0], newlines, "right") - 1
        inside = (place >= 0) & (newlines < np.append(spans[:, 1], 0)[place])
        ends_here = bool(found) and spans[-1, 1] == len(content)
        self.is_open = ends_here and not found[-1][1]
        self._note(content[-1], was_closed=ends_here and not self.is_open)
        return newlines[~inside]


def _without_blanks(content: bytes | bytearray) -> bytes | bytearray:
    """Returns the text after a byte order mark and blank lines."""
    return content.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")


@dataclass(frozen=True)
class CsvText:
    """Delimiter and encoding of CSV files.

    Attributes:
        delimiter: Between values.
        encoding: Encoding of the files; None is UTF-8.
        is_checked: All of the text must be UTF-8, not only the columns that are read.
    """

    delimiter: str
    encoding: str | None = None
    is_checked: bool = False

    def blocks(
        self, path: str, *, has_names: bool, offset: int = 0
    ) -> Iterator[tuple[Unit, bytes]]:
        """Whole rows of about a megabyte each.

        Args:
            path: Path of the file.
            has_names: The first row are the names of the columns; it comes first, with -1 rows.
            offset: Start of a row in bytes.

        Raises:
            FormatError: the file is damaged, not in its encoding, a quote stays open, or a row is
                very long.
        """
        content = bytearray()  # in which no row ends, before more is read
        scanner = RowScanner(self.delimiter)
        check = Utf8Check(functools.partial(self.line, path), offset)
        pieces = blocks(path, _BLOCK_BYTES, offset, self.encoding)
        for piece in itertools.chain(pieces, [b""]):
            if self.is_checked:
                check.add(piece) if piece else check.end()
            ends = scanner.ends(piece) + len(content)
            content += piece
            if has_names:  # blank lines before the names belong to them
                ends = ends[ends >= len(content) - len(_without_blanks(content))]
            if has_names and (len(ends) or not piece):
                size = int(ends[0]) + 1 if len(ends) else len(content)
                if _without_blanks(content[:size]):
                    yield Unit(path, -1, -1, 0, offset, size), bytes(content[:size])
                del content[:size]
                offset, has_names, ends = offset + size, False, ends[1:] - size
            size = int(ends[-1]) + 1 if len(ends) else 0
            if not piece:
                if scanner.is_open:
                    raise FormatError(f"{self.line(path, offset)}: a quote is never closed")
                size = len(content)
            rows = bytes(content[:size])
            if _without_blanks(rows):
                yield Unit(path, 0, 0, 0, offset, size), rows
            del content[:size]
            offset += size
            if len(content) > _MAX_ROW_BYTES:  # bounds the memory of an open quote
                what = "a quote that is never closed" if scanner.is_open else "no newline"
                raise FormatError(
                    f"{self.line(path, offset)}: a row of more than {_MAX_ROW_BYTES >> 20} MiB, or "
                    f"{what}"
                )

    def read(self, unit: Unit) -> bytes:
        """Reads the text of a block."""
        with OpenFiles(self.encoding) as files:
            content = files.read(unit.path, unit.offset, unit.size_bytes)
            files.leave()
        return content

    def row(self, unit: Unit, content: bytes, row: int) -> tuple[int, bytes]:
        """Returns the offset and the bytes of a row of a block; blank lines do not count."""
        ends = RowScanner(self.delimiter).ends(content, returns=True)
        start = 0
        for end in [*ends.tolist(), len(content)]:
            if content[start : end + 1].strip(b"\r\n"):
                if row == 0:
                    break
                row -= 1
            start = end + 1
        return start, content[start : end + 1]

    def line(self, path: str, offset: int) -> str:
        """Returns the file and line of a byte, for errors."""
        before, left = 0, offset
        for piece in blocks(path, _BLOCK_BYTES, 0, self.encoding):
            before, left = before + piece[:left].count(b"\n"), max(left - len(piece), 0)
            if not left:
                break
        return f"{path}: line {before + 1}, at {byte_of(path, offset, self.encoding)}"

    def where(self, unit: Unit, content: bytes, row: int) -> str:
        """Returns the file and line of a row of a block."""
        return self.line(unit.path, unit.offset + self.row(unit, content, row)[0])
