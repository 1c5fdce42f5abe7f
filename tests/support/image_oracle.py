"""The slow truth about images: what the documentation of torchvision says, in plain torch."""

from __future__ import annotations

from typing import Any

import torch

import fastload

LARGEST = {torch.bool: 1, torch.uint8: 255, torch.int8: 127, torch.uint16: 65535}
LARGEST |= {torch.int16: 32767}


def delivered(image: torch.Tensor, steps: list[Any], window: tuple[int, int, bool]) -> torch.Tensor:
    """What becomes of one stored image (H, W, C), (H, W) or numbers of any shape.

    Args:
        image: As stored.
        steps: Transforms of fastload.
        window: What was drawn: top and left of the crop in the stored image, and whether the window
            is mirrored.
    """
    top, left, flip = window
    if any(isinstance(step, fastload.RandomCrop) for step in steps):
        [crop] = [step for step in steps if isinstance(step, fastload.RandomCrop)]
        image = cropped(image, top, left, *crop.size)
    if flip:
        image = image.flip(1)
    for step in steps:
        if isinstance(step, fastload.Cast):
            image = image.to(torch.float32).to(getattr(torch, step.dtype))
        if isinstance(step, fastload.Normalize):
            image = normalized(image, step)
    if any(isinstance(step, fastload.ToChannelsFirst) for step in steps):
        image = (image if image.ndim == 3 else image[..., None]).permute(2, 0, 1)
    return image


def cropped(image: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    """A window of an image, with zeros where it reaches beyond."""
    far = height + width  # more zeros than any window can reach
    rows, columns = image.shape[:2]
    canvas = torch.zeros((rows + 2 * far, columns + 2 * far, *image.shape[2:]), dtype=image.dtype)
    canvas[far : far + rows, far : far + columns] = image
    return canvas[far + top :][:height, far + left :][:, :width]


def normalized(image: torch.Tensor, step: fastload.Normalize) -> torch.Tensor:
    """ToDtype(torch.float32, scale=True), Normalize(mean, std), .to(dtype); channels last."""
    numbers = image.to(torch.float32)
    if image.dtype in LARGEST:
        numbers = numbers.mul(1.0 / LARGEST[image.dtype])
    mean, std = torch.tensor(step.mean), torch.tensor(step.std)
    return numbers.sub(mean).div(std).to(getattr(torch, step.dtype))


def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal bit for bit; any NaN is as good as another, except that ours is always the same."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if not want.is_floating_point():
        assert torch.equal(got, want)
        return
    bits = torch.int32 if want.element_size() == 4 else torch.int16
    quiet = {torch.float32: 0x7FC00000, torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}[want.dtype]
    got_bits = got.contiguous().view(bits)
    want_bits = want.contiguous().view(bits).masked_fill(want.isnan(), quiet)
    assert torch.equal(got_bits, want_bits)
