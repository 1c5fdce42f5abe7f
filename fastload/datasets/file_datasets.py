"""Complete map-style datasets over files and arrays, for FastLoader and any other loader."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastload import formats
from fastload.datasets.indexing import selected
from fastload.errors import FormatError
from fastload.formats import checks, packed
from fastload.formats import column_values as columns
from fastload.formats.column_values import ragged_samples, viewed
from fastload.formats.columns import Int64Array
from fastload.formats.extents import Extents
from fastload.formats.fields import Field
from fastload.formats.files import AnyPath, Paths, absolute, absolute_paths
from fastload.formats.structure import Structure, sample_builder
from fastload.order.sample_keys import FetchedSamples

if TYPE_CHECKING:
    from fastload import _core

IO_KINDS = ("auto", "mmap", "pread")


class Dataset:
    """Samples that the core can gather: the base of what `fastload.open` returns.

    A sample is in the containers it was stored in; its leaves are writable numpy arrays, those of
    bfloat16 and float8 fields torch tensors. A single number is an array of shape `()`, which
    `default_collate` maps to the right dtype for every dtype; `.item()` gives the number. A ragged
    field has an array (length, *shape) in each sample, text is str, and bytes and encoded images
    are bytes. Dates and times are int64; `fields` tells their unit.

    Args:
        extents: Locations of the samples.
        io: How files are read: "auto", "mmap" or "pread".
        verify: Checks of packed data. None: none. "open": on opening, the checksum of each
            shard's header, and that the bounds of ragged fields rise from 0 to the total of
            their values. "lazy": the checksum of each block of 1 MiB, before it is first read.

    Attributes:
        io: See Args.
        verify: See Args.

    Raises:
        FormatError: with `verify="open"`, a header or a bound is damaged. With "lazy", reading a
            sample raises it, naming file, block and rows.

    Example:
        >>> dataset = ArrayDataset({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)})
        >>> len(dataset), dataset[-1]
        (3, {'x': array([4, 5]), 'y': array(2)})
    """

    def __init__(self, extents: Extents, io: str = "auto", verify: str | None = None) -> None:
        if io not in IO_KINDS:
            raise ValueError(f"io must be one of {', '.join(IO_KINDS)}, not {io!r}")
        self.io = io
        self.verify = verify
        self._hold(extents)

    def _hold(self, extents: Extents) -> None:
        self._extents = checks.checked(extents, self.verify)
        self._build_sample = sample_builder(extents.structure)
        self._table: tuple[int, _core.Table] | None = None

    def _reopen(self) -> Extents:
        """Returns the extents, read again in the process that unpickles the dataset."""
        raise TypeError(f"{type(self).__name__} cannot be pickled: it does not say how to open it")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_extents", "_build_sample", "_table"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hold(self._reopen())

    @property
    def extents(self) -> Extents:
        """Locations of the samples."""
        return self._extents

    @property
    def table(self) -> _core.Table:
        """The core's table, made on first use in each process."""
        extents = self.extents
        # A table belongs to the process that made it; a forked one makes its own.
        if self._table is None or self._table[0] != os.getpid():
            self._table = os.getpid(), extents.build(self.io)
        return self._table[1]

    @property
    def fields(self) -> tuple[Field, ...]:
        """Name, dtype and shape of each array of a sample, in the order of `structure`."""
        return self.extents.fields

    @property
    def structure(self) -> Structure:
        """Containers of a sample, with field numbers as leaves."""
        return self.extents.structure

    @property
    def fingerprint(self) -> str:
        """Hash of the content; see `Extents.fingerprint`."""
        return self.extents.fingerprint()

    def __len__(self) -> int:
        return self.extents.rows

    def __getitem__(self, index: Any) -> Any:
        """Returns the sample at an integer, or a list of samples for a slice, list or array.

        Negative integers count from the end. Arrays and lists hold integers, or booleans: one for
        each sample. The arrays of samples are the caller's own.

        Raises:
            TypeError: the index is none of these.
            IndexError: an integer is out of range, or a mask is not as long as the dataset.

        Example:
            >>> dataset = ArrayDataset(np.arange(5) * 10)
            >>> dataset[1:3], dataset[[-1]]
            ([array(10), array(20)], [array(40)])
        """
        if (several := selected(index, len(self))) is not None:
            return self._samples(several)
        leaves = self._gather(self._rows([index]), ())
        return self._build_sample(
            [
                leaf[0] if field.ragged else leaf
                for leaf, field in zip(leaves, self.fields, strict=True)
            ]
        )

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A list of the samples at `indices`, gathered at once; they share one memory per field.

        It passes the indices on to the `collate_fn` of a FastLoader, see `FetchedSamples`.
        """
        return FetchedSamples(self._samples(indices), indices)

    def column(self, name: str) -> Any:
        """Returns the values of one field in all samples; no other field is read.

        Args:
            name: As in `fields`: keys, positions and names of namedtuples joined by dots, such as
                "meta.0"; "data" where samples are bare arrays.

        Returns:
            An array (samples, *shape). Where one file or array holds all of it, this is a read-only
            view of it, without a copy; else a copy. A field of bfloat16 or float8 is a tensor, text
            a list of str, bytes and encoded images a list of bytes. Dates and times are int64.

            A view of a file is a mapping of it: as with `numpy.memmap`, the process is ended if
            another program cuts the file short while the view is read. Files on network file
            systems, with `io="pread"` and with `verify="lazy"` are always copied, which cannot end
            the process.

        Raises:
            ValueError: there is no such field, or it is a ragged field of numbers.
            FormatError: a file is damaged; with `verify="lazy"` every block that is read is
                compared with its checksum.

        Example:
            >>> dataset = ArrayDataset({"x": np.zeros((3, 2)), "y": np.array([0, 1, 1])})
            >>> np.bincount(dataset.column("y"))
            array([1, 2])
        """
        return columns.read_column(self.extents, name, self.io)

    def lengths(self, name: str) -> Int64Array:
        """Returns the length of one field in each sample: int64 (samples,).

        Args:
            name: As for `column`.

        Returns:
            Elements along the first axis; bytes of text (as UTF-8), of bytes and encoded images.

        Raises:
            ValueError: there is no such field, or its samples are single numbers.
            FormatError: a file is damaged.

        Example:
            >>> ArrayDataset(np.zeros((2, 3))).lengths("data")
            array([3, 3])
        """
        return columns.read_lengths(self.extents, name, self.io)

    def _samples(self, indices: Sequence[int]) -> list[Any]:
        rows = self._rows(indices)
        leaves = [
            leaf if field.ragged else [leaf[row, ...] for row in range(len(rows))]
            for leaf, field in zip(self._gather(rows, (len(rows),)), self.fields, strict=True)
        ]
        return [self._build_sample(sample) for sample in zip(*leaves, strict=True)]

    def _gather(self, rows: Int64Array, shape: tuple[int, ...]) -> list[Any]:
        """Gathers each field: an array with leading axes `shape`, or a list for a ragged field."""
        table, fields = self.table, self.fields
        lengths = [table.lengths(n, rows) if f.ragged else None for n, f in enumerate(fields)]
        columns = [
            np.empty((*(shape if own is None else (int(own.sum()),)), *field.shape), field.storage)
            for field, own in zip(fields, lengths, strict=True)
        ]
        table.gather(rows, columns)
        return [
            viewed(column, field) if own is None else ragged_samples(column, field, own, rows)
            for column, field, own in zip(columns, fields, lengths, strict=True)
        ]

    def _rows(self, indices: Sequence[int]) -> Int64Array:
        length = len(self)
        rows = [_as_int(index) for index in indices]
        for row in rows:
            if not -length <= row < length:
                raise IndexError(f"index {row} is out of range for {length} samples")
        return np.array([row + length if row < 0 else row for row in rows], np.int64)

    def _described(self) -> str:
        fields = ", ".join(f"{field.name}: {field}" for field in self.fields)
        return f"{len(self)} samples of {fields}"


def _as_int(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:
        kind = type(index).__name__
        what = "an index must be an integer, a slice, or a list or array of integers or booleans"
        raise TypeError(f"{what}, not {index!r} of type {kind}") from None


class FileDataset(Dataset):
    """Files that are read in place: `.npy`, safetensors, raw. Made by `fastload.open`.

    It is pickled as its path and options, and opened again where it is unpickled.

    Args:
        path: A file, a folder of files or a sequence of files.
        dtype: Dtype of a raw file.
        shape: Shape of one sample of a raw file.
        io: How files are read: "auto" (by file system), "mmap" or "pread".
        verify: None, "open" or "lazy", for files with checksums; see `Dataset`.

    Attributes:
        path: Absolute; a list of paths if a sequence was given.
        dtype: See Args.
        shape: See Args.

    Example:
        >>> np.save("x.npy", np.arange(3))
        >>> FileDataset("x.npy")[1]
        array(1)
    """

    path: Any

    def __init__(
        self,
        path: Paths,
        *,
        dtype: Any = None,
        shape: Any = None,
        io: str = "auto",
        verify: str | None = None,
    ) -> None:
        self.path = absolute_paths(path)
        self.dtype = dtype
        self.shape = shape
        super().__init__(self._reopen(), io, verify)

    def _reopen(self) -> Extents:
        return formats.open_extents(self.path, dtype=self.dtype, shape=self.shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}: {self._described()})"


class PackedDataset(Dataset):
    """A folder that `fastload pack` wrote.

    It is pickled as its path and options, and opened again where it is unpickled.

    Args:
        path: The folder with `fastload.json`.
        split: The name of a split; None for all samples.
        io: How files are read: "auto" (by file system), "mmap" or "pread".
        verify: None, "open" or "lazy"; see `Dataset`.

    Attributes:
        path: Absolute.
        split: See Args.
        manifest: Content of `fastload.json`.

    Raises:
        FormatError: the folder is not, not completely or no longer what `fastload pack` wrote.
        ValueError: there is no such split.
        OSError: a file cannot be read.

    Example:
        >>> PackedDataset("data/train")[0]  # doctest: +SKIP
    """

    __module__ = "fastload"

    def __init__(
        self,
        path: AnyPath,
        *,
        split: str | None = None,
        io: str = "auto",
        verify: str | None = None,
    ) -> None:
        self.path = absolute(path)
        self.split = split
        super().__init__(self._reopen(), io, verify)

    def _reopen(self) -> Extents:
        self.manifest = packed.read_manifest(self.path)
        return packed.read_extents(self.path, split=self.split, manifest=self.manifest)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return state | {"manifest": self.manifest.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.manifest.fingerprint != state["manifest"]:
            raise FormatError(f"{self.path}: the dataset was changed after it was pickled")

    @property
    def classes(self) -> list[str] | None:
        """The class names that the labels number, if the dataset has any."""
        return self.manifest.classes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}: {self._described()})"


def open(
    path: Paths,
    *,
    dtype: Any = None,
    shape: Any = None,
    split: str | None = None,
    io: str = "auto",
    verify: str | None = None,
) -> FileDataset | PackedDataset:
    """Opens files as a dataset, in place.

    Args:
        path: A folder written by `fastload pack`; a `.npy`, safetensors or raw file; a folder of
            `.npy` or `.safetensors` shards, in natural order; or a sequence of files of one kind.
        dtype: Dtype of a raw file: a name such as "uint16", numpy's or torch's.
        shape: Shape of one sample of a raw file, with or without a leading -1.
        split: The name of a split of a packed folder; None for all samples.
        io: How files are read: "auto" (by file system), "mmap" or "pread".
        verify: Checks of packed data. None: none. "open": on opening, the checksum of each
            shard's header, and that the bounds of ragged fields rise from 0 to the total of
            their values. "lazy": the checksum of each block of 1 MiB, before it is first read.

    Raises:
        FormatError: a file is not what it says it is, or files disagree; the message names them.
        ValueError: dtype and shape are missing for a raw file or given for another; there is no
            such split.
        OSError: a file cannot be read.

    Example:
        >>> dataset = fastload.open("tokens.bin", dtype="uint16", shape=1024)  # doctest: +SKIP
        >>> dataset[0].shape  # doctest: +SKIP
        (1024,)
    """
    where = absolute_paths(path)
    if isinstance(where, str) and dtype is None and shape is None and formats.is_packed(where):
        return PackedDataset(where, split=split, io=io, verify=verify)
    if split is not None:
        raise ValueError(f"split={split!r}: only folders that `fastload pack` wrote have splits")
    return FileDataset(where, dtype=dtype, shape=shape, io=io, verify=verify)
