"""Removes samples whose images cannot be decoded from a batch, for `on_error="skip"`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.batch.images import Decoded
from fastload.batch.plan import BatchPlan
from fastload.batch.transforms import DecodeImage, PadTo, padding

Array = npt.NDArray[Any]
Arrays = list[Any]


def undecodable(arrays: Arrays, plan: BatchPlan) -> dict[int, tuple[str, Exception]]:
    """Returns the samples of a batch with an image that cannot be decoded.

    Args:
        arrays: The arrays of the batch; see `collate.Arrays`.
        plan: The plan of the dataset.

    Returns:
        The field's name and the error, by the row of the sample in the batch, in ascending order.
    """
    decoded = [array for array in arrays if isinstance(array, Decoded)]
    found: dict[int, tuple[str, Exception]] = {}
    for image, array in zip(plan.image_fields.values(), decoded, strict=True):
        found |= {row: (image.name, error) for row, error in array.failed.items()}
    return dict(sorted(found.items()))


def leave_out(arrays: Arrays, rows: Sequence[int], plan: BatchPlan) -> None:
    """Removes samples from the arrays of a batch.

    Args:
        arrays: The arrays of the fields, in the fields' order; further arrays are left unchanged.
        rows: Rows of the batch to remove, in ascending order.
        plan: The plan of the dataset.
    """
    number = 0
    for field in plan.fields:
        transform = plan.choices.ragged.get(field.name)
        if isinstance(transform, DecodeImage):
            arrays[number] = arrays[number].without(rows)
            number += 1
        elif isinstance(transform, PadTo):
            multiple, _ = padding(transform, field)
            lengths = np.delete(arrays[number + 1], rows)
            longest = -(-int(lengths.max(initial=0)) // multiple) * multiple
            values = np.delete(arrays[number], rows, 0)
            arrays[number : number + 2] = np.ascontiguousarray(values[:, :longest]), lengths
            number += 2
        elif field.ragged:
            arrays[number : number + 2] = _ragged(arrays[number], arrays[number + 1], rows)
            number += 2
        else:
            arrays[number] = np.delete(arrays[number], rows, 0)
            number += 1


def _ragged(values: Array, offsets: Array, rows: Sequence[int]) -> tuple[Array, Array]:
    lengths = np.diff(offsets)
    kept = np.ones(len(lengths), np.bool_)
    kept[list(rows)] = False
    ends = np.zeros(int(kept.sum()) + 1, offsets.dtype)
    np.cumsum(lengths[kept], out=ends[1:])
    return values[np.repeat(kept, lengths)], ends
