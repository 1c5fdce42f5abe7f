"""Extents of plain columns, each contiguous in its file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastload.formats.columns import Column, Group, Source
from fastload.formats.extents import Extents
from fastload.formats.fields import Field


def single_group(
    fields: Sequence[Field],
    shard_rows: Sequence[int],
    sources: Sequence[Source],
    offsets: Sequence[Sequence[int]],
    structure: Any,
) -> Extents:
    """Returns the extents of densely packed columns, where each shard is one storage.

    Args:
        fields: One per column.
        shard_rows: Rows of each shard.
        sources: One per shard.
        offsets: For each field, where it starts in each source.
        structure: Containers of a sample.
    """
    columns = tuple(
        Column(field, field.row_bytes, tuple(sources), np.array(starts, np.int64))
        for field, starts in zip(fields, offsets, strict=True)
    )
    return Extents((Group(np.array(shard_rows, np.int64), columns),), structure)
