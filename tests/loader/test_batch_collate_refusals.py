"""What a loader that is rebuilt from a FastLoader's attributes refuses, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rebuilding import (
    DETERMINISTIC,
    FIXED,
    NORMALIZE,
    RANDOM,
    REBUILDS,
    ROWS,
    check,
    images,
    loader_of,
    packed,
)
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data._utils import worker

import fastload
from fastload import ArrayDataset, Cast, DecodeImage, FastLoader, PadTo

WRAPPED: dict[str, Any] = {
    "subset": lambda data: Subset(data, range(1, 9)),
    "concat": lambda data: ConcatDataset([data, data]),
    "stack": lambda data: StackDataset(a=data),
    "tensors": lambda data: TensorDataset(torch.from_numpy(data.arrays["x"])),
}
FIELDS = {"subset": "x", "concat": "x", "stack": "a.x", "tensors": "0"}


@pytest.mark.parametrize("kind", WRAPPED)
def test_behind_a_wrapper_deterministic_transforms_work_and_random_ones_raise(kind: str) -> None:
    data, name = WRAPPED[kind](images()), FIELDS[kind]
    check("batch sampler", lambda: loader_of({"dataset": data, "transforms": {name: [NORMALIZE]}}))
    loader = loader_of({"dataset": data, "transforms": {name: RANDOM}})
    with pytest.raises(RuntimeError, match=r"random transforms depend on.*skip_first_batches"):
        next(iter(REBUILDS["batch sampler"](loader)))
    masked = loader_of({"dataset": data, "tail": "mask"})
    with pytest.raises(RuntimeError, match=r"tail='mask'.*skip_first_batches"):
        next(iter(REBUILDS["batch sampler"](masked)))


@pytest.mark.parametrize("seed", [None, 3])
def test_random_transforms_in_torchs_orders_raise(seed: int | None) -> None:
    """Neither indices nor epoch say what the FastLoader draws."""
    data = images()
    loader = FastLoader(data, 3, sampler=range(ROWS), seed=seed, transforms={"x": RANDOM})
    with pytest.raises(RuntimeError, match="it has no sampler of a FastLoader with seed="):
        next(iter(REBUILDS["batch sampler"](loader)))


def test_on_error_skip_and_what_only_the_loader_checks_are_refused(tmp_path: Path) -> None:
    path = packed(tmp_path)
    for options, words in (
        ({"dataset": path, "verify": "lazy", "on_error": "skip"}, "on_error='skip' leaves out"),
        ({"dataset": fastload.open(path), "verify": "lazy"}, "open the dataset with fastload.open"),
    ):
        rebuilt = REBUILDS["batch sampler"](
            loader_of({"transforms": {"ids": PadTo()} | FIXED, **options})
        )
        with pytest.raises(RuntimeError, match=words):
            next(iter(rebuilt))
    checked = {"dataset": path, "verify": "lazy", "transforms": FIXED | {"ids": PadTo()}}
    check("batch sampler", lambda: loader_of(checked))


def test_static_buffers_are_refused() -> None:
    loader = FastLoader(images(), 2, device="meta", static_buffers=True)
    with pytest.raises(RuntimeError, match="static_buffers=True"):
        next(iter(REBUILDS["batch sampler"](loader)))


def test_the_device_travels_but_not_into_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FastLoader(images(), 2, device="meta")
    [batch, *_] = REBUILDS["batch sampler"](loader)
    assert batch["x"].device.type == "meta"
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_worker_info", "a worker's")
        with pytest.raises(RuntimeError, match=r"device='meta': a worker process.*num_workers=0"):
            loader.collate_fn([loader.dataset[0]])
    loader.device = None
    assert loader.collate_fn is default_collate


def test_samples_of_another_dataset_are_refused() -> None:
    loader = loader_of(DETERMINISTIC["images"](Path()))
    for data in (
        ArrayDataset({"x": np.zeros((ROWS, 6, 5, 3), np.float32), "y": np.zeros(ROWS, np.int16)}),
        ArrayDataset({"x": np.zeros((ROWS, 6, 4, 3), np.uint8), "y": np.zeros(ROWS, np.int16)}),
        ArrayDataset({"x": np.zeros((ROWS, 6, 5, 3), np.uint8)}),
        ArrayDataset(np.zeros(ROWS, np.uint8)),
        [{"x": "text", "y": 1}] * ROWS,
    ):
        with pytest.raises(ValueError, match="the dataset of the FastLoader that it comes from"):
            next(iter(DataLoader(data, 2, collate_fn=loader.collate_fn)))  # type: ignore[arg-type]


def test_members_that_a_wrapper_adds_to_samples_are_refused_and_not_left_out() -> None:
    numbers = np.arange(3, dtype=np.float16)
    transforms: Any = {"x": Cast("float32")}
    collate = FastLoader(ArrayDataset({"x": numbers}), 2, transforms=transforms).collate_fn
    with pytest.raises(ValueError, match="sample 1 of the batch also has 'id', 'z'"):
        collate([{"x": numbers[0]}, {"x": numbers[1], "id": 1, "z": 2}])
    of_tuples: Any = {"0": Cast("float32")}
    collate = FastLoader(ArrayDataset((numbers, numbers)), 2, transforms=of_tuples).collate_fn
    with pytest.raises(ValueError, match="also has 3 members, not 2"):
        collate([(numbers[0], numbers[0], 1)])


def test_contradictions_are_refused() -> None:
    data = images()
    loader = loader_of(DETERMINISTIC["images"](Path()))
    masked = loader_of({"dataset": data, "tail": "mask"})
    with pytest.raises(ValueError, match=r"transforms=.*differs from"):
        FastLoader(data, 2, transforms={"x": [NORMALIZE]}, collate_fn=loader.collate_fn)
    with pytest.raises(ValueError, match="tail='mask'"):
        FastLoader(data, 2, collate_fn=masked.collate_fn)
    other = FastLoader(data, 2)
    with pytest.raises(ValueError, match="with other transforms= or batch_transform="):
        other.collate_fn = loader.collate_fn
    assert other.collate_fn is default_collate


def test_an_error_says_where_the_sample_is_counted(tmp_path: Path) -> None:
    fastload.pack([{"image": b"none"}], tmp_path / "bad")
    loader = FastLoader(tmp_path / "bad", 1, transforms={"image": DecodeImage()})
    with pytest.raises(fastload.FormatError, match="sample 0: the image cannot be decoded"):
        next(iter(REBUILDS["batch sampler"](loader)))


def test_keys_behind_a_wrapper_are_not_taken_for_those_of_the_loader() -> None:
    """A Subset of the indices of a seeded sampler has their keys, which are of another order."""
    first = loader_of({"dataset": images(), "tail": "mask"})
    subset = Subset(first.dataset, list(first.sampler))
    for options in ({"transforms": {"x": RANDOM}}, {"tail": "mask"}):
        loader = loader_of({"dataset": subset, **options})
        with pytest.raises(RuntimeError, match="a wrapper hides it"):
            next(iter(REBUILDS["batch sampler"](loader)))


def test_a_stop_iteration_of_the_batch_transform_does_not_end_the_epoch() -> None:
    def stops(batch: Any) -> Any:
        raise StopIteration

    loader = FastLoader(images(), 2, batch_transform=stops)
    with pytest.raises(RuntimeError, match="batch_transform raised StopIteration"):
        list(REBUILDS["batch sampler"](loader))
