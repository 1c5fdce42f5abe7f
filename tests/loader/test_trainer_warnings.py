"""Trainers that replace a loader, as far as that shows without them; tests/frameworks has them."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from fastload import FastLoader
from fastload.order import ranks

DATA = TensorDataset(torch.arange(12))


def made(**options: Any) -> list[str]:
    """What is said while a loader is made."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FastLoader(options.pop("data", DATA), **options)
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.fixture
def _in_a_ray_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ranks.ProcessRank(1, 2, "torch.distributed")
    monkeypatch.setitem(sys.modules, "ray.train.torch", types.ModuleType("ray.train.torch"))
    monkeypatch.setattr(ranks, "find_rank", lambda shard=None: place)


@pytest.mark.usefixtures("_in_a_ray_worker")
def test_ray_leaves_only_what_shares_itself_out() -> None:
    (said,) = made(shuffle=True)
    assert "prepare_data_loader" in said
    assert "seed=" in said
    assert made(seed=0) == made(seed=0, shard=False) == []
    assert made(sampler=DistributedSampler(DATA, 2, 0)) == []
    assert made(data=[1, 2, 3]) == []  # torch loads this anyway


def test_nothing_is_said_outside_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made() == []
    monkeypatch.setitem(sys.modules, "ray.train.torch", types.ModuleType("ray.train.torch"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert made() == []


def test_ignites_copy_says_who_keeps_the_place() -> None:
    class Reproducible(BatchSampler):
        pass

    Reproducible.__module__ = "ignite.engine.deterministic"
    keyed, unkeyed = FastLoader(DATA, 2, seed=0), DataLoader(DATA, 2)
    (said,) = made(batch_sampler=Reproducible(keyed.sampler, 2, False), seed=0)
    assert "DeterministicEngine" in said
    assert made(batch_sampler=Reproducible(unkeyed.sampler, 2, False)) == []
