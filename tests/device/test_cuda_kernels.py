"""Images that the fake driver's kernels deliver are those of the CPU, in every batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu, assert_equal, host, seen
from ragged import png, ragged_dataset
from torch.utils.data import WeightedRandomSampler

from fastload import (
    ArrayDataset,
    Cast,
    DecodeImage,
    FastLoader,
    Normalize,
    PackedDataset,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
    WeightedSampler,
    pack,
)
from fastload.device.prefetcher import Target
from fastload.formats.fields import Field

CUDA = "cuda:0"
NORMALIZE = Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bfloat16")
CROP, FLIP = RandomCrop((26, 25), padding=4), RandomHorizontalFlip()


def numbers(*shape: int, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 127, shape).astype(dtype)


IMAGES = {"image": numbers(45, 26, 24, 3), "mask": numbers(45, 26, 24), "y": np.arange(45)}
TRANSFORMS: dict[str, Any] = {
    "image": [CROP, FLIP, NORMALIZE, ToChannelsFirst()],
    "mask": [CROP, FLIP],
}
LAST = ToChannelsFirst("channels_last")

# What is loaded, how, and the kernels of an epoch.
CASES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "image and mask": (IMAGES, {"transforms": TRANSFORMS, "seed": 2, "shuffle": True}, 7),
    "torch's order": (IMAGES, {"transforms": TRANSFORMS, "shuffle": True}, 7),
    "workers": (IMAGES, {"transforms": TRANSFORMS, "seed": 4, "num_workers": 2}, 7),
    "another's order": (
        IMAGES,
        {"transforms": TRANSFORMS, "batch_sampler": [[3, 1, 44], [], [9] * 5]},
        2,
    ),
    "channels last": (
        {"image": IMAGES["image"]},
        {"transforms": {"image": [FLIP, NORMALIZE, LAST]}, "seed": 2},
        7,
    ),
    "mirrored bytes": ({"x": IMAGES["image"]}, {"transforms": {"x": FLIP}, "seed": 1}, 7),
    "cast and turned": (
        (numbers(45, 600), numbers(45, 20, 20, 2, dtype="int16"), [np.arange(45)]),
        {},
        14,
    ),
    "bare": (numbers(45, 33, 32, dtype="uint8"), {"transforms": {"data": Normalize(0.5, 2)}}, 7),
}
CASES["by weight"] = (
    IMAGES,
    {"transforms": TRANSFORMS, "sampler": WeightedSampler([0.0, 1.0, 2.0] * 15, 50, seed=3)},
    8,
)
CASES["the same image again and again"] = (
    IMAGES,
    {"transforms": TRANSFORMS, "sampler": WeightedRandomSampler([0.0] * 44 + [1.0], 20)},
    3,
)
CASES["cast and turned"][1]["transforms"] = {"0": Cast("float32"), "1": [ToChannelsFirst()]}


def pair(data: Any, options: dict[str, Any]) -> tuple[FastLoader[Any], FastLoader[Any]]:
    """A loader for the device, and one for the CPU."""
    size = {} if "batch_sampler" in options else {"batch_size": 7}
    dataset = ArrayDataset(data) if isinstance(data, (dict, tuple, np.ndarray)) else data
    on_device = FastLoader(dataset, device=CUDA, **size, **options)
    return on_device, FastLoader(dataset, **size, **options)


def all_of(gpu: FakeGpu, loader: FastLoader[Any]) -> list[Any]:
    got = [seen(gpu, batch) for batch in loader]
    gpu.synchronise(gpu.now)
    return got


@pytest.mark.parametrize("name", CASES)
def test_kernels_give_the_batches_of_the_cpu(name: str, gpu: FakeGpu) -> None:
    data, options, kernels = CASES[name]
    gpu.library.fake_cuda_seed(1, 200)
    on_device, on_cpu = pair(data, options)
    for _ in range(2):
        before = gpu.count("launches")
        torch.manual_seed(5)
        got = all_of(gpu, on_device)
        torch.manual_seed(5)
        want = [host(batch) for batch in on_cpu]
        assert_equal(got, want)
        assert gpu.count("launches") - before == kernels


def test_a_run_that_goes_on_draws_what_it_would_have_drawn(gpu: FakeGpu) -> None:
    options = {"transforms": TRANSFORMS, "seed": 2, "shuffle": True}
    on_device, on_cpu = pair(IMAGES, options)
    batches = iter(on_device)
    got = [seen(gpu, next(batches)) for _ in range(3)]
    state = on_device.state_dict()
    del batches
    again, _ = pair(IMAGES, options)
    again.load_state_dict(state)
    got += all_of(gpu, again)
    assert_equal(got, [host(batch) for batch in on_cpu])


def test_encoded_images_stay_with_the_cpu(gpu: FakeGpu) -> None:
    shape = (30, 28, 3)
    fields = [Field("photo", "uint8", (), True, "image"), Field("image", "uint8", shape)]
    samples = [[png(i, 40, 40) for i in range(12)], list(numbers(12, *shape))]
    data = ragged_dataset({"photo": 0, "image": 1}, fields, samples)
    steps = [RandomCrop(24), NORMALIZE]
    transforms = {"photo": [DecodeImage(), *steps], "image": steps}
    on_device, on_cpu = pair(data, {"transforms": transforms, "seed": 3, "num_workers": 1})
    before = gpu.count("launches")
    assert_equal(all_of(gpu, on_device), [host(batch) for batch in on_cpu])
    assert gpu.count("launches") - before == len(on_cpu)


@pytest.mark.filterwarnings("ignore:samples are left out")
def test_damaged_images_are_left_out(gpu: FakeGpu, tmp_path: Path) -> None:
    pack({"image": numbers(1200, 26, 24, 3), "y": np.arange(1200)}, tmp_path / "packed")
    [shard] = (tmp_path / "packed").glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[1_500_000] ^= 1
    shard.write_bytes(content)
    options = {"transforms": {"image": TRANSFORMS["image"]}, "seed": 2, "shuffle": True}
    options |= {"verify": "lazy", "on_error": "skip"}
    on_device, on_cpu = pair(PackedDataset(tmp_path / "packed"), options)
    want = [host(batch) for batch in on_cpu]
    assert 100 < sum(len(batch["missing"]) for batch in want) < 1000
    assert_equal(all_of(gpu, on_device), want)


def test_a_driver_that_takes_no_kernels_is_named_once_and_the_cpu_does_it(gpu: FakeGpu) -> None:
    data = {"x": numbers(20, 40, 40, dtype="int8")}  # whose kernel no other test uses
    on_device, on_cpu = pair(data, {"transforms": {"x": Cast("float16")}})
    gpu.fail("cuModuleGetFunction", 1, 218)
    with pytest.warns(RuntimeWarning, match="the CPU prepares images.*cuModule") as given:
        got = all_of(gpu, on_device)
    want = [host(batch) for batch in on_cpu]
    assert_equal(got, want)
    before = gpu.count("launches")
    assert_equal(all_of(gpu, on_device), want)
    assert gpu.count("launches") == before
    assert [Path(warning.filename).name for warning in given] == [Path(__file__).name]


def test_what_is_pinned_is_as_large_as_what_is_stored(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = []
    monkeypatch.setattr(Target, "reserve", lambda self, size, depth: reserved.append(size))
    steps = [NORMALIZE, ToChannelsFirst()]
    on_device, _ = pair({"image": IMAGES["image"]}, {"transforms": {"image": steps}})
    iter(on_device)
    assert reserved == [7 * 26 * 24 * 3]
