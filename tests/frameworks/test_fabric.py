"""Lightning Fabric with a FastLoader in DataLoader's place."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from small_training import (
    BATCH,
    ROWS,
    TRANSFORMED,
    dataset,
    in_ranks,
    loss_of,
    model,
    native_batches,
    numbers_of,
    optimizer,
    plain_losses,
    transformed,
)
from torch.utils.data import DataLoader

from fastload import FastLoader, KeyedSampler

EPOCHS, WORLD = 3, 2


def keyed() -> FastLoader[Any]:
    return FastLoader(dataset(), BATCH, shuffle=True, seed=3)


def stock_keyed() -> DataLoader[Any]:
    data = dataset()
    return DataLoader(data, BATCH, sampler=KeyedSampler(data, seed=3, batch_size=BATCH))


def shuffled() -> FastLoader[Any]:
    return FastLoader(dataset(), BATCH, shuffle=True)


def stock_shuffled() -> DataLoader[Any]:
    return DataLoader(dataset(), BATCH, shuffle=True)


class Run:
    """A training with Fabric that can be stopped after any batch and taken up again."""

    def __init__(self, loader: Any, devices: int = 1) -> None:
        strategy = "ddp" if devices > 1 else "auto"
        self.fabric = Fabric(accelerator="cpu", devices=devices, strategy=strategy)
        self.fabric.launch()
        net = model()
        self.net, self.optimizer = self.fabric.setup(net, optimizer(net))
        self.loader = self.fabric.setup_dataloaders(loader)
        self.losses: list[float] = []
        self.batches: list[Any] = []

    def state(self) -> dict[str, Any]:
        return {"net": self.net, "optimizer": self.optimizer, "loader": self.loader}

    def train(self, epochs: int, *, stop_after: int = -1, path: Path | None = None) -> None:
        """Trains; saves to `path` after `stop_after` batches, and stops."""
        for _epoch in range(epochs):
            for batch in self.loader:
                loss = loss_of(self.net, batch)
                self.optimizer.zero_grad()
                self.fabric.backward(loss)
                self.optimizer.step()
                self.losses.append(loss.item())
                self.batches.append(batch)
                if len(self.losses) == stop_after:
                    self.fabric.save(path, self.state())
                    return


@pytest.mark.parametrize(
    ("fast", "stock"), [(keyed, stock_keyed), (shuffled, stock_shuffled)], ids=["keyed", "shuffled"]
)
def test_losses_are_those_with_dataloader(fast: Any, stock: Any) -> None:
    run = Run(fast())
    torch.manual_seed(5)
    with native_batches() as native:
        run.train(EPOCHS)
    assert len(native) == len(run.losses) == EPOCHS * ROWS // BATCH
    torch.manual_seed(5)
    assert run.losses == plain_losses(stock(), EPOCHS)


def with_transforms(kind: str) -> FastLoader[Any]:
    return FastLoader(**transformed(kind), batch_size=BATCH, shuffle=True, seed=3)


@pytest.mark.parametrize("make", [keyed, *(partial(with_transforms, k) for k in TRANSFORMED)])
def test_a_resume_has_the_losses_of_the_uninterrupted_run(make: Any, tmp_path: Path) -> None:
    whole = Run(make())
    whole.train(EPOCHS)
    Run(make()).train(EPOCHS, stop_after=15, path=tmp_path / "middle")
    rest = Run(make())
    rest.fabric.load(tmp_path / "middle", rest.state())
    # Fabric counts epochs from 0 again.
    with native_batches() as native, pytest.warns(UserWarning, match="later epochs are counted"):
        rest.train(EPOCHS - 1)
    assert rest.losses == whole.losses[15:]
    assert len(native) == len(rest.losses)


def train_in_rank() -> dict[str, Any]:
    found = {}
    for make in (keyed, shuffled, stock_shuffled):
        torch.manual_seed(5)
        run = Run(make(), WORLD)
        with native_batches() as native:
            run.train(EPOCHS)
        sampler = type(run.loader.sampler).__name__
        found[make.__name__] = (run.losses, numbers_of(run.batches), len(native), sampler)
    return found


def test_two_ranks_share_the_data(tmp_path: Path) -> None:
    ranks = in_ranks(train_in_rank, WORLD, tmp_path)
    for kind in ("keyed", "shuffled"):
        seen: list[int] = []
        for rank in ranks:
            losses, numbers, native, _ = rank[kind]
            assert native == len(losses)
            seen += [number for batch in numbers[: len(numbers) // EPOCHS] for number in batch]
        assert sorted(seen) == list(range(ROWS))
    for rank in ranks:  # Fabric injects its sampler into the one, and leaves the other to itself
        assert rank["shuffled"][3] == "DistributedSampler"
        assert rank["keyed"][3] == "KeyedSampler"
        assert rank["shuffled"][:2] == rank["stock_shuffled"][:2]
