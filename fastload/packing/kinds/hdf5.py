"""HDF5 files, and folders of them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.arrays import number_field
from fastload.formats.columns import Int64Array
from fastload.formats.fields import TEXT, Field
from fastload.formats.files import file_source
from fastload.formats.structure import Structure
from fastload.packing.columns import (
    AnyColumn,
    Array,
    Collector,
    Ragged,
    RaggedBuilder,
    inverse,
    taken,
)
from fastload.packing.inputs.arrays import Column, ColumnsSource, columns_source
from fastload.packing.inputs.half_read import latest, version_of
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import Kind, library
from fastload.packing.inputs.source import stored
from fastload.packing.inputs.wanted import ALL, Wanted
from fastload.packing.kinds.hdf5_links import files_behind, list_datasets

_SUFFIXES = (".h5", ".hdf5", ".hdf")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_MEAN_ROWS = 64
_READ_BYTES = 1 << 20
_MAX_CACHED_BYTES = 256 << 20  # of adjacent chunks
_CHUNK_SLOTS = 10007  # some times the chunks that are kept, and prime


@dataclass(frozen=True)
class Hdf5Column(Column):
    """One dataset in each of several files.

    Attributes:
        name: Name of the dataset in the files.
        files: Their paths.
        lengths: The samples in each.
        mean: Bytes of a sample of a ragged field.
        linked: Other files that hold samples.
    """

    name: str
    files: tuple[str, ...]
    lengths: tuple[int, ...]
    mean: int = 0
    linked: tuple[str, ...] = ()

    def read(self, start: int, stop: int) -> AnyColumn:
        """Reads a range; compressed data are decompressed chunk by chunk."""
        made = Collector(self.field, max(stop - start, 0))
        for path, length in zip(self.files, self.lengths, strict=True):
            first, last = max(start, 0), min(stop, length)
            for row in range(first, last, self._each):
                made.add(self._column(path, slice(row, min(row + self._each, last))))
            start, stop = start - length, stop - length
        return made.finish()

    def take(self, indices: Int64Array) -> AnyColumn:
        """Reads the samples in ascending order and returns them in the requested order."""
        order = np.argsort(indices, kind="stable")
        wanted = indices[order]
        made, end = Collector(self.field, len(indices)), 0
        for path, length in zip(self.files, self.lengths, strict=True):
            rows = wanted[(wanted >= end) & (wanted < end + length)] - end
            if len(rows):
                unique, places = np.unique(rows, return_inverse=True)
                made.add(taken(self._column(path, unique), places))
            end += length
        return taken(made.finish(), inverse(order))

    @property
    def _each(self) -> int:
        """Samples that are read at once, because they may be converted then."""
        return max(_READ_BYTES // max(self.field.row_bytes + self.mean, 1), 1)

    def _column(self, path: str, rows: Any) -> AnyColumn:
        try:
            values = _opened(path, version_of(path)).dataset(self.name)[rows]
        except (OSError, KeyError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise FormatError(f"{path}: dataset {self.name!r} is damaged: {error}") from error
        return _column(path, self.name, values, self.field)

    def paths(self) -> Sequence[str]:
        """The files."""
        return [*self.files, *self.linked]

    def mean_bytes(self) -> int:
        """Mean size of the first samples."""
        return self.mean

    def describe(self) -> Any:
        """Names and sizes of the files, and the dataset."""
        sizes = [[os.path.basename(path), os.path.getsize(path)] for path in self.files]
        return [self.name, sizes]


class _Opened:
    """A file that stays open between shards, with a cache of its last chunks."""

    def __init__(self, path: str) -> None:
        self._h5py = library("h5py", "hdf5")
        self._file = self._h5py.File(path, "r")
        self._datasets: dict[str, Any] = {}

    def dataset(self, name: str) -> Any:
        """A dataset. Chunks that its samples share with others are kept, if they are compressed.

        A chunk may be larger than a shard: each shard would decompress it again.
        """
        if name not in self._datasets:
            found = self._file[name]
            if found.chunks is not None and found.id.get_create_plist().get_nfilters():
                chunk = math.prod(found.chunks) * found.dtype.itemsize
                beside = zip(found.shape[1:], found.chunks[1:], strict=True)
                count = math.prod(-(-length // own) for length, own in beside)
                cached = max(min(count * chunk, _MAX_CACHED_BYTES), chunk, _READ_BYTES)
                access = self._h5py.h5p.create(self._h5py.h5p.DATASET_ACCESS)
                access.set_chunk_cache(_CHUNK_SLOTS, cached, 0.75)
                del found  # while it is open, its cache stays as it is
                opened = self._h5py.h5d.open(self._file.id, name.encode(), access)
                found = self._h5py.Dataset(opened)
            self._datasets[name] = found
        return self._datasets[name]


@latest
def _opened(path: str, version: tuple[int, int, int]) -> _Opened:
    """Returns the file, reopened if it has changed."""
    return _Opened(path)


def _column(path: str, name: str, values: Array, field: Field) -> AnyColumn:
    try:
        return _converted(values, field)
    except UnicodeError as error:
        raise FormatError(f"{path}: dataset {name!r}: {error}") from error


def _converted(values: Array, field: Field) -> AnyColumn:
    if not field.ragged:
        return stored(values, field)
    builder = RaggedBuilder(field)
    for value in values.tolist() if values.dtype.kind == "S" else values:
        if field.logical is None:
            builder.append(stored(np.asarray(value), field))
        else:
            content = value.encode() if isinstance(value, str) else bytes(value)
            if field.logical == TEXT:
                content.decode("utf-8")
            builder.append(content)
    return builder.finish()


def open_hdf5(inventory: Inventory, *, strict: bool = False, wanted: Wanted = ALL) -> ColumnsSource:
    """The datasets of a file, or of all below a folder in natural order, along their first axes.

    A sample is a dict with a key for each dataset; groups are dicts in it. Text and bytes of any
    length, and arrays of varying length, are ragged fields.

    Raises:
        FormatError: a file is damaged, its datasets are not of one length, files differ, or the
            target of a link cannot be opened.
        TypeError: a dataset holds what cannot be packed.
        ImportError: h5py is not installed.
    """
    h5py = library("h5py", "hdf5")
    files = tuple(inventory.need_files())
    found: dict[str, Field] = {}
    means: dict[str, int] = {}
    lengths = []
    linked: dict[str, None] = {}
    for file in files:
        file_source(file)
        try:
            with h5py.File(file, "r") as opened:
                there = dict(list_datasets(h5py, file, opened, wanted, inventory))
                linked.update(dict.fromkeys(files_behind(file, there.values())))
                left = [name for name in opened if not wanted.enters(name)]
                wanted.check([*(name.replace("/", ".") for name in there), *left])
                fields = {name: _field(h5py, file, name, of) for name, of in there.items()}
                rows = {name: opened[name].shape[0] for name in fields}
                for name, field in fields.items():
                    if field.ragged and not means.get(name) and rows[name]:
                        some = _column(file, name, opened[name][:_MEAN_ROWS], field)
                        means[name] = (
                            some.values.nbytes // len(some) if isinstance(some, Ragged) else 0
                        )
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise FormatError(f"{file}: no HDF5 file, or a damaged one: {error}") from error
        if not fields:
            raise FormatError(f"{file}: there are no datasets in it")
        first = next(iter(rows))
        odd = next((name for name in rows if rows[name] != rows[first]), None)
        if odd is not None:
            raise FormatError(
                f"{file}: datasets {first!r} and {odd!r} have {rows[first]} and {rows[odd]} samples"
            )
        found = found or fields
        if fields != found:
            raise FormatError(f"{files[0]} and {file} differ in their datasets; all must agree")
        lengths.append(rows[first])
    columns = [
        Hdf5Column(
            field, sum(lengths), name, files, tuple(lengths), means.get(name, 0), tuple(linked)
        )
        for name, field in found.items()
    ]
    made = columns_source("hdf5", columns, _structure(list(found)))
    made.resources.callback(_opened.forget)
    return made


def _structure(names: list[str]) -> Structure:
    made: dict[str, Any] = {}
    for number, name in enumerate(names):
        *groups, last = name.split("/")
        inner = made
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = number
    return made


def _field(h5py: Any, path: str, name: str, dataset: Any) -> Field:
    where = f"{path}: dataset {'/' + name!r}"
    name = name.replace("/", ".")
    if not dataset.shape:
        raise FormatError(f"{where} has no first axis")
    text = h5py.check_string_dtype(dataset.dtype)
    inner = h5py.check_vlen_dtype(dataset.dtype)
    if (text is not None or inner is not None) and len(dataset.shape) > 1:
        raise TypeError(f"{where}: texts and arrays of any length in more than one axis")
    if text is not None:
        is_text = text.encoding == "utf-8" or text.length is None
        return Field(name, "uint8", (), True, TEXT if is_text else "bytes")
    if inner is not None:
        field = number_field(name, np.dtype(inner), ())
        return Field(name, field.dtype, (), True)
    if h5py.check_enum_dtype(dataset.dtype) not in (None, {"FALSE": 0, "TRUE": 1}):
        raise TypeError(f"{where}: an enumeration cannot be packed")
    return number_field(name, dataset.dtype, dataset.shape[1:])


KIND = Kind(
    "hdf5",
    "an HDF5 file or a folder of them: dicts of the datasets, along their first axes",
    open_hdf5,
    lambda path: path.holds(*_SUFFIXES) or path.start.startswith(_MAGIC),
    (),
    ("h5py",),
    "hdf5",
    Names(_SUFFIXES),
)
