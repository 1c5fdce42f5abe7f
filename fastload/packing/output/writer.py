"""Writes one shard to a temporary file in the same folder, then renames it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastload import _core
from fastload.formats.fields import IMAGE, Field
from fastload.formats.manifest import Skipped
from fastload.formats.missing import NOTHING_MISSING, MissingCounts
from fastload.formats.safetensors import OFFSETS, SIZES, VALUES
from fastload.formats.shard import CRC_BLOCK_BYTES, Layout, Tensor, shard_layout
from fastload.packing.columns import AnyColumn, Array, Ragged
from fastload.packing.image_headers import image_sizes
from fastload.packing.inputs.source import (
    Advance,
    AnyStreamed,
    Part,
    Streamed,
    StreamedRagged,
    UnstreamableError,
)
from fastload.packing.output.files import new_file, write_all

_WRITEBACK_BYTES = 8 << 20


@dataclass(frozen=True)
class Written:
    """Result of writing a shard.

    Attributes:
        rows: Number of rows; no file was written if it is 0.
        file_bytes: Size of the file in bytes.
        crc32c: CRC-32C of the whole file.
        skipped: Bad inputs that were left out.
        class_counts: For each field that numbers classes, the number of samples of each class.
            Samples without a class (-1) are not counted.
        totals: For each ragged field, the number of elements of all samples.
        missing: Number of samples dropped and filled because values were missing.
        places: Indices of the left-out samples within the part, if it has images, whose names are
            stored.
    """

    rows: int
    file_bytes: int
    crc32c: int
    skipped: tuple[Skipped, ...] = ()
    class_counts: tuple[tuple[int, ...], ...] = ()
    totals: tuple[int, ...] = ()
    missing: MissingCounts = NOTHING_MISSING
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class ShardJob:
    """A shard to write; can be pickled and run in another process.

    Attributes:
        path: Final path of the file.
        fields: Fields of its columns.
        dataset: Id of the dataset.
        shard: Number of the shard.
        part: Samples of the shard.
        classes: For each field that numbers classes, its column and the number of classes.
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
            OSError: the shard cannot be written; the error names its path, and no file is left.
        """
        columns = self.part.stream(advance)
        if columns is not None:
            try:
                return self._write(columns)
            except UnstreamableError:
                pass
        rows = self.part.read(advance)
        written = self._write(rows.columns, rows.skipped)
        has_images = any(field.logical == IMAGE for field in self.fields)
        return replace(written, missing=rows.counts, places=rows.left_out if has_images else ())

    def _write(self, columns: Sequence[AnyStreamed], skipped: tuple[Skipped, ...] = ()) -> Written:
        count, totals = len(columns[0]), totals_of(columns)
        class_counts = tuple(
            tuple(np.bincount(labels[labels >= 0], minlength=number).tolist())
            for column, number in self.classes
            if isinstance(labels := columns[column], np.ndarray)
        )
        if count == 0:
            return Written(0, 0, 0, skipped, class_counts, totals)
        layout = shard_layout(self.fields, count, totals)
        crc = write_shard(self.path, layout, self.dataset, self.shard, columns)
        return Written(count, layout.file_bytes, crc, skipped, class_counts, totals)


def totals_of(columns: Sequence[AnyStreamed]) -> tuple[int, ...]:
    """Returns the number of elements of each ragged column."""
    ragged = [column for column in columns if isinstance(column, (Ragged, StreamedRagged))]
    return tuple(int(column.offsets[-1]) for column in ragged)


def write_shard(
    path: str, layout: Layout, dataset: str, shard: int, columns: Sequence[AnyStreamed]
) -> int:
    """Writes a shard and returns the CRC-32C of the file.

    Args:
        path: Final path; an existing file is replaced.
        layout: Layout of the shard.
        dataset: Id of the dataset.
        shard: Number of the shard.
        columns: For each field, a contiguous array of its storage dtype, a `Ragged` or a streamed
            column.

    Raises:
        OSError: the shard cannot be written; the error names `path`, and no file is left.
        UnstreamableError: a streamed column raised it; no file is left.
    """
    header = memoryview(layout.header(dataset, shard))
    with new_file(path) as descriptor:
        write_all(descriptor, header)
        crcs = _write_data(descriptor, layout, columns)
        header_crc = _core.crc32c(header)
        tail = np.array([header_crc, *crcs], "<u4").tobytes()
        data_bytes = layout.file_bytes - layout.data_start - layout.crc.begin
        tail = tail.ljust(data_bytes, b"\0")
        write_all(descriptor, memoryview(tail))
    file_crc, left = header_crc, layout.crc.begin
    for crc in crcs:
        file_crc = _core.crc32c_combine(file_crc, crc, min(left, CRC_BLOCK_BYTES))
        left -= CRC_BLOCK_BYTES
    return _core.crc32c(tail, file_crc)


def read_columns(path: str, layout: Layout) -> list[AnyColumn]:
    """Returns the memory-mapped columns of a shard, which stay valid when the file is replaced."""
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


def _write_data(descriptor: int, layout: Layout, columns: Sequence[AnyStreamed]) -> list[int]:
    """Writes the data section without its checksums, and returns them.

    Tensors in front of streamed images are written after them, because the sizes of the images are
    known only then.
    """
    contents = _contents(layout, columns)
    tensors = layout.tensors[: layout.tensors.index(layout.crc)]
    streamed = (isinstance(contents.get(tensor.name), StreamedRagged) for tensor in tensors)
    split = next(itertools.compress(itertools.count(), streamed), 0)
    begin = tensors[split].begin if tensors else 0
    late = _write_blocks(descriptor, layout.data_start, begin, _pieces(tensors[split:], contents))
    early = _write_blocks(descriptor, layout.data_start, 0, _pieces(tensors[:split], contents))
    if early and late and begin % CRC_BLOCK_BYTES:  # both wrote a part of the same block
        first, (crc, size_bytes) = early.pop()[0], late.pop(0)
        early.append((_core.crc32c_combine(first, crc, size_bytes), 0))
    os.lseek(descriptor, layout.data_start + layout.crc.begin, os.SEEK_SET)
    return [crc for crc, _ in (*early, *late)]


def _contents(
    layout: Layout, columns: Sequence[AnyStreamed]
) -> dict[str, Array | Streamed | StreamedRagged]:
    """Returns the contents of the tensors of the data section, by tensor name."""
    contents: dict[str, Array | Streamed | StreamedRagged] = {}
    for field, column in zip(layout.fields, columns, strict=True):
        if isinstance(column, (Ragged, StreamedRagged)):
            contents[field.name + OFFSETS] = column.offsets
        if isinstance(column, StreamedRagged):
            contents[field.name + VALUES], contents[field.name + SIZES] = column, column.sizes
        elif isinstance(column, Ragged):
            contents[field.name + VALUES] = _as_stored(column.values, field)
            if field.sized:
                contents[field.name + SIZES] = image_sizes(column.values, column.offsets)
        elif isinstance(column, Streamed):
            contents[field.name] = column
        else:
            contents[field.name] = _as_stored(column, field)
    return contents


def _pieces(
    tensors: Sequence[Tensor], contents: Mapping[str, Array | Streamed | StreamedRagged]
) -> Iterator[memoryview]:
    """Yields the bytes of some tensors; a tensor without contents is padding."""
    for tensor in tensors:
        content = contents.get(tensor.name)
        if content is None:
            yield memoryview(bytes(tensor.size_bytes))
        elif isinstance(content, (Streamed, StreamedRagged)):
            yield from content.pieces
        else:
            yield content.reshape(-1).view(np.uint8).data


def _as_stored(array: Array, field: Field) -> Array:
    """Returns the array as it is stored; bools become 0 and 1."""
    return array.view(np.uint8) != 0 if field.dtype == "bool" else array


def _write_blocks(
    descriptor: int, start: int, begin: int, pieces: Iterable[memoryview]
) -> list[tuple[int, int]]:
    """Writes pieces in order; returns the CRC-32C and the number of written bytes of each block.

    Writeback starts every 8 MiB, so that little is left to flush at the end.

    Args:
        descriptor: Descriptor of the file.
        start: File offset of the first block.
        begin: Offset of the first piece relative to `start`.
        pieces: Bytes to write.
    """
    crcs: list[tuple[int, int]] = []
    os.lseek(descriptor, start + begin, os.SEEK_SET)
    flushed = end = start + begin
    for piece in pieces:
        while piece:
            room = CRC_BLOCK_BYTES - (end - start) % CRC_BLOCK_BYTES
            if not crcs or room == CRC_BLOCK_BYTES:
                crcs.append((0, 0))
            chunk, piece = piece[:room], piece[room:]
            crc, size_bytes = crcs[-1]
            crcs[-1] = _core.crc32c(chunk, crc), size_bytes + len(chunk)
            write_all(descriptor, chunk)
            end += len(chunk)
        if end - flushed >= _WRITEBACK_BYTES:
            _core.start_writeback(descriptor, flushed, end - flushed)
            flushed = end
    return crcs
