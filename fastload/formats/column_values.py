"""One field of all samples: an array of its values, and the lengths of its samples."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastload.errors import FormatError
from fastload.formats.columns import Column, FileSource, Group, Int64Array
from fastload.formats.extents import Extents
from fastload.formats.fields import BYTE_STRINGS, TEXT, Field, torch_dtype

if TYPE_CHECKING:
    from fastload import _core

_CHUNK_BYTES = 1 << 26  # of text or bytes that are gathered at once


def read_column(extents: Extents, name: str, io: str) -> Any:
    """Returns the values of a field; see `Dataset.column`."""
    alone = _alone(extents, name)
    group, column = alone.groups[0], alone.columns[0]
    field, table = column.field, alone.build(io)
    if field.ragged and field.logical not in BYTE_STRINGS:
        raise ValueError(
            f"field {name!r} has samples of different lengths, which are no array: "
            f"lengths({name!r}) returns their lengths, dataset[start:stop] the samples"
        )
    if field.ragged:
        return [sample for rows in _chunks(table) for sample in _strings(table, field, rows)]
    if (view := _view(group, column, table)) is not None:
        return view
    values = np.empty((alone.rows, *field.shape), field.storage)
    table.gather(np.arange(alone.rows), [values])
    return viewed(values, field)


def read_lengths(extents: Extents, name: str, io: str) -> Int64Array:
    """Returns the length of each sample of a field; see `Dataset.lengths`."""
    alone = _alone(extents, name)
    field = alone.fields[0]
    if field.ragged:
        return alone.build(io).lengths(0, np.arange(alone.rows))
    if not field.shape:
        raise ValueError(f"field {name!r} has no lengths: its samples are single numbers")
    return np.full(alone.rows, field.shape[0], np.int64)


def _alone(extents: Extents, name: str) -> Extents:
    """Returns the extents of one field; a sample is then a bare array.

    Raises:
        ValueError: there is no such field, or there are several.
    """
    found = [
        replace(group, columns=(column,))
        for group in extents.groups
        for column in group.columns
        if column.field.name == name
    ]
    if len(found) != 1:
        names = ", ".join(repr(field.name) for field in extents.fields)
        what = f"several fields are named {name!r}" if found else f"no field {name!r}"
        raise ValueError(f"{what}; the fields are {names}")
    return replace(extents, groups=(found[0],), structure=0, content=None)


# --- Fixed fields -------------------------------------------------------------------------------


class _Memory:
    """Array interface to memory, with the object that keeps the memory alive."""

    def __init__(self, owner: object, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = interface


def _view(group: Group, column: Column, table: _core.Table) -> npt.NDArray[Any] | None:
    """Returns a read-only array over all rows in memory or a mapped file, or None."""
    shards = np.flatnonzero(group.shard_rows)
    field = column.field
    # Tensors cannot be read-only, and the values of a column that is cast are not stored.
    stored_elsewhere = column.stored is not None or field.storage.name != field.dtype
    if len(shards) != 1 or group.index_map is not None or stored_elsewhere or not field.row_bytes:
        return None
    shard = int(shards[0])
    source, owner = column.sources[shard], None
    if not isinstance(source, FileSource):
        owner, start = source.array, source.address
    else:
        lazy = source.blocks is not None and source.blocks.lazy
        if lazy or field.dtype == "bool" or not _is_whole(source):
            return None  # copied: the core checks every read, and maps bool bytes to 0 and 1
        # The table numbers the files of its only column as they first appear.
        owner = table.mapping(list(dict.fromkeys(column.sources)).index(source))
        if owner is None:
            return None
        start = owner.__array_interface__["data"][0]
    address = start + int(column.offsets[shard])
    strides = column.shard_strides(shard)
    if any(number % field.storage.alignment for number in (address, *strides)):
        return None
    interface = {
        "version": 3,
        "data": (address, True),
        "shape": (group.rows, *field.shape),
        "strides": strides,
        "typestr": field.storage.str,
    }
    return np.asarray(_Memory(owner, interface))


def _is_whole(source: FileSource) -> bool:
    try:
        return os.stat(source.path).st_size >= source.size_bytes
    except OSError:
        return False


def viewed(array: npt.NDArray[Any], field: Field) -> Any:
    """Returns the array, or a tensor if numpy lacks the dtype."""
    if field.storage.name == field.dtype:
        return array
    import torch

    return torch.from_numpy(array).view(torch_dtype(field.dtype))


# --- Ragged fields ------------------------------------------------------------------------------


def _chunks(table: _core.Table) -> Iterator[Int64Array]:
    """Yields row ranges of about 64 MiB of text or bytes each."""
    ends = np.cumsum(table.lengths(0, np.arange(table.rows)))
    start = 0
    while start < table.rows:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + _CHUNK_BYTES, "right"))
        yield np.arange(start, max(stop, start + 1))
        start = max(stop, start + 1)


def _strings(table: _core.Table, field: Field, rows: Int64Array) -> list[Any]:
    lengths = table.lengths(0, rows)
    content = np.empty(int(lengths.sum()), field.storage)
    table.gather(rows, [content])
    return ragged_samples(content, field, lengths, rows)


def ragged_samples(
    values: npt.NDArray[Any], field: Field, lengths: Int64Array, rows: Int64Array
) -> list[Any]:
    """Splits the contiguous elements of a ragged field into samples.

    Args:
        values: The elements of all samples.
        field: Field of the samples: text becomes str, bytes and images bytes, numbers arrays.
        lengths: Elements of each sample.
        rows: The index of each sample, for messages.

    Raises:
        FormatError: text that is no valid UTF-8.
    """
    ends = np.cumsum(lengths).tolist()
    pieces = [slice(end - length, end) for end, length in zip(ends, lengths.tolist(), strict=True)]
    if field.logical not in BYTE_STRINGS:
        array = viewed(values, field)
        return [array] if len(rows) == 1 else [array[piece] for piece in pieces]
    content = values.tobytes()
    if field.logical != TEXT:
        return [content[piece] for piece in pieces]
    texts = []
    for piece, row in zip(pieces, rows, strict=True):
        try:
            texts.append(content[piece].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise FormatError(
                f"sample {row}: field {field.name!r} is no valid UTF-8: {error.reason} at byte "
                f"{error.start}; `fastload verify --full` finds damaged files"
            ) from error
    return texts
