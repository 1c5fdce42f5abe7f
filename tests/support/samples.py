"""Arrays that use a dtype's whole range, and what an opened dataset gives back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import fastload

Array = npt.NDArray[Any]

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
NUMPY_DTYPES = ["bool", *INTEGERS, "float16", "float32", "float64", "complex64", "complex128"]
TORCH_ONLY = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
TORCH_ONLY += ["float8_e8m0fnu"] if hasattr(torch, "float8_e8m0fnu") else []  # torch 2.7+


def all_samples(path: Any, **options: Any) -> list[Any]:
    """Every sample of an opened dataset, as numpy lists."""
    dataset = fastload.open(path, **options)
    return [sample.tolist() for sample in dataset.__getitems__(range(len(dataset)))]


def numbers(dtype: str, count: int) -> Array:
    """Values that use the dtype's whole range."""
    if dtype == "bool":
        return np.arange(count) % 3 == 0
    kind = np.dtype(dtype).kind
    if kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([limits.min, limits.max, 0, 1] * count, dtype)[:count]
    return (np.arange(count) / 3 * (1 + 2j if kind == "c" else 1)).astype(dtype)


def save_shards(folder: Path, *arrays: Array) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"s{number}.npy" for number in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths


def values(dataset: Any) -> list[Any]:
    """Every sample of a dataset of bare arrays, one by one, as lists."""
    return [dataset[index].tolist() for index in range(len(dataset))]
