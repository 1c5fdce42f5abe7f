"""Native datasets of every kind, and what it means that two batches are the same."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, random_split

from fastload import ArrayDataset


class Pair(NamedTuple):
    a: Any
    b: Any


def sources() -> dict[str, Any]:
    """Eleven samples of each kind, or what is made of them."""
    rng = np.random.default_rng(0)
    image, label = rng.integers(0, 256, (11, 4, 3), dtype=np.uint8), np.arange(11)
    half = torch.randn(11, 5)
    tensors = TensorDataset(half, torch.arange(11))
    return {
        "bare": ArrayDataset(image),
        "dict": ArrayDataset({"x": image, "y": label}),
        "ordered": ArrayDataset(collections.OrderedDict(y=label, x=image)),
        "tuple": ArrayDataset((image, label)),
        "list": ArrayDataset([image, label]),
        "namedtuple": ArrayDataset(Pair(image, label)),
        "nested": ArrayDataset({"a": (image, [label]), "b": Pair(label, {"c": image})}),
        "dtypes": ArrayDataset(
            {
                name: rng.integers(0, 2, (11, 2)).astype(name)
                for name in (
                    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
                    *("uint64", "float16", "float32", "float64", "complex64", "complex128"),
                )
            }
        ),
        "scalars": ArrayDataset({"f": np.arange(11.0), "b": label > 4, "u": label.astype("u2")}),
        "bfloat16": TensorDataset(half.bfloat16(), half.to(torch.float8_e4m3fn)),
        "empty rows": ArrayDataset(np.zeros((11, 0), "f4")),
        "tensors": tensors,
        "subset": Subset(tensors, [5, -1, 0, 0, 9]),
        "nested subset": Subset(Subset(tensors, range(10, 0, -1)), [5, 1, 0, 0, 9]),
        "split": random_split(tensors, [7, 4])[0],
        "concat": ConcatDataset([tensors, Subset(tensors, [1, 2]), tensors]),
        "stack": StackDataset(tensors, ArrayDataset({"z": image})),
        "stack of names": StackDataset(a=tensors, b=ArrayDataset(label)),
        "rows apart": TensorDataset(torch.arange(44).reshape(11, 4)[:, :2]),
    }


def assert_same(got: Any, want: Any) -> None:
    """Types, key order, dtypes, shapes, strides and bits."""
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.numel():
            assert got.stride() == want.stride()
            bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (got, want)]
            assert torch.equal(*bits)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        assert_same(list(got.values()), list(want.values()))
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert_same(g, w)
    else:
        assert got == want
