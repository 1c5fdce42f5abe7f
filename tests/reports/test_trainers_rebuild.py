"""Trainers that put a loader of their own over `loader.dataset` keep the batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_data import assert_same
from torch.utils.data import BatchSampler, DataLoader

import fastload
from fastload import ArrayDataset, FastLoader, Normalize, PadTo, ToChannelsFirst

SKIPPED = 3


def images() -> FastLoader[Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 8, 8, 3), dtype=np.uint8)
    steps = [Normalize((0.5,) * 3, (0.25,) * 3), ToChannelsFirst()]
    return FastLoader(ArrayDataset({"x": pixels}), 20, seed=0, transforms={"x": steps})


def texts() -> FastLoader[Any]:
    if not Path("texts").exists():
        fastload.pack([{"ids": np.arange(n % 7)} for n in range(100)], "texts")
    return FastLoader("texts", 20, seed=0, transforms={"ids": PadTo(4)})


MAKERS = pytest.mark.parametrize("make", [images, texts])


@MAKERS
def test_accelerates_skip_first_batches_keeps_the_transforms(make: Any) -> None:
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")
    from fastload.integrations.accelerate import prepare

    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(prepare(accelerator, make()))
    skipped = list(accelerate.skip_first_batches(prepared, SKIPPED))
    for got, want in zip(skipped, list(make())[SKIPPED:], strict=True):
        assert_same(got, want)


class SkipBatches(BatchSampler):
    """What Accelerate puts around the batch sampler."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return (batch for number, batch in enumerate(self.batches) if number >= SKIPPED)

    def __len__(self) -> int:
        return len(self.batches) - SKIPPED


@MAKERS
def test_a_data_loader_over_the_public_attributes_keeps_the_transforms(make: Any) -> None:
    loader = make()
    rebuilt: DataLoader[Any] = DataLoader(
        loader.dataset,
        batch_sampler=SkipBatches(loader.batch_sampler),
        collate_fn=loader.collate_fn,
        num_workers=1,
    )
    for got, want in zip(rebuilt, list(make())[SKIPPED:], strict=True):
        assert_same(got, want)
    plain: DataLoader[Any] = DataLoader(
        loader.dataset, 20, sampler=loader.sampler, collate_fn=loader.collate_fn
    )
    for got, want in zip(plain, make(), strict=True):
        assert_same(got, want)


def test_the_first_batch_after_a_resume_is_normalized() -> None:
    loader = images()
    [batch, *_] = DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    assert (batch["x"].dtype, batch["x"].shape) == (torch.float32, (20, 3, 8, 8))
    assert -2 <= batch["x"].min() < 0 < batch["x"].max() <= 2
