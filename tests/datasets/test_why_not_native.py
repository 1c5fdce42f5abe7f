"""What the core does not read by itself, and the reason that is given."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data._utils.collate import default_collate_fn_map

from fastload import ArrayDataset, Cast, FastLoader, Mixture
from fastload.datasets.native import native_extents


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


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


# --- the reason


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8)


def nested() -> Any:
    dataset = tensors(2)
    dataset.tensors = (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),)
    return dataset


def grown(make: Any) -> Any:
    part = tensors(3)
    dataset = make(part)
    part.tensors = tensors(4).tensors
    return dataset


REASONS: dict[str, tuple[Any, str]] = {
    "list": ([1, 2], "dataset is of type list, whose samples are made by Python; fastload.pack"),
    "array": (np.zeros((4, 2)), "dataset is of type ndarray; ArrayDataset of it loads natively"),
    "class": (Squares(), "dataset is of type Squares, whose samples are made by Python"),
    "subclass": (OwnTensors(torch.zeros(3)), "type OwnTensors, a subclass of TensorDataset, which"),
    "subclass of Subset": (OwnSubset(tensors(3), [0]), "OwnSubset, a subclass of Subset, which"),
    "subclass of arrays": (OwnArrays(np.zeros(3)), "OwnArrays, a subclass of ArrayDataset, which"),
    "instance": (with_own_getitems(), "dataset has a __getitems__ of its own"),
    "gradient": (
        lambda: TensorDataset(torch.zeros(3), torch.zeros(3, requires_grad=True)),
        r"dataset\.tensors\[1\] requires gradients, which native batches would lose; call detach",
    ),
    "parameter": (
        lambda: TensorDataset(torch.nn.Parameter(torch.zeros(3))),
        r"dataset\.tensors\[0\] requires gradients",
    ),
    "tensor subclass": (
        lambda: TensorDataset(torch.zeros(3).as_subclass(Mine)),
        r"dataset\.tensors\[0\] is of type Mine, a subclass of torch\.Tensor",
    ),
    "dtype": (
        lambda: TensorDataset(torch.zeros(3, dtype=torch.complex32)),
        r"has the dtype torch\.complex32, which is not supported",
    ),
    "device": (lambda: TensorDataset(torch.zeros(3, device="meta")), "is on the device meta"),
    "sparse": (lambda: TensorDataset(torch.eye(3).to_sparse()), r"the layout torch\.sparse_coo"),
    "nested": (nested, "is a nested tensor; native data are dense"),
    "quantized": (lambda: TensorDataset(quantized()), "is quantized"),
    "conjugate": (
        lambda: TensorDataset(torch.zeros(3, dtype=torch.complex64).conj()),
        r"is a lazy conjugate or negative; call resolve_conj\(\)",
    ),
    "negative": (
        lambda: TensorDataset(torch.zeros(3, dtype=torch.complex64).conj().imag),
        r"call resolve_neg\(\)",
    ),
    "mask": (
        lambda: Subset(tensors(3), [True, False]),  # type: ignore[list-item]
        r"dataset\.indices \(list\) are not a sequence of integers",
    ),
    "out of range": (lambda: Subset(tensors(3), [3]), "indices lead outside the 3 samples"),
    "grown part": (lambda: grown(lambda part: ConcatDataset([part])), "has another length than"),
    "grown member": (lambda: grown(lambda part: StackDataset(part)), "has another length than"),
    "grown in a mixture": (lambda: grown(lambda part: Mixture([part])), "has another length than"),
    "differing parts": (
        lambda: ConcatDataset([tensors(2), TensorDataset(torch.zeros(2), torch.zeros(2))]),
        r"the parts of dataset cannot be combined: field '0' is float32 \[3\] and float32",
    ),
    "mixture in a part": (
        lambda: ConcatDataset([Mixture([tensors(2)])]),  # type: ignore[list-item]
        "the parts of dataset cannot be combined: a mixture's samples",
    ),
    "part": (
        lambda: ConcatDataset([tensors(3), [1]]),  # type: ignore[list-item]
        r"dataset\.datasets\[1\] is of type list",
    ),
    "member": (
        lambda: StackDataset(a=tensors(3), b=[1, 2, 3]),  # type: ignore[arg-type]
        r"dataset\.datasets\['b'\] is of type list",
    ),
    "part of a mixture": (
        lambda: Mixture([tensors(3), Squares()]),
        r"dataset\.datasets\[1\] is of type Squares",
    ),
    "deep": (
        lambda: Subset(ConcatDataset([tensors(1), Subset(OwnTensors(torch.zeros(3)), [0])]), [0]),
        r"dataset\.dataset\.datasets\[1\]\.dataset is of type OwnTensors",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REASONS)
def test_the_reason_names_the_part_and_what_to_do(kind: str) -> None:
    made, reason = REASONS[kind]
    loader = FastLoader(made() if callable(made) else made, 2)
    assert not loader.is_native
    assert loader.why_not_native is not None
    assert re.search(reason, loader.why_not_native), loader.why_not_native
    assert loader.why_not_native in repr(loader)


def collate(samples: list[Any]) -> Any:
    return samples


def test_what_the_loader_was_given_may_be_the_reason() -> None:
    data = ArrayDataset(np.arange(6))
    assert FastLoader(data, 2).why_not_native is None
    for loader, reason in (
        (FastLoader(data, 2, collate_fn=collate), "collate_fn=collate makes the batches in Python"),
        (FastLoader(data, 2, collate_fn=partial(collate)), "collate_fn=partial makes"),
        (FastLoader(data, None), "batch_size=None: samples are returned one by one"),
        (FastLoader(Numbers()), "dataset is an IterableDataset"),
    ):
        assert not loader.is_native
        assert str(loader.why_not_native).startswith(reason)


def test_the_reason_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FastLoader(tensors(4), 2)
    assert loader.is_native
    with monkeypatch.context() as patched:
        patched.setitem(default_collate_fn_map, torch.Tensor, lambda batch, **_: batch)
        assert "default_collate was changed" in str(loader.why_not_native)
    assert loader.is_native
    loader.collate_fn = collate
    assert "collate_fn=collate" in str(loader.why_not_native)


# --- the warning


def two_epochs(make: Any) -> None:
    loader = make()
    for _ in range(2):
        list(zip(range(1), loader, strict=False))


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [
        (lambda: TensorDataset(torch.zeros(3, requires_grad=True)), {}, "requires gradients"),
        (lambda: OwnTensors(torch.zeros(3)), {}, "a subclass of TensorDataset"),
        (lambda: Subset(OwnArrays(np.zeros(3)), [0]), {}, "a subclass of ArrayDataset"),
        (lambda: ConcatDataset([tensors(3), [1]]), {}, "type list"),  # type: ignore[list-item]
        (lambda: ArrayDataset(np.zeros(3)), {"collate_fn": collate}, "collate_fn=collate"),
    ],
    ids=["gradients", "subclass", "part", "list in it", "collate_fn"],
)
def test_a_loader_whose_data_could_be_native_warns_once(
    dataset: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.warns(UserWarning, match="torch loads this dataset") as said:
        two_epochs(lambda: FastLoader(dataset(), 2, **options))
    [warning] = said
    assert reason in str(warning.message)
    assert warning.filename == __file__


def test_what_is_assigned_later_is_warned_of_when_it_acts() -> None:
    loader = FastLoader(tensors(4), 2)
    loader.collate_fn = collate
    with pytest.warns(UserWarning, match="collate_fn=collate makes the batches in Python"):
        iter(loader)


@pytest.mark.parametrize(
    "made",
    [
        lambda: FastLoader([1, 2], 2),
        lambda: FastLoader(Squares(), 2, collate_fn=collate),
        lambda: FastLoader(Subset(Squares(), [1]), 2),
        lambda: FastLoader(Numbers(), 2),
        lambda: FastLoader(tensors(4), None),
        lambda: FastLoader(tensors(4), 2),
        lambda: FastLoader(ArrayDataset(np.zeros((4, 2))[::-1]), 2),
    ],
    ids=["list", "class", "subset", "stream", "no batches", "native", "rows backwards"],
)
def test_other_loaders_do_not_warn(made: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(made())


def test_arrays_that_are_not_contiguous_warn_once_and_name_the_gain() -> None:
    x = np.asfortranarray(np.zeros((1000, 250), "f4"))
    data = ArrayDataset({"x": x, "y": np.zeros((1000, 4))[:, ::2]})
    with pytest.warns(UserWarning, match="not contiguous") as said:
        two_epochs(lambda: FastLoader(data, 100))
    [warning] = said
    assert str(warning.message).startswith(
        "field 'x' is not contiguous in memory: each sample is gathered in 250 pieces of 4 bytes. "
        "A contiguous copy of the field (.contiguous() of a tensor, np.ascontiguousarray of an "
        "array; 1.0 MB) loads several times as fast"
    )
    with pytest.warns(UserWarning, match="field '0' .* 6 pieces of 16 bytes.* less than 0.1 MB"):
        FastLoader(TensorDataset(torch.zeros(3, 4, 2, 4).transpose(1, 2)[:, :, 1:]), 2).is_native  # noqa: B018


# --- repr


def test_repr_says_what_is_loaded_and_how(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((8, 2), "f4"))
    path, counted = str(tmp_path / "x.npy"), {"num_workers": 1}
    data = ArrayDataset({"x": np.zeros((8, 2), "f4")})
    shown = "FastLoader(ArrayDataset(8 samples of x: float32 [2])"
    sampler = WeightedRandomSampler(torch.ones(8), 8)
    for loader, want in (
        (FastLoader(data, 4, **counted), f"{shown}, batch_size=4, in order, native, 1 thread)"),
        (FastLoader(path, 4, num_workers=0), f"('{path}': 8 samples of data: float32 [2]), batch"),
        (FastLoader(data, 4, shuffle=True, drop_last=True), "batch_size=4, drop_last=True, shuf"),
        (FastLoader(data, seed=7, shuffle=True), "batch_size=1, shuffled by seed=7, native"),
        (FastLoader(data, seed=7), "batch_size=1, in order by seed=7, native"),
        (FastLoader(data, sampler=sampler), "sampler=WeightedRandomSampler, native"),
        (
            FastLoader(data, seed=7, shard=(0, 2), tail="mask", device="cpu"),
            "seed=7, shard=(0, 2), tail='mask', device='cpu', native",
        ),
        (
            FastLoader(data, transforms={"x": Cast("float16")}),
            "in order, transforms of x, native",
        ),
        (FastLoader(data, batch_sampler=[[1, 2]]), "batch_sampler=list, its order, native"),
        (FastLoader(tensors(2000)), "FastLoader(TensorDataset of 2,000 samples, batch_size=1"),
        (FastLoader([1, 2], 2, num_workers=2), "2 worker processes, not native: dataset is of ty"),
        (FastLoader(Squares()), "no worker processes, not native: dataset is of type Squares"),
        (FastLoader(Numbers(), 3), "(Numbers, batch_size=3, order of the stream, no worker proc"),
    ):
        before = repr(loader)
        assert want in before
        if loader.num_workers < 2:
            next(iter(loader))
        assert repr(loader) == before


def test_repr_never_raises() -> None:
    class Early(FastLoader[Any]):
        def __init__(self) -> None:
            self.shown = repr(self)
            super().__init__(tensors(3))

    class Broken(Dataset[int]):
        def __len__(self) -> int:
            raise OSError("gone")

    assert Early().shown == "Early(?, ?, ?, ?, ?)"
    assert repr(Early()).startswith("Early(TensorDataset of 3 samples")
    loader = FastLoader(Broken(), sampler=[0])
    assert "Broken" in repr(loader)
    changed: Any = FastLoader(tensors(3), 2)
    changed.collate_fn = None
    assert repr(changed)
