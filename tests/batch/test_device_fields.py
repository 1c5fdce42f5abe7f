"""Images that the device delivers: which they are, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fastload import Cast, Normalize, RandomCrop, RandomHorizontalFlip, ToChannelsFirst
from fastload.batch.device_fields import DeviceFields
from fastload.batch.pixels import make_pixels
from fastload.formats.fields import Field

IMAGE = Field("x", "uint8", (24, 20, 3))
NORMALIZE = Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))


@dataclass
class Drawn:
    """What `DeviceFields.leaf` asks of a batch."""

    draws: Any


def raw(field: Field, steps: Any, *, runs: bool = True) -> DeviceFields:
    pixels = {"x": make_pixels(field, field.shape, steps)}
    return DeviceFields([field, Field("y", "int64", ())], pixels, lambda plan: runs)


@pytest.mark.parametrize(
    ("field", "steps", "is_raw"),
    [
        (IMAGE, [NORMALIZE, ToChannelsFirst()], True),
        (IMAGE, [RandomHorizontalFlip()], True),
        (IMAGE, [ToChannelsFirst("channels_last")], True),
        (IMAGE, [RandomCrop(20), NORMALIZE], True),
        (IMAGE, [RandomCrop(19)], False),  # what is cut off would be copied
        (Field("x", "float32", (4096,)), [Cast("float16")], False),  # twice as large
        (Field("x", "float16", (4096,)), [Cast("float32")], True),
        (Field("x", "float16", (255,)), [Cast("float32")], False),  # small
        (Field("x", "uint8", ()), [Cast("float32")], False),
    ],
)
def test_what_would_be_larger_on_the_bus_or_is_small_is_made_by_the_cpu(
    field: Field, steps: Any, is_raw: bool
) -> None:
    assert ("x" in raw(field, steps)) == is_raw
    assert "y" not in raw(field, steps)
    assert not raw(field, steps, runs=False)


def test_the_device_is_told_what_was_drawn_and_where_to() -> None:
    fields = raw(IMAGE, [RandomCrop(22, 1), NORMALIZE, ToChannelsFirst()])
    fields.start(7, 3)
    array, draws = np.zeros((5, 24, 20, 3), np.uint8), np.arange(5) * 11
    assert fields.are_random
    [leaf] = fields.leaf("x", array, Drawn(draws))
    assert (leaf.size, leaf.seed, leaf.epoch) == ((24, 20), 7, 3)
    assert leaf.images.data_ptr() == array.ctypes.data
    assert leaf.draws is draws
    assert (leaf.shape, leaf.dtype) == ((5, 3, 22, 22), torch.float32)
    assert leaf.staging_bytes == leaf.plan.raw_bytes(24, 20, 5) == 7424 + 5 * 12

    quiet = raw(IMAGE, [Cast("bfloat16")])
    assert not quiet.are_random
    [leaf] = quiet.leaf("x", array, Drawn(None))
    assert len(leaf.draws) == 5
    assert (leaf.shape, leaf.dtype) == ((5, 24, 20, 3), torch.bfloat16)
