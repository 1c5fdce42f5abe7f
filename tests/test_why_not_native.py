"""What the core does not read by itself, and the reason that is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset

from fastload import ArrayDataset
from fastload.native import native_extents


def tensors(rows: int) -> TensorDataset:
    return TensorDataset(torch.zeros(rows, 3), torch.arange(rows))


class OwnTensors(TensorDataset):
    pass


class OwnSubset(Subset[Any]):
    pass


class OwnArrays(ArrayDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + 1


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index**2


class Mine(torch.Tensor):
    pass


def with_own_getitems() -> Any:
    dataset: Any = tensors(3)
    dataset.__getitems__ = lambda indices: [dataset[0] for _ in indices]
    return dataset


@pytest.mark.parametrize(
    "dataset",
    [
        [1, 2, 3],
        {0: 1},
        np.arange(3),
        torch.arange(3),
        Squares(),
        OwnTensors(torch.zeros(3)),
        OwnSubset(tensors(3), [0]),
        OwnArrays(np.zeros(3)),
        with_own_getitems(),
        TensorDataset(torch.zeros(3, requires_grad=True)),
        TensorDataset(torch.nn.Parameter(torch.zeros(3))),
        TensorDataset(torch.zeros(3).as_subclass(Mine)),
        TensorDataset(torch.zeros(3, device="meta")),
        TensorDataset(torch.eye(3).to_sparse()),
        TensorDataset(torch.zeros(3, dtype=torch.complex64).conj()),
        TensorDataset(torch.zeros(3, dtype=torch.complex64).conj().imag),
        Subset([1, 2, 3], [0]),
        ConcatDataset([tensors(3), [1]]),  # type: ignore[list-item]
        StackDataset(tensors(3), [1, 2, 3]),  # type: ignore[arg-type]
        None,
        "path",
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_everything_else_is_left_to_torch(dataset: Any) -> None:
    assert native_extents(dataset) is None


@pytest.mark.filterwarnings("ignore")
def test_odd_tensors_are_left_to_torch() -> None:
    half = TensorDataset(torch.zeros(3, dtype=torch.complex32))
    assert native_extents(half) is None
    quantized = torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8)
    assert native_extents(TensorDataset(quantized)) is None
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    dataset = tensors(3)
    for odd in ((nested,), (torch.tensor(3),), (torch.zeros(3), torch.zeros(4)), ()):
        dataset.tensors = odd
        assert native_extents(dataset) is None
