"""Augmented images through FastLoader: the same for any workers, batches, ranks and resumes."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoded_images import by_pillow
from image_oracle import assert_same, delivered
from ragged import png, ragged_dataset
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, Subset, TensorDataset

import fastload
from fastload import (
    ArrayDataset,
    Cast,
    DecodeImage,
    FastLoader,
    FormatError,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
)
from fastload.batch import transforms
from fastload.formats.fields import Field

N, SHAPE = 37, (12, 10, 3)
IMAGES = np.random.default_rng(0).integers(0, 256, (N, *SHAPE), np.uint8)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STEPS = [RandomCrop((8, 11), padding=2), RandomHorizontalFlip(), Normalize(MEAN, STD, "bfloat16")]
STEPS += [ToChannelsFirst()]
CHOICE = {"image": STEPS}


def dataset() -> ArrayDataset:
    return ArrayDataset({"image": IMAGES, "label": np.arange(N)})


def augmented(index: int, seed: int, epoch: int) -> torch.Tensor:
    """What a sample must be."""
    chosen = transforms.choices(CHOICE, dataset().extents.fields)
    window = chosen.pixels["image"].plan.window(*SHAPE[:2], seed, epoch, index)
    return delivered(torch.from_numpy(IMAGES[index]), STEPS, window)


def by_index(batches: Any) -> dict[int, torch.Tensor]:
    found = {}
    for batch in batches:
        for index, image in zip(batch["label"].tolist(), batch["image"], strict=True):
            found[index] = image
    return found


def assert_equal(got: dict[int, torch.Tensor], want: dict[int, torch.Tensor]) -> None:
    assert list(got) == list(want)
    for index in want:
        assert_same(got[index], want[index])


@pytest.mark.parametrize("workers", [None, 0, 1, 3])
def test_batches_are_what_seed_epoch_and_index_say(workers: int | None) -> None:
    loader = FastLoader(dataset(), 5, shuffle=True, seed=9, num_workers=workers, transforms=CHOICE)
    for epoch in range(2):
        found = by_index(loader)
        assert len(found) == N
        for index, image in found.items():
            assert_same(image, augmented(index, 9, epoch))


def test_neither_batch_size_nor_ranks_nor_order_change_a_sample() -> None:
    want = {index: augmented(index, 9, 0) for index in range(N)}
    for size, world in itertools.product((1, 7, 64), (1, 3)):
        found: dict[int, torch.Tensor] = {}
        for rank in range(world):
            options: dict[str, Any] = {"seed": 9, "shard": (rank, world), "transforms": CHOICE}
            found |= by_index(FastLoader(dataset(), size, shuffle=size != 7, **options))
        assert_equal({index: found[index] for index in range(N)}, want)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_packed_images_of_several_shards(tmp_path: Path, io: str) -> None:
    samples = [{"image": IMAGES[i], "label": np.int64(i)} for i in range(N)]
    fastload.pack(samples, tmp_path / "packed", shard_size=4096)
    loader = FastLoader(tmp_path / "packed", 8, seed=9, io=io, num_workers=2, transforms=CHOICE)
    assert_equal(by_index(loader), {index: augmented(index, 9, 0) for index in range(N)})


def test_a_subset_counts_by_its_own_indices() -> None:
    whole = TensorDataset(torch.from_numpy(IMAGES), torch.arange(N))
    loader = FastLoader(Subset(whole, [30, 3, 3]), 3, seed=9, transforms={"0": STEPS})
    [images, labels] = next(iter(loader))
    assert labels.tolist() == [30, 3, 3]
    plan = transforms.choices({"0": STEPS}, whole_fields(loader)).pixels["0"].plan
    for place, (index, image) in enumerate(zip(labels.tolist(), images, strict=True)):
        window = plan.window(*SHAPE[:2], 9, 0, place)
        assert_same(image, delivered(torch.from_numpy(IMAGES[index]), STEPS, window))


def whole_fields(loader: FastLoader[Any]) -> tuple[Field, ...]:
    from fastload.datasets.native import native_extents

    extents = native_extents(loader.dataset)
    assert extents is not None
    return extents.fields


def test_fields_with_the_same_random_transforms_stay_together() -> None:
    masks = IMAGES[..., 0] > 127
    data = ArrayDataset({"image": IMAGES, "mask": masks, "label": np.arange(N)})
    random: list[Any] = [RandomCrop(7, padding=1), RandomHorizontalFlip()]
    choice: dict[str, Any] = {"image": [*random, ToChannelsFirst()], "mask": random}
    for batch in FastLoader(data, 6, shuffle=True, seed=1, transforms=choice):
        assert torch.equal(batch["image"][:, 0] > 127, batch["mask"])
        assert batch["mask"].dtype == torch.bool


def test_channels_last_memory_is_a_view_with_torchs_strides() -> None:
    steps = [*STEPS[:3], ToChannelsFirst(torch.channels_last)]
    plain = FastLoader(dataset(), 5, seed=9, transforms=CHOICE)
    loader = FastLoader(dataset(), 5, seed=9, transforms={"image": steps})
    for got, want in zip(loader, plain, strict=True):
        assert got["image"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(got["image"], want["image"])
        got["image"].zero_()  # the caller's


def test_a_batch_keeps_only_its_own_bytes() -> None:
    batch = next(iter(FastLoader(dataset(), 5, transforms=CHOICE)))
    assert batch["image"].untyped_storage().nbytes() == 5 * 3 * 8 * 11 * 2


# --- Without a seed


def drawn(**options: Any) -> dict[int, torch.Tensor]:
    torch.manual_seed(4)
    return by_index(FastLoader(dataset(), 5, shuffle=True, transforms=CHOICE, **options))


def test_without_a_seed_torchs_base_seed_is_the_key() -> None:
    torch.manual_seed(4)
    base_seed = int(torch.empty((), dtype=torch.int64).random_())
    want = {index: augmented(index, base_seed, 0) for index in range(N)}
    for workers in (None, 0, 2):
        found = drawn(num_workers=workers)
        assert_equal({index: found[index] for index in range(N)}, want)


def test_random_transforms_draw_no_other_random_numbers_than_torch() -> None:
    for workers in (None, 0, 2):
        with_transforms, without = drawn(num_workers=workers), torch.get_rng_state()
        torch.manual_seed(4)
        plain = by_index(FastLoader(dataset(), 5, shuffle=True, num_workers=workers))
        assert list(plain) == list(with_transforms)
        assert torch.equal(torch.get_rng_state(), without)


def test_each_epoch_differs_also_with_persistent_workers() -> None:
    for options in ({"seed": 3}, {}, {"num_workers": 1, "persistent_workers": True}):
        loader = FastLoader(dataset(), 5, transforms=CHOICE, **options)
        epochs = [by_index(loader) for _ in range(3)]
        for one, other in itertools.pairwise(epochs):
            assert sum(torch.equal(one[index], other[index]) for index in range(N)) < N // 4


# --- Resuming

LOADERS: dict[str, dict[str, Any]] = {
    "keyed": {"seed": 5, "shuffle": True},
    "shuffled": {"shuffle": True},
    "workers": {"shuffle": True, "num_workers": 2},
    "persistent": {"num_workers": 1, "persistent_workers": True},
    "sequential": {},
    "generator": {"shuffle": True, "generator": 0},
    "seeded sampler": {"seed": 5, "sampler": SequentialSampler(range(N))},
    "foreign": {"batch_sampler": BatchSampler(RandomSampler(range(N)), 5, False)},
}


def loader_of(name: str) -> FastLoader[Any]:
    options = dict(LOADERS[name])
    if "generator" in options:
        options["generator"] = torch.Generator().manual_seed(options["generator"])
    size = 1 if "batch_sampler" in options else 5
    return FastLoader(dataset(), size, transforms=CHOICE, **options)


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("name", LOADERS)
def test_a_resumed_epoch_repeats_its_augmentations(name: str, taken: int) -> None:
    torch.manual_seed(11)
    loader = loader_of(name)
    for _ in loader:
        pass
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = copy.deepcopy(loader.state_dict())
    if name == "foreign" and taken == 0:
        return  # the order of another sampler is that sampler's to save
    rest = by_index(batches)
    if name != "foreign":
        torch.manual_seed(12)
        resumed = loader_of(name)
        resumed.load_state_dict(state)
        assert_equal(by_index(resumed), rest)
    assert ("base_seed" in state) == (LOADERS[name].get("seed") is None)


@pytest.mark.parametrize("name", ["shuffled", "sequential", "generator"])
def test_a_state_before_an_epoch_foresees_its_augmentations(name: str) -> None:
    torch.manual_seed(11)
    loader = loader_of(name)
    for _ in loader:
        pass
    state = copy.deepcopy(loader.state_dict())
    assert not state["begun"]
    want = by_index(loader)
    torch.manual_seed(12)
    resumed = loader_of(name)
    resumed.load_state_dict(state)
    assert_equal(by_index(resumed), want)


def test_states_without_random_transforms_stay_as_they_were() -> None:
    loader = FastLoader(dataset(), 5, transforms={"image": Cast("float16")})
    next(iter(loader))
    assert "base_seed" not in loader.state_dict()
    resumed = loader_of("sequential")  # it draws what nobody has saved
    resumed.load_state_dict(loader.state_dict())
    assert list(by_index(resumed)) == list(range(5, N))
    damaged = loader_of("sequential").state_dict() | {"base_seed": "x"}
    with pytest.raises(ValueError, match="the state is damaged"):
        loader_of("sequential").load_state_dict(damaged)


# --- Decoded images


def photos(images: list[bytes]) -> ArrayDataset:
    fields = [Field("image", "uint8", (), True, "image"), Field("label", "int64", ())]
    return ragged_dataset({"image": 0, "label": 1}, fields, [images, list(range(len(images)))])


DECODED: dict[str, list[Any]] = {
    "fixed": [DecodeImage((9, 8)), *STEPS],
    "cropped": [DecodeImage(), RandomCrop(6, 2), RandomHorizontalFlip(), Cast("float32")],
    "channels last": [DecodeImage((9, 8)), *STEPS[:3], ToChannelsFirst("channels_last")],
}


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("name", DECODED)
def test_decoded_images_are_augmented_in_the_same_way(name: str, workers: int | None) -> None:
    steps = DECODED[name]
    files = [png(i, 5 + i % 5, 7 + i % 3) for i in range(23)]
    loader = FastLoader(
        photos(files), 5, shuffle=True, seed=9, num_workers=workers, transforms={"image": steps}
    )
    plan = transforms.choices({"image": steps}, whole_fields(loader)).pixels["image"].plan
    for epoch in range(2):
        found = by_index(loader)
        assert len(found) == 23
        for index, got in found.items():
            image = by_pillow(files[index], steps[0].size)
            window = plan.window(*image.shape[:2], 9, epoch, index)
            assert_same(got, delivered(torch.from_numpy(image.copy()), steps[1:], window))


def test_decoded_images_keep_their_sizes_without_a_crop() -> None:
    steps = [DecodeImage(mode="L"), RandomHorizontalFlip(1), Normalize(0.5, 0.5), ToChannelsFirst()]
    loader = FastLoader(photos([png(i, 6, 4) for i in range(6)]), 6, transforms={"image": steps})
    assert next(iter(loader))["image"].shape == (6, 1, 4, 6)
    unequal = photos([png(i, 6 + i, 4) for i in range(6)])
    with pytest.raises(RuntimeError, match=r"equal size, but got \[1, 4, 6\] .* \[1, 4, 7\]"):
        next(iter(FastLoader(unequal, 6, transforms={"image": steps})))


@pytest.mark.parametrize("size", [None, (6, 4)])
@pytest.mark.parametrize("step", [Cast("float32"), Normalize(0.5, 0.25), Normalize(MEAN, STD)])
def test_decoded_images_take_numbers_alone(size: Any, step: Any) -> None:
    files = [png(i, 6, 4) for i in range(3)]
    steps = [DecodeImage(size), step]
    batch = next(iter(FastLoader(photos(files), 3, transforms={"image": steps})))["image"]
    assert batch.shape == (3, *(size or (4, 6)), 3)
    for image, file in zip(batch, files, strict=True):
        stored = torch.from_numpy(by_pillow(file, size).copy())
        assert_same(image, delivered(stored, [step], (0, 0, False)))


def test_an_image_smaller_than_its_window_is_its_batchs_error() -> None:
    files = [png(i, 9, 9) for i in range(5)] + [png(5, 4, 9)]
    loader = FastLoader(photos(files), 2, transforms={"image": [DecodeImage(), RandomCrop(6)]})
    batches = iter(loader)
    assert [next(batches)["image"].shape for _ in range(2)] == [(2, 6, 6, 3)] * 2
    with pytest.raises(FormatError, match=r"sample 5.*\(6, 6\) is larger than the image, \(9, 4\)"):
        next(batches)


def test_torchs_iterators_take_no_transforms() -> None:
    with pytest.raises(ValueError, match="for native data"):
        FastLoader([{"image": IMAGES[0]}], transforms=CHOICE)
