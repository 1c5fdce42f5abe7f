"""Numbers and images that change on their way into a batch, against torch."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from core_tables import batches_of, engine_over, file_table, int64, memory_table
from image_oracle import assert_same, delivered, normalized
from samples import numbers

from fastload import Cast, Normalize, RandomCrop, RandomHorizontalFlip, ToChannelsFirst, _core
from fastload.batch.pixels import Pixels, make_pixels
from fastload.formats.fields import Field

STORED = ["bool", "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "float32"]
DELIVERED = ["float32", "float16", "bfloat16"]


def as_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(array).view(getattr(torch, dtype))


def through_core(pixels: Pixels, image: np.ndarray, index: int = 0) -> torch.Tensor:
    """One image (H, W, C), by the plan alone."""
    shape = pixels.field.shape
    out = np.empty(shape, pixels.field.storage)
    pixels.plan.deliver(image, out, 1, 2, index)
    return as_torch(out, pixels.field.dtype)


def through_engine(
    pixels: Pixels, rows: np.ndarray, indices: np.ndarray, workers: int = 0
) -> torch.Tensor:
    """A batch of rows, by the engine."""
    field, size = pixels.field, pixels.size
    order = _core.ArrayOrder(indices, len(indices), False)
    spec = (field.storage, field.shape, (pixels.plan, *(size or ())))
    engine = _core.Engine(
        memory_table(rows), _core.SlotPool(), [spec], order, workers, 2, seed=1, epoch=2
    )
    [out] = engine.next()
    engine.stop()
    return as_torch(out, field.dtype)


def bits_of(dtype: str) -> np.ndarray:
    """Every number of a dtype of up to 16 bits, and the hard ones of float32."""
    if dtype == "bool":
        return np.array([False, True] * 32)
    if dtype != "float32":
        kind = np.uint8 if dtype in ("uint8", "int8") else np.uint16
        every = np.arange(np.iinfo(kind).max + 1, dtype=kind)
        return every if dtype == "bfloat16" else every.view(dtype)
    # Every half and every bfloat16, what lies in the middle between two, and its neighbours.
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    brains = np.arange(65536, dtype=np.int64) << 16
    middles = [halves.view(np.uint32).astype(np.int64) + 0x1000, brains + 0x8000]
    near = [part + step for part in middles for step in (-1, 0, 1)]
    parts = [halves.view(np.uint32), brains, *near]
    return np.concatenate([part.astype(np.uint32) for part in parts]).view(np.float32)


@pytest.mark.parametrize("out", DELIVERED)
@pytest.mark.parametrize("stored", STORED)
def test_every_number_is_cast_as_torch_casts_it(stored: str, out: str) -> None:
    every = bits_of(stored)
    field = Field("x", stored, every.shape)
    pixels = make_pixels(field, field.shape, [Cast(out)])
    want = as_torch(every, stored).to(torch.float32).to(getattr(torch, out))
    try:
        for kernel in _core.copy_kernels():
            _core.set_copy_kernel(kernel)
            assert_same(through_engine(pixels, every[None], int64(0))[0], want)
    finally:
        _core.set_copy_kernel("auto")


@pytest.mark.parametrize("out", DELIVERED)
@pytest.mark.parametrize("stored", STORED)
def test_every_number_is_normalised_as_torchvision_says(stored: str, out: str) -> None:
    every = bits_of(stored)
    field = Field("x", stored, every.shape)
    for step in (Normalize(0.449, 0.226, out), Normalize(-3e-5, -9.7, out)):
        pixels = make_pixels(field, field.shape, [step])
        want = normalized(as_torch(every, stored), step)
        assert_same(through_engine(pixels, every[None], int64(0))[0], want)


def test_an_image_of_imagenet_is_what_torchvisions_four_steps_make_of_it() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 56, 64, 3), np.uint8)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    field = Field("x", "uint8", (56, 64, 3))
    for out in DELIVERED:
        steps = [Normalize(mean, std, out), ToChannelsFirst()]
        got = through_engine(make_pixels(field, field.shape, steps), images, np.arange(3))
        x = torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32).mul_(1.0 / 255)
        m, s = (torch.tensor(part).view(-1, 1, 1) for part in (mean, std))
        assert_same(got, x.sub(m).div_(s).to(getattr(torch, out)))


SHAPES = [(5, 7), (5, 7, 1), (5, 7, 3), (6, 5, 4), (1, 1, 3), (40, 33, 3), (3, 2, 11)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stored", ["uint8", "int16", "float32", "int64", "bool"])
def test_windows_layouts_and_dtypes_together(stored: str, shape: tuple[int, ...]) -> None:
    rows = numbers(stored, 9 * int(np.prod(shape))).reshape(9, *shape)
    if stored == "uint8":
        rows = np.random.default_rng(1).integers(0, 256, rows.shape, np.uint8)
    field, channels = Field("x", stored, shape), shape[2] if len(shape) == 3 else 1
    crop = RandomCrop((max(1, shape[0] - 1), shape[1] + 2), padding=(3, 2))
    flip = RandomHorizontalFlip(0.6)
    normalize = Normalize(
        [0.05 * c for c in range(channels)], [0.2 + c / 2 for c in range(channels)]
    )
    first, last = ToChannelsFirst(), ToChannelsFirst("channels_last")
    sequences: list[list[Any]] = [[crop, flip], [flip, crop, first], [first, flip], [last, crop]]
    if stored != "int64":
        sequences += [[crop, flip, normalize, first], [flip, Cast("float16"), last, crop]]
        sequences += [[first, normalize], [normalize, flip], [last, normalize]]
    indices = int64(8, 0, 3, 3, 5)
    for steps in sequences:
        pixels = make_pixels(field, shape, steps)
        for workers in (0, 2):
            got = through_engine(pixels, rows, indices, workers)
            if pixels.channels_last:
                got = got.permute(0, 3, 1, 2)
            for image, index in zip(got, indices.tolist(), strict=True):
                window = pixels.plan.window(*shape[:2], 1, 2, index)
                assert_same(image, delivered(torch.from_numpy(rows[index]), steps, window))


def test_a_plan_alone_gives_what_the_engine_gives() -> None:
    rows = np.random.default_rng(2).integers(0, 256, (20, 9, 8, 3), np.uint8)
    steps = [RandomCrop(8, 2), RandomHorizontalFlip(), Normalize(0.5, 0.2), ToChannelsFirst()]
    pixels = make_pixels(Field("x", "uint8", (9, 8, 3)), (9, 8, 3), steps)
    batch = through_engine(pixels, rows, np.arange(20))
    for index, image in enumerate(batch):
        assert torch.equal(through_core(pixels, rows[index], index), image)


def test_numbers_without_an_image_have_their_channels_last() -> None:
    rows = np.random.default_rng(3).normal(size=(7, 4, 6)).astype(np.float32)
    step = Normalize(np.arange(6), torch.arange(1, 7), "bfloat16")
    field = Field("x", "float32", (4, 6))
    got = through_engine(make_pixels(field, field.shape, [step]), rows, int64(6, 2))
    assert_same(got, normalized(torch.from_numpy(rows[[6, 2]]), step))
    scalar = Field("x", "int16", ())
    got = through_engine(
        make_pixels(scalar, (), [Normalize(0, 2)]), np.array([-32767, 32767], np.int16), int64(1, 0)
    )
    assert got.tolist() == [0.5, -0.5]


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_files_are_read_and_a_short_one_names_the_sample(tmp_path: Path, io: str) -> None:
    rows, row_bytes = 40, 24 * 24 * 3
    data = np.random.default_rng(4).integers(0, 256, (2, rows, 24, 24, 3), np.uint8)
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, part in zip(paths, data, strict=True):
        part.tofile(path)
    steps = [RandomCrop(20), Normalize(0.4, 0.2, "bfloat16"), ToChannelsFirst()]
    pixels = make_pixels(Field("x", "uint8", (24, 24, 3)), (24, 24, 3), steps)
    spec = (pixels.field.storage, pixels.field.shape, (pixels.plan, 24, 24))
    indices = np.random.default_rng(5).permutation(2 * rows)
    table = file_table(paths, rows, row_bytes, io)
    for workers in (0, 2):
        engine = engine_over(table, [spec], _core.ArrayOrder(indices, 32, False), workers)
        got = np.concatenate([batch[0] for batch in batches_of(engine)])
        for index, image in zip(indices.tolist(), as_torch(got, "bfloat16"), strict=True):
            image_in = torch.from_numpy(data.reshape(-1, 24, 24, 3)[index])
            window = pixels.plan.window(24, 24, 0, 0, index)
            assert_same(image, delivered(image_in, steps, window))
    os.truncate(paths[1], 4096)
    order = _core.ArrayOrder(int64(3, rows + 1, 60), 3, False)
    engine = engine_over(table, [spec], order)
    with pytest.raises(OSError, match=r"'x' of sample (41|60)") as caught:
        engine.next()
    assert caught.value.filename == str(paths[1])


def test_batches_of_no_samples_and_of_no_pixels() -> None:
    rows = np.zeros((3, 4, 4, 3), np.uint8)
    steps = [RandomCrop(2), Normalize(0, 1), ToChannelsFirst()]
    pixels = make_pixels(Field("x", "uint8", (4, 4, 3)), (4, 4, 3), steps)
    spec = (pixels.field.storage, pixels.field.shape, (pixels.plan, 4, 4))
    order = _core.PushedOrder()
    engine = engine_over(memory_table(rows), [spec], order)
    order.push(int64())
    order.push(int64(2, 2))
    order.finish()
    assert [batch[0].shape for batch in batches_of(engine)] == [(0, 3, 2, 2), (2, 3, 2, 2)]
    empty = make_pixels(Field("x", "uint8", (0, 4, 3)), (0, 4, 3), [Cast("float32")])
    assert empty.out_bytes == 0
    padded = make_pixels(Field("x", "uint8", (0, 4, 3)), (0, 4, 3), [RandomCrop(2, 3)])
    assert not through_core(padded, np.zeros((0, 4, 3), np.uint8)).any()


def test_what_cannot_be_delivered_is_refused() -> None:
    def plan(**changes: Any) -> _core.PixelPlan:
        return _core.PixelPlan(**{"item_bytes": 1, "channels": 3} | changes)

    conversion = ("uint8", "float32", True, 1.0, [0.0], [1.0])
    for name, place, value in itertools.chain(
        [("got 'int64'", 0, "int64"), ("got 'x'", 1, "x"), ("delivered as float32", 1, "uint8")],
        [("got nan", 5, [np.nan]), ("not 0, got 0", 5, [0.0]), ("not 0, got 0", 5, [1e-60])],
        [("got inf", 4, [1e300]), ("got 2 and 1", 4, [1.0, 2.0]), ("scale .* got nan", 3, np.nan)],
    ):
        changed = (*conversion[:place], value, *conversion[place + 1 :])
        with pytest.raises(ValueError, match=name):
            plan(conversion=changed)
    for changes in ({"item_bytes": 3}, {"channels": 0}, {"flip": (2.0, False, 0)}):
        with pytest.raises(
            ValueError, match=r"item_bytes .* got 3|channels .* got 0|probability .* got 2"
        ):
            plan(**changes)
    with pytest.raises(ValueError, match="larger than the image"):
        plan(crop=((5, 5), (0, 0, 0, 0), 0)).out_size(4, 9)
    with pytest.raises(ValueError, match=r"2\^31"):
        plan().out_size(1 << 16, 1 << 16)

    image, good = np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4, 3), np.uint8)
    for bad_in, bad_out in (
        (image[..., :2], good),
        (image[:, ::2], good[:, :2].copy()),
        (image, good[:2]),
        (image[0], good),
        (image.astype(np.int16), good),
    ):
        with pytest.raises(ValueError, match=r"must be .*, got "):
            plan().deliver(bad_in, bad_out, 0, 0, 0)
    good.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        plan().deliver(image, good, 0, 0, 0)

    table, order = memory_table(image[None]), _core.PushedOrder()
    byte = np.dtype(np.uint8)
    for spec in (
        (byte, (4, 4, 3), (plan(), 4, 5)),
        (byte, (4, 4, 2), (plan(), 4, 4)),
        (byte, (4, 4, 3), (plan(), 4, 4 << 40)),
    ):
        with pytest.raises(ValueError, match=r"must have .* bytes, got|2\^31"):
            engine_over(table, [spec], order)
    booleans = memory_table(np.zeros((1, 4, 4, 3), bool))
    with pytest.raises(ValueError, match="booleans"):
        engine_over(
            booleans, [(np.dtype("f4"), (4, 4, 3), (plan(conversion=conversion), 4, 4))], order
        )


def test_room_on_a_gpu_is_for_the_images_and_for_what_is_drawn() -> None:
    quiet = _core.PixelPlan(item_bytes=2, channels=3, planar=True)
    assert quiet.has_kernel
    assert quiet.raw_bytes(5, 7, 4) == 2 * 5 * 7 * 3 * 4
    mirrored = _core.PixelPlan(item_bytes=2, channels=3, flip=(0.5, False, 0))
    assert mirrored.raw_bytes(5, 7, 4) == 1024 + 4 * 12  # 840, at the next multiple of 256
    assert mirrored.raw_bytes(5, 7, 0) == 0
    with pytest.raises(ValueError, match="negative"):
        quiet.raw_bytes(5, 7, -1)
    for channels in (64, 65):
        numbers = [0.5] * channels
        conversion = ("uint8", "float32", True, 1.0, numbers, numbers)
        plan = _core.PixelPlan(item_bytes=1, channels=channels, conversion=conversion)
        assert plan.has_kernel == (channels == 64)
