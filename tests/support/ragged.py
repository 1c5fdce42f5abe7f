"""Datasets with ragged fields in memory, and what they should give."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from fastload import ArrayDataset
from fastload.datasets.file_datasets import Dataset
from fastload.formats.columns import Bounds, Column, Group, Int64Array, MemorySource
from fastload.formats.extents import Extents
from fastload.formats.fields import Field
from fastload.formats.structure import flatten


def source(array: np.ndarray) -> MemorySource:
    return MemorySource(array, array.__array_interface__["data"][0], array.nbytes)


def column_of(field: Field, samples: Sequence[Any], shards: Sequence[int]) -> Column:
    """A column of memory over samples, cut into shards of so many rows."""
    sources, bounds, totals = [], [], []
    start = 0
    for rows in shards:
        held = [np.asarray(sample, field.storage) for sample in samples[start : start + rows]]
        start += rows
        if not field.ragged:
            sources.append(source(np.array(held, field.storage).reshape(rows, *field.shape)))
            continue
        lengths = [len(sample) for sample in held]
        empty = np.empty((0, *field.shape), field.storage)
        shaped = [sample.reshape(-1, *field.shape) if sample.size else empty for sample in held]
        sources.append(source(np.concatenate([empty, *shaped])))
        bounds.append(source(np.cumsum([0, *lengths], dtype=np.int64)))
        totals.append(sum(lengths))
    zeros: Int64Array = np.zeros(len(shards), np.int64)
    where = Bounds(tuple(bounds), zeros, np.array(totals, np.int64)) if field.ragged else None
    return Column(field, field.row_bytes, tuple(sources), zeros, where)


def ragged_dataset(
    structure: Any, fields: Sequence[Field], samples: Any, shards: Sequence[int] | None = None
) -> ArrayDataset:
    """A native dataset in memory.

    Args:
        structure: Of a sample, around the numbers of the fields.
        fields: Of the samples.
        samples: For each field a list of samples; bytes for fields of bytes and text.
        shards: Rows of each shard; None: one shard.
    """
    rows = len(samples[0])
    shards = [rows] if shards is None else shards
    columns = tuple(
        column_of(
            field,
            [np.frombuffer(s, np.uint8) if isinstance(s, bytes) else s for s in held],
            shards,
        )
        for field, held in zip(fields, samples, strict=True)
    )
    assert sorted(flatten(structure)) == list(range(len(fields)))
    dataset: ArrayDataset = Dataset.__new__(ArrayDataset)
    Dataset.__init__(dataset, Extents((Group(np.array(shards), columns),), structure))
    return dataset


def numbers_of_length(lengths: Sequence[int], dtype: str = "int64", shape: Any = ()) -> list[Any]:
    """Samples of so many elements; the numbers tell sample and place."""
    return [
        (
            1000 * i + np.arange(n)[(...,) + (None,) * len(shape)] + np.zeros((n, *shape), "i8")
        ).astype(dtype)
        for i, n in enumerate(lengths)
    ]


def png(index: int, width: int = 5, height: int = 7) -> bytes:
    """An encoded image of noise."""
    rng = np.random.default_rng(index)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def photos(images: Sequence[bytes], logical: str | None = "image") -> ArrayDataset:
    """Images, each with its number as the label."""
    fields = [Field("image", "uint8", (), True, logical), Field("label", "int64", ())]
    return ragged_dataset(
        {"image": 0, "label": 1}, fields, [list(images), list(range(len(images)))]
    )
