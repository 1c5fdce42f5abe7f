"""What a FastLoader gives, natively and through torch's own iterators."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_data import assert_same, sources
from oracle import Stream, numbers, values
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Subset,
    TensorDataset,
)
from torch.utils.data._utils import collate

import fastload
from fastload import ArrayDataset, FastLoader
from fastload.loader.native_iterator import _NativeIterator

WORKERS = (None, 0, 1, 2, 7)


@pytest.mark.parametrize("name", list(sources()))
def test_batches_are_those_of_default_collate(name: str) -> None:
    data = sources()[name]
    for workers, shuffle in ((None, False), (0, True), (2, True)):
        torch.manual_seed(0)
        loader = FastLoader(data, batch_size=4, shuffle=shuffle, num_workers=workers)
        batches = iter(loader)
        assert type(batches) is _NativeIterator
        got = list(batches)
        torch.manual_seed(0)
        want = list(DataLoader(data, batch_size=4, shuffle=shuffle))
        assert_same(got, want)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "seed": 1}, {}])
def test_batches_are_the_same_for_any_number_of_workers(options: dict[str, Any]) -> None:
    seen = []
    for workers in WORKERS:
        torch.manual_seed(3)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")
            seen.append(values(FastLoader(numbers(100), 7, num_workers=workers, **options)))
    assert all(batches == seen[0] for batches in seen)


def test_paths_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "with space é.npy"
    np.save(path, np.arange(5))
    for given in (path, str(path)):
        loader = FastLoader(given, batch_size=2)
        assert type(loader.dataset) is type(fastload.open(path))
        assert values(loader) == [[0, 1], [2, 3], [4]]
    assert FastLoader(path, io="pread").dataset.io == "pread"
    assert values(FastLoader(fastload.open(path), batch_size=3, io="pread")) == [[0, 1, 2], [3, 4]]


def not_native() -> dict[str, Any]:
    class Own(TensorDataset):
        pass

    class OwnTensor(torch.Tensor):
        pass

    ragged = Subset(TensorDataset(torch.arange(4)), ["a"])  # type: ignore[list-item]
    return {
        "list": [1, 2, 3],
        "array": np.arange(6).reshape(3, 2),
        "tensor": torch.arange(3),
        "subclass": Own(torch.arange(3)),
        "gradient": TensorDataset(torch.ones(3, requires_grad=True)),
        "tensor subclass": TensorDataset(torch.arange(3).as_subclass(OwnTensor)),
        "sparse": TensorDataset(torch.eye(3).to_sparse()),
        "partly": ConcatDataset([TensorDataset(torch.arange(3)), [(1,)]]),  # type: ignore[list-item]
        "bad subset": ragged,
    }


@pytest.mark.parametrize("name", list(not_native()))
def test_what_torch_loads(name: str) -> None:
    batches = iter(FastLoader(not_native()[name], batch_size=2))
    assert type(batches).__module__ == "torch.utils.data.dataloader"
    if name not in ("sparse", "partly", "bad subset"):
        want = list(DataLoader(not_native()[name], batch_size=2))
        assert repr(list(batches)) == repr(want)


def test_own_collate_is_called_by_torch() -> None:
    data = ArrayDataset({"x": np.arange(5)})
    seen = list(FastLoader(data, batch_size=2, collate_fn=lambda samples: samples))
    assert [[int(s["x"]) for s in batch] for batch in seen] == [[0, 1], [2, 3], [4]]
    assert [int(s["x"]) for s in FastLoader(data, batch_size=None)] == list(range(5))


def test_a_changed_collate_map_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map) * 2

    loader = FastLoader(TensorDataset(torch.arange(3)), batch_size=3)
    monkeypatch.setitem(collate.default_collate_fn_map, torch.Tensor, doubled)
    assert next(iter(loader))[0].tolist() == [0, 2, 4]
    monkeypatch.undo()
    assert next(iter(loader))[0].tolist() == [0, 1, 2]


def test_iterable_datasets_are_torchs() -> None:
    with pytest.raises(TypeError):
        len(FastLoader(Stream(), batch_size=2))
    assert values(FastLoader(Stream(), batch_size=3)) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"num_workers": 1}])
def test_device_and_pinning_without_an_accelerator(options: dict[str, Any]) -> None:
    data = ArrayDataset({"x": np.arange(3), "y": (np.arange(3.0),)})
    on_meta = next(iter(FastLoader(data, device="meta", **options)))
    assert on_meta["x"].is_meta
    assert on_meta["y"][0].is_meta
    assert not next(iter(FastLoader(data, device="cpu", **options)))["x"].is_meta
    loader = FastLoader(data, pin_memory=True, **options)
    for _ in range(2):
        with pytest.warns(UserWarning, match="no accelerator is found"):
            batches = iter(loader)
        assert not any(batch["x"].is_pinned() for batch in batches)
    by_torch = FastLoader([{"x": torch.ones(1), "n": "a"}], device="meta")
    batch = next(iter(by_torch))
    assert batch["x"].is_meta
    assert batch["n"] == ["a"]


def test_a_huge_batch_without_bytes() -> None:
    data = ArrayDataset({"x": np.zeros((5_000_000, 0), "f4")})
    assert next(iter(FastLoader(data, 5_000_000)))["x"].shape == (5_000_000, 0)
