"""A loader that is rebuilt from a FastLoader's attributes gives the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rebuilding import (
    DETERMINISTIC,
    RANDOM_LOADERS,
    REBUILDS,
    ROWS,
    assert_batches,
    check,
    doubled,
    images,
    loader_of,
    parts,
)
from torch.utils.data import (
    DataLoader,
    TensorDataset,
    default_collate,
)

from fastload import Cast, FastLoader


@pytest.mark.parametrize("way", ["batch sampler", "fast skipping"])
@pytest.mark.parametrize("kind", DETERMINISTIC)
def test_deterministic_batches_are_the_same(kind: str, way: str, tmp_path: Path) -> None:
    check(way, lambda: loader_of(DETERMINISTIC[kind](tmp_path)))


@pytest.mark.parametrize("way", ["batch sampler", "fast skipping"])
@pytest.mark.parametrize("kind", RANDOM_LOADERS)
def test_random_transforms_draw_the_same(kind: str, way: str, tmp_path: Path) -> None:
    check(way, lambda: loader_of(RANDOM_LOADERS[kind](tmp_path)))


@pytest.mark.parametrize("way", REBUILDS)
def test_batches_are_the_same_in_every_way_of_rebuilding(way: str, tmp_path: Path) -> None:
    check(way, lambda: loader_of(RANDOM_LOADERS["mask"](tmp_path)))
    check(way, lambda: loader_of(RANDOM_LOADERS["encoded"](tmp_path)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_draw_the_same_by_any_start_method(method: str) -> None:
    whole, again = (loader_of(RANDOM_LOADERS["mask"](Path())) for _ in range(2))
    rebuilt: DataLoader[Any] = DataLoader(
        **parts(again),
        batch_sampler=again.batch_sampler,
        num_workers=1,
        multiprocessing_context=method,
    )
    assert_batches(list(rebuilt), list(whole))


def test_a_resumed_loader_is_rebuilt_where_it_is() -> None:
    make = lambda: loader_of(RANDOM_LOADERS["mask"](Path()))  # noqa: E731
    whole = make()
    list(whole)
    batches = iter(whole)
    next(batches)
    again = make()
    again.load_state_dict(whole.state_dict())
    assert_batches(list(REBUILDS["sampler"](again)), list(batches))


def test_a_loader_that_adds_nothing_shows_the_collate_fn_that_it_was_given() -> None:
    assert FastLoader(images(), 2, device="cpu", transforms={}).collate_fn is default_collate
    assert FastLoader(images(), 2, collate_fn=len).collate_fn is len
    assert FastLoader(images(), None, sampler=[1]).collate_fn is DataLoader([1], None).collate_fn


def test_a_collate_fn_of_ones_own_is_followed_by_the_batch_transform() -> None:
    loader = FastLoader(images(), 2, collate_fn=len, batch_transform=lambda n: n * 10)
    assert not loader.is_native
    for _epoch in range(2):
        assert list(loader) == list(REBUILDS["batch sampler"](loader)) == [20] * 5 + [10]
    loader.batch_transform = None
    assert loader.collate_fn is len
    loader.batch_transform = lambda n: -n
    loader.collate_fn = lambda samples: len(samples) + 1
    assert list(loader) == list(REBUILDS["batch sampler"](loader)) == [-3] * 5 + [-2]


@pytest.mark.parametrize("workers", [0, 1])
def test_python_datasets_have_the_batch_transform_and_the_mask_once(workers: int) -> None:
    options = {"dataset": list(range(ROWS)), "batch_transform": doubled, "num_workers": workers}
    whole, again = loader_of(options), loader_of(options)
    assert_batches(list(REBUILDS["batch sampler"](again)), list(whole))
    samples = [{"n": n} for n in range(ROWS)]
    loader = FastLoader(samples, 2, sampler=[3, 1, 2], seed=0, tail="mask", num_workers=workers)
    assert_batches(list(REBUILDS["batch sampler"](loader)), list(loader))


def test_keys_that_are_no_integers_get_their_transforms_too() -> None:
    """Batches that the core cannot gather are loaded by the dataset."""
    data = TensorDataset(torch.arange(8, dtype=torch.uint8))
    keys = [[torch.tensor(1), np.int64(2)], ["3"]]
    loader = FastLoader(data, batch_sampler=keys, transforms={"0": Cast("float32")})  # type: ignore[arg-type]
    batches = iter(loader)
    assert next(batches)[0].dtype == torch.float32
    with pytest.raises((TypeError, IndexError)):
        next(batches)
