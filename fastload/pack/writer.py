"""Writes one shard: beside its final name, then renamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fastload import _core
from fastload.formats.extents import Field
from fastload.formats.manifest import Skipped
from fastload.formats.safetensors import OFFSETS, SIZES, VALUES
from fastload.formats.shard import CRC_BLOCK_BYTES, Layout, shard_layout
from fastload.pack.files import new_file, write_all
from fastload.pack.sources.base import Advance, AnyColumn, Array, Part, Ragged, Rows, Streamed
from fastload.pack.sources.image_headers import image_sizes

_WRITEBACK_BYTES = 8 << 20


@dataclass(frozen=True)
class Written:
    """A finished shard.

    Attributes:
        rows: Of the shard; no file was written if there are none.
        file_bytes: Of the file.
        crc32c: Of the whole file.
        skipped: Inputs that were left out.
        class_counts: For each field that numbers classes, the samples of each class.
        totals: For each ragged field, the elements of all samples.
    """

    rows: int
    file_bytes: int
    crc32c: int
    skipped: tuple[Skipped, ...] = ()
    class_counts: tuple[tuple[int, ...], ...] = ()
    totals: tuple[int, ...] = ()


@dataclass(frozen=True)
class ShardJob:
    """A shard to be written, with all that a process needs for it.

    Attributes:
        path: The final path of the file.
        fields: Of its columns.
        dataset: The id of the dataset.
        shard: Its number.
        part: The samples.
        classes: For each field that numbers classes, its column and their count.
    """

    path: str
    fields: tuple[Field, ...]
    dataset: str
    shard: int
    part: Part
    classes: tuple[tuple[int, int], ...] = ()

    def run(self, advance: Advance) -> Written:
        """Reads the samples and writes the file.

        Raises:
            OSError: with the path of the shard, if it cannot be written; nothing is left of it.
        """
        if (columns := self.part.stream(advance)) is not None:
            rows = Rows(())
        else:
            rows = self.part.read(advance)
            columns = rows.columns
        count, totals = len(columns[0]), totals_of(columns)
        class_counts = tuple(
            tuple(np.bincount(labels, minlength=number).tolist())
            for column, number in self.classes
            if isinstance(labels := columns[column], np.ndarray)
        )
        if count == 0:
            return Written(0, 0, 0, rows.skipped, class_counts, totals)
        layout = shard_layout(self.fields, count, totals)
        crc = write_shard(self.path, layout, self.dataset, self.shard, columns)
        return Written(count, layout.file_bytes, crc, rows.skipped, class_counts, totals)


def totals_of(columns: Sequence[AnyColumn | Streamed]) -> tuple[int, ...]:
    """The elements of each ragged column."""
    return tuple(len(column.values) for column in columns if isinstance(column, Ragged))


def write_shard(
    path: str, layout: Layout, dataset: str, shard: int, columns: Sequence[AnyColumn | Streamed]
) -> int:
    """Writes a shard and gives the CRC-32C of the file.

    Args:
        path: The final path; what is there is replaced.
        layout: Of the shard.
        dataset: The id of the dataset.
        shard: The number of the shard.
        columns: An array for each field, contiguous and of its storage dtype; or what is `Ragged`
            or `Streamed`.

    Raises:
        OSError: with `path`; nothing is left of the shard.
    """
    header = memoryview(layout.header(dataset, shard))
    with new_file(path) as descriptor:
        write_all(descriptor, header)
        crcs = _write_blocks(descriptor, len(header), _data(layout, columns))
        header_crc = _core.crc32c(header)
        tail = np.array([header_crc, *crcs], "<u4").tobytes()
        data_bytes = layout.file_bytes - layout.data_start - layout.crc.begin
        tail = tail.ljust(data_bytes, b"\0")
        write_all(descriptor, memoryview(tail))
    whole, left = header_crc, layout.crc.begin
    for crc in crcs:
        whole = _core.crc32c_combine(whole, crc, min(left, CRC_BLOCK_BYTES))
        left -= CRC_BLOCK_BYTES
    return _core.crc32c(tail, whole)


def read_columns(path: str, layout: Layout) -> list[AnyColumn]:
    """The columns of a shard, mapped: they stay valid when the file is replaced."""
    content = np.memmap(path, np.uint8, "r")
    totals = iter(layout.totals)
    columns: list[AnyColumn] = []
    for field, start, bounds in zip(layout.fields, layout.columns, layout.bounds, strict=True):
        count = next(totals) if field.ragged else layout.rows
        values = content[start : start + count * field.row_bytes].view(field.storage)
        values = values.reshape(count, *field.shape)
        if field.ragged:
            offsets = content[bounds : bounds + 8 * (layout.rows + 1)].view(np.int64)
            columns.append(Ragged(values, offsets))
        else:
            columns.append(values)
    return columns


def _data(layout: Layout, columns: Sequence[AnyColumn | Streamed]) -> Iterator[memoryview]:
    """The bytes of the data section before the checksums."""
    arrays: dict[str, Array | Streamed] = {}
    for field, column in zip(layout.fields, columns, strict=True):
        if isinstance(column, Ragged):
            arrays[field.name + OFFSETS] = column.offsets
            arrays[field.name + VALUES] = _as_stored(column.values, field)
            if field.sized:
                arrays[field.name + SIZES] = image_sizes(column.values, column.offsets)
        elif isinstance(column, Streamed):
            arrays[field.name] = column
        else:
            arrays[field.name] = _as_stored(column, field)
    for tensor in layout.tensors:
        if tensor is layout.crc:
            return
        content = arrays.get(tensor.name)
        if content is None:
            yield memoryview(bytes(tensor.size_bytes))
        elif isinstance(content, Streamed):
            yield from content.pieces
        else:
            yield content.reshape(-1).view(np.uint8).data


def _as_stored(array: Array, field: Field) -> Array:
    """Bytes other than 0 and 1 are true, and become 1."""
    return array.view(np.uint8) != 0 if field.dtype == "bool" else array


def _write_blocks(descriptor: int, start: int, pieces: Iterable[memoryview]) -> list[int]:
    """Writes the pieces one after the other and gives the checksum of each block of them.

    The disk is given work as soon as there is some, so that little is left to wait for at the end.
    """
    crcs: list[int] = []
    room = 0
    begun = end = start
    for piece in pieces:
        while piece:
            if room == 0:
                crcs.append(0)
                room = CRC_BLOCK_BYTES
            chunk, piece = piece[:room], piece[room:]
            crcs[-1] = _core.crc32c(chunk, crcs[-1])
            write_all(descriptor, chunk)
            room -= len(chunk)
            end += len(chunk)
        if end - begun >= _WRITEBACK_BYTES:
            _core.start_writeback(descriptor, begun, end - begun)
            begun = end
    return crcs
