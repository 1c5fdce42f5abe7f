"""Arrays and tensors in memory as a complete map-style dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.datasets.file_datasets import Dataset
from fastload.formats import arrays as arrays_of
from fastload.formats import combine, npy
from fastload.formats.extents import Extents
from fastload.formats.fields import torch_dtype
from fastload.formats.files import absolute
from fastload.formats.structure import Structure, flatten, leaf_names, map_leaves


class ArrayDataset(Dataset):
    """Arrays in memory, memmaps, CPU tensors and `.npy` files, as samples along their first axis.

    Arrays are read in place, so later writes to them are seen; only those whose rows are no blocks
    of memory, or that are big-endian, are copied once. The samples of tensors are numpy arrays.
    Arrays are pickled by value, files and memmaps by path. A tensor may be moved to shared memory,
    but not while a loader iterates over it.

    Args:
        arrays: An array, a memmap, a CPU tensor without a gradient or the path of a `.npy` file or
            a folder of them; or dicts, lists, tuples and namedtuples of these, nested freely. All
            have equally many rows: array `i` has shape (samples, *sample_shape_i).
        io: How files are read: "auto" (by file system), "mmap" or "pread".

    Attributes:
        arrays: The argument, with absolute paths, and with copies where a copy was needed.

    Raises:
        TypeError: a leaf is none of these, or its dtype is not one of plain numbers; a second
            array is given alone.
        ValueError: there is no array, an array has no first axis, or lengths differ.

    Example:
        >>> dataset = ArrayDataset((np.zeros((4, 2), "float32"), np.arange(4)))
        >>> dataset[3]
        (array([0., 0.], dtype=float32), array(3))
    """

    __module__ = "fastload"

    _addresses: tuple[tuple[Any, int], ...] = ()  # address of each tensor's memory at construction

    def __init__(self, arrays: Any, io: str = "auto") -> None:
        if not isinstance(io, str):  # a second array
            raise TypeError(
                f"ArrayDataset takes one structure of arrays, and io, which is a str, not "
                f'{type(io).__name__}; for two arrays: ArrayDataset({{"x": x, "y": y}}) or '
                "ArrayDataset((x, y))"
            )
        if not leaf_names(arrays):
            raise ValueError("ArrayDataset needs at least one array")
        self.arrays = _map_named(_readable, arrays)
        super().__init__(self._reopen(), io)

    def _reopen(self) -> Extents:
        names, leaves = leaf_names(self.arrays), flatten(self.arrays)
        parts = list(map(_leaf_extents, leaves, names))
        for part, name in zip(parts, names, strict=True):
            if part.rows != parts[0].rows:
                raise ValueError(
                    f"arrays differ in length: {names[0]!r} has {parts[0].rows} samples, {name!r} "
                    f"has {part.rows}"
                )
        tensors = [leaf for leaf in leaves if arrays_of.is_tensor(leaf)]
        self._addresses = tuple((tensor, tensor.data_ptr()) for tensor in tensors)
        remaining = iter(parts)
        return combine.stack(map_leaves(lambda _: next(remaining), self.arrays))

    @property
    def extents(self) -> Extents:
        """Locations of the samples."""
        # torch moves the memory of a tensor that is shared with other processes.
        if any(tensor.data_ptr() != address for tensor, address in self._addresses):
            self._hold(self._reopen())
        return self._extents

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_addresses", None)
        return state | {"arrays": map_leaves(_as_pickled, self.arrays)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"arrays": map_leaves(_as_before, state["arrays"])})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._described()})"


def _map_named(function: Callable[[Any, str], Any], structure: Structure) -> Structure:
    names = iter(leaf_names(structure))
    return map_leaves(lambda leaf: function(leaf, next(names)), structure)


def _readable(leaf: Any, name: str) -> Any:
    """Returns the array that an ArrayDataset stores for a leaf."""
    if isinstance(leaf, np.ndarray):
        return arrays_of.readable(leaf, name)
    if arrays_of.is_tensor(leaf):
        array, _ = arrays_of.tensor_array(leaf, name)
        return leaf if arrays_of.readable(array, name) is array else leaf.contiguous()
    if isinstance(leaf, (str, bytes, os.PathLike)):
        return absolute(leaf)
    raise TypeError(
        f"field {name!r}: {type(leaf).__name__} is no array, CPU tensor or path of a .npy file"
    )


def _leaf_extents(leaf: Any, name: str) -> Extents:
    if isinstance(leaf, str):
        return npy.read_extents(leaf)
    if isinstance(leaf, np.ndarray):
        return arrays_of.read_extents(leaf, name)
    array, dtype = arrays_of.tensor_array(leaf, name)
    return arrays_of.read_extents(array, name, dtype)


@dataclass(frozen=True)
class _PickledTensor:
    """A tensor by its values: torch's own pickling would move it to shared memory."""

    array: npt.NDArray[Any]
    dtype: str


def _as_pickled(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return arrays_of.mapped_file(leaf) or leaf
    return _PickledTensor(*arrays_of.tensor_array(leaf, "")) if arrays_of.is_tensor(leaf) else leaf


def _as_before(pickled: Any) -> Any:
    if isinstance(pickled, arrays_of.MappedFile):
        return pickled.open()
    if not isinstance(pickled, _PickledTensor):
        return pickled
    import torch

    return torch.from_numpy(pickled.array).view(torch_dtype(pickled.dtype))
