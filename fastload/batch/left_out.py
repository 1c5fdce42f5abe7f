"""Takes samples whose images cannot be decoded out of a batch, for `on_error="skip"`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.batch.decode import Decoded
from fastload.batch.transforms import Choices, DecodeImage, PadTo, padding
from fastload.formats.fields import Field

Array = npt.NDArray[Any]
Arrays = list[Any]


def undecodable(
    arrays: Arrays, fields: Sequence[Field], chosen: Choices
) -> dict[int, tuple[str, Exception]]:
    """The places in a batch of samples that have an image that cannot be decoded.

    Args:
        arrays: Of the batch; see `batches.Arrays`.
        fields: Of the dataset.
        chosen: The transforms of these fields.

    Returns:
        For each place, in ascending order: the name of the field, and what is wrong.
    """
    images = [of.name for of in fields if isinstance(chosen.ragged.get(of.name), DecodeImage)]
    decoded = [array for array in arrays if isinstance(array, Decoded)]
    found: dict[int, tuple[str, Exception]] = {}
    for name, array in zip(images, decoded, strict=True):
        found |= {place: (name, error) for place, error in array.failed.items()}
    return dict(sorted(found.items()))


def leave_out(
    arrays: Arrays, places: Sequence[int], fields: Sequence[Field], chosen: Choices
) -> None:
    """Replaces the arrays of a batch by those of its other samples.

    Args:
        arrays: Those of the fields come first, in their order; the others stay as they are.
        places: Of the samples that are left out, in ascending order.
        fields: Of the dataset.
        chosen: The transforms of these fields.
    """
    number = 0
    for field in fields:
        transform = chosen.ragged.get(field.name)
        if isinstance(transform, DecodeImage):
            arrays[number] = arrays[number].without(places)
            number += 1
        elif isinstance(transform, PadTo):
            multiple, _ = padding(transform, field)
            lengths = np.delete(arrays[number + 1], places)
            longest = -(-int(lengths.max(initial=0)) // multiple) * multiple
            rows = np.delete(arrays[number], places, 0)
            arrays[number : number + 2] = np.ascontiguousarray(rows[:, :longest]), lengths
            number += 2
        elif field.ragged:
            arrays[number : number + 2] = _ragged(arrays[number], arrays[number + 1], places)
            number += 2
        else:
            arrays[number] = np.delete(arrays[number], places, 0)
            number += 1


def _ragged(values: Array, offsets: Array, places: Sequence[int]) -> tuple[Array, Array]:
    lengths = np.diff(offsets)
    kept = np.ones(len(lengths), np.bool_)
    kept[list(places)] = False
    ends = np.zeros(int(kept.sum()) + 1, offsets.dtype)
    np.cumsum(lengths[kept], out=ends[1:])
    return values[np.repeat(kept, lengths)], ends
