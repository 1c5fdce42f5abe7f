"""Names of dtypes, the same for all options, and arrays of dtypes that numpy lacks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.formats.fields import DTYPES, STORED_AS

_SHORT = {
    "bf16": "bfloat16",
    "half": "float16",
    "double": "float64",
    "cdouble": "complex128",
    "short": "int16",
    "long": "int64",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (16, 32, 64)},
}
_TORCH = {"float": "float32", "int": "int32", "cfloat": "complex64"}
_NUMPY = {"float": "float64", "int": "int64", "cfloat": "complex128"}
TEXT_NAMES = ("text", "utf8", "str")
"""What `dtypes` calls text."""

_CODE = re.compile(r"[?biufc](1|2|4|8|16)?")  # numpy's, of kind and bytes


def dtype_name(given: Any) -> str:
    """Returns the name of a dtype in the file format, one of `DTYPES`.

    Args:
        given: A name of torch's or numpy's ("uint8", "torch.float32", "<f4"), a short one ("bf16",
            "f16", "i32"), or a dtype of torch, numpy or ml_dtypes itself.

    Raises:
        ValueError: it is none of these, means two things, or is big-endian.

    Example:
        >>> dtype_name("bf16"), dtype_name(np.dtype("f2")), dtype_name("<i8")
        ('bfloat16', 'float16', 'int64')
    """
    name, is_big_endian = parse_dtype(given)
    if is_big_endian:
        raise ValueError(
            f"dtype {given!r} is big-endian; that is possible only for raw files, which `fastload "
            f"pack` converts: here it is {name!r}"
        )
    return name


def parse_dtype(given: Any) -> tuple[str, bool]:
    """Returns the name of a dtype, see `dtype_name`, and True if its numbers are big-endian.

    Raises:
        ValueError: as `dtype_name`, but for byte orders.

    Example:
        >>> parse_dtype(">i4"), parse_dtype(">bf16")
        (('int32', True), ('bfloat16', True))
    """
    if isinstance(given, (type, np.dtype)):
        try:
            dtype = np.dtype(given)
        except TypeError:
            raise _unknown(given) from None
        text, order = dtype.name, ">" if dtype.str[0] == ">" else ""
    else:
        text = str(given).removeprefix("torch.")
        order = text[:1] if text[:1] in ("<", ">", "=", "|") else ""
        text = text[len(order) :]
    if text in _TORCH:
        raise ValueError(
            f"dtype {given!r} is {_TORCH[text]} in torch and {_NUMPY[text]} in numpy: name one"
        )
    name = _SHORT.get(text, text)
    if name not in DTYPES and _CODE.fullmatch(text):
        try:
            name = np.dtype(text).name
        except TypeError:
            raise _unknown(given) from None
    if name not in DTYPES:
        raise _unknown(given)
    return name, order == ">" and STORAGE_BYTES[name] > 1


STORAGE_BYTES = {name: np.dtype(STORED_AS.get(name, name)).itemsize for name in DTYPES}
"""The bytes of a number of each dtype."""


def _unknown(given: Any) -> ValueError:
    return ValueError(
        f"dtype {given!r} is not supported; the dtypes are {', '.join(sorted(DTYPES))}, and short "
        "names such as bf16, f4 and i64"
    )


def as_stored(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the array; one of an ml_dtypes dtype in `DTYPES` as a view of unsigned integers.

    numpy's own conversion to integers would change the values.

    Example:
        >>> as_stored(np.arange(2, dtype="float32"))
        array([0., 1.], dtype=float32)
    """
    storage = STORED_AS.get(array.dtype.name)
    return array if storage is None else array.view(storage)
