"""A sample that comes again in an epoch is cropped and flipped anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from oracle import cropped_and_flipped, flat

from fastload import (
    ArrayDataset,
    FastLoader,
    RandomCrop,
    RandomHorizontalFlip,
    WeightedSampler,
)

N, SIDE = 6, 200
IMAGES = np.arange(N * SIDE * SIDE).reshape(N, SIDE, SIDE)  # every pixel says where it is from
DATA = ArrayDataset({"image": IMAGES, "index": np.arange(N)})
WINDOW = [RandomCrop((1, 2)), RandomHorizontalFlip()]
TRANSFORMS = {"image": WINDOW}

Pair = list[int]  # the two pixels of a window


def windows(batch: Any) -> list[Pair]:
    found: list[Pair] = batch["image"].reshape(-1, 2).tolist()
    return found


def window(index: int, draw: int, seed: int, epoch: int, image: np.ndarray | None = None) -> Pair:
    """What must be cut out of a sample."""
    image = IMAGES[index] if image is None else image
    height, width = image.shape
    top, left, flip = cropped_and_flipped(seed, epoch, draw, height, width - 1)
    pair: Pair = image[top, left : left + 2].tolist()
    return pair[::-1] if flip else pair


def distinct(pairs: list[Pair]) -> bool:
    return len(set(map(tuple, pairs))) == len(pairs)


# --- By weight: the position of the epoch decides


def one_of_them(draws: int = 61, **options: Any) -> WeightedSampler:
    return WeightedSampler([0, 0, 1, 0, 0, 0], draws, seed=9, **options)


@pytest.mark.parametrize(
    ("world", "size", "workers"), [(1, 1, 0), (1, 7, 2), (1, 64, None), (2, 7, 0), (3, 8, 2)]
)
def test_each_position_draws_for_itself(world: int, size: int, workers: int | None) -> None:
    options: dict[str, Any] = {"tail": "mask", "num_workers": workers, "transforms": TRANSFORMS}
    loaders = [
        FastLoader(DATA, size, sampler=one_of_them(shard=(rank, world)), **options)
        for rank in range(world)
    ]
    for epoch in range(2):
        want = [window(2, position, 9, epoch) for position in range(61)]
        assert distinct(want)
        got: list[Pair] = []
        filled: list[Pair] = []
        for step in zip(*loaders, strict=True):
            for batch in step:
                real = int(batch["real"].sum())
                got += windows(batch)[:real]
                filled += windows(batch)[real:]
        assert got == want
        assert filled == want[: len(filled)]  # they repeat the start in every way
        assert (len(filled) > 0) == (world > 1)


def test_an_epoch_by_weight_goes_on_as_it_would_have() -> None:
    want = [window(2, position, 9, 0) for position in range(61)]
    loader = FastLoader(DATA, 8, sampler=one_of_them(), transforms=TRANSFORMS)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    for size, world in ((8, 1), (5, 2)):
        got = []
        resumed = [
            FastLoader(DATA, size, sampler=one_of_them(shard=(r, world)), transforms=TRANSFORMS)
            for r in range(world)
        ]
        for one in resumed:
            one.load_state_dict(state)
        for step in zip(*resumed, strict=True):
            got += flat([windows(batch) for batch in step])
        assert got[: 61 - 24] == want[24:]


def test_fields_of_a_sample_stay_together() -> None:
    data = ArrayDataset({"image": IMAGES, "other": IMAGES + 1})
    both = {"image": WINDOW, "other": WINDOW}
    for batch in FastLoader(data, 7, sampler=one_of_them(), transforms=both):
        assert torch.equal(batch["image"] + 1, batch["other"])
