"""The transforms are torchvision's, bit for bit, as torchvision itself runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastload import (
    ArrayDataset,
    FastLoader,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
)

try:
    from torchvision.transforms import v2
except (ImportError, RuntimeError) as reason:  # RuntimeError: it is made for another torch
    pytest.skip(f"torchvision cannot be imported: {reason}", allow_module_level=True)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def delivered(images: np.ndarray, *steps: Any) -> torch.Tensor:
    loader = FastLoader(
        ArrayDataset(images), len(images), transforms={"data": [*steps, ToChannelsFirst()]}
    )
    (batch,) = loader
    return batch


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    bits = torch.int32 if got.dtype == torch.float32 else torch.int16
    return torch.equal(got.view(bits), want.contiguous().view(bits))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stored", ["uint8", "int16", "uint16", "float32"])
def test_normalize(stored: str, dtype: torch.dtype) -> None:
    random = np.random.default_rng(0)
    if stored == "float32":
        images = random.random((4, 33, 47, 3), np.float32)
    else:
        bits = np.iinfo(stored)
        shape = (4, 33, 47, 3)
        images = random.integers(bits.min, bits.max, shape, stored, endpoint=True)
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    theirs = v2.Compose([*steps, v2.ToDtype(dtype)])
    want = torch.stack([theirs(image) for image in images])
    assert same_bits(delivered(images, Normalize(MEAN, STD, dtype)), want.as_subclass(torch.Tensor))


def test_mirrored() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 9, 7, 3), np.uint8)
    theirs = v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(1.0)])
    want = torch.stack([theirs(image) for image in images])
    assert torch.equal(delivered(images, RandomHorizontalFlip(1.0)), want)


@pytest.mark.parametrize("padding", [0, 3, (2, 1), (1, 2, 3, 4)])
def test_windows(padding: Any) -> None:
    """Whatever was drawn, it is a window that torchvision cuts; all of its places are drawn."""
    image = np.random.default_rng(0).integers(0, 256, (1, 6, 7, 3), np.uint8)
    size, count = (5, 4), 2_000
    given = list(padding) if isinstance(padding, tuple) else padding
    padded = v2.functional.pad(v2.functional.to_image(image[0]), given)
    height, width = padded.shape[-2] - size[0] + 1, padded.shape[-1] - size[1] + 1
    windows = {
        v2.functional.crop(padded, top, left, *size).numpy().tobytes()
        for top in range(height)
        for left in range(width)
    }
    ours = delivered(np.repeat(image, count, 0), RandomCrop(size, padding=padding))
    assert {window.numpy().tobytes() for window in ours} == windows
