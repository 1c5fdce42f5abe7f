"""What a leaf of a sample is: numbers of one shape, or text, bytes and numbers of any length."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.formats.arrays import described, is_tensor, number_kind, tensor_array
from fastload.formats.dtypes import as_stored
from fastload.formats.extents import Field
from fastload.formats.fields import BYTE_STRINGS, TEXT
from fastload.pack.sources.base import Array
from fastload.pack.sources.exact import ChangedNumber

_SCALARS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_IMAGE_MODES = ("L", "RGB", "RGBA")
LEFT_OPEN = ""
"""The dtype of an empty list."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A leaf as it will be stored.

    Attributes:
        content: The bytes of a text or bytes, else an array.
        dtype: Its name; empty for an empty list, which is of every dtype.
        logical: As in `Field`.
    """

    content: bytes | Array
    dtype: str
    logical: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array; `(length,)` of bytes."""
        return (len(self.content),) if isinstance(self.content, bytes) else self.content.shape

    def __str__(self) -> str:
        return self.logical or f"{self.dtype or 'empty'} {list(self.shape)}"


def read_leaf(value: Any, name: str, index: int | None = None) -> Leaf:
    """What a leaf holds.

    Args:
        value: Text, bytes, a number, an array, a CPU tensor, a Pillow image, a list of numbers or
            what is a `Leaf` already.
        name: Of the field, for errors.
        index: Of the sample, for errors; None where the caller names it.

    Raises:
        TypeError: it is nothing that can be packed.
        ValueError: text that is not valid, or a number that is too large.
    """
    where = f"field {name!r}" if index is None else f"sample {index}: field {name!r}"
    if isinstance(value, str):
        try:
            return Leaf(value.encode("utf-8"), "uint8", TEXT)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{where}: the text is not valid Unicode: a lone surrogate "
                f"at character {error.start}"
            ) from error
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Leaf(bytes(value), "uint8", "bytes")
    if isinstance(value, Leaf):
        return value
    if type(value) is list:
        return _read_list(value, where)
    array, dtype = _array(value, name, where)
    kind = number_kind(array.dtype)
    if kind is None:
        raise TypeError(
            f"{where}: dtype {described(array.dtype)} cannot be packed; "
            "plain numbers, and dates with a unit, can"
        )
    array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
    if kind[1] is not None:
        array = array.view(np.int64)
    return Leaf(as_stored(array), dtype or kind[0], kind[1])


def _read_list(value: list[Any], where: str) -> Leaf:
    try:
        array = np.array(value) if value else np.zeros(0)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = f"a list of unequal or other members: {error}"
        raise ValueError(f"{where}: {reason}") from error
    kind = number_kind(array.dtype)
    if kind is None or kind[1] is not None:
        raise TypeError(
            f"{where} is a list of {type(value[0]).__name__}; lists of "
            "varying length can be packed if they hold numbers"
        )
    if array.size:
        _check_members(value, kind[0], where)
    return Leaf(as_stored(array), kind[0] if array.size else LEFT_OPEN)


def _check_members(value: list[Any], dtype: str, where: str) -> None:
    """Raises ValueError for numbers of Python that the dtype of their list does not hold."""
    numbers = value
    while any(type(member) is list for member in numbers):
        numbers = [number for member in numbers for number in member]
    kinds = set(map(type, numbers))
    if bool in kinds and len(kinds) > 1:
        raise ValueError(f"{where}: true and false among numbers")
    if ChangedNumber in kinds:
        first = next(number for number in numbers if type(number) is ChangedNumber)
        raise ValueError(f"{where}: {first.text} {first.reason}")
    if int not in kinds or not dtype.startswith("float"):
        return
    if kinds == {int}:
        raise ValueError(f"{where}: integers that no dtype holds all of")
    if not all(type(number) is not int or int(float(number)) == number for number in numbers):
        raise ValueError(f"{where}: an integer among floats that float64 does not hold")


def _array(leaf: Any, name: str, where: str) -> tuple[Array, str | None]:
    """The leaf as an array, and its dtype where numpy has no name for it."""
    if (scalar := _SCALARS.get(type(leaf))) is not None:
        try:
            return np.array(leaf, scalar), None
        except OverflowError as error:
            raise ValueError(f"{where}: {leaf} exceeds int64") from error
    if isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, np.ma.MaskedArray):
        return np.asarray(leaf), None
    if is_tensor(leaf):
        return tensor_array(leaf.detach().cpu().resolve_conj().resolve_neg().contiguous(), name)
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if image is not None and isinstance(leaf, image):
        if leaf.mode in _IMAGE_MODES:
            return np.asarray(leaf), None
        raise TypeError(
            f"{where} is an image of mode {leaf.mode}; convert it to one "
            f"of {', '.join(_IMAGE_MODES)}"
        )
    raise TypeError(
        f"{where} is {type(leaf).__name__}; numbers, arrays, tensors, text and bytes can be packed"
    )


def field_of_leaves(name: str, leaves: Sequence[Leaf], indices: Sequence[int]) -> Field:
    """The field of leaves that some samples have in one place.

    It is ragged if they are text or bytes, or if they differ in their first length.

    Raises:
        ValueError: the leaves do not agree; the message names a sample.
    """
    if all(leaf.dtype == LEFT_OPEN for leaf in leaves):
        raise ValueError(
            f"sample {indices[0]}: field {name!r}: its lists are empty in all samples that were "
            f"looked at, so that their type cannot be known; --dtypes {name}=DTYPE (dtypes=) says "
            f"it, --ragged {name} (ragged=) takes float64, and --fields (fields=) leaves the field "
            "out"
        )
    first = next(leaf for leaf in leaves if leaf.dtype)
    dtype = first.dtype
    lengths = {leaf.shape[:1] for leaf in leaves}
    ragged = first.logical in BYTE_STRINGS or (len(lengths) > 1 and () not in lengths)
    shape = first.shape[1:] if ragged else first.shape
    field = Field(name, dtype, shape, ragged, first.logical)
    for leaf, index in zip(leaves, indices, strict=True):
        fit(leaf, field, index, f"sample {indices[leaves.index(first)]}")
    return field


def mean_bytes(field: Field, leaves: Sequence[Leaf]) -> int:
    """The mean size of the leaves of a ragged field; 0 of others."""
    if not field.ragged:
        return 0
    return sum(leaf.shape[0] for leaf in leaves) * field.row_bytes // len(leaves)


def fit(leaf: Leaf, field: Field, index: int, model: str = "the field") -> bytes | Array:
    """The content of a leaf that belongs to a field.

    Raises:
        ValueError: it does not; the message names the sample.
    """
    if leaf.dtype == field.dtype and leaf.logical == field.logical:
        shape = leaf.shape[1:] if field.ragged else leaf.shape
        if shape == field.shape and (leaf.shape or not field.ragged):
            return leaf.content
    if leaf.dtype == LEFT_OPEN and field.ragged and leaf.logical == field.logical:
        return np.zeros((0, *field.shape), field.storage)
    advice = "all samples must agree"
    if leaf.dtype == field.dtype and leaf.shape[1:] == field.shape[1:] and not field.ragged:
        advice = (
            "the samples that were looked at have one length; to let it vary: --ragged (ragged=) "
            "where the kind has it, else an array of dtype object, or a sample of another length "
            "first"
        )
    raise ValueError(
        f"sample {index}: field {field.name!r} is {leaf}, but {model} has "
        f"{field.logical or field}; {advice}"
    )
