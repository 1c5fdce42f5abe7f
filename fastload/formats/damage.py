"""Finds all damage of a shard, and names file, block, field and rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastload import _core
from fastload.formats.checks import bounds_fault, ends_fault
from fastload.formats.columns import SIZE_BYTES, FileSource, Int64Array
from fastload.formats.shard import CRC_BLOCK_BYTES, DATASET_ID_LENGTH, Layout

Rows = tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """Something that is not as it was written.

    Attributes:
        file: The path of the file.
        what: Description of the damage.
        block: The number of a block of 1 MiB that does not fit its checksum.
        span: The first and the last byte of the file that are concerned.
        rows: For each field that may be damaged by it, the first and the last row, counted through
            the dataset.

    Example:
        >>> print(Problem("a.safetensors", "block 0 is damaged", 0, (0, 99), {"x": (3, 9)}))
        a.safetensors: block 0 is damaged; rows 3 to 9 of field 'x'
    """

    file: str
    what: str
    block: int | None = None
    span: tuple[int, int] | None = None
    rows: dict[str, Rows] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = ", ".join(
            f"rows {first} to {last} of field {name!r}" for name, (first, last) in self.rows.items()
        )
        return f"{self.file}: {self.what}" + (f"; {rows}" if rows else "")


class ShardCheck:
    """The check of one shard.

    Args:
        path: Path of the file.
        layout: Layout that follows from its fields, rows and totals.
        first_row: The row of the dataset that its first row is.
        dataset: The dataset's id and
        number: the shard's number, for a header that does not tell them.
        crc32c: CRC-32C of the whole file, if known.

    Example:
        >>> check = ShardCheck("shard-000000.safetensors", layout)  # doctest: +SKIP
        >>> [str(problem) for problem in check.outline()]  # doctest: +SKIP
        []
    """

    def __init__(
        self,
        path: str,
        layout: Layout,
        *,
        first_row: int = 0,
        dataset: str = "0" * DATASET_ID_LENGTH,
        number: int = 0,
        crc32c: int | None = None,
    ) -> None:
        self.path = path
        self.layout = layout
        self._source = FileSource(path, layout.file_bytes)
        self._first_row = first_row
        self._ids = dataset, number
        self._crc32c = crc32c
        self.readable = False  # whether `outline` found a file of the right size
        self._end = layout.data_start + layout.crc.begin  # of the blocks
        self._header_crc = 0
        self._stored: Any = ()  # checksums
        self._tail = b""

    # --- Without the data ------------------------------------------------------------------------

    def outline(self) -> list[Problem]:
        """Checks what needs no data: size, header, checksums of the file, bounds.

        The file's checksum follows from those in the shard, so a file that took the place of
        another is found, too.
        """
        try:
            size = os.stat(self.path).st_size
            if size != self.layout.file_bytes:
                what = "truncated" if size < self.layout.file_bytes else "too long"
                expected = f"{self.layout.file_bytes} bytes expected, the file has {size}"
                return [Problem(self.path, f"{what}: {expected}")]
            self.readable = True
            self._tail = self._source.read(self._end, self.layout.file_bytes - self._end)
            self._stored = np.frombuffer(self._tail[: self.layout.crc.size_bytes], "<u4").tolist()
            problems = [*self._header(), *self._bounds()]
            if self._crc32c not in (None, self._whole(self._stored[0], self._stored[1:])):
                what = "is another file than the manifest says, or its checksums are damaged"
                span = self._end, self.layout.file_bytes - 1
                problems.append(Problem(self.path, what, span=span))
        except FileNotFoundError:
            return [Problem(self.path, "is missing")]
        except OSError as error:
            return [Problem(self.path, f"cannot be read: {error.strerror or error}")]
        return problems

    def _header(self) -> Iterator[Problem]:
        start = self.layout.data_start
        header = self._source.read(0, start)
        self._header_crc = _core.crc32c(header)
        expected = self.layout.header(*(_ids_in(header) or self._ids))
        fits = self._header_crc == self._stored[0]
        if header == expected and fits:
            return
        pairs = enumerate(zip(header, expected, strict=False))
        differs = next((at for at, (found, wanted) in pairs if found != wanted), None)
        what = f"the header (bytes 0 to {start - 1}) "
        reasons = [] if fits else ["does not fit its checksum"]
        if differs is not None:
            reasons.append(f"differs at byte {differs} from what its fields and rows demand")
        yield Problem(self.path, what + " and ".join(reasons), span=(0, start - 1))

    def _bounds(self) -> Iterator[Problem]:
        for number, total in self._ragged():
            of, rows = self.layout.fields[number], self.layout.rows
            bounds = self._read_bounds(number)
            fault = bounds_fault(bounds, rows, total)
            fault = fault or ends_fault(int(bounds[0]), int(bounds[-1]), total)
            if fault is not None:
                start = self.layout.bounds[number]
                span = start, start + 8 * (rows + 1) - 1
                yield Problem(self.path, f"the bounds of field {of.name!r}: {fault}", span=span)

    def _ragged(self) -> Iterator[tuple[int, int]]:
        """The ragged fields' numbers and totals."""
        ragged = [number for number, of in enumerate(self.layout.fields) if of.ragged]
        return iter(zip(ragged, self.layout.totals, strict=True))

    def _read_bounds(self, number: int) -> Int64Array:
        data = self._source.read(self.layout.bounds[number], 8 * (self.layout.rows + 1))
        return np.frombuffer(data[: len(data) // 8 * 8], "<i8").astype(np.int64, copy=False)

    def _whole(self, header_crc: int, crcs: Sequence[int]) -> int:
        """The checksum of the whole file, whose header and blocks have these."""
        whole, left = header_crc, self.layout.crc.begin
        for crc in crcs:
            whole = _core.crc32c_combine(whole, crc, min(left, CRC_BLOCK_BYTES))
            left -= CRC_BLOCK_BYTES
        tail = np.array([header_crc, *crcs], "<u4").tobytes()
        return _core.crc32c(tail + self._tail[len(tail) :], whole)

    # --- With the data ---------------------------------------------------------------------------

    def blocks(self) -> range:
        """The numbers of the blocks."""
        return range(self.layout.crc.shape[0] - 1)

    def block_span(self, block: int) -> tuple[int, int]:
        """Returns the offsets of the start and the end of a block in the file."""
        begin = self.layout.data_start + block * CRC_BLOCK_BYTES
        return begin, min(begin + CRC_BLOCK_BYTES, self._end)

    def checksum(self, block: int) -> int:
        """The CRC-32C that the bytes of a block have now.

        Raises:
            OSError: they cannot be read.
        """
        begin, end = self.block_span(block)
        data = self._source.read(begin, end - begin)
        if len(data) < end - begin:
            raise OSError(f"block {block} ends after {len(data)} bytes")
        return _core.crc32c(data)

    def damage(self, crcs: Sequence[int | None]) -> list[Problem]:
        """Checks the data.

        Args:
            crcs: For each block what `checksum` gave, or None if it could not be read. The file
                must be `readable`.
        """
        problems = []
        bad = [n for n in self.blocks() if crcs[n] != self._stored[1 + n]]
        # Is all but the checksums as it was written? Then they are what is damaged.
        known = [crc for crc in crcs if crc is not None]
        intact = len(known) == len(crcs) and self._whole(self._header_crc, known) == self._crc32c
        for block in bad:
            begin, end = self.block_span(block)
            what = f"block {block} (bytes {begin} to {end - 1}) "
            if intact:
                what = "the checksum of " + what + "is damaged, not the block"
            else:
                what += "cannot be read" if crcs[block] is None else "does not fit its checksum"
            rows = {} if intact else self.rows_of(block)
            problems.append(Problem(self.path, what, block, (begin, end - 1), rows))
        if intact and self._stored[0] != self._header_crc:
            problems.append(
                Problem(self.path, "the checksum of the header is damaged, not the header")
            )
        return problems + list(self._pads())

    def _pads(self) -> Iterator[Problem]:
        for tensor in self.layout.tensors:
            if tensor.name.startswith("__pad__."):
                begin = self.layout.data_start + tensor.begin
                data = self._source.read(begin, tensor.size_bytes)
                if data.strip(b"\0"):
                    end = begin + tensor.size_bytes - 1
                    what = f"the pad {tensor.name!r} (bytes {begin} to {end}) is not zero"
                    yield Problem(self.path, what, span=(begin, end))

    def rows_of(self, block: int) -> dict[str, Rows]:
        """For each field the first and the last row of the dataset that reach into a block."""
        begin, end = self.block_span(block)
        found: dict[str, Rows] = {}
        totals = dict(self._ragged())
        for number, of in enumerate(self.layout.fields):
            count = totals.get(number, self.layout.rows)
            inside = _items_in(self.layout.columns[number], of.row_bytes, count, begin, end)
            if of.ragged:
                # An item of 16 bytes each 8: the bounds of a row.
                start = self.layout.bounds[number]
                rows = [_items_in(start, 16, self.layout.rows, begin, end, stride=8)]
                if of.sized:
                    start = self.layout.sizes[number]
                    rows.append(_items_in(start, SIZE_BYTES, self.layout.rows, begin, end))
                if inside is not None:
                    bounds = self._read_bounds(number)
                    first = int(np.searchsorted(bounds[1:], inside[0], "right"))
                    rows.append((first, int(np.searchsorted(bounds[:-1], inside[1], "right")) - 1))
                reached = [pair for pair in rows if pair is not None and pair[0] <= pair[1]]
                inside = (
                    (min(a for a, _ in reached), max(b for _, b in reached)) if reached else None
                )
            if inside is not None:
                found[of.name] = inside[0] + self._first_row, inside[1] + self._first_row
        return found


def _items_in(
    start: int, size: int, count: int, begin: int, end: int, stride: int | None = None
) -> Rows | None:
    """The first and the last of `count` items from byte `start` on that reach into a range."""
    if size == 0 or count == 0:
        return None
    step = stride or size
    first = max(0, -(-(begin - start - size + 1) // step))
    last = min(count - 1, (end - 1 - start) // step)
    return (first, last) if first <= last else None


def _ids_in(header: bytes) -> tuple[str, int] | None:
    """The dataset's id and the shard's number, where a header tells them."""
    try:
        metadata = json.loads(header[8:])["__metadata__"]
        found, shard = metadata["fastload.dataset"], metadata["fastload.shard"]
        if re.fullmatch("[0-9a-f]{64}", found) and re.fullmatch("[0-9]{10}", shard):
            return found, int(shard)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None
