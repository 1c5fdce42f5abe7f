"""Encoded images through FastLoader: pixels, order, errors, state, and the end of its threads."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from encoded_images import EXACT, by_pillow, several
from paths import SUPPORT
from ragged import photos, png
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset
from waiting import wait_for

from fastload import DecodeImage, FastLoader, FormatError
from fastload.batch.images import decode_image

WORKERS = (None, 0, 1, 2)


def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
    """What people write for DataLoader."""
    images = [torch.from_numpy(by_pillow(sample["image"]).copy()) for sample in samples]
    labels = torch.stack([torch.as_tensor(sample["label"]) for sample in samples])
    return {"image": torch.stack(images), "label": labels}


def assert_same(got: Any, want: Any) -> None:
    assert list(got) == list(want)
    for key in want:
        assert torch.equal(got[key], want[key])
        assert got[key].dtype is want[key].dtype
        assert got[key].is_contiguous()
        size = got[key].numel() * got[key].element_size()
        assert got[key].untyped_storage().nbytes() == size


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_those_of_pillow_in_a_collate_fn(workers: int | None) -> None:
    data = several()
    for options in (
        {"batch_size": 4},
        {"batch_size": 4, "shuffle": True},
        {"batch_sampler": BatchSampler(RandomSampler(data), 5, drop_last=False)},
    ):
        torch.manual_seed(3)
        got = list(FastLoader(data, num_workers=workers, transforms=EXACT, **options))
        torch.manual_seed(3)
        want = list(DataLoader(data, collate_fn=collate, **options))
        assert len(got) == len(want)
        for mine, torchs in zip(got, want, strict=True):
            assert_same(mine, torchs)
    subset = Subset(data, [5, -1, 0])
    [batch] = FastLoader(subset, 3, num_workers=workers, transforms=EXACT)
    assert batch["label"].tolist() == [5, 22, 0]


def test_images_stay_bytes_without_a_transform() -> None:
    data = several(3)
    [batch] = FastLoader(data, 3)
    assert batch["image"] == [data[i]["image"] for i in range(3)]


@pytest.mark.parametrize("workers", WORKERS)
def test_without_a_size_images_must_agree(workers: int | None) -> None:
    data = photos([png(0), png(1), png(2), png(3, 9, 2)])
    loader = iter(FastLoader(data, 2, num_workers=workers, transforms={"image": DecodeImage()}))
    first = next(loader)["image"]
    want = torch.stack([torch.from_numpy(by_pillow(png(i), None).copy()) for i in (0, 1)])
    assert torch.equal(first, want)
    assert first.untyped_storage().nbytes() == first.numel()
    with pytest.raises(RuntimeError) as caught:
        next(loader)
    told = "stack expects each tensor to be equal size, but got [7, 5, 3] at entry 0 and [2, 9, 3]"
    assert str(caught.value).startswith(told)
    assert "sample 2 has shape (7, 5, 3), sample 3 has shape (2, 9, 3)" in str(caught.value)
    assert "DecodeImage(size=(H, W))" in str(caught.value)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_broken_image_is_an_error_of_its_batch(workers: int | None) -> None:
    images = [png(i) for i in range(12)]
    images[4] = images[4][:50]
    images[5] = b""
    images[9] = b"not an image"
    loader = FastLoader(photos(images), 3, seed=0, num_workers=workers, transforms=EXACT)
    batches = iter(loader)
    assert next(batches)["label"].tolist() == [0, 1, 2]
    with pytest.raises(FormatError, match="field 'image': sample 4: the image cannot be decoded"):
        next(batches)
    assert loader.state_dict()["samples"] == 3
    assert next(batches)["label"].tolist() == [6, 7, 8]
    with pytest.raises(FormatError, match=r"sample 9: .* not an image of a known kind"):
        next(batches)
    assert next(batches, None) is None
    shuffled = iter(
        FastLoader(photos(images), 1, sampler=[9, 0, -8], num_workers=workers, transforms=EXACT)
    )
    for name in (9, None, 4):
        if name is None:
            next(shuffled)
            continue
        with pytest.raises(FormatError, match=f"sample {name}:"):
            next(shuffled)


def test_state_counts_what_was_handed_out() -> None:
    data = several()
    for options in ({"seed": 4, "shuffle": True}, {"shuffle": True}):
        torch.manual_seed(0)
        loader = FastLoader(data, 4, num_workers=2, transforms=EXACT, **options)
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        time.sleep(0.1)  # others are decoded by now
        state = loader.state_dict()
        assert state["samples"] == 8
        rest = [batch["label"].tolist() for batch in batches]
        again = FastLoader(data, 4, num_workers=0, transforms=EXACT, **options)
        again.load_state_dict(state)
        assert [batch["label"].tolist() for batch in again] == rest
        assert len(rest) == 4


def test_persistent_workers_begin_again() -> None:
    loader = FastLoader(several(8), 3, num_workers=2, persistent_workers=True, transforms=EXACT)
    batches = iter(loader)
    next(batches)
    assert iter(loader) is batches
    for _ in range(2):
        assert [batch["label"].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_timeouts_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go = threading.Event()

    def slow(data: bytes, transform: DecodeImage) -> np.ndarray:
        assert may_go.wait(60)
        return decode_image(data, transform)

    monkeypatch.setattr("fastload.batch.decode.decode_image", slow)
    loader = FastLoader(several(4), 4, num_workers=1, timeout=0.001, transforms=EXACT)
    batches = iter(loader)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.001 seconds"):
        next(batches)
    may_go.set()
    batches._timeout = 60.0
    assert next(batches)["label"].tolist() == [0, 1, 2, 3]


def test_the_device_and_pinning() -> None:
    data = several(3)
    [batch] = FastLoader(data, 3, transforms=EXACT, device="meta")
    assert batch["image"].is_meta
    assert batch["image"].shape == (3, 4, 6, 3)
    if not getattr(torch, "accelerator", torch.cuda).is_available():
        with pytest.warns(UserWarning, match="no accelerator is found"):
            list(FastLoader(data, 3, transforms=EXACT, pin_memory=True))


# --- threads


def test_leaving_early_leaves_nothing_behind(live_threads: Callable[[], set[str]]) -> None:
    before = live_threads()
    loader = FastLoader(several(64), 4, num_workers=2, transforms=EXACT)

    def leave() -> None:
        next(iter(loader))
        for _ in loader:
            break
        batches = iter(loader)
        next(batches)
        cycle: list[Any] = [batches]
        cycle.append(cycle)

    for _ in range(10):
        leave()
    list(loader)
    gc.collect()
    wait_for(lambda: live_threads() == before)


def test_batches_may_be_kept_and_loaders_nested() -> None:
    loader = FastLoader(several(6), 2, num_workers=2, transforms=EXACT)
    kept = list(loader)
    pairs = [(a["label"][0].item(), b["label"][0].item()) for a in loader for b in loader]
    assert pairs == [(i, j) for i in (0, 2, 4) for j in (0, 2, 4)]
    assert torch.equal(kept[0]["image"][1], torch.from_numpy(by_pillow(png(1, 4, 5)).copy()))


LIVE = """
import sys
sys.path.insert(0, {tests!r})
from encoded_images import EXACT, several
from fastload import FastLoader
loader = FastLoader(several(64), 2, num_workers=2, transforms=EXACT)
batches = iter(loader)
next(batches)
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "import os; os._exit(0)"])
def test_a_live_iterator_does_not_hold_the_exit(run_torch: Callable[..., Any], end: str) -> None:
    done = run_torch(LIVE.format(tests=str(SUPPORT)) + end)
    assert done.stderr == ""


def test_a_forked_child_uses_a_loader_of_its_own() -> None:
    loader = FastLoader(several(16), 4, num_workers=2, transforms=EXACT)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        count = len(list(loader))
        try:
            next(batches)
        except RuntimeError:
            os._exit(count)
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert len(list(batches)) == 3
