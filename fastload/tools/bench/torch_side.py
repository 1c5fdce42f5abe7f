"""Data for torch's DataLoader, as users typically write it."""

from __future__ import annotations

import ctypes
import io
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from fastload.formats.columns import Column, FileSource, Group, Source
from fastload.formats.extents import Extents
from fastload.formats.fields import BYTE_STRINGS, IMAGE, TEXT, Field
from fastload.formats.structure import sample_builder

Array = npt.NDArray[Any]


class RowDataset:
    """A memory-mapped dataset with `__getitem__` alone, the usual way to write one.

    A sample is built by numpy: one row of each field, copied, in the field's dtype; numbers become
    Python numbers. Encoded images stay bytes, or are decoded and scaled by Pillow. Files are mapped
    by each process at its first sample, so that workers need no pickled data.

    Args:
        extents: Where the samples lie.
        image_size: (height, width) to which images are decoded, as RGB; None: they stay bytes.

    Example:
        >>> from fastload.datasets.array_dataset import ArrayDataset
        >>> rows = RowDataset(ArrayDataset({"x": np.arange(6).reshape(3, 2)}).extents)
        >>> len(rows), rows[2]
        (3, {'x': tensor([4, 5])})
    """

    def __init__(self, extents: Extents, image_size: tuple[int, int] | None = None) -> None:
        self._extents, self._image_size = extents, image_size
        self._fields: list[_Rows] = []

    def __len__(self) -> int:
        return self._extents.rows

    def __getitem__(self, index: int) -> Any:
        if not self._fields:
            self._map()
        return self._build([field.sample(index) for field in self._fields])

    def __getstate__(self) -> tuple[Extents, tuple[int, int] | None]:
        return self._extents, self._image_size

    def __setstate__(self, state: tuple[Extents, tuple[int, int] | None]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _map(self) -> None:
        self._build = sample_builder(self._extents.structure)
        opened: dict[Source, Array] = {}
        for group in self._extents.groups:
            starts = np.cumsum(group.shard_rows).tolist()
            for column in group.columns:
                shards = [
                    _view(column, shard, int(rows), opened)
                    for shard, rows in enumerate(group.shard_rows)
                ]
                size = self._image_size if column.field.logical == IMAGE else None
                self._fields.append(_Rows(shards, starts, group, column.field, size))


@dataclass(frozen=True)
class _Rows:
    """Samples of one field in all shards."""

    shards: list[_Shard]
    ends: list[int]
    group: Group
    field: Field
    image_size: tuple[int, int] | None

    def sample(self, index: int) -> Any:
        row = index if self.group.index_map is None else int(self.group.index_map[index])
        if len(self.shards) == 1:
            value = self.shards[0][row]
        else:
            shard = bisect_right(self.ends, row)
            value = self.shards[shard][row - self.ends[shard]]  # counted from the end of the shard
        if self.image_size is not None:
            return decoded(value, self.image_size)
        if isinstance(value, (str, bytes)):
            return value
        return torch.from_numpy(value.astype(self.field.storage)) if value.ndim else value.item()


def decoded(encoded: bytes, size: tuple[int, int]) -> torch.Tensor:
    """Decodes an image as a typical `__getitem__` does: uint8 (height, width, 3)."""
    from PIL import Image

    with Image.open(io.BytesIO(encoded)) as image:
        scaled = image.convert("RGB").resize(size[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(scaled))


@dataclass(frozen=True)
class _RaggedShard:
    """Samples of a ragged field in one shard; text as str, other byte strings as bytes."""

    values: Array
    bounds: Array
    logical: str | None

    def __getitem__(self, row: int) -> Any:
        row %= len(self.bounds) - 1  # negative ones count from the end
        value = self.values[self.bounds[row] : self.bounds[row + 1]]
        if self.logical not in BYTE_STRINGS:
            return value
        return value.tobytes().decode() if self.logical == TEXT else value.tobytes()


_Shard = Array | _RaggedShard


def _view(column: Column, shard: int, rows: int, opened: dict[Source, Array]) -> _Shard:
    """Returns the rows of one shard as an array over the mapped file."""
    field, bounds = column.field, column.bounds
    if bounds is None:
        return _rows(column, shard, rows, opened)
    values = _rows(column, shard, int(bounds.totals[shard]), opened)
    where = np.zeros(1, np.int64)
    if rows:
        buffer, offset = _opened(bounds.sources[shard], opened), int(bounds.offsets[shard])
        where = np.ndarray((rows + 1,), np.int64, buffer=buffer, offset=offset)
    return _RaggedShard(values, where, field.logical)


def _rows(column: Column, shard: int, rows: int, opened: dict[Source, Array]) -> Array:
    field, dtype = column.field, np.dtype(column.stored or column.field.storage)
    if rows == 0 or field.row_bytes == 0:
        return np.zeros((rows, *field.shape), dtype)
    strides = column.shard_strides(shard)
    if column.stored is not None:
        strides = (column.row_stride, *np.empty(field.shape, dtype).strides)
    return np.ndarray(
        (rows, *field.shape),
        dtype,
        buffer=_opened(column.sources[shard], opened),
        offset=int(column.offsets[shard]),
        strides=strides,
    )


def _opened(source: Source, opened: dict[Source, Array]) -> Array:
    if source not in opened:
        opened[source] = _bytes_of(source)
    return opened[source]


def _bytes_of(source: Source) -> Array:
    if isinstance(source, FileSource):
        return np.asarray(np.memmap(source.path, np.uint8, mode="r"))
    lent = (ctypes.c_uint8 * source.size_bytes).from_address(source.address)
    return np.frombuffer(memoryview(lent), np.uint8)


def padded(samples: list[Any]) -> Any:
    """Collates like default_collate, but pads tensors of different lengths with zeros."""
    return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: _pad})


def _pad(tensors: list[torch.Tensor], **_: Any) -> torch.Tensor:
    if all(tensor.shape == tensors[0].shape for tensor in tensors):
        return torch.stack(tensors)
    return pad_sequence(list(tensors), batch_first=True)


def loader(
    dataset: Any, *, batch_size: int, workers: int, **options: Any
) -> torch.utils.data.DataLoader[Any]:
    """Returns a typical DataLoader: shuffled, with persistent workers."""
    return torch.utils.data.DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        **options,
    )
