"""Exact or correctly rounded casts between dtypes, including bfloat16 and float8."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastload.formats.dtypes import dtype_name
from fastload.formats.fields import Field

if TYPE_CHECKING:  # some input kinds import this module
    from fastload.packing.columns import Array

# Exponent bits, mantissa bits, bias, code of NaN, code of values that are too large.
_FLOAT8 = {
    "float8_e4m3fn": (4, 3, 7, 0x7F, 0x7E),
    "float8_e4m3fnuz": (4, 3, 8, 0x80, 0x80),
    "float8_e5m2": (5, 2, 15, 0x7F, 0x7C),
    "float8_e5m2fnuz": (5, 2, 16, 0x80, 0x80),
}
_NO_TARGETS = {"float8_e8m0fnu"}
_BLOCK_ITEMS = 1 << 18


class CastError(ValueError):
    """Raised for a value that the target dtype cannot hold.

    Attributes:
        row: Index of the value along the first axis of the array.
        value: The value as text.
    """

    def __init__(self, row: int, value: str, dtype: str) -> None:
        super().__init__(f"{value} does not fit {dtype}")
        self.row = row
        self.value = value


def cast_target(given: Any) -> str:
    """Returns the name of the dtype that values are cast to, as `dtype_name` spells it.

    Raises:
        ValueError: the dtype cannot be the target of a cast.

    Example:
        >>> cast_target("bf16"), cast_target(np.dtype("f2"))
        ('bfloat16', 'float16')
    """
    name = dtype_name(given)
    if name in _NO_TARGETS:
        raise ValueError(f"values cannot be cast to {name}, which holds only powers of two")
    return name


def cast(array: Array, field: Field, dtype: str) -> Array:
    """Returns the values of a field in another dtype.

    Floats are rounded to the nearest value, ties to even. Values that are too large become the same
    as in torch: infinity, 448 in float8_e4m3fn, NaN in the fnuz dtypes. Integers and bools must
    hold each value exactly.

    Args:
        array: Values in the storage dtype of the field.
        field: Field of the array.
        dtype: Target dtype.

    Raises:
        CastError: a value does not fit the target dtype.
        TypeError: the values are complex and the target dtype is not.
    """
    target = Field(field.name, dtype, field.shape)
    if field.dtype.startswith("complex") and not dtype.startswith("complex"):
        raise TypeError(f"field {field.name!r}: {field.dtype} cannot be cast to {dtype}")
    made = np.empty(array.shape, target.storage)
    rows = max(_BLOCK_ITEMS // max(array[:1].size, 1), 1)  # temporary arrays stay small
    convert = _to_float(dtype) if "float" in dtype else functools.partial(_to_exact, dtype=dtype)
    for start in range(0, len(array), rows):
        block = _decoded(array[start : start + rows], field.dtype)
        try:
            with np.errstate(all="ignore"):
                made[start : start + rows] = convert(block)
        except CastError as error:
            raise CastError(start + error.row, error.value, dtype) from None
    return made


def _to_float(dtype: str) -> Callable[[Array], Array]:
    if dtype == "bfloat16":
        return _bfloat16
    if dtype in _FLOAT8:
        return functools.partial(_float8, dtype=dtype)
    if dtype == "float16":
        return lambda block: _wide(block).astype(np.float16)
    return lambda block: block.astype(dtype)


def _to_exact(block: Array, dtype: str) -> Array:
    """Casts to integers, bools or complex numbers; raises CastError for values that do not fit."""
    if dtype.startswith("complex"):
        return block.astype(dtype)
    limits = np.iinfo(np.uint8 if dtype == "bool" else dtype)
    least, most = (0, 1) if dtype == "bool" else (int(limits.min), int(limits.max))
    if block.dtype.kind == "f":
        # 2.0**63 is the float64 of both 2**63 and 2**63 - 1, so the upper end is excluded.
        fitting = (block == np.floor(block)) & (block >= float(least))
        fitting &= (block < float(most + 1)) if most > 1 else (block <= 1)
    elif block.dtype.kind == "b":
        fitting = np.ones(block.shape, bool)
    else:
        own = np.iinfo(block.dtype)
        fitting = (block >= max(least, int(own.min))) & (block <= min(most, int(own.max)))
    if not fitting.all():
        bad = np.argwhere(~fitting)[0]
        raise CastError(int(bad[0]), str(block[tuple(bad)]), dtype)
    return block.astype(dtype)


def _wide(block: Array) -> Array:
    """Returns 64-bit integers as float64, rounded to odd, so that a second rounding is correct."""
    if block.dtype.kind not in "iu" or block.dtype.itemsize < 8:
        return block
    return _odd(block.astype(np.float64), lambda near: _compare(block, near))


def _compare(exact: Array, near: Array) -> Array:
    """Returns -1, 0 or 1 where the integers are less than, equal to or more than the floats."""
    inside = near < 2.0 ** (63 if exact.dtype.kind == "i" else 64)  # else rounded up to the power
    back = np.where(inside, near, 0).astype(exact.dtype)
    order = (exact > back).astype(np.int8) - (exact < back).astype(np.int8)
    return np.where(inside, order, np.int8(-1))


def _odd(near: Array, compare: Callable[[Array], Array]) -> Array:
    """Returns the nearest floats; inexact ones with an even last bit become the odd neighbour."""
    order = compare(near)
    bits: Array = near.view(np.int64 if near.itemsize == 8 else np.int32)
    even = (bits & 1 == 0) & (order != 0)
    outward = (order > 0) == (near >= 0)
    moved: Array = bits + np.where(even, np.where(outward, 1, -1), 0).astype(bits.dtype)
    return moved.view(near.dtype)


def _single(block: Array) -> Array:
    """Returns the values as float32, rounded to odd."""
    wide = _wide(block)
    if wide.dtype != np.float64:
        return wide.astype(np.float32)
    near = wide.astype(np.float32)
    near = np.where(np.isinf(near) & ~np.isinf(wide), np.copysign(np.finfo("f4").max, wide), near)
    near = near.astype(np.float32)

    def compare(near: Array) -> Array:
        back = near.astype(np.float64)
        return (wide > back).astype(np.int8) - (wide < back).astype(np.int8)

    return _odd(near, compare)


def _bfloat16(block: Array) -> Array:
    values = _single(block)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    nan = ((bits >> 16) & 0x8000) | 0x7FC0
    return np.where(np.isnan(values), nan, rounded).astype(np.uint16)


@functools.cache
def _float8_values(dtype: str) -> Array:
    """Returns the values of the 256 codes of a float8 dtype."""
    exponents, mantissas, bias, nan, too_large = _FLOAT8[dtype]
    codes = np.arange(256)
    exponent = (codes >> mantissas) & (2**exponents - 1)
    fraction = (codes & (2**mantissas - 1)) / 2.0**mantissas
    values = np.where(
        exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias)
    )
    values = np.where(codes & 0x80, -values, values)
    if too_large == 0x7C:
        top = exponent == 2**exponents - 1
        values[top] = np.where(fraction[top] == 0, np.copysign(np.inf, values[top]), np.nan)
    values[[nan, nan | 0x80]] = np.nan
    made: Array = values
    return made


def _float8(block: Array, dtype: str) -> Array:
    _, _, _, nan, too_large = _FLOAT8[dtype]
    positive = _float8_values(dtype)[:0x80]
    finite = positive[np.isfinite(positive)]
    # One more value is added: what is rounded to it, ties included, is too large.
    ends = np.append(finite, 2 * finite[-1] - finite[-2])
    middles = (ends[1:] + ends[:-1]) / 2
    size = np.abs(_wide(block).astype(np.float64))
    code = np.searchsorted(middles, size, "left")
    tie = middles[np.minimum(code, len(finite) - 1)] == size
    code += tie & (code & 1 == 1)
    code = np.where(code >= len(finite), too_large, code)
    code = np.where(np.isnan(size), nan, code)
    signed = np.signbit(block) if block.dtype.kind == "f" else block < 0
    if nan == 0x80:  # fnuz dtypes have no negative zero
        signed &= (code != 0) & (code != nan)
    coded: Array = np.where(signed, code | 0x80, code)
    return coded.astype(np.uint8)


def _decoded(array: Array, dtype: str) -> Array:
    """Returns stored values in a numpy dtype that holds them exactly."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in _FLOAT8:
        values: Array = _float8_values(dtype)[array]
        return values.astype(np.float32)
    if dtype == "float8_e8m0fnu":
        return np.where(array == 0xFF, np.nan, 2.0 ** (array.astype(np.float64) - 127))
    return array != 0 if dtype == "bool" else array


def nan_code(dtype: str) -> Any:
    """Returns NaN as it is stored in a floating dtype.

    Example:
        >>> hex(nan_code("bfloat16"))
        '0x7fc0'
    """
    if dtype in _NO_TARGETS:
        return np.uint8(0xFF)
    return cast(np.array([np.nan]), Field("nan", "float64", ()), dtype)[0]


def decoded(array: Array, field: Field) -> Array:
    """Returns the values of a field in a numpy dtype that holds them exactly."""
    return _decoded(array, field.dtype)


def parse_casts(option: str, casts: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the target dtypes of an option, by field name.

    Raises:
        ValueError: values cannot be cast to a dtype; the message names the option and the field.
    """
    parsed = {}
    for name, dtype in (casts or {}).items():
        try:
            parsed[name] = cast_target(dtype)
        except ValueError as error:
            raise ValueError(f"{option}: field {name!r}: {error}") from None
    return parsed
