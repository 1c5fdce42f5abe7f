"""What a leaf of a sample is: numbers of one shape, or text, bytes and numbers of any length."""

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
LEFT_OPEN = ""
"""The dtype of a list without values."""
BEYOND_INT64 = "integer"
"""The dtype of Python integers that only uint64 holds, unless an option names uint64."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A leaf as it will be stored.

    Attributes:
        content: The bytes of a text or bytes, else an array.
        dtype: Its name; empty for a list without values, which is of every dtype; "integer" for
            integers that only uint64 holds, where no option names it.
        logical: As in `Field`.
        missing: bools like the content, zero where they are: the numbers that are missing.
    """

    content: bytes | Array
    dtype: str
    logical: str | None = None
    missing: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array; `(length,)` of bytes."""
        return (len(self.content),) if isinstance(self.content, bytes) else self.content.shape

    def __str__(self) -> str:
        return self.logical or f"{self.dtype or 'empty'} {list(self.shape)}"


_TIMES = (np.datetime64, np.timedelta64)

MISSING = Leaf(b"", LEFT_OPEN)
"""A leaf of which nothing is there."""


def is_missing(value: Any) -> bool:
    """Whether a value of a sample says that there is none: None, a masked one, pandas' NA and NaT.

    Example:
        >>> is_missing(None), is_missing(np.ma.masked), is_missing(float("nan"))
        (True, True, False)
    """
    kind = type(value)
    return value is MISSING or _is_none(kind) or (kind in _TIMES and _is_bare_nat(value))


def has_missing(value: Any) -> bool:
    """Whether a value is missing, or some of the numbers in it."""
    if type(value) is list:
        return any(map(has_missing, value))
    if isinstance(value, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(value).any())
    return is_missing(value)


def _is_bare_nat(value: Any) -> bool:
    """Whether a time is NaT without a unit, `np.datetime64("NaT")`; others tell their dtype."""
    return bool(np.isnat(value)) and np.datetime_data(value.dtype)[0] == "generic"


def _is_none(kind: type) -> bool:
    """Whether the values of a type are missing ones."""
    if kind is type(None) or kind is type(np.ma.masked):
        return True
    return kind.__name__ in ("NAType", "NaTType") and kind.__module__.startswith("pandas.")


def read_leaf(value: Any, name: str, index: int | None = None) -> Leaf:
    """What a leaf holds.

    Args:
        value: Text, bytes, a number, an array, a CPU tensor, a Pillow image, a list of numbers,
            nothing (`is_missing`) or what is a `Leaf` already.
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
    if is_missing(value):
        return MISSING
    if type(value) is list:
        return _read_list(value, where)
    if type(value) is int and not -(2**63) <= value < 2**63:
        if not 0 <= value < 2**64:
            raise ValueError(f"{where}: {value} exceeds int64, and uint64")
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
            "plain numbers, and dates with a unit, can"
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
            # A zero of their kind, so that the others stay what they are.
            zero = np.zeros((), np.asarray(known).dtype)[()]
            mask = np.array(_mapped(value, is_missing))
            value = _mapped(value, lambda of: zero if is_missing(of) else of)
        array = np.array(value) if value else np.zeros(0)
        beyond = kinds == {int} and array.dtype.kind != "i"
        if beyond:
            if any(of < 0 for of in members if not is_missing(of)):
                raise ValueError("integers that no dtype holds all of")
            array = np.array(value, np.uint64)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = f"a list of unequal or other members: {error}"
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
    return Leaf(as_stored(array), dtype if known else LEFT_OPEN, missing=mask)


def _flat(value: list[Any]) -> Iterator[Any]:
    """The members of lists in lists."""
    for member in value:
        if type(member) is list:
            yield from _flat(member)
        else:
            yield member


def _mapped(value: list[Any], function: Callable[[Any], Any]) -> list[Any]:
    """The lists in lists with `function(member)` for each member."""
    return [_mapped(of, function) if type(of) is list else function(of) for of in value]


def _check_members(numbers: Sequence[Any], dtype: str, where: str) -> None:
    """Raises ValueError for numbers of Python that the dtype of their list does not hold."""
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


_UNKNOWN = Leaf(np.zeros(()), "float64")  # in the place of leaves that are all missing


def field_of_leaves(name: str, leaves: Sequence[Leaf], indices: Sequence[int]) -> Field:
    """The field of leaves that some samples have in one place.

    It is ragged if they are text or bytes, or if they differ in their first length. If all are
    missing, it holds single numbers.

    Raises:
        ValueError: the leaves do not agree; the message names a sample.
    """
    known = [leaf for leaf in leaves if leaf is not MISSING]
    if known and all(leaf.dtype == LEFT_OPEN for leaf in known):
        raise ValueError(
            f"sample {indices[0]}: field {name!r}: its lists hold nothing in all samples that were "
            f"looked at, so that their type cannot be known; --dtypes {name}=DTYPE (dtypes=) says "
            f"it, --ragged {name} (ragged=) takes float64, and --fields (fields=) leaves the field "
            "out"
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
    """The mean size of the leaves of a ragged field; 0 of others."""
    if not field.ragged:
        return 0
    lengths = (leaf.shape[0] for leaf in leaves if leaf is not MISSING)
    return sum(lengths) * field.row_bytes // len(leaves)


def fit(leaf: Leaf, field: Field, index: int, model: str = "the field") -> bytes | Array:
    """The content of a leaf that belongs to a field.

    Raises:
        ValueError: it does not; the message names the sample.
    """
    if leaf is MISSING:
        if field.logical in BYTE_STRINGS:
            return b""
        return np.zeros((0, *field.shape) if field.ragged else field.shape, field.storage)
    if leaf.dtype == field.dtype and leaf.logical == field.logical:
        shape = leaf.shape[1:] if field.ragged else leaf.shape
        if shape == field.shape and (leaf.shape or not field.ragged):
            return leaf.content
    if leaf.dtype == LEFT_OPEN and field.logical is None:
        shape = leaf.shape
        if field.ragged and (shape[1:] == field.shape or shape == (0,)):
            return np.zeros((*shape[:1], *field.shape), field.storage)
        if shape == field.shape:
            return np.zeros(shape, field.storage)
    advice = "all samples must agree"
    if leaf.dtype == field.dtype and leaf.shape[1:] == field.shape[1:] and not field.ragged:
        advice = (
            "the samples that were looked at have one length; to let it vary: --ragged (ragged=) "
            "where the kind has it, else an array of dtype object, or a sample of another length "
            "first"
        )
    elif _is_number(leaf) and _is_number(field) and leaf.shape == field.shape:
        advice += f", or --dtypes {field.name}=DTYPE (dtypes=) names a dtype that holds them all"
    raise ValueError(
        f"sample {index}: field {field.name!r} is {leaf}, but {model} has "
        f"{field.logical or field}; {advice}"
    )


def _is_number(of: Leaf | Field) -> bool:
    return of.logical is None and of.dtype != LEFT_OPEN
