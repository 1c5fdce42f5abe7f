"""Converts a list of samples to the arrays that the core gathers for such a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.batch.images import Decoded, ImageField
from fastload.batch.plan import BatchPlan
from fastload.batch.transforms import DecodeImage, PadTo, padding
from fastload.formats.fields import BYTE_STRINGS, TEXT, Field
from fastload.formats.structure import Structure, is_leaf
from fastload.order.sample_keys import KeyedIndex, indices_of, keyed_indices

Array = npt.NDArray[Any]
Key = tuple[int, int, int]
"""Seed, epoch and RNG key of a sample; its random transforms are a function of them."""

_NO_KEY = (0, 0, 0)


@dataclass(frozen=True)
class Layout:
    """Layout of a sample: fields, shapes and dtypes, without file locations.

    Attributes:
        fields: Fields of the dataset, in its order.
        structure: Containers of a sample around the numbers of its fields.
    """

    fields: tuple[Field, ...]
    structure: Structure


class BatchSamples:
    """Indices and RNG keys of the samples of a batch; see `collate.Samples`.

    Args:
        samples: The samples, as a loader passes them to its `collate_fn`.

    Attributes:
        keyed: The indices with their RNG keys; None if the indices carry none.
    """

    draws: npt.NDArray[np.int64] | None = None

    def __init__(self, samples: Sequence[Any]) -> None:
        self._indices = indices_of(samples)
        self._count = len(samples)
        self.keyed: list[KeyedIndex] | None = keyed_indices(self._indices)

    @property
    def has_indices(self) -> bool:
        """True if the dataset returned the indices with the samples."""
        return self._indices is not None

    def __call__(self) -> npt.NDArray[np.int64]:
        """Returns the dataset's indices; if they are unknown, the rows of the batch."""
        try:
            return np.array(self._indices, np.int64).reshape(self._count)
        except (TypeError, ValueError, OverflowError):
            return np.arange(self._count)

    def keys(self) -> list[Key]:
        """Returns the key of each sample; zeros if the indices carry none."""
        if self.keyed is None:
            return [_NO_KEY] * self._count
        return [(index.seed, index.epoch, index.draw) for index in self.keyed]


def sample_arrays(samples: Sequence[Any], plan: BatchPlan, ids: BatchSamples) -> list[Any]:
    """Returns the arrays of a batch; see `collate.Arrays`.

    The core's compiled transforms are applied to one sample at a time.

    Args:
        samples: The samples of the batch, as the dataset returns them.
        plan: The plan of the dataset.
        ids: Indices and RNG keys of the same samples.

    Raises:
        ValueError: a sample does not have the fields of the layout.
    """
    leaves = [_leaves(plan.layout.structure, sample, row) for row, sample in enumerate(samples)]
    arrays: list[Any] = []
    for number, field in enumerate(plan.fields):
        column = [_as_array(own[number], field, row) for row, own in enumerate(leaves)]
        transform = plan.choices.ragged.get(field.name)
        pixels = plan.choices.pixels.get(field.name)
        if isinstance(transform, DecodeImage):
            image = ImageField(field.name, transform, pixels)
            arrays.append(_decoded(column, image, ids.keys()))
        elif isinstance(transform, PadTo):
            arrays += _padded(column, field, transform)
        elif field.ragged:
            arrays += _joined(column, field)
        elif pixels is not None:
            arrays.append(_delivered(column, field, pixels, ids.keys()))
        else:
            arrays.append(_stacked(column, field))
    return arrays


def _leaves(structure: Structure, sample: Any, row: int) -> dict[int, Any]:
    """Returns the leaves of a sample by the numbers of their fields."""
    if is_leaf(structure):
        return {structure: sample}
    keys = list(structure) if isinstance(structure, dict) else range(len(structure))
    found: dict[int, Any] = {}
    for key in keys:
        try:
            member = sample[key]
        except (KeyError, IndexError, TypeError):
            raise ValueError(
                f"sample {row} of the batch has no {key!r}: this collate_fn is for samples of "
                "the dataset of the FastLoader that it comes from"
            ) from None
        found |= _leaves(structure[key], member, row)
    if len(sample) > len(structure):
        added = [key for key in sample if key not in structure] if isinstance(sample, dict) else []
        what = ", ".join(map(repr, added)) or f"{len(sample)} members, not {len(structure)}"
        raise ValueError(
            f"sample {row} of the batch also has {what}, which the dataset of the FastLoader "
            "that this collate_fn comes from does not have: collate them in your own collate_fn"
        )
    return found


def _as_array(leaf: Any, field: Field, row: int) -> Array:
    """Returns a leaf as an array of its stored dtype."""
    if field.logical in BYTE_STRINGS:
        wanted = str if field.logical == TEXT else bytes
        if not isinstance(leaf, wanted):
            raise _unfit(field, row, type(leaf).__name__)
        return np.frombuffer(leaf.encode() if isinstance(leaf, str) else leaf, np.uint8)
    dtype, shape = str(getattr(leaf, "dtype", "")), tuple(getattr(leaf, "shape", ()))
    own = shape[1:] if field.ragged and shape else shape
    if dtype.removeprefix("torch.") != field.dtype or own != field.shape:
        what = f"{dtype.removeprefix('torch.')} {list(shape)}" if dtype else type(leaf).__name__
        raise _unfit(field, row, what)
    if not isinstance(leaf, torch.Tensor):
        return np.asarray(leaf)
    array: Array = leaf.detach().cpu().view(getattr(torch, field.storage.name)).numpy()
    return array


def _unfit(field: Field, row: int, what: str) -> ValueError:
    return ValueError(
        f"field {field.name!r}: sample {row} of the batch has {what}, not {field}: this "
        "collate_fn is for samples of the dataset of the FastLoader that it comes from"
    )


def _stacked(column: list[Array], field: Field) -> Array:
    stacked = np.empty((len(column), *field.shape), field.storage)
    for row, array in enumerate(column):
        stacked[row] = array
    return stacked


def _joined(column: list[Array], field: Field) -> list[Array]:
    """Returns the concatenated samples and their offsets."""
    offsets = np.array([0, *itertools.accumulate(map(len, column))], np.int64)
    values = np.empty((int(offsets[-1]), *field.shape), field.storage)
    for row, array in enumerate(column):
        values[offsets[row] : offsets[row + 1]] = array
    return [values, offsets]


def _padded(column: list[Array], field: Field, transform: PadTo) -> list[Array]:
    multiple, element = padding(transform, field)
    lengths = np.array([len(array) for array in column], np.int64)
    longest = -(-int(lengths.max(initial=0)) // multiple) * multiple
    values = np.empty((len(column), longest, *field.shape), field.storage)
    values[...] = np.frombuffer(element, field.storage).reshape(field.shape)
    for row, array in enumerate(column):
        values[row, : len(array)] = array
    return [values, lengths]


def _delivered(column: list[Array], field: Field, pixels: Any, keys: list[Key]) -> Array:
    made = np.empty((len(column), *pixels.field.shape), pixels.field.storage)
    height, width = pixels.size
    channels = math.prod(field.shape) // max(1, height * width) or 1
    for row, (array, key) in enumerate(zip(column, keys, strict=True)):
        image = np.ascontiguousarray(array).reshape(height, width, channels)
        pixels.plan.deliver(image, made[row, ...], *key)
    return made


def _decoded(column: list[Array], image: ImageField, keys: list[Key]) -> Decoded:
    decoded = Decoded(image.empty(np.arange(len(column))))
    for row, (array, (seed, epoch, draw)) in enumerate(zip(column, keys, strict=True)):
        out = None if decoded.images is None else decoded.images[row]
        keyed = replace(image, seed=seed, epoch=epoch)
        try:
            other = keyed.deliver(array.tobytes(), out, draw)
        except Exception as error:  # Pillow's plugins raise many kinds
            decoded.error_row, decoded.error = row, error
            break
        if other is not None:
            decoded.others[row] = other
    return decoded
