"""numpy arrays and CPU tensors in memory, read in place where their rows allow it."""

from __future__ import annotations

import functools
import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.formats.columns import Column, Group, MemorySource
from fastload.formats.extents import Extents
from fastload.formats.fields import DTYPES, Field


@functools.cache
def number_kind(dtype: np.dtype[Any]) -> tuple[str, str | None] | None:
    """Returns a field's dtype and meaning for a numpy dtype, or None if it is not a plain number.

    Example:
        >>> number_kind(np.dtype(">f4")), number_kind(np.dtype("M8[s]"))
        (('float32', None), ('int64', 'datetime64[s]'))
    """
    native = dtype.newbyteorder("=").name
    if dtype.kind in "mM" and "[" in native:
        return "int64", native
    return None if native not in DTYPES or dtype.fields else (native, None)


def described(dtype: np.dtype[Any]) -> str:
    """Returns the name of a dtype for messages; numpy's codes do not identify ml_dtypes' dtypes."""
    return repr(dtype.name if dtype.isbuiltin == 2 else dtype.str)


def number_field(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Field:
    """Returns the field for arrays of a numpy dtype in any byte order. Dates and times are int64.

    Args:
        name: Name of the field.
        dtype: Dtype of the arrays.
        shape: Shape of one sample.

    Raises:
        TypeError: the dtype is not one of plain numbers.
    """
    kind = number_kind(dtype)
    if kind is None:
        raise TypeError(
            f"field {name!r}: dtype {described(dtype)} is not supported; object, structured, "
            "string and long double arrays and dates without a unit hold no plain numbers"
        )
    return Field(name, kind[0], tuple(shape), logical=kind[1])


def readable(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Returns the array, or a little-endian copy of a big-endian one; others are read in place.

    Raises:
        TypeError: a masked array or a dtype that is not one of plain numbers.
        ValueError: an array without a first axis.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"field {name!r}: a masked array; fill it first")
    if number_field(name, array.dtype, array.shape).logical is not None:
        raise TypeError(
            f"field {name!r}: dtype {array.dtype.str!r} is of dates or times; view int64"
        )
    if array.ndim == 0:
        raise ValueError(f"field {name!r}: an array of shape () has no sample axis")
    if array.dtype.isnative:
        return array
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def read_extents(array: npt.NDArray[Any], name: str, dtype: str | None = None) -> Extents:
    """Returns the samples along the first axis of a `readable` array. A sample is a bare array.

    Args:
        array: Array of shape (samples, ...); later writes are visible.
        name: Name of the field.
        dtype: Dtype of the bytes if numpy has no name for it, such as "bfloat16".
    """
    field = Field(name, dtype or array.dtype.name, array.shape[1:])
    rows = len(array)
    address = array.__array_interface__["data"][0]
    if rows_are_blocks(array.shape, array.strides, array.itemsize):
        # The stride of a single row, or of rows without bytes, may be any number.
        stride = array.strides[0] if rows > 1 and field.row_bytes else field.row_bytes
        size = (rows - 1) * stride + field.row_bytes if rows else 0
        column = Column(field, stride, (MemorySource(array, address, size),), np.zeros(1, np.int64))
    else:
        low, high = _reach(array)
        column = Column(
            field,
            field.row_bytes,
            (MemorySource(array, address + low, high - low),),
            np.array([-low], np.int64),
            strides=np.array([array.strides], np.int64),
        )
    return Extents((Group(np.array([rows], np.int64), (column,)),), 0)


def _reach(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Returns the byte offsets of an array's lowest byte and of its end, from its first number."""
    ends = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + array.itemsize


def rows_are_blocks(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> bool:
    """Returns True if each row is contiguous and rows have ascending addresses."""
    if 0 in shape:
        return True
    expected = item_bytes
    for length, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return shape[0] == 1 or strides[0] >= 0


def is_tensor(value: object) -> bool:
    """Returns True if `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_array(tensor: Any, name: str) -> tuple[npt.NDArray[Any], str]:
    """Returns an array over the memory of a CPU tensor, and the name of the tensor's dtype.

    Raises:
        TypeError: a tensor on another device, sparse, quantized, that requires a gradient or of a
            dtype that is not supported.
    """
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    lazy = tensor.is_conj() or tensor.is_neg()
    if not plain or lazy or tensor.requires_grad or dtype not in DTYPES:
        raise TypeError(
            f"field {name!r}: only plain CPU tensors without a gradient can be loaded, not "
            f"{dtype} on {tensor.device}, {tensor.layout}, requires_grad={tensor.requires_grad}"
        )
    storage = Field(name, dtype, ()).storage.name
    if storage != dtype:
        tensor = tensor.view(getattr(torch, storage))
    return tensor.numpy(), dtype


@dataclass(frozen=True)
class MappedFile:
    """Location of an array in a file, stored in pickles instead of the values.

    Attributes:
        path: Path of the file.
        offset: The byte of the file where the lowest byte of the array lies.
        size_bytes: From there to behind the highest one.
        dtype: Dtype of the array.
        shape: Shape of the array.
        strides: Strides of the array.
        first: Bytes from the lowest byte to the first number.
    """

    path: str
    offset: int
    size_bytes: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int = 0

    def open(self) -> npt.NDArray[Any]:
        """Maps the file again, read-only."""
        held = np.memmap(self.path, np.uint8, "r", self.offset, (self.size_bytes,))
        return np.ndarray(self.shape, self.dtype, held, self.first, self.strides)


def mapped_file(array: npt.NDArray[Any]) -> MappedFile | None:
    """Returns the file of a `readable` view of a memmap, or None if its content may differ."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    # The values of a copy-on-write map may differ from those of its file.
    if not isinstance(owner, np.memmap) or owner.filename is None or owner.mode == "c":
        return None
    held: Any = owner._mmap  # type: ignore[attr-defined]
    map_start = np.frombuffer(held, np.uint8).__array_interface__["data"][0]
    low, high = _reach(array)
    in_map = array.__array_interface__["data"][0] + low - map_start
    offset = owner.offset - owner.offset % mmap.ALLOCATIONGRANULARITY + in_map
    size = high - low
    path = os.path.join(os.getcwd(), os.fspath(owner.filename))
    whole = os.path.isfile(path) and os.path.getsize(path) >= offset + size
    if array.size == 0 or not 0 <= in_map <= len(held) - size or not whole:
        return None
    return MappedFile(path, offset, size, array.dtype.str, array.shape, array.strides, -low)
