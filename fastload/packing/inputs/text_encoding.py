"""Text encodings: UTF-8 unless the caller names another one."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Iterator

from fastload.errors import FormatError

_UTF_8 = frozenset(["utf-8", "utf-8-sig"])
_NO_FILES = frozenset(["idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"])
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def encoding_named(name: str | None) -> str | None:
    """Returns Python's name of an encoding; None for UTF-8.

    Raises:
        ValueError: the encoding does not exist, or is not for text files.

    Example:
        >>> encoding_named("Latin1"), encoding_named("utf8")
        ('iso8859-1', None)
    """
    if name is None:
        return None
    try:
        found = codecs.lookup(name)
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"encoding {name!r} does not exist in Python; use latin-1, cp1252, utf-16, ..."
        ) from error
    is_text = getattr(found, "_is_text_encoding", True)
    if not is_text or found.name.replace("_", "-") in _NO_FILES or found.incrementaldecoder is None:
        raise ValueError(f"encoding {name!r} is not for text files")
    return None if found.name in _UTF_8 else found.name


def as_utf8(path: str, encoding: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the text of a file in UTF-8.

    Args:
        path: Path of the file, for errors.
        encoding: Encoding, as `encoding_named` returns it.
        pieces: Bytes of the file, decompressed.

    Raises:
        FormatError: the bytes are not in this encoding.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = 0
    for piece in itertools.chain(pieces, [b""]):
        try:
            text = decoder.decode(piece, final=not piece).encode("utf-8")
        except UnicodeDecodeError as error:
            start = offset + len(piece) - len(error.object) + error.start
            raise FormatError(
                f"{path}: not {encoding}: byte {max(start, 0)}: {error.reason}"
            ) from error
        except UnicodeError as error:  # half a surrogate pair, or no byte order mark
            raise FormatError(f"{path}: not {encoding}: from byte {offset} on: {error}") from error
        offset += len(piece)
        if text:
            yield text


def not_utf8(where: str, reason: str, start: bytes = b"") -> FormatError:
    """Returns the error about a file that is not in UTF-8.

    Args:
        where: File and location.
        reason: Reason of the decoder.
        start: First bytes of the file.
    """
    mark = next((of for mark, of in _MARKS.items() if start.startswith(mark)), None)
    advice = "--encoding NAME (encoding=) reads other encodings, such as latin-1"
    if mark is not None:
        advice = f"it starts with the byte order mark of {mark}; use --encoding {mark} (encoding=)"
    return FormatError(f"{where}: not UTF-8: {reason}; {advice}")


class Utf8Check:
    r"""Checks that a text, passed in pieces, is UTF-8.

    Args:
        where: Returns file and location of a byte of the text, for errors.
        offset: Offset of the first byte in the text.

    Example:
        >>> check = Utf8Check("a.csv: byte {}".format)
        >>> check.add(b"caf\xc3"), check.add(b"\xa9"), check.end()
        (None, None, None)
    """

    def __init__(self, where: Callable[[int], str], offset: int = 0) -> None:
        self._where, self._start, self._offset = where, b"", offset
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def add(self, piece: bytes) -> None:
        """Checks the next piece.

        Raises:
            FormatError: the text is not UTF-8; the message names the byte.
        """
        self._check(piece, final=False)

    def end(self) -> None:
        """Checks that the text does not end in the middle of a character."""
        self._check(b"", final=True)

    def _check(self, piece: bytes, *, final: bool) -> None:
        self._start = self._start or piece[:4]
        try:
            self._decoder.decode(piece, final)
        except UnicodeDecodeError as error:
            byte = self._offset + len(piece) - len(error.object) + error.start
            raise not_utf8(self._where(byte), error.reason, self._start) from error
        self._offset += len(piece)
