"""What arrives on the GPU is what the same loader gives on the CPU, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from native_data import assert_same, sources
from ragged import numbers_of_length, ragged_dataset
from torch.utils.data import Dataset

import fastload
from fastload import (
    ArrayDataset,
    AsList,
    Cast,
    FastLoader,
    Jagged,
    Normalize,
    PadTo,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
)
from fastload.formats.fields import Field
from fastload.formats.structure import map_leaves

CPU = torch.device("cpu")


def moved(batch: Any, source: torch.device) -> Any:
    """The batch on the CPU; its tensors came from there."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        assert value.device == source
        if value.is_nested:  # no two have the same shape
            return [value.values().cpu(), value.offsets().cpu()]
        return value.cpu()

    return map_leaves(leaf, batch)


def check(dataset: Any, device: torch.device, batch_size: int = 4, **options: Any) -> None:
    """Two epochs are equal; all tensors are on the device."""
    there = FastLoader(dataset, batch_size, device=device, **options)
    here = FastLoader(dataset, batch_size, **options)
    for _ in range(2):
        for got, want in itertools.zip_longest(there, here):
            assert_same(moved(got, device), moved(want, CPU))


@pytest.mark.parametrize("name", sources())
def test_structures(name: str, device: torch.device) -> None:
    check(sources()[name], device, shuffle=True, seed=0)


@pytest.mark.parametrize("transform", [None, PadTo(), PadTo(8, value=7), Jagged(), AsList()])
def test_ragged_fields(transform: Any, device: torch.device) -> None:
    lengths = [3] * 7 if transform is None else [3, 0, 5, 1, 9, 2, 2]
    field = Field("x", "int64", (), ragged=True)
    dataset = ragged_dataset({"x": 0}, [field], [numbers_of_length(lengths)])
    transforms = None if transform is None else {"x": transform}
    check(dataset, device, transforms=transforms)


def test_images_and_labels_of_many_sizes(device: torch.device) -> None:
    random = np.random.default_rng(0)
    for shape in [(1,), (3, 5), (64, 1024), (224, 224, 3), (1 << 20,)]:
        data = random.integers(0, 256, (9, *shape), np.uint8)
        check(ArrayDataset({"x": data, "y": np.arange(9)}), device, shuffle=True, seed=1)


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), index**2), "name": str(index)}


@pytest.mark.parametrize("options", [{}, {"pin_memory": True}, {"num_workers": 2}])
def test_datasets_that_torch_loads(options: dict[str, Any], device: torch.device) -> None:
    check(Squares(), device, **options)


KINDS = ["bool", "uint8", "int8", "uint16", "int16", "float16", "float32"]
FLOATS = ["float32", "float16", "bfloat16"]
LAYOUTS = [[], [ToChannelsFirst()], [ToChannelsFirst(torch.channels_last)]]


def pictures(kind: str, channels: int) -> np.ndarray:
    """Images of random bits, so that special numbers occur."""
    random = np.random.default_rng(channels)
    shape = (37, 23, 19, channels)
    if kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    dtype = np.dtype(kind)
    bits = random.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return bits.view(dtype)[..., 0]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["kept", "first", "channels_last"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels(kind: str, channels: int, layout: list[Any], device: torch.device) -> None:
    data = ArrayDataset({"x": pictures(kind, channels), "y": np.arange(37)})
    mean, std = [0.4, 0.5, 0.6, 0.7][:channels], [0.2, 0.3, 0.25, 0.4][:channels]
    steps: list[list[Any]] = [[]] if layout else []
    steps += [[Cast(name)] for name in FLOATS] + [[Normalize(mean, std, name)] for name in FLOATS]
    for step in steps:
        for random in ([], [RandomHorizontalFlip(), RandomCrop((16, 21), padding=(3, 2))]):
            transforms = {"x": [*random, *step, *layout]}
            check(data, device, 8, shuffle=True, seed=5, transforms=transforms)


def test_packed_data_with_all_transforms(tmp_path: Any, device: torch.device) -> None:
    images = np.random.default_rng(0).integers(0, 256, (300, 32, 32, 3), np.uint8)
    fastload.pack({"image": images, "label": np.arange(300)}, tmp_path / "out")
    steps = [RandomCrop(32, padding=4), RandomHorizontalFlip()]
    steps += [Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2), "bfloat16"), ToChannelsFirst()]
    check(
        fastload.open(tmp_path / "out"),
        device,
        64,
        shuffle=True,
        seed=0,
        transforms={"image": steps},
    )


def test_pinned_batches(device: torch.device) -> None:
    data = ArrayDataset({"x": np.arange(4096.0).reshape(8, 512), "y": np.arange(8)})
    for batch in FastLoader(data, 3, pin_memory=True):
        assert all(tensor.is_pinned() for tensor in batch.values())
        copies = {key: tensor.to(device, non_blocking=True) for key, tensor in batch.items()}
        want = {key: tensor.clone() for key, tensor in batch.items()}
        del batch
        for key, copy in copies.items():
            assert torch.equal(copy.cpu(), want[key])
