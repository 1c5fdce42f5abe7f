"""Describes the location of a sample for error messages."""

from __future__ import annotations

import os

import numpy as np

from fastload.formats import packed
from fastload.formats.columns import Column, FileSource, Group
from fastload.formats.extents import Extents
from fastload.formats.original_names import original_name


def described_place(extents: object, field: str, index: int) -> str:
    """Describes the file and row of a sample, and its original file if a packed dataset stores it.

    Args:
        extents: The dataset; anything but `Extents` has no places.
        field: The name of the field whose file is meant.
        index: Index of the sample in the dataset.

    Returns:
        Such as " (shard-000002.safetensors: row 17, packed from cat/4.jpg)"; empty for memory.
    """
    if not isinstance(extents, Extents):
        return ""
    for group in extents.groups:
        for column in group.columns:
            if column.field.name == field:
                return _described(extents, group, column, index)
    return ""


def _described(extents: Extents, group: Group, column: Column, index: int) -> str:
    row = index
    if extents.mixed is not None:
        row = int(extents.mixed.rows(np.array([index], np.int64))[0])
    if group.index_map is not None:
        row = int(group.index_map[row])
    ends = group.shard_rows.cumsum()
    shard = int(np.searchsorted(ends, row, "right"))
    source = column.sources[shard]
    if not isinstance(source, FileSource):
        return ""
    row -= int(ends[shard] - group.shard_rows[shard])
    bounds = column.bounds
    if bounds is not None and bounds.ends is not None and bounds.ends[shard, 0] >= 0:
        row += int(bounds.offsets[shard] - bounds.ends[shard, 0]) // 8  # a slice of the shard
    name = _original(source.path, row)
    origin = "" if name is None else f", packed from {name}"
    return f" ({source.path}: row {row}{origin})"


def _original(path: str, row: int) -> str | None:
    """Returns the original file of a row of a shard, or None if it cannot be determined."""
    folder, file = os.path.split(path)
    try:
        manifest = packed.read_manifest(folder)
        for group in manifest.groups:
            names = [group.file(number) for number in range(len(group.rows))]
            if file in names:
                before = sum(group.rows[: names.index(file)])
                return original_name(folder, manifest.names, before + row)
    except (OSError, ValueError):  # the place alone must do
        pass
    return None
