"""Megatron's token files: an `.idx` next to a `.bin`; a sample is a document."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.formats.fields import Field
from fastload.formats.tokens import TokenFile, check_vocabulary, read_files
from fastload.packing.columns import Ragged
from fastload.packing.inputs.arrays import Column, ColumnsSource, columns_source
from fastload.packing.inputs.checks import check_counts
from fastload.packing.inputs.half_read import latest, new_opening
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import VOCAB_SIZE, Kind
from fastload.packing.inputs.ranges import read_array
from fastload.packing.inputs.source import stored
from fastload.packing.inputs.wanted import ALL, Wanted

_FIELD = "tokens"


@dataclass(frozen=True)
class DocumentsColumn(Column):
    """Documents of several files; each process reads the indices itself.

    Attributes:
        given: The files that were given.
        files: The `.bin` files.
        mean: Bytes of a document, on average.
        opening: Identifies this opening of the indices, for caches of a process.
    """

    given: tuple[str, ...]
    files: tuple[str, ...]
    mean: int
    opening: str

    def read(self, start: int, stop: int) -> Ragged:
        """Reads the documents [start, stop), which are contiguous in each file."""
        pieces = [Ragged(np.zeros(0, self.field.storage), np.zeros(1, np.int64))]
        for file, bounds in _documents(self.given, self.opening):
            rows = len(bounds) - 1
            first, last = max(start, 0), min(stop, rows)
            if first < last:
                of = bounds[first : last + 1]
                offset = file.offset + int(of[0]) * self.field.row_bytes
                count = int(of[-1] - of[0])
                values = read_array(file.source.path, offset, self.field.storage, [count])
                pieces.append(Ragged(stored(values, self.field), of - of[0]))
            start, stop = start - rows, stop - rows
        return pieces[1] if len(pieces) == 2 else Ragged.concatenate(pieces)

    def paths(self) -> Sequence[str]:
        """Data and indices."""
        indices = (os.path.splitext(path)[0] + ".idx" for path in self.files)
        return [*self.files, *indices]

    def mean_bytes(self) -> int:
        """Mean size of all documents."""
        return self.mean

    def describe(self) -> Any:
        """Names and sizes of the files."""
        return [[os.path.basename(path), os.path.getsize(path)] for path in self.paths()]


@latest
def _documents(given: tuple[str, ...], opening: str) -> list[tuple[TokenFile, Int64Array]]:
    found = []
    for file in read_files(given):
        if file.documents is None:
            raise FormatError(f"{file.source}: there is no .idx file that tells its documents")
        found.append((file, file.documents))
    return found


def open_megatron(
    inventory: Inventory,
    *,
    vocab_size: int | None = None,
    strict: bool = False,
    wanted: Wanted = ALL,
) -> ColumnsSource:
    """Opens a `.bin` and its `.idx`, or all such files below a folder in natural order.

    A sample is `{"tokens": array (length,)}` of the dtype of the file.

    Raises:
        FormatError: an index is damaged, or does not fit its data; files differ in dtype; a token
            is not in [0, vocab_size).
        OSError: a file cannot be read.
    """
    given = tuple(inventory.need_files())
    opening = new_opening()
    found = _documents(given, opening)
    if vocab_size is not None:
        check_counts(vocab_size=vocab_size)
        for file, _ in found:
            check_vocabulary(file, vocab_size)
    rows = sum(len(bounds) - 1 for _, bounds in found)
    field = Field(_FIELD, found[0][0].dtype, (), True)
    tokens = sum(file.count for file, _ in found)
    mean = tokens * field.row_bytes // max(rows, 1)
    files = tuple(file.source.path for file, _ in found)
    return columns_source(
        "megatron", [DocumentsColumn(field, rows, given, files, mean, opening)], {_FIELD: 0}
    )


def _detects(path: Inventory) -> bool:
    if path.given.keys() & {"dtype", "shape"}:
        return False
    if path.is_folder:  # others have .idx files, too
        indices = (name for name in path.paths if name.endswith(".idx"))
        return any(f"{os.path.splitext(name)[0]}.bin" in path.paths for name in indices)
    stem, ending = os.path.splitext(path.path)
    return ending == ".idx" or (ending == ".bin" and os.path.exists(stem + ".idx"))


KIND = Kind(
    "megatron",
    "Megatron's .bin and .idx, or a folder of them: the tokens of documents",
    open_megatron,
    _detects,
    (VOCAB_SIZE,),
    names=Names((".bin", ".idx")),
)
