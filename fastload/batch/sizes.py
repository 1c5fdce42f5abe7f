"""Size of a sample in bytes, stored and delivered."""

from __future__ import annotations

from collections.abc import Sequence

from fastload.batch.transforms import Choices, DecodeImage
from fastload.formats.columns import Column, Group
from fastload.formats.extents import Extents
from fastload.formats.fields import Field

_JPEG_RATIO = 10  # typical ratio of decoded to encoded bytes, for images that are not resized


def sample_bytes(extents: Extents) -> int:
    """Returns the mean size of a stored sample in bytes."""
    return sum(_column_bytes(group, column) for group in extents.groups for column in group.columns)


def delivered_bytes(fields: Sequence[Field], chosen: Choices, stored_bytes: int) -> int:
    """Returns the mean size of a delivered sample in bytes, its encoded images included.

    Args:
        fields: Fields of the dataset.
        chosen: Their transforms.
        stored_bytes: Mean size of a stored sample.
    """
    total = stored_bytes
    for field in fields:
        image, pixels = chosen.ragged.get(field.name), chosen.pixels.get(field.name)
        if isinstance(image, DecodeImage):
            decoded = pixels.out_bytes if pixels else image.image_bytes
            total += decoded or stored_bytes * _JPEG_RATIO
        elif pixels:
            total += pixels.out_bytes - field.row_bytes
    return total


def _column_bytes(group: Group, column: Column) -> int:
    row_bytes = column.field.row_bytes
    if column.bounds is None:
        return row_bytes
    rows = max(1, int(group.shard_rows.sum()))
    return row_bytes * max(1, int(column.bounds.totals.sum()) // rows)
