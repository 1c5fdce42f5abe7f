"""What a native loader says when something goes wrong, and what a profiler sees of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from ragged import numbers_of_length, photos, png, ragged_dataset
from torch.utils.data import IterableDataset, TensorDataset

import fastload
from fastload import ArrayDataset, DecodeImage, FastLoader
from fastload.batch.images import decode_image
from fastload.formats.fields import Field

# --- Late batches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ({}, "6, 7, 8, 9, ..."),
        ({"num_workers": 2}, "6, 7, 8, 9, ..."),
        ({"seed": 0}, "6, 7, 8, 9, ..."),
        ({"seed": 0, "shard": (1, 2)}, "16, 17, 18, 19"),
        ({"batch_size": 1, "batch_sampler": [[1], [2, -3]]}, "2, 17"),
    ],
)
def test_a_late_batch_is_named(options: dict[str, Any], samples: str) -> None:
    loader = {"batch_size": 6, **options}
    batches: Any = iter(FastLoader(ArrayDataset(np.arange(20)), timeout=5, **loader))
    next(batches)
    take = batches._take

    def late(timeout: float) -> Any:
        raise TimeoutError("gathering, 1 of 2 pieces done; from 'x.bin'")

    batches._take = late
    message = f"DataLoader timed out after 5 seconds: batch 1 (samples {samples}): gathering, 1 of "
    for _ in range(2):
        with pytest.raises(RuntimeError, match=re.escape(message)):
            next(batches)
    batches._take = take
    assert next(batches).tolist()[:2] == list(map(int, samples.split(", ")[:2]))


def test_images_that_are_late_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go, begun = threading.Semaphore(0), threading.Semaphore(0)

    def slow(data: bytes, transform: DecodeImage) -> np.ndarray:
        begun.release()
        assert may_go.acquire(timeout=60)
        return decode_image(data, transform)

    monkeypatch.setattr("fastload.batch.decode.decode_image", slow)
    loader: Any = FastLoader(
        photos([png(i) for i in range(5)]),
        5,
        num_workers=1,
        timeout=0.001,
        transforms={"image": DecodeImage((2, 2))},
    )
    batches = iter(loader)
    late = r"DataLoader timed out after 0\.001 seconds: batch 0 \(samples 0, 1, 2, 3, \.\.\.\): "
    with pytest.raises(RuntimeError, match=late):  # it may not have begun
        next(batches)
    for done in range(5):
        assert begun.acquire(timeout=60)  # one thread decodes them in turn
        with pytest.raises(RuntimeError, match=f"{late}decoding, {done} of 5 images done"):
            next(batches)
        may_go.release()
    batches._timeout = 60.0
    assert len(next(batches)["image"]) == 5


# --- Errors of samples --------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_is_none_is_named(workers: int) -> None:
    data = photos([png(0), png(1), png(2), b"none", png(4)])
    loader = FastLoader(
        data,
        sampler=[4, 3, 0, 1],
        batch_size=2,
        num_workers=workers,
        transforms={"image": DecodeImage((2, 2))},
    )
    batches = iter(loader)
    with pytest.raises(fastload.FormatError, match="field 'image': sample 3: ") as caught:
        next(batches)
    assert type(caught.value.__cause__).__name__ == "UnidentifiedImageError"
    assert len(next(batches)["image"]) == 2


def test_no_memory_for_an_image_is_told_with_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: bytes, transform: Any) -> Any:
        raise MemoryError("full")

    monkeypatch.setattr("fastload.batch.decode.decode_image", full)
    loader = FastLoader(
        photos([png(0)] * 3), sampler=[2], transforms={"image": DecodeImage((2, 2))}
    )
    with pytest.raises(MemoryError) as caught:
        next(iter(loader))
    told = [*caught.value.args, *getattr(caught.value, "__notes__", [])]
    assert told[0].startswith("full")
    assert "field 'image': sample 2" in told[-1]


@pytest.mark.parametrize("bad", [20, -21, "a", 1.5])
def test_what_is_no_index_is_told(bad: Any) -> None:
    loader = FastLoader(ArrayDataset(np.arange(20)), batch_sampler=[[0], [1, bad], [2]])
    assert loader.is_native
    batches = iter(loader)
    next(batches)
    with pytest.raises((IndexError, TypeError), match=re.escape(str(bad))):
        next(batches)
    assert next(batches).tolist() == [2]


def test_samples_of_unlike_lengths_are_told() -> None:
    field = Field("t", "int64", (), ragged=True)
    data = ragged_dataset({"t": 0}, [field], [numbers_of_length([1, 1, 3])])
    with pytest.raises(RuntimeError, match=r"sample 1 has shape \(1,\), sample 2 has shape \(3,\)"):
        list(FastLoader(data, sampler=[1, 2], batch_size=2))


def test_errors_of_a_sampler_are_its_own() -> None:
    class Own(Exception):
        def __init__(self, code: int, why: str) -> None:
            super().__init__(code, why)

    def indices() -> Iterator[int]:
        yield 0
        raise Own(3, "why")

    batches = iter(FastLoader(ArrayDataset(np.arange(4)), sampler=indices()))  # type: ignore[arg-type]
    next(batches)
    with pytest.raises(Own) as caught:
        next(batches)
    assert caught.value.args == (3, "why")


# --- Profiles -----------------------------------------------------------------------------------


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


@pytest.mark.parametrize("kind", ["native", "python", "iterable"])
def test_a_trace_has_torchs_ranges(kind: str) -> None:
    data: Any = {"native": TensorDataset(torch.arange(6)), "python": list(range(6))}
    loader = FastLoader(data.get(kind) or Stream(), 2)
    assert loader.is_native == (kind == "native")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        batches = iter(loader)
        for _ in batches:
            pass
    name = f"enumerate(DataLoader)#{type(batches).__name__}.__next__"
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts[name] == 4  # the last one ends the epoch
