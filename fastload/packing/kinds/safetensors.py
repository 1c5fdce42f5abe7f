"""safetensors files that fastload did not pack, and folders of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.datasets.file_datasets import Dataset
from fastload.formats.columns import Int64Array
from fastload.formats.files import file_source
from fastload.formats.safetensors import read_extents, read_header
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import Kind
from fastload.packing.inputs.source import Advance, Part, Rows, Source
from fastload.packing.inputs.wanted import ALL, Wanted
from fastload.packing.reading import read_rows


@dataclass(frozen=True)
class ExtentsPart(Part):
    """Samples at some indices; each process that reads them opens the files itself."""

    paths: tuple[str, ...]
    indices: Int64Array
    wanted: Wanted = ALL

    def read(self, advance: Advance) -> Rows:
        """Reads the samples through the core."""
        columns = read_rows(Dataset(read_extents(self.paths, self.wanted.takes)), self.indices)
        advance(len(self.indices))
        return Rows(columns)


@dataclass(frozen=True, kw_only=True)
class ExtentsSource(Source):
    """Files whose tensors share their first dimension."""

    files: tuple[str, ...]
    wanted: Wanted = ALL

    def part(self, start: int, stop: int) -> ExtentsPart:
        """The samples [start, stop)."""
        return ExtentsPart(self.files, np.arange(start, stop), self.wanted)

    def take(self, indices: Int64Array) -> ExtentsPart:
        """The samples at `indices`."""
        return ExtentsPart(self.files, indices, self.wanted)

    def is_copied(self) -> bool:
        """True, because bytes are copied without conversion."""
        return True

    def paths(self) -> Sequence[str]:
        """The files."""
        return self.files

    def inputs(self) -> Any:
        """Names and sizes of the files."""
        return [[os.path.basename(path), os.path.getsize(path)] for path in self.files]


def open_safetensors(
    inventory: Inventory, *, strict: bool = False, wanted: Wanted = ALL
) -> ExtentsSource:
    """Opens a file, or the `.safetensors` files below a folder in natural order.

    A sample is a dict with a key for each tensor; all tensors share their first dimension.

    Raises:
        FormatError: a file is damaged, or its tensors are not such samples.
    """
    files = tuple(inventory.need_files())
    wanted.check(read_header(file_source(files[0]), wanted.takes).field_names)
    extents = read_extents(files, wanted.takes)
    rows = np.linspace(0, extents.rows - 1, min(extents.rows, 64)).astype(np.int64)
    mean = 0
    if len(rows):
        table = Dataset(extents).table
        for number, field in enumerate(extents.fields):
            if field.ragged:
                mean += int(table.lengths(number, rows).mean() * field.row_bytes)
    return ExtentsSource(
        kind="safetensors",
        fields=extents.fields,
        structure=extents.structure,
        rows=extents.rows,
        ragged_bytes=mean,
        files=files,
        wanted=wanted,
    )


KIND = Kind(
    "safetensors",
    "a .safetensors file or a folder of them: dicts of the tensors, along their first dimension",
    open_safetensors,
    lambda path: path.holds(".safetensors"),
    names=Names((".safetensors",)),
)
