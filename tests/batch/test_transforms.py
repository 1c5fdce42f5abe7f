"""Transforms: what they accept, and which fields they fit."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from samples import INTEGERS, NUMPY_DTYPES, TORCH_ONLY

from fastload import AsList, DecodeImage, Jagged, PadTo
from fastload.batch import transforms
from fastload.batch.transforms import padding
from fastload.formats.fields import Field

TEXT = Field("text", "uint8", (), ragged=True, logical="utf8")
IMAGE = Field("image", "uint8", (), ragged=True, logical="image")
AUDIO = Field("audio", "uint8", (), ragged=True, logical="audio")
TOKENS = Field("tokens", "int64", (), ragged=True)
BOXES = Field("meta.boxes", "float32", (4,), ragged=True)
LABEL = Field("label", "int64", ())
FIELDS = (TEXT, IMAGE, AUDIO, TOKENS, BOXES, LABEL)


@pytest.mark.parametrize(
    "transform", [PadTo(8, -1), Jagged(nested=False), AsList(), DecodeImage((2, 3), "L", 5)]
)
def test_transforms_are_values(transform: Any) -> None:
    assert pickle.loads(pickle.dumps(transform)) == transform == copy.deepcopy(transform)
    assert hash(transform) == hash(copy.copy(transform))
    assert type(transform).__name__ in repr(transform)
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        transform.value = 1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PadTo(0), "multiple must be a positive integer"),
        (lambda: PadTo(2.0), "multiple must be a positive integer"),
        (lambda: PadTo(True), "multiple must be a positive integer"),
        (lambda: PadTo(value="x"), "value must be a number"),
        (lambda: PadTo(value=None), "value must be a number"),
        (lambda: Jagged(1), "nested must be True or False"),
        (lambda: DecodeImage(224), r"size must be \(height, width\)"),
        (lambda: DecodeImage((1, 2, 3)), r"size must be \(height, width\)"),
        (lambda: DecodeImage((0, 3)), "a side of size must be a positive integer"),
        (lambda: DecodeImage(mode="BGR"), "mode must be one of RGB, L, RGBA"),
        (lambda: DecodeImage((4, 5), resize=4), "resize=4 needs a size that it covers"),
        (lambda: DecodeImage(resize=4), "resize=4 needs a size that it covers"),
        (lambda: DecodeImage((4, 5), resize=0), "resize must be a positive integer"),
        (lambda: DecodeImage(exif=None), "exif must be True or False"),
    ],
)
def test_bad_arguments(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_what_fits() -> None:
    fitting = {"text": AsList(), "image": DecodeImage(), "audio": PadTo(), "meta.boxes": Jagged()}
    transforms.choices(fitting, FIELDS)
    transforms.choices({"text": PadTo(4, 255), "image": Jagged(), "tokens": PadTo(1, -100)}, FIELDS)
    transforms.choices({}, FIELDS)
    plain = Field("raw", "uint8", (), ragged=True)
    transforms.choices({"raw": DecodeImage()}, [plain])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": PadTo()}, "no field 'x'; it has 'text', 'image', 'audio'"),
        ({"boxes": PadTo()}, "no field 'boxes'"),
        (
            {"label": PadTo()},
            r"'label' is int64 \[\], of fixed size; PadTo is for ragged",
        ),
        ({"label": AsList()}, "AsList is for ragged fields"),
        ({"tokens": Jagged}, "is needed, not <class"),
        ({"tokens": "pad"}, "PadTo.*Jagged.*AsList.*DecodeImage.* is needed, not 'pad'"),
        (
            {"tokens": DecodeImage()},
            r"'tokens' is int64 \[-1\]; DecodeImage is for bytes of images",
        ),
        ({"text": DecodeImage()}, "'text' is utf8; DecodeImage is for bytes of images"),
        ({"audio": DecodeImage()}, "'audio' is audio"),
        ({"tokens": PadTo(value=0.5)}, r"'tokens': PadTo\(value=0.5\) does not fit int64"),
        ([("tokens", PadTo())], "must map names"),
        (PadTo(), "must map names"),
    ],
)
def test_what_does_not_fit(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        transforms.choices(given, FIELDS)


# --- the value of the padding


def ragged(dtype: str, shape: tuple[int, ...] = ()) -> Field:
    return Field("x", dtype, shape, ragged=True)


@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, *TORCH_ONLY])
def test_the_element_is_what_torch_stores(dtype: str) -> None:
    value = 1 if dtype in ("bool", "float8_e8m0fnu") else 3
    multiple, element = padding(PadTo(5, value), ragged(dtype, (2, 2)))
    assert multiple == 5
    stored = torch.frombuffer(bytearray(element), dtype=getattr(torch, dtype))
    assert stored.to(torch.complex64).tolist() == [value] * 4


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_end_at_their_limits(dtype: str) -> None:
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    for value in (low, high, 7.0, np.int8(7), True):
        _, element = padding(PadTo(value=value), ragged(dtype))
        assert np.frombuffer(element, dtype).tolist() == [int(value)]
    for value in (low - 1, high + 1, 0.5, math.nan, math.inf, 1j):
        with pytest.raises(ValueError, match=f"'x': PadTo.* does not fit {dtype}"):
            padding(PadTo(value=value), ragged(dtype))


def test_floats_round_but_do_not_vanish() -> None:
    for dtype, value in (
        ("float16", 0.1),
        ("float16", -math.inf),
        ("bfloat16", 1e38),
        ("bfloat16", -0.3),
        ("float8_e5m2", math.inf),
        ("float8_e4m3fn", 447),
        ("float32", 2**30 + 1),
        ("complex64", 1 + 1j),
        ("float64", 1e300),
    ):
        _, element = padding(PadTo(value=value), ragged(dtype))
        stored = torch.frombuffer(bytearray(element), dtype=getattr(torch, dtype))
        assert stored.to(torch.complex128).item() == pytest.approx(complex(value), rel=0.05)
    assert math.isnan(np.frombuffer(padding(PadTo(value=math.nan), ragged("float32"))[1], "f4")[0])
    for dtype, value in (
        ("float16", 1e6),
        ("float16", 1e-12),
        ("bfloat16", 1e39),
        ("float32", 1e39),
        ("float32", 1j),
        ("bfloat16", 1j),
        ("float8_e4m3fn", math.inf),
        *[("float8_e8m0fnu", value) for value in (0, -1) if "float8_e8m0fnu" in TORCH_ONLY],
        ("bool", 2),
        ("bool", -1),
    ):
        with pytest.raises(ValueError, match="does not fit"):
            padding(PadTo(value=value), ragged(dtype))
