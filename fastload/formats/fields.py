"""Description of an array of a sample: dtype, shape and meaning."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

# What numpy lacks is stored as integers of the same width; torch views it afterwards.
STORED_AS = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_OTHERS = ["bool", "float16", "float32", "float64", "complex64", "complex128"]
DTYPES = frozenset([*_INTEGERS, *_OTHERS, *STORED_AS])
"""The names of the supported dtypes, as torch and numpy spell them."""

MAX_BYTES = 2**62
"""A cap on every size and offset: sums of two of them still fit 64 bits."""

TEXT = "utf8"
IMAGE = "image"
BYTE_STRINGS = frozenset([TEXT, "bytes", IMAGE, "audio"])
"""What ragged uint8 fields of shape () can mean; samples are str for text, else bytes."""

_TIME = re.compile(r"(datetime64|timedelta64)\[([1-9][0-9]{0,8})?(Y|M|W|D|h|m|s|[munpfa]s)\]")


@dataclass(frozen=True)
class Field:
    """One array of a sample.

    Attributes:
        name: For messages and listings; the sample's keys joined by dots.
        dtype: As torch and numpy spell it: "uint8", "bool", "bfloat16", "float8_e4m3fn", ...
        shape: Shape of a sample, `()` for a number; of an element if the field is ragged.
        ragged: Each sample has a length of its own: its shape is (length, *shape).
        logical: Meaning of the numbers beyond the dtype: "utf8", "bytes", "image"
            and "audio" (ragged uint8 of shape ()), "datetime64[ns]", "timedelta64[s]", ... (int64).
        sized: True in written files if height and width of each image are stored with it; not
            compared.

    Raises:
        ValueError: the dtype or meaning is not supported, or the shape is negative or too large.

    Example:
        >>> Field("image", "uint8", (224, 224, 3)).row_bytes
        150528
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    ragged: bool = False
    logical: str | None = None
    sized: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            known = ", ".join(sorted(DTYPES))
            raise ValueError(
                f"field {self.name!r}: dtype {self.dtype!r} is not supported; known are {known}"
            )
        if any(length < 0 for length in self.shape):
            raise ValueError(f"field {self.name!r}: negative shape {self.shape}")
        # Also without its empty axes: a numpy array must be able to carry the shape.
        if max(math.prod(n for n in self.shape if n) * self.storage.itemsize, 1) > MAX_BYTES:
            raise ValueError(f"field {self.name!r}: shape {self.shape} is too large")
        if self.sized and self.logical != IMAGE:
            raise ValueError(f"field {self.name!r}: only images have sizes")
        if self.logical is None:
            return
        if self.logical in BYTE_STRINGS:
            fits = self.ragged and self.dtype == "uint8" and self.shape == ()
        else:
            fits = bool(_TIME.fullmatch(self.logical)) and self.dtype == "int64"
        if not fits:
            raise ValueError(f"field {self.name!r}: not a meaning that is known: {self}")

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy dtype that carries the bytes: uint16 for bfloat16, uint8 for float8."""
        return np.dtype(STORED_AS.get(self.dtype, self.dtype))

    @property
    def row_bytes(self) -> int:
        """Bytes of the field in one sample; in one element if it is ragged."""
        return math.prod(self.shape) * self.storage.itemsize

    def __str__(self) -> str:
        meaning = "" if self.logical is None else f" ({self.logical})"
        return f"{self.dtype} {[-1, *self.shape] if self.ragged else list(self.shape)}{meaning}"


def as_written(fields: Sequence[Field]) -> tuple[Field, ...]:
    """The fields as a new dataset has them: images with their sizes."""
    return tuple(replace(of, sized=of.logical == IMAGE) for of in fields)


def torch_dtype(name: str) -> Any:
    """The torch.dtype of that name, one of `DTYPES`.

    Raises:
        ValueError: the torch that is installed is older than the dtype.
    """
    import torch

    if not hasattr(torch, name):
        raise ValueError(f"torch {torch.__version__} has no {name}; a newer one has")
    return getattr(torch, name)


def schema(fields: Sequence[Field]) -> list[dict[str, object]]:
    """The fields in JSON's types, as manifest and shards record them."""
    return [
        {
            "name": of.name,
            "kind": "sized" if of.sized else "ragged" if of.ragged else "fixed",
            "dtype": of.dtype,
            "shape": list(of.shape),
            **({} if of.logical is None else {"logical": of.logical}),
        }
        for of in fields
    ]


def read_schema(entries: Any) -> tuple[Field, ...]:
    """The fields that `schema` wrote.

    Raises:
        ValueError: `entries` is not the like; a kind or meaning is not known.
    """
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("the fields must be a list of objects")
    return tuple(map(_read_field, entries))


def _read_field(entry: dict[str, Any]) -> Field:
    name, kind, dtype, shape = (entry[key] for key in ("name", "kind", "dtype", "shape"))
    logical = entry.get("logical")
    if not isinstance(name, str) or not isinstance(dtype, str):
        raise ValueError(f"field {name!r:.50}: name and dtype must be str")
    if kind not in ("fixed", "ragged", "sized"):
        raise ValueError(f"field {name!r}: kind {kind!r:.50} needs a newer fastload")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"field {name!r}: its shape must hold counts, not {shape!r:.50}")
    if logical is not None and not isinstance(logical, str):
        raise ValueError(f"field {name!r}: 'logical' must be str, not {logical!r:.50}")
    return Field(name, dtype, tuple(shape), kind != "fixed", logical, kind == "sized")
