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
    """The field's dtype and meaning of numpy's numbers in any byte order; None of what is none.

    Example:
        >>> number_kind(np.dtype(">f4")), number_kind(np.dtype("M8[s]"))
        (('float32', None), ('int64', 'datetime64[s]'))
    """
    native = dtype.newbyteorder("=").name
    if dtype.kind in "mM" and "[" in native:
        return "int64", native
    return None if native not in DTYPES or dtype.fields else (native, None)


def described(dtype: np.dtype[Any]) -> str:
    """A dtype as messages name it; numpy's own codes say nothing of the dtypes of ml_dtypes."""
    return repr(dtype.name if dtype.isbuiltin == 2 else dtype.str)


def number_field(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Field:
    """The field of arrays of a numpy dtype, in any byte order. Dates and times are int64.

    Args:
        name: Of the field.
        dtype: Of the arrays.
        shape: Of one sample.

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
    """The array itself; a copy if it is big-endian, for other arrays are read in place.

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
    """The samples along the first axis of a `readable` array. A sample is bare, field `name`.

    Args:
        array: Of shape (samples, ...); later writes to it are seen.
        name: Of the field.
        dtype: What the bytes mean where numpy has no name for it, such as "bfloat16".
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
    """Bytes from the first number of an array to its lowest byte, and behind its highest one."""
    ends = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + array.itemsize


def rows_are_blocks(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> bool:
    """Tells whether each row is contiguous and the rows follow each other upwards in memory."""
    if 0 in shape:
        return True
    expected = item_bytes
    for length, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return shape[0] == 1 or strides[0] >= 0


def is_tensor(value: object) -> bool:
    """Tells whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_array(tensor: Any, name: str) -> tuple[npt.NDArray[Any], str]:
    """An array over the memory of a CPU tensor, and the name of the tensor's dtype.

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
    """An array that lies in a file, as a pickle carries it.

    Attributes:
        path: Of the file.
        offset: The byte of the file where the lowest byte of the array lies.
        size_bytes: From there to behind the highest one.
        dtype: Of the array.
        shape: Of the array.
        strides: Of the array.
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
    """The file behind a `readable` view of a memmap; None if there is none or it may differ."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    # A copy-on-write map may hold what its file does not.
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
