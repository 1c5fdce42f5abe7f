"""Writes one shard: beside its final name, then renamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fastload import _core
from fastload.formats.extents import Field
from fastload.formats.packed import Skipped
from fastload.formats.shard import CRC_BLOCK_BYTES, Layout, shard_layout
from fastload.pack.files import new_file, write_all
from fastload.pack.sources.base import Advance, Array, Part


@dataclass(frozen=True)
class Written:
    """A finished shard.

    Attributes:
        rows: Of the shard; no file was written if there are none.
        file_bytes: Of the file.
        crc32c: Of the whole file.
        skipped: Inputs that were left out.
        class_counts: For each field that numbers classes, the samples of each class.
    """

    rows: int
    file_bytes: int
    crc32c: int
    skipped: tuple[Skipped, ...] = ()
    class_counts: tuple[tuple[int, ...], ...] = ()


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
        rows = self.part.read(advance)
        count = len(rows.columns[0])
        if count == 0:
            return Written(0, 0, 0, rows.skipped, tuple((0,) * n for _, n in self.classes))
        layout = shard_layout(self.fields, count)
        crc = write_shard(self.path, layout, self.dataset, self.shard, rows.columns)
        class_counts = tuple(
            tuple(np.bincount(rows.columns[column], minlength=number).tolist())
            for column, number in self.classes
        )
        return Written(count, layout.file_bytes, crc, rows.skipped, class_counts)


def write_shard(
    path: str, layout: Layout, dataset: str, shard: int, columns: Iterable[Array]
) -> int:
    """Writes a shard and gives the CRC-32C of the file.

    Args:
        path: The final path; what is there is replaced.
        layout: Of the shard.
        dataset: The id of the dataset.
        shard: The number of the shard.
        columns: An array for each field, contiguous and of its storage dtype.

    Raises:
        OSError: with `path`; nothing is left of the shard.
    """
    header = memoryview(layout.header(dataset, shard))
    with new_file(path) as descriptor:
        write_all(descriptor, header)
        crcs = _write_blocks(descriptor, _data(layout, columns))
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


def _data(layout: Layout, columns: Iterable[Array]) -> Iterator[memoryview]:
    """The bytes of the data section before the checksums."""
    fields = {field.name: field for field in layout.fields}
    arrays = dict(zip(fields, columns, strict=True))
    for tensor in layout.tensors:
        if tensor is layout.crc:
            return
        if tensor.name not in fields:
            yield memoryview(bytes(tensor.size_bytes))
            continue
        data = arrays[tensor.name].reshape(-1).view(np.uint8)
        if fields[tensor.name].dtype == "bool":
            data = (data != 0).view(np.uint8)
        yield data.data


def _write_blocks(descriptor: int, pieces: Iterable[memoryview]) -> list[int]:
    """Writes the pieces one after the other and gives the checksum of each block of them."""
    crcs: list[int] = []
    room = 0
    for piece in pieces:
        while piece:
            if room == 0:
                crcs.append(0)
                room = CRC_BLOCK_BYTES
            chunk, piece = piece[:room], piece[room:]
            crcs[-1] = _core.crc32c(chunk, crcs[-1])
            write_all(descriptor, chunk)
            room -= len(chunk)
    return crcs
