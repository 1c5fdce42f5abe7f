"""Reads row ranges of a dataset, column by column."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fastload.datasets.file_datasets import Dataset
from fastload.formats.columns import Int64Array
from fastload.packing.columns import AnyColumn, Ragged

_BLOCK_BYTES = 32 << 20
_PROBES = 64


def read_rows(dataset: Dataset, rows: Int64Array) -> list[AnyColumn]:
    """Returns the samples at `rows`: an array of the storage dtype or a `Ragged` for each field."""
    columns: list[AnyColumn] = []
    arrays = []
    for number, field in enumerate(dataset.fields):
        count = len(rows)
        if field.ragged:
            lengths = dataset.table.lengths(number, rows)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            count = int(offsets[-1])
        array = np.empty((count, *field.shape), field.storage)
        arrays.append(array)
        columns.append(Ragged(array, offsets) if field.ragged else array)
    dataset.table.gather(rows, arrays)
    return columns


def blocks(dataset: Dataset) -> Iterator[tuple[Int64Array, list[AnyColumn]]]:
    """Yields all samples in order, about 32 MiB at a time, as row numbers and columns."""
    rows = len(dataset)
    some = np.linspace(0, rows - 1, min(rows, _PROBES)).astype(np.int64)
    mean = sum(field.row_bytes for field in dataset.fields if not field.ragged)
    for number, field in enumerate(dataset.fields):
        if field.ragged and rows:
            mean += int(dataset.table.lengths(number, some).mean() * field.row_bytes)
    block_rows = max(_BLOCK_BYTES // max(mean, 1), 1)
    for start in range(0, rows, block_rows):
        numbers = np.arange(start, min(start + block_rows, rows))
        yield numbers, read_rows(dataset, numbers)
