"""How samples are fetched and become batches."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_data import Pair, assert_same, sources
from oracle import numbers
from samples import NUMPY_DTYPES, TORCH_ONLY
from samples import numbers as numbers_of
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    random_split,
)
from torch.utils.data._utils import collate

import fastload
from fastload import ArrayDataset, FastLoader
from fastload.loader.native_iterator import _NativeIterator


class Many(list[int]):
    """Tells how it was asked."""

    asked: list[Any]

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(index)
        return super().__getitem__(index) if isinstance(index, int) else [self[i] for i in index]

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(tuple(indices))
        return [list.__getitem__(self, i) for i in indices]


def asked(kind: Any, size: int | None, without: bool = False, **options: Any) -> Any:
    data = Many(range(5))
    data.asked = []
    if without:
        data.__getitems__ = None  # type: ignore[method-assign, assignment]
    loader = kind(data, batch_size=size, **options)
    return [torch.as_tensor(batch).tolist() for batch in loader], data.asked


def test_getitems_is_used_where_torch_uses_it() -> None:
    for size, without, keyed in (
        (2, False, {}),
        (2, True, {}),
        (None, False, {}),
        (2, False, {"seed": 0}),
        (None, False, {"seed": 0}),
    ):
        assert asked(FastLoader, size, without, **keyed) == asked(DataLoader, size, without)
    assert asked(FastLoader, 2)[1] == [(0, 1), (2, 3), (4,)]
    assert asked(FastLoader, 2, True)[1] == asked(FastLoader, None)[1] == [0, 1, 2, 3, 4]


def test_lists_of_indices_without_batches_ask_once_for_each_list() -> None:
    batches = BatchSampler(SequentialSampler(range(5)), 2, False)
    seen, calls = asked(FastLoader, None, sampler=batches)
    assert seen == [[0, 1], [2, 3], [4]]
    assert [call for call in calls if not isinstance(call, int)] == [[0, 1], [2, 3], [4]]
    data = TensorDataset(torch.arange(10).reshape(5, 2))
    for ours, theirs in zip(
        FastLoader(data, None, sampler=batches),
        DataLoader(data, None, sampler=batches),
        strict=True,
    ):
        assert_same(ours, theirs)


class Rows:
    """A dataset of samples that are there already."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def to_pack() -> dict[str, Any]:
    image = np.random.default_rng(0).integers(0, 256, (7, 3, 2), np.uint8)
    plain = {name: numbers_of(name, 14).reshape(7, 2) for name in NUMPY_DTYPES}
    exotic = {name: torch.arange(7).to(getattr(torch, name)) for name in TORCH_ONLY}
    return {
        "keys out of order": {"z": image, "a": np.arange(7), "m": np.arange(7.0)},
        "tuple": (image, np.arange(7)),
        "namedtuple": Pair(image, {"q": np.arange(7), "c": image}),
        "every dtype": plain,
        "exotic dtypes": exotic,
        "python numbers": Rows([{"i": i, "f": i / 3, "b": i > 3} for i in range(7)]),
        "nested": Rows([{"y": (i, [float(i)]), "x": [np.float32(i), i]} for i in range(7)]),
        "texts": Rows([("héllo"[: i % 6], i) for i in range(7)]),
        "bare": image,
    }


@pytest.mark.parametrize("name", to_pack())
def test_packed_data_give_what_default_collate_makes(name: str, tmp_path: Path) -> None:
    source = to_pack()[name]
    fastload.pack(source, tmp_path / "packed", shard_size=64, workers=1)
    data = fastload.open(tmp_path / "packed")
    for workers in (None, 0, 1):
        batches = iter(FastLoader(data, 3, num_workers=workers))
        assert type(batches) is _NativeIterator
        got = list(batches)
        assert_same(got, list(DataLoader(data, 3)))
        if isinstance(source, Rows):  # what the samples collate to that were packed
            assert_same(got, list(DataLoader(source, 3)))
    if isinstance(source, dict):
        assert list(got[0]) == list(source)


@pytest.mark.parametrize("name", sources())
@pytest.mark.parametrize("options", [{}, {"seed": 0}])
def test_without_batches_samples_are_converted(name: str, options: dict[str, Any]) -> None:
    data = sources()[name]
    got = list(FastLoader(data, None, **options))
    assert_same(got, list(DataLoader(data, None)))
    assert_same(got[0], default_convert(data[0]))


@pytest.mark.parametrize("workers", [None, 0, 1])
@pytest.mark.parametrize("name", ["dict", "tuple", "namedtuple", "tensors", "nested subset"])
def test_a_collate_fn_gets_a_list_of_the_datasets_samples(name: str, workers: int | None) -> None:
    data = sources()[name]
    calls: list[int] = []

    def own(samples: Any) -> Any:
        assert isinstance(samples, list)
        calls.append(len(samples))
        return samples, default_collate(samples)

    seen = list(FastLoader(data, 4, collate_fn=own, num_workers=workers))
    assert workers or calls == [len(samples) for samples, _ in seen]
    kept = [sample for samples, _ in seen for sample in samples]
    assert len(kept) == len(data)
    for index, sample in enumerate(kept):
        assert_same(default_convert(sample), default_convert(data[index]))
    assert_same([batch for _, batch in seen], list(FastLoader(data, 4)))


def same(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return batch


@pytest.mark.parametrize("change", ["added", "replaced", "swapped", "removed", "another map"])
def test_a_changed_collate_map_is_obeyed_by_native_data(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = TensorDataset(torch.arange(6).reshape(3, 2))
    loader = FastLoader(data, 3)
    shipped = collate.default_collate_fn_map
    assert type(iter(loader)) is _NativeIterator
    if change == "added":
        monkeypatch.setitem(shipped, Many, same)
    elif change == "replaced":
        monkeypatch.setitem(shipped, torch.Tensor, same)
    elif change == "swapped":  # by another of torch's own
        monkeypatch.setitem(shipped, torch.Tensor, collate.collate_str_fn)
    elif change == "removed":
        monkeypatch.delitem(shipped, torch.Tensor)
    else:
        changed = {**shipped, torch.Tensor: same}
        monkeypatch.setattr(collate, "default_collate_fn_map", changed)

    def outcome(loader: Any) -> Any:
        try:
            return repr(next(iter(loader)))
        except TypeError as error:
            return str(error)

    assert type(iter(loader)) is not _NativeIterator
    assert outcome(loader) == outcome(DataLoader(data, 3))
    monkeypatch.undo()
    assert type(iter(loader)) is _NativeIterator


def test_packed_data_are_indexed_like_a_list_and_by_arrays(tmp_path: Path) -> None:
    fastload.pack({"x": np.arange(6)}, tmp_path / "packed")
    data = fastload.open(tmp_path / "packed")
    assert (data[-1]["x"], data[np.int64(2)]["x"], data[torch.tensor(3)]["x"]) == (5, 2, 3)
    for beyond in (6, -7, 2**70):
        with pytest.raises(IndexError):
            data[beyond]
        with pytest.raises(IndexError):
            data.__getitems__([0, beyond])
    for many in (slice(1, 3), [1, 2], np.array([1, -4])):
        assert [sample["x"] for sample in data[many]] == [1, 2]
    for wrong in (1.0, "x", None):
        with pytest.raises(TypeError):
            data[wrong]  # type: ignore[call-overload]
    assert [sample["x"] for sample in data] == list(range(6))


@pytest.mark.parametrize("method", ["", "fork", "spawn"])
def test_dataloader_loads_packed_data(method: str, tmp_path: Path) -> None:
    fastload.pack({"x": np.arange(9.0), "y": np.arange(9) % 3}, tmp_path / "packed")
    data = fastload.open(tmp_path / "packed")
    assert isinstance(data.__getitems__([1, 2]), list)
    want = list(FastLoader(data, 2, shuffle=True, generator=torch.Generator().manual_seed(0)))
    workers: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": method}
    plain = DataLoader(
        data,
        2,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        **(workers if method else {}),
    )
    assert_same(list(plain), want)


def test_compositions_stay_native_and_equal() -> None:
    x = torch.arange(24.0).reshape(8, 3)
    parts: Any = TensorDataset(x), TensorDataset(x + 100)
    for data in (
        Subset(parts[0], [3, 1, -1]),
        random_split(parts[1], [5, 3])[1],
        ConcatDataset(parts),
        StackDataset(*parts),
        StackDataset(first=parts[0], second=Subset(ArrayDataset(x.numpy()), range(8))),
        Subset(ConcatDataset([StackDataset(*parts), StackDataset(*parts)]), [15, 0, 7, 8]),
    ):
        batches = iter(FastLoader(data, 3))
        assert type(batches) is _NativeIterator
        assert_same(list(batches), list(DataLoader(data, 3)))


def test_what_is_not_exactly_a_tensor_dataset_of_the_cpu_is_torchs() -> None:
    class Mine(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return tuple(tensor[index] * 2 for tensor in self.tensors)

    data = Mine(torch.arange(4))
    assert repr(list(FastLoader(data, 2))) == repr(list(DataLoader(data, 2)))
    for left in (data, TensorDataset(torch.empty(4, device="meta"))):
        assert type(iter(FastLoader(left, 2))) is not _NativeIterator
    own = FastLoader(numbers(4), 2, collate_fn=collections.deque)
    assert type(iter(own)) is not _NativeIterator
