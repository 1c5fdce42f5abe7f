"""The plan and the table of a dataset: kept between epochs, renewed when the dataset changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import StackDataset, TensorDataset

from fastload import ArrayDataset, Cast, FastLoader
from fastload.batch import plan as plans


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Counts the compiled transforms."""
    calls: list[Any] = []
    original = plans.choices

    def choices(transforms: Any, fields: Any) -> Any:
        calls.append(transforms)
        return original(transforms, fields)

    monkeypatch.setattr(plans, "choices", choices)
    return calls


def columns() -> dict[str, Any]:
    return {"a": np.arange(6, dtype=np.uint8), "b": np.arange(6.0)}


@pytest.mark.parametrize("workers", [0, 2])
def test_transforms_are_compiled_once_for_all_epochs(compiled: list[Any], workers: int) -> None:
    loader = FastLoader(
        ArrayDataset(columns()), 2, num_workers=workers, transforms={"a": Cast("float32")}
    )
    for _ in range(3):
        assert [batch["a"].dtype for batch in loader] == [torch.float32] * 3
    assert len(compiled) == 1


def test_a_dataset_that_is_read_again_keeps_its_plan_while_its_memory_is_the_same(
    compiled: list[Any],
) -> None:
    dataset = TensorDataset(torch.arange(4))
    loader = FastLoader(dataset, 4)
    for _ in range(2):
        [[values]] = list(loader)
        assert torch.equal(values, torch.arange(4))
    assert len(compiled) == 1
    dataset.tensors = (torch.arange(4.0), torch.arange(4))
    [[values, labels]] = list(loader)
    assert (values.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert len(compiled) == 2


def test_transforms_that_are_changed_in_place_take_effect_in_the_next_epoch() -> None:
    transforms: dict[str, Any] = {"a": [Cast("float32")]}
    loader = FastLoader(ArrayDataset(columns()), 6, transforms=transforms)
    assert next(iter(loader))["a"].dtype == torch.float32
    transforms["a"][0] = Cast("float16")
    assert next(iter(loader))["a"].dtype == torch.float16
    del transforms["a"]
    assert next(iter(loader))["a"].dtype == torch.uint8
    transforms["c"] = Cast("float16")
    with pytest.raises(ValueError, match="no field 'c'"):
        iter(loader)


def test_containers_that_are_equal_but_of_another_type_or_order_are_not_confused() -> None:
    parts = {name: ArrayDataset(array) for name, array in columns().items()}
    dataset = StackDataset(**parts)
    loader = FastLoader(dataset, 6)
    assert list(next(iter(loader))) == ["a", "b"]
    dataset.datasets = dict(reversed(parts.items()))
    assert list(next(iter(loader))) == ["b", "a"]

    arrays = tuple(columns().values())
    nested = StackDataset(ArrayDataset(arrays))
    loader = FastLoader(nested, 6)
    assert type(next(iter(loader))[0]) is list
    nested.datasets = (ArrayDataset(Pair(*arrays)),)
    assert type(next(iter(loader))[0]) is Pair
