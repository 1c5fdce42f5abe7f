"""Leaves of samples: numbers of one shape, or text, bytes and lists of numbers of any length."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.formats.arrays import described, is_tensor, number_kind, tensor_array
from fastload.formats.dtypes import as_stored
from fastload.formats.fields import BYTE_STRINGS, TEXT, Field
from fastload.packing.columns import Array
from fastload.packing.inputs.exact import ChangedNumber

_SCALARS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_IMAGE_MODES = ("L", "RGB", "RGBA")
NO_DTYPE = ""
"""Dtype of a list without values, which fits every dtype."""
BEYOND_INT64 = "integer"
"""Dtype of Python integers that fit only uint64, unless an option selects uint64."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A leaf as it will be stored.

    Attributes:
        content: Bytes for text and bytes, otherwise an array.
        dtype: Name of the dtype; NO_DTYPE for a list without values; BEYOND_INT64 for integers that
            fit only uint64, unless an option selects uint64.
        logical: As in `Field`.
        missing: bool mask of missing numbers with the shape of the content, which is zero there;
            None if no number is missing.
    """

    content: bytes | Array
    dtype: str
    logical: str | None = None
    missing: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array; `(length,)` for bytes."""
        return (len(self.content),) if isinstance(self.content, bytes) else self.content.shape

    def __str__(self) -> str:
        return self.logical or f"{self.dtype or 'empty'} {list(self.shape)}"


_TIMES = (np.datetime64, np.timedelta64)

MISSING = Leaf(b"", NO_DTYPE)
"""A leaf that is missing as a whole."""


def is_missing(value: Any) -> bool:
    """Returns whether a value is missing: None, masked, or pandas' NA and NaT.

    Example:
        >>> is_missing(None), is_missing(np.ma.masked), is_missing(float("nan"))
        (True, True, False)
    """
    kind = type(value)
    return value is MISSING or _is_none(kind) or (kind in _TIMES and _is_bare_nat(value))


def has_missing(value: Any) -> bool:
    """Returns whether a value, or a number in it, is missing."""
    if type(value) is list:
        return any(map(has_missing, value))
    if isinstance(value, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(value).any())
    return is_missing(value)


def _is_bare_nat(value: Any) -> bool:
    """Returns whether a time is NaT without a unit, which has no storable dtype."""
    return bool(np.isnat(value)) and np.datetime_data(value.dtype)[0] == "generic"


def _is_none(kind: type) -> bool:
    """Returns whether all values of a type are missing."""
    if kind is type(None) or kind is type(np.ma.masked):
        return True
    return kind.__name__ in ("NAType", "NaTType") and kind.__module__.startswith("pandas.")


def read_leaf(value: Any, name: str, index: int | None = None) -> Leaf:
    """Converts a value to a leaf.

    Args:
        value: Text, bytes, a number, an array, a CPU tensor, a Pillow image, a list of numbers, a
            missing value (`is_missing`), or a `Leaf`.
        name: Name of the field, for errors.
        index: Number of the sample, for errors; None if the caller adds it.

    Raises:
        TypeError: the value has a type that cannot be packed.
        ValueError: the text is not valid Unicode, or a number is too large.
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
    if is_missing(value):
        return MISSING
    if type(value) is list:
        return _read_list(value, where)
    if type(value) is int and not -(2**63) <= value < 2**63:
        if not 0 <= value < 2**64:
            raise ValueError(f"{where}: {value} exceeds int64 and uint64")
        return Leaf(np.array(value, np.uint64), BEYOND_INT64)
    if isinstance(value, np.ma.MaskedArray):
        leaf = read_leaf(value.filled(value.dtype.type(0)), name, index)
        mask = np.ma.getmaskarray(value)
        return replace(leaf, missing=mask) if mask.any() else leaf
    array, dtype = _array(value, name, where)
    kind = number_kind(array.dtype)
    if kind is None:
        raise TypeError(
            f"{where}: dtype {described(array.dtype)} cannot be packed; "
            "numbers, and dates with a unit, can"
        )
    array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
    if kind[1] is not None:
        array = array.view(np.int64)
    return Leaf(as_stored(array), dtype or kind[0], kind[1])


def _read_list(value: list[Any], where: str) -> Leaf:
    members = list(_flat(value)) if list in set(map(type, value)) else value
    kinds = {kind for kind in set(map(type, members)) if not _is_none(kind)}
    some_missing = any(map(_is_none, set(map(type, members))))
    mask = None
    try:
        if some_missing:
            known = next((of for of in members if not is_missing(of)), 0.0)
            # A zero of their dtype, so that the dtype of the other numbers does not change.
            zero = np.zeros((), np.asarray(known).dtype)[()]
            mask = np.array(_mapped(value, is_missing))
            value = _mapped(value, lambda of: zero if is_missing(of) else of)
        array = np.array(value) if value else np.zeros(0)
        beyond = kinds == {int} and array.dtype.kind != "i"
        if beyond:
            if any(of < 0 for of in members if not is_missing(of)):
                raise ValueError("no dtype can represent all of its integers")
            array = np.array(value, np.uint64)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = f"a list whose members differ in shape or type: {error}"
        raise ValueError(f"{where}: {reason}") from error
    kind = number_kind(array.dtype)
    if kind is None or kind[1] is not None:
        raise TypeError(
            f"{where} is a list of {type(value[0]).__name__}; lists of "
            "varying length can be packed if they hold numbers"
        )
    known = [of for of in members if not is_missing(of)]
    if known:
        _check_members(known, kind[0], where)
    dtype = BEYOND_INT64 if beyond else kind[0]
    return Leaf(as_stored(array), dtype if known else NO_DTYPE, missing=mask)


def _flat(value: list[Any]) -> Iterator[Any]:
    """Yields the members of nested lists."""
    for member in value:
        if type(member) is list:
            yield from _flat(member)
        else:
            yield member


def _mapped(value: list[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Returns the nested lists with `function(member)` in place of each member."""
    return [_mapped(of, function) if type(of) is list else function(of) for of in value]


def _check_members(numbers: Sequence[Any], dtype: str, where: str) -> None:
    """Raises ValueError for Python numbers that the dtype of their list cannot represent."""
    kinds = set(map(type, numbers))
    if bool in kinds and len(kinds) > 1:
        raise ValueError(f"{where}: a list of bools and numbers")
    if ChangedNumber in kinds:
        first = next(number for number in numbers if type(number) is ChangedNumber)
        raise ValueError(f"{where}: {first.text} {first.reason}")
    if int not in kinds or not dtype.startswith("float"):
        return
    if kinds == {int}:
        raise ValueError(f"{where}: no dtype can represent all of its integers")
    if not all(type(number) is not int or int(float(number)) == number for number in numbers):
        raise ValueError(f"{where}: a list of floats with an integer that float64 cannot represent")


def _array(leaf: Any, name: str, where: str) -> tuple[Array, str | None]:
    """Returns the leaf as an array, and its dtype if numpy has no such dtype."""
    if (scalar := _SCALARS.get(type(leaf))) is not None:
        try:
            return np.array(leaf, scalar), None
        except OverflowError as error:
            raise ValueError(f"{where}: {leaf} exceeds int64") from error
    if isinstance(leaf, (np.ndarray, np.generic)):
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


_UNKNOWN = Leaf(np.zeros(()), "float64")  # replaces leaves that are all missing


def field_of_leaves(name: str, leaves: Sequence[Leaf], indices: Sequence[int]) -> Field:
    """Returns the field of leaves that some samples have at one position.

    The field is ragged if the leaves are text or bytes, or if their first lengths differ. If all
    leaves are missing, the field holds float64 scalars.

    Raises:
        ValueError: the leaves do not agree; the message names a sample.
    """
    known = [leaf for leaf in leaves if leaf is not MISSING]
    if known and all(leaf.dtype == NO_DTYPE for leaf in known):
        raise ValueError(
            f"sample {indices[0]}: field {name!r}: its lists are empty in all probed samples, so "
            f"its dtype is unknown; --dtypes {name}=DTYPE (dtypes=) sets it, --ragged {name} "
            "(ragged=) assumes float64, and --fields (fields=) leaves the field out"
        )
    first = next((leaf for leaf in known if leaf.dtype), _UNKNOWN)
    dtype = first.dtype
    lengths = {leaf.shape[:1] for leaf in known}
    ragged = first.logical in BYTE_STRINGS or (len(lengths) > 1 and () not in lengths)
    shape = first.shape[1:] if ragged else first.shape
    field = Field(name, dtype, shape, ragged, first.logical)
    for leaf, index in zip(leaves, indices, strict=True) if known else ():
        fit(leaf, field, index, f"sample {indices[leaves.index(first)]}")
    return field


def mean_bytes(field: Field, leaves: Sequence[Leaf]) -> int:
    """Returns the mean size in bytes of the leaves of a ragged field; 0 for other fields."""
    if not field.ragged:
        return 0
    lengths = (leaf.shape[0] for leaf in leaves if leaf is not MISSING)
    return sum(lengths) * field.row_bytes // len(leaves)


def fit(leaf: Leaf, field: Field, index: int, model: str = "the field") -> bytes | Array:
    """Returns the content of a leaf as it is stored in a field.

    Raises:
        ValueError: the leaf does not fit the field; the message names the sample.
    """
    if leaf is MISSING:
        if field.logical in BYTE_STRINGS:
            return b""
        return np.zeros((0, *field.shape) if field.ragged else field.shape, field.storage)
    if leaf.dtype == field.dtype and leaf.logical == field.logical:
        shape = leaf.shape[1:] if field.ragged else leaf.shape
        if shape == field.shape and (leaf.shape or not field.ragged):
            return leaf.content
    if leaf.dtype == NO_DTYPE and field.logical is None:
        shape = leaf.shape
        if field.ragged and (shape[1:] == field.shape or shape == (0,)):
            return np.zeros((*shape[:1], *field.shape), field.storage)
        if shape == field.shape:
            return np.zeros(shape, field.storage)
    advice = "all samples must agree"
    if leaf.dtype == field.dtype and leaf.shape[1:] == field.shape[1:] and not field.ragged:
        advice = (
            "all probed samples have one length; to let it vary, use --ragged (ragged=) if the "
            "kind supports it, otherwise an array of dtype object, or put a sample of another "
            "length first"
        )
    elif _is_number(leaf) and _is_number(field) and leaf.shape == field.shape:
        advice += f", or --dtypes {field.name}=DTYPE (dtypes=) sets a dtype for all of them"
    raise ValueError(
        f"sample {index}: field {field.name!r} is {leaf}, but {model} has "
        f"{field.logical or field}; {advice}"
    )


def _is_number(of: Leaf | Field) -> bool:
    return of.logical is None and of.dtype != NO_DTYPE
