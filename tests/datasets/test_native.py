"""What the core reads by itself is what torch would have collated; the rest is left alone."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import NUMPY_DTYPES, TORCH_ONLY
from torch.utils.data import (
    ConcatDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)
from waiting import assert_takes_less

import fastload
from fastload import ArrayDataset
from fastload.datasets.native import native_extents
from fastload.formats.fields import torch_dtype
from fastload.formats.structure import batch_builder

Pair = namedtuple("Pair", "a b")
TWO = torch.arange(4).reshape(2, 2)


def native_batch(dataset: Any, indices: list[int]) -> Any:
    """The batch at `indices` as the core gathers it."""
    extents = native_extents(dataset)
    assert extents is not None, "not native"
    assert extents.rows == len(dataset)
    columns = [np.empty((len(indices), *f.shape), f.storage) for f in extents.fields]
    extents.build().gather(np.array(indices, np.int64), columns)
    tensors = [
        torch.from_numpy(column).view(torch_dtype(field.dtype))
        for column, field in zip(columns, extents.fields, strict=True)
    ]
    return batch_builder(extents.structure)(tensors)


def assert_same(got: Any, want: Any) -> None:
    """Types, key order, dtypes, shapes and bits."""
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        bits = [t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in (got, want)]
        assert bits[0] == bits[1]
        return
    if isinstance(want, dict):
        assert list(got) == list(want)
        got, want = list(got.values()), list(want.values())
    assert len(got) == len(want)
    for mine, torchs in zip(got, want, strict=True):
        assert_same(mine, torchs)


def assert_native(dataset: Any) -> None:
    """Every sample, in an order with repeats, is what default_collate makes of the dataset's."""
    rows = len(dataset)
    indices = [*range(rows)][::-1] + [0, 0] if rows else []
    got = native_batch(dataset, indices)
    if rows:
        assert_same(got, default_collate([dataset[i] for i in indices]))


def images(rows: int, start: int = 0) -> ArrayDataset:
    x = np.arange(start, start + 6 * rows, dtype="u1").reshape(rows, 2, 3)
    return ArrayDataset({"x": x, "y": np.arange(start, start + rows)})


def tensors(rows: int, start: int = 0) -> TensorDataset:
    x = torch.arange(start, start + 3 * rows, dtype=torch.float32).reshape(rows, 3)
    return TensorDataset(x, torch.arange(start, start + rows))


# --- one dataset


@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, *TORCH_ONLY])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0)], ids=str)
def test_every_dtype_is_delivered_as_torch_would(dtype: str, shape: tuple[int, ...]) -> None:
    column = torch.arange(4 * int(np.prod(shape))).to(getattr(torch, dtype)).reshape(4, *shape)
    assert_native(TensorDataset(column))
    assert_native(ArrayDataset({"x": column, "y": [column]}))
    if dtype in NUMPY_DTYPES:
        assert_native(ArrayDataset((column.numpy(),)))
    assert torch_dtype(dtype) is column.dtype


def test_containers_are_those_of_default_collate() -> None:
    array = np.arange(4)
    for arrays in (
        array,
        (array,),
        [array, array],
        {"b": array, "a": (array, array)},
        Pair(array, OrderedDict(z=array, y=[array])),
    ):
        assert_native(ArrayDataset(arrays))


def test_files_are_native(tmp_path: Path) -> None:
    np.save(tmp_path / "1.npy", np.arange(6).reshape(3, 2))
    np.save(tmp_path / "2.npy", np.arange(8).reshape(4, 2))
    dataset = fastload.open(tmp_path)
    assert_native(dataset)
    assert_native(Subset(dataset, [6, 0, 3]))
    assert_native(ArrayDataset({"x": tmp_path, "y": np.arange(7)}))


@pytest.mark.parametrize(
    "column",
    [
        torch.arange(24).reshape(4, 6),
        torch.arange(24).reshape(4, 6)[::2],
        torch.arange(24).reshape(4, 6)[:, 2:4],
        torch.arange(24).reshape(4, 6)[:, 1],
        torch.arange(6).expand(4, 6),
        torch.arange(24).unfold(0, 4, 1),
        torch.arange(24)[5:],
        torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)[1:, 1:],
        torch.zeros(0, 3),
        torch.zeros(3, 0),
        torch.arange(6).reshape(1, 3, 2).transpose(1, 2).reshape(1, 6),
    ],
    ids=["plain", "rows", "columns", "column", "expanded", "windows", "offset", "bfloat16"]
    + ["no rows", "no bytes", "one row"],
)
def test_tensors_whose_rows_are_blocks_are_read_in_place(column: torch.Tensor) -> None:
    dataset = TensorDataset(column)
    assert_native(dataset)
    extents = native_extents(dataset)
    assert extents is not None
    if column.numel():
        assert extents.columns[0].sources[0].address == column.data_ptr()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "column",
    [
        torch.arange(6).reshape(2, 3).T,
        torch.arange(24).reshape(4, 6)[:, ::2],
        torch.arange(24, dtype=torch.bfloat16).reshape(2, 3, 4).permute(2, 0, 1),
        torch.arange(24).to(torch.complex128).reshape(2, 3, 4).permute(1, 2, 0),
        torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4, 1).transpose(1, 2)[1:],
        torch.arange(4).reshape(4, 1).expand(4, 5),
        (torch.arange(24) % 3 == 0).reshape(6, 4).T[:, 1:],
    ],
    ids=["transposed", "every other column", "bfloat16", "complex", "images", "expanded", "bool"],
)
def test_tensors_that_are_not_contiguous_are_read_in_place(column: torch.Tensor) -> None:
    dataset = TensorDataset(column, torch.arange(len(column)))
    assert_native(dataset)
    column[-1, 0] = column[0, 0]  # seen, for nothing was copied
    assert_native(dataset)


def test_tensors_are_read_again_each_time() -> None:
    dataset = TensorDataset(torch.zeros(3))
    dataset.tensors[0][1] = 5
    assert native_batch(dataset, [1])[0].tolist() == [5]
    dataset.tensors = (torch.ones(2), torch.ones(2))
    assert_native(dataset)


# --- subsets


@pytest.mark.parametrize(
    "indices",
    [
        [],
        [3],
        [4, 0, 0, 2],
        [-1, 0, -5],
        (1, 2),
        range(5),
        range(4, -1, -2),
        range(0),
        range(-5, 5),
        np.array([1, 3]),
        np.array([1, 3], "u1"),
        np.array([4, 0, 2], ">i8"),
        np.arange(5)[::-2],
        [np.int64(1), np.uint8(2), 3],
        torch.tensor([4, -1]),
        torch.tensor([4, 1], dtype=torch.int16),
        torch.arange(5)[::2],
        list(torch.tensor([4, 1])),
    ],
    ids=repr,
)
@pytest.mark.parametrize("whole", [images(5), tensors(5), StackDataset(images(5), tensors(5))])
def test_subsets_are_native_whatever_holds_their_indices(whole: Any, indices: Any) -> None:
    assert_native(Subset(whole, indices))


@pytest.mark.parametrize(
    "indices",
    [[5], [0, -6], [2**63], [2**200], [1.0], [True, False], [0, True], ["1"], [None], [[1]]]
    + [[torch.tensor([1])], [torch.tensor(1), torch.tensor([1])], [torch.tensor(True)]]
    + [[torch.tensor(1, dtype=torch.uint8)], np.array([True, False]), np.array([1.0])]
    + [np.array([[1]]), np.array(1), np.array([2**64 - 1], "u8"), torch.tensor([True])]
    + [torch.tensor([1], dtype=torch.uint8), torch.tensor([1.0]), torch.tensor([[1]])]
    + [torch.zeros(1, dtype=torch.int64, device="meta"), {0: 1}, "01"],
    ids=repr,
)
def test_subsets_of_odd_or_wrong_indices_are_left_to_torch(indices: Any) -> None:
    assert native_extents(Subset(tensors(5), indices)) is None


def test_splits_and_subsets_of_subsets_are_native() -> None:
    whole = images(20)
    for part in random_split(whole, [0.5, 0.3, 0.2]):  # type: ignore[arg-type]
        assert_native(part)
        assert_native(Subset(part, range(len(part) - 1, 0, -2)))


def test_a_large_subset_is_converted_quickly() -> None:
    whole = TensorDataset(torch.zeros(1_000_000))
    subset = Subset(whole, torch.randperm(1_000_000).tolist())

    def convert() -> None:
        assert native_extents(subset) is not None

    assert_takes_less(2, convert)  # 0.05 s on a quiet machine


# --- concatenation


@pytest.mark.parametrize(
    "parts",
    [
        [images(3)],
        [images(3), images(2, 50)],
        [images(0), images(3), images(0), images(2, 50)],
        [images(0)],
        [tensors(3), tensors(4, 100)],
        [Subset(images(5), [4, 1]), images(2), Subset(images(5), range(3))],
        [ConcatDataset([images(2), images(1)]), images(2, 9)],
        [tensors(3), TensorDataset(torch.zeros(0, 9))],
        [tensors(3), []],
        [StackDataset(a=images(3), b=tensors(3)), StackDataset(a=images(2, 7), b=tensors(2, 9))],
        [StackDataset(tensors(2), Subset(images(3), [2, 1])), StackDataset(tensors(2), images(2))],
        [images(3), ArrayDataset({"x": np.ones((2, 4, 3), "u1")[:, :2], "y": np.arange(2)})],
        [images(3), ArrayDataset({"x": np.ones((3, 2, 4), "u1").T[:2], "y": np.arange(4)[::-2]})],
        [TensorDataset(torch.arange(2 * n).reshape(2, n).T) for n in (3, 0, 4)],
        [Subset(TensorDataset(torch.arange(8).reshape(2, 4).T), [3, 1]), TensorDataset(TWO)],
    ],
    ids=range(15),
)
def test_concatenations_of_native_parts_are_native(parts: list[Any]) -> None:
    assert_native(ConcatDataset(parts))


def test_concatenations_with_other_group_boundaries_are_native(tmp_path: Path) -> None:
    np.save(tmp_path / "1.npy", np.arange(3))
    np.save(tmp_path / "2.npy", np.arange(3, 5))
    joined = ArrayDataset({"y": np.arange(10, 15), "x": tmp_path, "z": np.arange(5) * 2})
    plain = ArrayDataset({k: np.arange(2) for k in "yxz"})
    for parts in ([joined, plain], [plain, joined], [joined, joined, Subset(plain, [1])]):
        assert_native(ConcatDataset(parts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        ArrayDataset({"x": np.zeros((2, 2, 3), "i1"), "y": np.arange(2)}),
        ArrayDataset({"x": np.zeros((2, 3, 2), "u1"), "y": np.arange(2)}),
        ArrayDataset({"x": np.zeros((2, 2, 3), "u1")}),
        ArrayDataset({"y": np.arange(2), "x": np.zeros((2, 2, 3), "u1")}),
        ArrayDataset((np.zeros((2, 2, 3), "u1"), np.arange(2))),
        ArrayDataset(OrderedDict(x=np.zeros((2, 2, 3), "u1"), y=np.arange(2))),
        [{"x": 1}],
    ],
    ids=["dtype", "shape", "missing", "key order", "tuple", "OrderedDict", "a list"],
)
def test_concatenations_of_parts_that_differ_are_left_to_torch(other: Any) -> None:
    assert native_extents(ConcatDataset([images(3), other])) is None


def test_a_concatenation_whose_part_has_grown_is_left_to_torch() -> None:
    part = tensors(3)
    dataset: Any = ConcatDataset([part, tensors(3)])
    part.tensors = tensors(4).tensors
    assert native_extents(dataset) is None


# --- stacks


def test_stacks_of_native_parts_are_native() -> None:
    whole = tensors(9)
    for dataset in (
        StackDataset(images(3)),
        StackDataset(images(3), tensors(3)),
        StackDataset(image=images(3), other=tensors(3), again=images(3)),
        StackDataset(a=StackDataset(images(3), tensors(3)), b=Subset(whole, [8, 0, 4])),
        StackDataset(a=Subset(whole, range(4)), b=ConcatDataset([images(1), images(3)])),
        Subset(StackDataset(whole, whole), [5, -1]),
    ):
        assert_native(dataset)


def test_columns_with_the_same_boundaries_share_a_group() -> None:
    extents = native_extents(StackDataset(a=images(3), b=tensors(3)))
    assert extents is not None
    assert len(extents.groups) == 1
    assert [field.name for field in extents.fields] == ["a.x", "a.y", "b.0", "b.1"]


def test_a_stack_whose_part_has_grown_is_left_to_torch() -> None:
    part = tensors(3)
    dataset = StackDataset(part, tensors(3))
    part.tensors = tensors(4).tensors
    assert native_extents(dataset) is None
    dataset = StackDataset(part)
    part.tensors = tensors(5).tensors
    assert native_extents(dataset) is None


# --- all of them at once


@st.composite
def compositions(draw: st.DrawFn, depth: int = 3) -> Any:
    rows = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["images", "tensors", "subset", "concat", "stack"]))
    if depth == 0 or kind in ("images", "tensors"):
        start = draw(st.integers(0, 50))
        return images(rows, start) if kind != "tensors" else tensors(rows, start)
    inner = draw(compositions(depth - 1))
    places = st.integers(-len(inner), len(inner) - 1)
    picked = Subset(inner, draw(st.lists(places, min_size=1, max_size=6)))
    if kind == "subset":
        return picked
    if kind == "concat":
        return ConcatDataset(draw(st.permutations([inner, picked, inner])))
    return StackDataset(a=inner, b=Subset(inner, range(len(inner) - 1, -1, -1)))


@given(compositions())
def test_any_composition_is_what_torch_collates(dataset: Any) -> None:
    assert_native(dataset)
