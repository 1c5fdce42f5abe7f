"""Transforms of numbers and images: what they accept, and which fields and orders they fit."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from fastload import (
    AsList,
    Cast,
    DecodeImage,
    Normalize,
    PadTo,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
)
from fastload.batch import transforms
from fastload.batch.pixels import make_pixels
from fastload.formats.fields import Field

IMAGE = Field("image", "uint8", (32, 30, 3))
GREY = Field("grey", "int16", (8, 9))
TABLE = Field("table", "float32", (7,))
LABEL = Field("label", "int64", ())
JPEG = Field("jpeg", "uint8", (), ragged=True, logical="image")
FIELDS = (IMAGE, GREY, TABLE, LABEL, JPEG)
MEAN = (0.5, 0.4, 0.3)
STD = (0.25, 0.2, 0.3)


@pytest.mark.parametrize(
    "transform",
    [
        Cast("float16"),
        Normalize(MEAN, 0.2, "bfloat16"),
        ToChannelsFirst(torch.channels_last),
        RandomHorizontalFlip(0.25),
        RandomCrop((3, 4), (1, 2)),
    ],
)
def test_transforms_are_values(transform: Any) -> None:
    assert pickle.loads(pickle.dumps(transform)) == transform == copy.deepcopy(transform)
    assert hash(transform) == hash(copy.copy(transform))
    assert type(transform).__name__ in repr(transform)
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        transform.dtype = 1


def test_equal_arguments_are_spelled_in_many_ways() -> None:
    assert Cast(torch.bfloat16) == Cast("bfloat16")
    assert Cast(np.float16) == Cast(np.dtype("float16")) == Cast(torch.float16) == Cast("float16")
    assert Normalize(0, 1) == Normalize([0], np.ones(1), torch.float32)
    assert Normalize(torch.tensor([0.5, 0.25]), 2) == Normalize((0.5, 0.25), (2, 2))
    assert ToChannelsFirst() == ToChannelsFirst(torch.contiguous_format)
    assert RandomCrop(4, 1) == RandomCrop([4, 4], (1, 1)) == RandomCrop((4, 4), (1, 1, 1, 1))
    assert RandomHorizontalFlip(1) == RandomHorizontalFlip(1.0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Cast("int8"), "dtype must be one of float32, float16, bfloat16, not 'int8'"),
        (lambda: Cast(torch.float64), "not torch.float64"),
        (lambda: Cast(None), "not None"),
        (lambda: Normalize(0, 1, "uint8"), "Normalize: dtype must be one of"),
        (lambda: Normalize(0, 0), "std must not be 0"),
        (lambda: Normalize(MEAN, (1, 0, 1)), "std must not be 0"),
        (lambda: Normalize(0, 1e-60), r"std must not be 0 \(in float32\)"),
        (lambda: Normalize(float("nan"), 1), "mean must be a finite number"),
        (lambda: Normalize(0, float("inf")), "std must be a finite number"),
        (lambda: Normalize(1e300, 1), "mean must be a finite number"),
        (lambda: Normalize("x", 1), "mean must be a finite number"),
        (lambda: Normalize((), 1), "mean must be a finite number"),
        (lambda: Normalize(None, 1), "mean must be a finite number"),
        (lambda: Normalize(MEAN, (1, 2)), "mean has 3 channels, but std has 2"),
        (lambda: ToChannelsFirst("NCHW"), "memory_format must be torch.contiguous_format or"),
        (lambda: ToChannelsFirst(torch.preserve_format), "not torch.preserve_format"),
        (lambda: RandomHorizontalFlip(1.5), r"p must be in \[0, 1\], not 1.5"),
        (lambda: RandomHorizontalFlip("x"), "p must be in"),
        (lambda: RandomHorizontalFlip(float("nan")), "p must be in"),
        (lambda: RandomCrop(0), r"size must be \(height, width\), each at least 1: 0"),
        (lambda: RandomCrop(2.5), r"size must be \(height, width\)"),
        (lambda: RandomCrop((1, 2, 3)), r"size must be \(height, width\)"),
        (lambda: RandomCrop(True), r"size must be \(height, width\)"),
        (lambda: RandomCrop("4"), r"size must be \(height, width\)"),
        (lambda: RandomCrop(4, -1), "padding must be 1, 2 or 4 numbers, each at least 0: -1"),
        (lambda: RandomCrop(4, (1, 2, 3)), "padding must be 1, 2 or 4 numbers"),
    ],
)
def test_bad_arguments(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    ("name", "steps", "dtype", "shape"),
    [
        ("image", Cast("bfloat16"), "bfloat16", (32, 30, 3)),
        ("image", ToChannelsFirst(), "uint8", (3, 32, 30)),
        ("image", [ToChannelsFirst("channels_last")], "uint8", (32, 30, 3)),
        ("image", (RandomCrop(16), Normalize(MEAN, 1)), "float32", (16, 16, 3)),
        ("image", [Normalize(MEAN, 1), RandomCrop((40, 16), 4)][::-1], "float32", (40, 16, 3)),
        ("image", [ToChannelsFirst(), Cast("float16"), RandomCrop((7, 5))], "float16", (3, 7, 5)),
        ("grey", RandomHorizontalFlip(), "int16", (8, 9)),
        ("grey", [ToChannelsFirst(), Normalize([0.5], 1)], "float32", (1, 8, 9)),
        ("grey", Normalize(0, 1), "float32", (8, 9)),
        ("grey", Normalize(np.arange(9) / 9, 1), "float32", (8, 9)),
        ("table", Normalize(range(7), range(1, 8)), "float32", (7,)),
        ("jpeg", [DecodeImage((4, 5)), ToChannelsFirst()], "uint8", (3, 4, 5)),
        ("jpeg", [DecodeImage(), RandomCrop((4, 5)), Cast("float32")], "float32", (4, 5, 3)),
    ],
)
def test_what_fits_and_what_it_makes(name: str, steps: Any, dtype: str, shape: Any) -> None:
    chosen = transforms.choices({name: steps}, FIELDS)
    field = chosen.delivered(next(field for field in FIELDS if field.name == name))
    assert (field.dtype, field.shape) == (dtype, shape)
    given = steps if isinstance(steps, (list, tuple)) else [steps]
    random = any(isinstance(step, RandomCrop | RandomHorizontalFlip) for step in given)
    assert chosen.is_random == transforms.is_random({name: steps}) == random


@pytest.mark.parametrize(
    ("name", "steps", "text"),
    [
        ("image", [Cast("float32"), Cast("float16")], "Cast appears twice"),
        ("image", [Normalize(0, 1), Normalize(0, 1)], "Normalize appears twice"),
        ("image", [Normalize(0, 1), Cast("float16")], "mutually exclusive"),
        ("image", [RandomCrop(4), RandomCrop(2)], "RandomCrop appears twice"),
        ("image", [Normalize(0, 1), RandomCrop(4, 1)], "must come before Normalize"),
        ("image", Normalize([0.5] * 4, 1), "has 4 channels, but the field has 3"),
        ("image", Normalize([0.5] * 32, 1), "store images as \\(H, W, C\\)"),
        ("image", RandomCrop(64, 4), r"\(64, 64\) is larger than the image, \(40, 38\)"),
        ("grey", [Normalize([1] * 9, 1), ToChannelsFirst()], "9 channels, but the field has 1"),
        ("table", ToChannelsFirst(), "ToChannelsFirst is for images"),
        ("table", RandomHorizontalFlip(), "RandomHorizontalFlip is for images"),
        ("label", Normalize(0, 1), "Normalize takes bool, uint8, .*, bfloat16, not int64"),
        ("label", Cast("float32"), "Cast takes .* not int64"),
        ("label", RandomCrop(1), "RandomCrop is for images"),
        ("label", PadTo(), "PadTo is for ragged fields"),
        ("jpeg", Cast("float32"), "Cast is not allowed here: a ragged field has one"),
        ("jpeg", [PadTo(), Cast("float32")], "only DecodeImage may be followed by others"),
        ("jpeg", [DecodeImage(), AsList()], "AsList is not allowed here"),
        ("jpeg", [DecodeImage(mode="L"), Normalize(MEAN, 1)], "3 channels, but the field has 1"),
        ("jpeg", [DecodeImage((4, 4)), RandomCrop(5)], r"\(5, 5\) is larger than the image"),
        ("image", [ToChannelsFirst], "is needed, not <class"),
        ("image", ["flip"], "is needed, not 'flip'"),
    ],
)
def test_what_does_not_fit(name: str, steps: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        transforms.choices({name: steps}, FIELDS)
    assert f"field {name!r}" in str(caught.value)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("ragged", [False, True])
def test_means_and_deviations_of_unscaled_integers_are_refused(dtype: str, ragged: bool) -> None:
    largest = np.iinfo(dtype).max
    shape = (None, None, 3) if ragged else (8, 8, 3)
    if ragged and dtype != "uint8":
        return  # encoded images are uint8
    of = Field("x", dtype, () if ragged else (8, 8, 3), ragged)
    for mean, std in (
        (np.array(MEAN) * largest, np.array(STD) * largest),
        (0.0, largest),
        (-0.5 * largest, 1.0),
        (1.01, 1.0),
    ):
        with pytest.raises(
            ValueError, match=rf"{dtype} numbers are scaled .*divided by {largest} they are"
        ):
            make_pixels(of, shape, [Normalize(mean, std)])
    for mean, std in ((MEAN, STD), (0, 1), (1, 1), (-1, 2)):  # type: ignore[assignment]
        make_pixels(of, shape, [Normalize(mean, std)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bool"])
def test_floats_are_not_scaled_and_have_any_mean(dtype: str) -> None:
    make_pixels(Field("x", dtype, (8, 8, 3)), (8, 8, 3), [Normalize(120.0, 60.0)])
