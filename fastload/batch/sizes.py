"""Bytes of a sample, as it is stored and as it is delivered."""

from __future__ import annotations

from fastload.batch.transforms import DecodeImage, Transforms, choices
from fastload.formats.columns import Column, Group
from fastload.formats.extents import Extents

_DECODED = 10  # times the bytes of an image that is not resized: what JPEG saves


def sample_bytes(extents: Extents) -> int:
    """Bytes that a sample has in memory; of ragged fields those of a mean sample."""
    return sum(_column_bytes(group, column) for group in extents.groups for column in group.columns)


def delivered_bytes(extents: Extents, transforms: Transforms) -> int:
    """The same as it is delivered; of images that are decoded, with what they are decoded from."""
    chosen, stored = choices(transforms, extents.fields), sample_bytes(extents)
    total = stored
    for field in extents.fields:
        image, pixels = chosen.ragged.get(field.name), chosen.pixels.get(field.name)
        if isinstance(image, DecodeImage):
            total += (pixels.out_bytes if pixels else image.image_bytes) or stored * _DECODED
        elif pixels:
            total += pixels.out_bytes - field.row_bytes
    return total


def _column_bytes(group: Group, column: Column) -> int:
    row_bytes = column.field.row_bytes
    if column.bounds is None:
        return row_bytes
    rows = max(1, int(group.shard_rows.sum()))
    return row_bytes * max(1, int(column.bounds.totals.sum()) // rows)
