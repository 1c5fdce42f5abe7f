"""Exports a dataset to a Parquet file with pyarrow."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from fastload.datasets.file_datasets import Dataset
from fastload.formats.fields import BYTE_STRINGS, Field
from fastload.packing.cast import decoded
from fastload.packing.columns import AnyColumn, Array, Ragged
from fastload.packing.output.files import TEMPORARY_PREFIX
from fastload.packing.reading import blocks

_UNITS = ("s", "ms", "us", "ns")


def write_parquet(dataset: Dataset, path: str, advance: Callable[[int], None]) -> list[str]:
    """Writes a file; returns notices about properties that it cannot store.

    Raises:
        ImportError: pyarrow is not installed.
        TypeError: Parquet cannot hold a field.
    """
    arrow, parquet = _pyarrow()
    for field in dataset.fields:
        if field.dtype.startswith("complex"):
            raise TypeError(
                f"field {field.name!r}: Parquet has no {field.dtype}; export it as npy or tar"
            )
        if 0 in field.shape:
            raise TypeError(f"field {field.name!r}: Parquet has no lists of shape {field.shape}")
    types = [_type(arrow, field) for field in dataset.fields]
    schema = arrow.schema(
        [
            arrow.field(field.name, kind, _is_time(field), _metadata(field))
            for field, kind in zip(dataset.fields, types, strict=True)
        ]
    )
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{os.getpid()}-{name}")
    try:
        with parquet.ParquetWriter(temporary, schema) as writer:
            for rows, columns in blocks(dataset):
                arrays = [
                    _array(arrow, column, field, kind)
                    for column, field, kind in zip(columns, dataset.fields, types, strict=True)
                ]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
                advance(int(rows[-1]) + 1)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return [
        f"field {field.name!r} is {field.dtype}, which Parquet does not have: its column is float32"
        for field in dataset.fields
        if field.storage.name != field.dtype
    ]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "pyarrow writes Parquet files and is not installed: pip install pyarrow"
        ) from error
    return pyarrow, pyarrow.parquet


def _is_time(field: Field) -> bool:
    return field.logical is not None and field.logical not in BYTE_STRINGS


def _metadata(field: Field) -> dict[str, str]:
    return {"fastload.shape": str(list(field.shape))} if len(field.shape) > 1 else {}


def _type(arrow: Any, field: Field) -> Any:
    """Returns the Arrow type of a column."""
    if field.logical in BYTE_STRINGS:
        return arrow.large_string() if field.logical == "utf8" else arrow.large_binary()
    kind = _number_type(arrow, field)
    if field.shape:
        kind = arrow.list_(kind, math.prod(field.shape))
    return arrow.large_list(kind) if field.ragged else kind


def _number_type(arrow: Any, field: Field) -> Any:
    if field.logical is not None:
        what, unit = field.logical.rstrip("]").split("[")
        if unit == "D" and what == "datetime64":
            return arrow.timestamp("s")
        if unit not in _UNITS:
            raise TypeError(f"field {field.name!r}: Parquet has no {field.logical}")
        return arrow.timestamp(unit) if what == "datetime64" else arrow.duration(unit)
    if field.storage.name != field.dtype:
        return arrow.float32()
    return arrow.from_numpy_dtype(field.storage)


def _array(arrow: Any, column: AnyColumn, field: Field, kind: Any) -> Any:
    """Returns a column of a block as an Arrow array."""
    if not isinstance(column, Ragged):
        return _numbers(arrow, column, field, kind)
    offsets = arrow.array(column.offsets)
    if field.logical in BYTE_STRINGS:
        buffers = [None, offsets.buffers()[1], arrow.py_buffer(column.values)]
        made = arrow.Array.from_buffers(kind, len(column), buffers)
        made.validate(full=True)
        return made
    values = _numbers(arrow, column.values, field, kind.value_type)
    return arrow.LargeListArray.from_arrays(offsets, values)


def _numbers(arrow: Any, array: Array, field: Field, kind: Any) -> Any:
    flat = decoded(array, field).reshape(-1)
    inner = kind.value_type if field.shape else kind
    if field.storage.name != field.dtype:
        flat = flat.astype(np.float32)
    if not _is_time(field):
        values = arrow.array(flat)
    else:
        missing = flat == np.iinfo(np.int64).min
        factor = 86_400 if field.logical == "datetime64[D]" else 1
        # Parquet stores days and seconds as milliseconds.
        max_value = np.iinfo(np.int64).max // (1000 * factor if inner.unit == "s" else 1)
        if (far := np.abs(flat[~missing]) > max_value).any():
            value = flat[~missing][far][0]
            raise ValueError(
                f"field {field.name!r}: {field.logical} {value} is out of the range of Parquet"
            )
        values = arrow.array(np.where(missing, 0, flat) * factor, mask=missing).view(inner)
    return arrow.FixedSizeListArray.from_arrays(values, type=kind) if field.shape else values
