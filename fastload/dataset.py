"""Complete map-style datasets over files and arrays, for FastLoader and any other loader."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastload import formats
from fastload.formats import arrays, combine, npy, packed
from fastload.formats.extents import Extents, Field
from fastload.formats.files import AnyPath, Paths, absolute, absolute_paths
from fastload.structure import Structure, flatten, leaf_names, map_leaves, sample_builder

if TYPE_CHECKING:
    from fastload import _core

IO_KINDS = ("auto", "mmap", "pread")


class Dataset:
    """Samples that the core can gather: the base of what `fastload.open` returns.

    A sample is in the containers it was stored in; its leaves are writable numpy arrays, those of
    bfloat16 and float8 fields torch tensors. A single number is an array of shape `()`, which
    `default_collate` maps to the right dtype for every dtype; `.item()` gives the number.

    Args:
        extents: Where the samples lie.
        io: How files are read: "auto", "mmap" or "pread".

    Attributes:
        extents: As given.
        io: As given.

    Example:
        >>> dataset = ArrayDataset({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)})
        >>> len(dataset), dataset[-1]
        (3, {'x': array([4, 5]), 'y': array(2)})
    """

    def __init__(self, extents: Extents, io: str = "auto") -> None:
        if io not in IO_KINDS:
            raise ValueError(f"io must be one of {', '.join(IO_KINDS)}, not {io!r}")
        self.extents = extents
        self.io = io
        self._build_sample = sample_builder(extents.structure)
        self._table: tuple[int, _core.Table] | None = None

    @property
    def table(self) -> _core.Table:
        """The core's table, made on first use in each process."""
        # A table belongs to the process that made it; a forked one makes its own.
        if self._table is None or self._table[0] != os.getpid():
            self._table = os.getpid(), self.extents.build(self.io)
        return self._table[1]

    @property
    def fields(self) -> tuple[Field, ...]:
        """Name, dtype and shape of each array of a sample, as the structure numbers them."""
        return self.extents.fields

    @property
    def structure(self) -> Structure:
        """The containers of a sample around the numbers of its fields."""
        return self.extents.structure

    @property
    def fingerprint(self) -> str:
        """A hash of the content; see `Extents.fingerprint`."""
        return self.extents.fingerprint()

    def __len__(self) -> int:
        return self.extents.rows

    def __getitem__(self, index: int) -> Any:
        """The sample at `index`, from the end if negative; its arrays are the caller's own.

        Raises:
            TypeError: the index is no integer.
            IndexError: the index is out of range.
        """
        columns = [np.empty(field.shape, field.storage) for field in self.fields]
        self.table.gather(self._rows([index]), columns)
        return self._build_sample(_sample_arrays(columns, self.fields))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A list of the samples at `indices`, gathered at once; they share one memory per field."""
        rows = self._rows(indices)
        columns = [np.empty((len(rows), *field.shape), field.storage) for field in self.fields]
        self.table.gather(rows, columns)
        viewed = _sample_arrays(columns, self.fields)
        return [self._build_sample([c[row, ...] for c in viewed]) for row in range(len(rows))]

    def _rows(self, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        length = len(self)
        rows = [operator.index(index) for index in indices]
        for row in rows:
            if not -length <= row < length:
                raise IndexError(f"index {row} is out of range for {length} samples")
        return np.array([row + length if row < 0 else row for row in rows], np.int64)

    def _described(self) -> str:
        fields = ", ".join(f"{field.name}: {field}" for field in self.fields)
        return f"{len(self)} samples of {fields}"


def _sample_arrays(columns: list[npt.NDArray[Any]], fields: Sequence[Field]) -> list[Any]:
    """The columns, those that numpy has no dtype for as tensors."""
    return [
        array if field.storage.name == field.dtype else _as_tensor(array, field)
        for array, field in zip(columns, fields, strict=True)
    ]


def _as_tensor(array: npt.NDArray[Any], field: Field) -> Any:
    import torch

    return torch.from_numpy(array).view(getattr(torch, field.dtype))


class FileDataset(Dataset):
    """Files that are read in place: `.npy`, safetensors, raw. Made by `fastload.open`.

    It is pickled as its path and options, and opened again where it is unpickled.

    Args:
        path: A file, a folder of files or a sequence of files.
        dtype: Of a raw file.
        shape: Of one sample of a raw file.
        io: How files are read: "auto" (by file system), "mmap" or "pread".

    Attributes:
        path: Absolute; a list of paths if a sequence was given.
        dtype: As given.
        shape: As given.

    Example:
        >>> np.save("x.npy", np.arange(3))  # doctest: +SKIP
        >>> FileDataset("x.npy")[1]  # doctest: +SKIP
        array(1)
    """

    path: Any

    def __init__(
        self, path: Paths, *, dtype: Any = None, shape: Any = None, io: str = "auto"
    ) -> None:
        self.path = absolute_paths(path)
        self.dtype = dtype
        self.shape = shape
        super().__init__(formats.open_extents(self.path, dtype=dtype, shape=shape), io)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (type(self), self.path, self.dtype, self.shape, self.io)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}: {self._described()})"


class PackedDataset(Dataset):
    """A folder that `fastload pack` wrote.

    It is pickled as its path and options, and opened again where it is unpickled.

    Args:
        path: The folder with `fastload.json`.
        io: How files are read: "auto" (by file system), "mmap" or "pread".

    Attributes:
        path: Absolute.
        manifest: What `fastload.json` says.

    Example:
        >>> PackedDataset("data/train")[0]  # doctest: +SKIP
    """

    def __init__(self, path: AnyPath, *, io: str = "auto") -> None:
        self.path = absolute(path)
        self.manifest = packed.read_manifest(self.path)
        super().__init__(packed.read_extents(self.path), io)

    @property
    def classes(self) -> list[str] | None:
        """The class names that the labels number, if the dataset has any."""
        return self.manifest.classes

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (type(self), self.path, None, None, self.io)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}: {self._described()})"


def _open_again(kind: Any, path: Any, dtype: Any, shape: Any, io: str) -> Dataset:
    raw = {} if dtype is None else {"dtype": dtype, "shape": shape}
    opened: Dataset = kind(path, io=io, **raw)
    return opened


class ArrayDataset(Dataset):
    """Arrays in memory, memmaps, CPU tensors and `.npy` files, as samples along their first axis.

    Arrays are read in place, so later writes to them are seen; only those whose rows are no blocks
    of memory, or that are big-endian, are copied once. The samples of tensors are numpy arrays.
    Arrays are pickled by value, files and memmaps by path.

    Args:
        arrays: An array, a memmap, a CPU tensor without a gradient or the path of a `.npy` file or
            a folder of them; or dicts, lists, tuples and namedtuples of these, nested freely. All
            have equally many rows: array `i` has shape (samples, *sample_shape_i).
        io: How files are read: "auto" (by file system), "mmap" or "pread".

    Attributes:
        arrays: As given, but paths absolute and copies in the place of what had to be copied.

    Raises:
        TypeError: a leaf is none of these, or its dtype is not one of plain numbers.
        ValueError: there is no array, an array has no first axis, or lengths differ.

    Example:
        >>> dataset = ArrayDataset((np.zeros((4, 2), "float32"), np.arange(4)))
        >>> dataset[3]
        (array([0., 0.], dtype=float32), array(3))
    """

    def __init__(self, arrays: Any, io: str = "auto") -> None:
        names = leaf_names(arrays)
        if not names:
            raise ValueError("ArrayDataset needs at least one array")
        self.arrays = _map_named(_readable, arrays)
        parts = flatten(_map_named(_leaf_extents, self.arrays))
        for part, name in zip(parts, names, strict=True):
            if part.rows != parts[0].rows:
                raise ValueError(
                    f"arrays differ in length: {names[0]!r} has {parts[0].rows} samples, {name!r} "
                    f"has {part.rows}"
                )
        remaining = iter(parts)
        super().__init__(combine.stack(map_leaves(lambda _: next(remaining), arrays)), io)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrays_again, (type(self), map_leaves(_as_pickled, self.arrays), self.io)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._described()})"


def _map_named(function: Callable[[Any, str], Any], structure: Structure) -> Structure:
    names = iter(leaf_names(structure))
    return map_leaves(lambda leaf: function(leaf, next(names)), structure)


def _readable(leaf: Any, name: str) -> Any:
    """What an ArrayDataset keeps of a leaf."""
    if isinstance(leaf, np.ndarray):
        return arrays.readable(leaf, name)
    if arrays.is_tensor(leaf):
        array, _ = arrays.tensor_array(leaf, name)
        return leaf if arrays.readable(array, name) is array else leaf.contiguous()
    if isinstance(leaf, (str, bytes, os.PathLike)):
        return absolute(leaf)
    raise TypeError(
        f"field {name!r}: {type(leaf).__name__} is no array, CPU tensor or path of a .npy file"
    )


def _leaf_extents(leaf: Any, name: str) -> Extents:
    if isinstance(leaf, str):
        return npy.read_extents(leaf)
    if isinstance(leaf, np.ndarray):
        return arrays.read_extents(leaf, name)
    array, dtype = arrays.tensor_array(leaf, name)
    return arrays.read_extents(array, name, dtype)


def _as_pickled(leaf: Any) -> Any:
    mapped = arrays.mapped_file(leaf) if isinstance(leaf, np.ndarray) else None
    return mapped or leaf


def _arrays_again(kind: Any, pickled: Any, io: str) -> ArrayDataset:
    def opened(leaf: Any) -> Any:
        return leaf.open() if isinstance(leaf, arrays.MappedFile) else leaf

    made: ArrayDataset = kind(map_leaves(opened, pickled), io)
    return made


def open(
    path: Paths, *, dtype: Any = None, shape: Any = None, io: str = "auto"
) -> FileDataset | PackedDataset:
    """Opens files as a dataset, in place.

    Args:
        path: A folder written by `fastload pack`; a `.npy`, safetensors or raw file; a folder of
            `.npy` or `.safetensors` shards, in natural order; or a sequence of files of one kind.
        dtype: Of a raw file: a name such as "uint16", numpy's or torch's.
        shape: Of one sample of a raw file, with or without a leading -1.
        io: How files are read: "auto" (by file system), "mmap" or "pread".

    Raises:
        FormatError: a file is not what it says it is, or files disagree; the message names them.
        ValueError: dtype and shape are missing for a raw file or given for another.
        OSError: a file cannot be read.

    Example:
        >>> dataset = fastload.open("tokens.bin", dtype="uint16", shape=1024)  # doctest: +SKIP
        >>> dataset[0].shape  # doctest: +SKIP
        (1024,)
    """
    where = absolute_paths(path)
    if isinstance(where, str) and dtype is None and shape is None and formats.is_packed(where):
        return PackedDataset(where, io=io)
    return FileDataset(where, dtype=dtype, shape=shape, io=io)
