"""Whole loaders over the fake CUDA driver give what they give on the CPU, whatever the timing."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu, assert_equal, host, seen
from ragged import numbers_of_length, photos, png, ragged_dataset
from torch.utils.data import Dataset

from fastload import (
    ArrayDataset,
    AsList,
    DecodeImage,
    FastLoader,
    Jagged,
    Normalize,
    PadTo,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
)
from fastload.formats.extents import Field

CUDA = "cuda:0"
Pair = collections.namedtuple("Pair", "left right")


def rows(*shape: int, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 127, shape).astype(dtype)


def ragged(logical: str | None = None, shape: tuple[int, ...] = ()) -> ArrayDataset:
    fields = [Field("t", "int64", shape, True), Field("y", "int32", ())]
    samples = [numbers_of_length([(7 * i) % 23 for i in range(30)], shape=shape)]
    return ragged_dataset({"t": 0, "y": 1}, fields, [*samples, list(range(30))])


def texts() -> ArrayDataset:
    fields = [Field("s", "uint8", (), True, "utf8"), Field("y", "int64", ())]
    return ragged_dataset((0, 1), fields, [[b"x" * n for n in range(20)], list(range(20))])


class Anything(Dataset[Any]):
    """What torch loads: tensors that are views, large, small, empty, and no tensors at all."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise KeyError("seven")
        return {
            "large": torch.full((200, 100), index),
            "pair": Pair(torch.tensor(index), f"{index}"),
            "empty": torch.zeros(0),
        }


def growing(samples: list[int]) -> Any:
    """A batch of small tensors, whose shapes no other batch has."""
    numbers = torch.arange(samples[0] * 4)
    return [numbers, numbers.reshape(2, -1), numbers.float(), numbers.reshape(4, -1).t(), samples]


def views(samples: list[int]) -> Any:
    """A batch of tensors that are no blocks of memory."""
    whole = torch.arange(48_000 * len(samples)).reshape(len(samples), -1) + samples[0]
    turned = whole[:, :40_000].reshape(len(samples), 200, 200).transpose(1, 2)
    return [whole[:, ::2], turned, whole[:1, :5].t(), whole[0, :1].expand(3), {"samples": samples}]


STEPS = [RandomCrop((28, 31), padding=2), RandomHorizontalFlip()]
STEPS += [Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bfloat16")]
IMAGES = {"image": rows(60, 32, 30, 3), "y": np.arange(60)}
SMALL = ["int64", "float32", "bool", "uint8", "int64", "complex64", "float32", "int16"]
LARGE = {"x": rows(60, 200, 200), "y": np.arange(60), "z": rows(60, 3, dtype="float32")}

CASES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "bare": lambda: (ArrayDataset(rows(60, 7)), {"seed": 1}),
    "large and small": lambda: (ArrayDataset(LARGE), {"seed": 3, "shuffle": True}),
    "torch's order": lambda: (ArrayDataset(LARGE), {"shuffle": True}),
    "small ones of all kinds": lambda: (
        ArrayDataset([rows(60, *[2] * i, dtype=dtype) for i, dtype in enumerate(SMALL)]),
        {"seed": 1},
    ),
    "another's order": lambda: (ArrayDataset(LARGE), {"batch_sampler": [[3, 1], [], [9] * 5]}),
    "workers": lambda: (ArrayDataset(LARGE), {"num_workers": 2, "shuffle": True}),
    "no workers": lambda: (ArrayDataset(LARGE), {"num_workers": 0}),
    "tuple": lambda: (ArrayDataset((rows(60, 300), [rows(60, 2), {"a": rows(60)}])), {}),
    "namedtuple": lambda: (ArrayDataset(Pair(rows(60, 3), rows(60))), {}),
    "bfloat16": lambda: (ArrayDataset(torch.arange(60).bfloat16()), {}),
    "lists": lambda: (ragged(), {"transforms": {"t": AsList()}}),
    "padded": lambda: (ragged(), {"transforms": {"t": PadTo()}}),
    "jagged": lambda: (ragged(shape=(3,)), {"transforms": {"t": Jagged(nested=False)}}),
    "nested": lambda: (ragged(), {"transforms": {"t": Jagged()}}),
    "texts": lambda: (texts(), {}),
    "images": lambda: (ArrayDataset(IMAGES), {"transforms": {"image": STEPS}, "seed": 2}),
    "planar": lambda: (
        ArrayDataset(IMAGES),
        {"transforms": {"image": [*STEPS, ToChannelsFirst()]}, "seed": 2},
    ),
    "channels last": lambda: (
        ArrayDataset(IMAGES),
        {"transforms": {"image": [*STEPS, ToChannelsFirst("channels_last")]}, "seed": 2},
    ),
    "decoded": lambda: (
        photos([png(i, 90, 90) for i in range(12)]),
        {"transforms": {"image": DecodeImage()}},
    ),
    "decoded, cropped": lambda: (
        photos([png(i, 90, 90) for i in range(12)]),
        {"transforms": {"image": [DecodeImage(size=(80, 70)), *STEPS]}, "seed": 3},
    ),
    "python": lambda: ([{"x": torch.full((99,), i), "name": str(i)} for i in range(60)], {}),
    "python, processes": lambda: (
        [torch.full((9000,), i) for i in range(20)],
        {"num_workers": 1},
    ),
    "ever other shapes": lambda: (list(range(600)), {"collate_fn": growing}),
    "views": lambda: (list(range(23)), {"collate_fn": views}),
}


def loaders(name: str) -> tuple[FastLoader[Any], FastLoader[Any]]:
    """One for the device, and one for the CPU."""
    data, options = CASES[name]()
    size = {} if "batch_sampler" in options else {"batch_size": 7}
    return (
        FastLoader(data, device=CUDA, **size, **options),
        FastLoader(data, **size, **options),
    )


@pytest.mark.parametrize("name", CASES)
def test_batches_are_those_of_the_cpu(name: str, gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(1, 100)
    on_device, on_cpu = loaders(name)
    for _ in range(2):
        torch.manual_seed(5)
        got = [seen(gpu, batch) for batch in on_device]
        gpu.synchronise(gpu.now)
        torch.manual_seed(5)
        assert_equal(got, [host(batch) for batch in on_cpu])


def test_kernels_deliver_images_and_numbers_cross_the_bus_as_they_are_stored(gpu: FakeGpu) -> None:
    before = gpu.count("launches")
    for name in ("images", "planar", "channels last"):
        on_device, _ = loaders(name)
        for batch in on_device:
            assert batch["image"].dtype == torch.bfloat16
    assert gpu.count("launches") - before == 3 * len(on_device)


def native(**options: Any) -> FastLoader[Any]:
    return FastLoader(ArrayDataset(LARGE), 4, device=CUDA, num_workers=0, **options)


def test_a_batch_is_one_copy_for_each_large_field_and_one_for_all_small_ones(gpu: FakeGpu) -> None:
    before = gpu.calls("cuMemcpyHtoDAsync")
    for batch in native():
        assert batch["y"].untyped_storage().data_ptr() == batch["z"].untyped_storage().data_ptr()
        batch["y"].add_(1)
        assert batch["z"]._version == 0
        assert batch["x"].untyped_storage().nbytes() == batch["x"].nbytes
        assert all(tensor.data_ptr() % 16 == 0 for tensor in batch.values())
    assert gpu.calls("cuMemcpyHtoDAsync") - before == 2 * len(native())


def test_a_batch_is_two_calls_of_the_core(gpu: FakeGpu) -> None:
    batches = iter(native())
    next(batches)
    scopes = gpu.calls("cuCtxPushCurrent")
    for _ in range(13):
        gpu.synchronise(gpu.now)
        next(batches)
    assert gpu.calls("cuCtxPushCurrent") - scopes == 2 * 13


def test_ten_thousand_batches_of_which_some_are_kept(gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(3, 5)
    data = ArrayDataset({"x": np.arange(10_000 * 4).reshape(-1, 4), "y": np.arange(10_000)})
    rng = np.random.default_rng(0)
    kept: collections.deque[Any] = collections.deque()
    got = []
    for batch in FastLoader(data, 1, device=CUDA, seed=0, shuffle=True):
        kept.append(batch)
        while len(kept) > rng.integers(0, 20):
            old = kept.popleft()
            got.append(gpu.read(old["x"] if len(got) % 2 else old["y"]))
    got += [
        gpu.read(batch["x"] if (len(got) + i) % 2 else batch["y"]) for i, batch in enumerate(kept)
    ]
    gpu.synchronise(gpu.now)
    want = FastLoader(data, 1, seed=0, shuffle=True)
    for i, (one, batch) in enumerate(zip(got, want, strict=True)):
        assert torch.equal(one, batch["x"] if i % 2 else batch["y"])
