"""Casts: bit for bit what torch makes of floats, and integers that keep their values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from samples import TORCH_ONLY

from fastload.formats.fields import Field
from fastload.packing.cast import CastError, cast, cast_target, decoded

FLOATS = [
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
]
# Of float8_e4m3fn: older torch makes NaN of what is too large, newer the largest number.
OVERFLOWS = bool(torch.tensor(465.0).to(torch.float8_e4m3fn).float().isnan())
BITS = {1: torch.uint8, 2: torch.int16}


def bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(BITS[tensor.element_size()]).numpy()


def casted(array: np.ndarray, dtype: str, name: str | None = None) -> np.ndarray:
    return cast(array, Field("x", name or array.dtype.name, array.shape[1:]), dtype)


def check(values: np.ndarray, dtype: str) -> None:
    """Compares with torch; all NaNs count as one."""
    got = torch.from_numpy(casted(values, dtype).copy()).view(getattr(torch, dtype))
    want = torch.from_numpy(values).to(getattr(torch, dtype))
    different = bits(got) != bits(want)
    different &= ~(got.float().isnan() & want.float().isnan()).numpy()
    if dtype == "float8_e4m3fn" and OVERFLOWS:
        different &= ~(np.abs(values) > 464)
    assert not different.any(), values[different][:5]


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_rounded_as_torch_does(dtype: str) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    random = np.random.default_rng(0)
    singles = random.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    check(halves, dtype)
    check(np.concatenate([singles, halves, random.normal(size=100_000) * 300], dtype="f4"), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_all_values_between_two_neighbours(dtype: str) -> None:
    """Middles, and what lies just beside them, where rounding twice would go wrong."""
    storage = Field("x", dtype, ()).storage
    codes = np.arange(2 ** (8 * storage.itemsize), dtype=f"u{storage.itemsize}").view(storage)
    with np.errstate(invalid="ignore"):  # NaNs that signal
        values = decoded(codes, Field("x", dtype, ())).astype(np.float64)
    finite = np.unique(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2
    below, above = np.nextafter(middles, -np.inf), np.nextafter(middles, np.inf)
    for probes, want in ((below, finite[:-1]), (above, finite[1:])):
        got = decoded(casted(probes, dtype), Field("x", dtype, ()))
        np.testing.assert_array_equal(got.astype(np.float64), want)
    tied = decoded(casted(middles, dtype), Field("x", dtype, ())).astype(np.float64)
    assert ((tied == finite[:-1]) | (tied == finite[1:])).all()
    assert (casted(middles, dtype).view(f"u{storage.itemsize}") & 1 == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("source", ["int64", "uint64", "int32", "uint8", "bool"])
def test_integers_become_the_nearest_float(source: str, dtype: str) -> None:
    random = np.random.default_rng(0)
    if source == "bool":
        values = np.array([False, True])
    else:
        limits = np.iinfo(source)
        near = [0, 1, 2047, 2049, 2051, 2**24 + 1, 2**53 + 1, 2**54 + 2, 2**62 + 2**38 + 1]
        near += [65519, 65520, 65521, limits.max, limits.min, limits.max - 1]
        inside = [n for n in near if limits.min <= n <= limits.max]
        drawn = random.integers(limits.min, limits.max, 2000, source, endpoint=True)
        values = np.concatenate([np.array(inside, source), drawn, drawn >> np.array(40, source)])
    got = decoded(casted(values, dtype), Field("x", dtype, ())).astype(np.float64)
    precision = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype]
    for value, made in zip(values.tolist(), got.tolist(), strict=True):
        want = nearest(int(value), precision)
        if dtype == "float16" and want >= 2**16:
            assert made == np.inf
        elif dtype == "float16" and want <= -(2**16):
            assert made == -np.inf
        else:
            assert made == want, value


def nearest(value: int, precision: int) -> int:
    """The integer rounded to so many binary digits, to even from the middle."""
    size = abs(value)
    drop = max(size.bit_length() - precision, 0)
    kept, rest = size >> drop, size & ((1 << drop) - 1)
    half = (1 << drop) >> 1
    kept += rest > half or (drop > 0 and rest == half and kept & 1)
    return (kept << drop) * (1 if value >= 0 else -1)


@pytest.mark.parametrize(
    ("values", "dtype", "bad"),
    [
        (np.array([0, 255, 256]), "uint8", "256"),
        (np.array([-128, 127, -129]), "int8", "-129"),
        (np.array([0, -1]), "uint64", "-1"),
        (np.array([2**64 - 1], "u8"), "int64", "18446744073709551615"),
        (np.array([2**63], "u8"), "int64", "9223372036854775808"),
        (np.array([0, 1, 2]), "bool", "2"),
        (np.array([1.0, 2.5]), "int32", "2.5"),
        (np.array([np.nan]), "int64", "nan"),
        (np.array([2.0**63]), "int64", "9.223372036854775808e"),
        (np.array([-np.inf]), "int8", "-inf"),
        (np.array([1.0, 0.5]), "bool", "0.5"),
    ],
)
def test_integers_never_wrap(values: np.ndarray, dtype: str, bad: str) -> None:
    with pytest.raises(CastError) as raised:
        casted(values, dtype)
    assert raised.value.row == len(values) - 1
    assert raised.value.value.startswith(bad[:8])


def test_what_fits_is_kept_exactly() -> None:
    integers = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    for source in integers:
        for target in integers:
            limits = np.iinfo(source), np.iinfo(target)
            least, most = max(n.min for n in limits), min(n.max for n in limits)
            values = np.array([least, 0, 1, most], source)
            assert casted(values, target).tolist() == values.tolist()
            assert casted(values, target).dtype == target
    assert casted(np.array([-(2.0**63), 2.0**62]), "int64").tolist() == [-(2**63), 2**62]
    assert casted(np.array([0.0, 1.0]), "bool").tolist() == [False, True]
    assert casted(np.array([1 + 2j]), "complex64").tolist() == [1 + 2j]
    with pytest.raises(TypeError, match="complex128 cannot be cast to float32"):
        casted(np.array([1j]), "float32")


def test_rows_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast.__globals__, "_BLOCK_ITEMS", 10)
    values = np.arange(700).reshape(100, 7)
    np.testing.assert_array_equal(casted(values, "int16"), values)
    values[57, 3] = 1 << 20
    with pytest.raises(CastError) as raised:
        casted(values, "int16")
    assert raised.value.row == 57
    assert casted(values[:0], "int16").shape == (0, 7)


def test_storage_of_torch_is_understood() -> None:
    for name in TORCH_ONLY:
        storage = Field("x", name, ()).storage
        codes = np.arange(256, dtype=storage) << (8 * (storage.itemsize - 1))
        kind = torch.int16 if storage.itemsize == 2 else torch.uint8
        want = torch.from_numpy(codes.view(f"i{storage.itemsize}" if kind is torch.int16 else "u1"))
        got = casted(codes, "float32", name)
        np.testing.assert_array_equal(got, want.view(getattr(torch, name)).float().numpy())


def test_powers_of_two_are_no_target() -> None:
    with pytest.raises(ValueError, match="holds only powers of two"):
        cast_target("float8_e8m0fnu")
