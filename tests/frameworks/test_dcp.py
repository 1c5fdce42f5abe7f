"""torch.distributed.checkpoint, as torchtitan uses it: objects with a state, saved by all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small_training import (
    BATCH,
    ROWS,
    dataset,
    in_ranks,
    loss_of,
    model,
    native_batches,
    numbers_of,
    optimizer,
)
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from fastload import FastLoader, KeyedSampler

GLOBAL_BATCH = 2 * BATCH
SEED = 3


class Training(Stateful):
    """A model and its optimizer under DDP, of which one batch after the other is taken."""

    def __init__(self) -> None:
        net = model()
        self.net = DistributedDataParallel(net) if dist.is_initialized() else net
        self.optim = optimizer(self.net)
        self.losses: list[float] = []

    def step(self, batch: Any) -> None:
        loss = loss_of(self.net, batch)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        loss = loss.detach()
        if dist.is_initialized():  # of the global batch, equal on all ranks
            dist.all_reduce(loss)
        self.losses.append(loss.item() / world())

    def state_dict(self) -> dict[str, Any]:
        net, optim = get_state_dict(self.net, self.optim)
        return {"net": net, "optim": optim}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        set_state_dict(
            self.net,
            self.optim,
            model_state_dict=state_dict["net"],
            optim_state_dict=state_dict["optim"],
        )


class Batches(Stateful):
    """What torchtitan wants of a data loader: batches without end, its state, and `close`."""

    def __init__(self, loader: FastLoader[Any]) -> None:
        self.loader = loader
        self._running: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._running is None:
            self._running = chain.from_iterable(repeat(self.loader))
        return self._running

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)

    def close(self) -> None:
        self._running = None


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def keyed() -> FastLoader[Any]:
    return FastLoader(dataset(), GLOBAL_BATCH // world(), shuffle=True, seed=SEED)


def train(first: int, last: int, folder: str) -> dict[str, Any]:
    """Trains from step `first`, loaded if it is not 0, up to `last`, which is saved."""
    training, batches = Training(), Batches(keyed())
    objects = {"training": training, "batches": batches}
    if first:
        dcp.load(objects, checkpoint_id=f"{folder}/{first}")
    seen = []
    with native_batches() as natively:
        for _step, batch in zip(range(first, last), batches, strict=False):
            training.step(batch)
            seen += numbers_of([batch])
        dcp.save(objects, checkpoint_id=f"{folder}/{last}")
        batches.close()
        assert len(natively) >= last - first
    return {"losses": training.losses, "seen": seen}


def train_by_torch(last: int) -> list[float]:
    """The same with torch's DataLoader over the same order."""
    training, size = Training(), GLOBAL_BATCH // world()
    sampler = KeyedSampler(dataset(), batch_size=size, seed=SEED)
    loader = DataLoader(dataset(), size, sampler=sampler)
    while len(training.losses) < last:
        for batch in loader:
            training.step(batch)
    return training.losses[:last]


def begin(middle: int, end: int, folder: str) -> dict[str, Any]:
    """In one process: the first part, the whole, and the whole with DataLoader."""
    first = train(0, middle, folder)
    check_meshes()
    return {"first": first, "whole": train(0, end, folder), "by_torch": train_by_torch(end)}


def check_meshes() -> None:
    """Ranks of one place in the data-parallel dimension get the same batches."""
    for shape, expected in (((2, 1), dist.get_rank()), ((1, 2), 0)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))["dp"]
        by_hand = (expected, shape[0])
        loaders = [FastLoader(dataset(), 4, seed=SEED, shard=shard) for shard in (mesh, by_hand)]
        assert numbers_of(loaders[0]) == numbers_of(loaders[1])


def global_batches(ranks: list[dict[str, Any]]) -> list[list[int]]:
    steps = zip(*(rank["seen"] for rank in ranks), strict=True)
    return [[number for part in parts for number in part] for parts in steps]


def test_two_ranks_save_and_one_or_two_go_on(tmp_path: Path) -> None:
    middle, end = 4, 10  # of 6 steps an epoch, the last of which is not full
    assert -(-ROWS // GLOBAL_BATCH) == 6
    folder = str(tmp_path)
    begun = in_ranks(begin, 2, tmp_path / "begun", middle, end, folder)
    again = in_ranks(train, 2, tmp_path / "again", middle, end, folder)
    alone = train(middle, end, folder)
    for rank in range(2):
        first, whole = begun[rank]["first"], begun[rank]["whole"]
        assert whole["losses"] == begun[rank]["by_torch"]
        assert first["seen"] + again[rank]["seen"] == whole["seen"]
        assert first["losses"] + again[rank]["losses"] == whole["losses"]
    whole = begun[0]["whole"]
    assert global_batches(again) == alone["seen"]
    torch.testing.assert_close(alone["losses"], whole["losses"][middle:])


@pytest.mark.parametrize("shuffle", [True, False])
def test_without_seed_the_order_is_torchs_and_goes_on(tmp_path: Path, shuffle: bool) -> None:
    def make() -> FastLoader[Any]:
        return FastLoader(dataset(), BATCH, shuffle=shuffle)

    torch.manual_seed(SEED)
    by_torch = numbers_of(DataLoader(dataset(), BATCH, shuffle=shuffle))
    torch.manual_seed(SEED)
    loader = make()
    batches = iter(loader)
    seen = numbers_of(next(batches) for _ in range(3))
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "c")
    resumed = make()
    torch.manual_seed(SEED + 1)
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "c")
    assert seen + numbers_of(resumed) == by_torch


def test_torchs_distributed_sampler_goes_on_too(tmp_path: Path) -> None:
    def make() -> FastLoader[Any]:
        sampler: Any = DistributedSampler(dataset(), 2, 1)
        return FastLoader(dataset(), BATCH, sampler=sampler)

    loader = make()
    loader.set_epoch(5)
    batches = iter(loader)
    next(batches)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "c")
    resumed = make()
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "c")
    assert numbers_of(resumed) == numbers_of(batches)
