"""Ray Train: a TorchTrainer with two workers, over loaders that share themselves out."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from small_training import (
    BATCH,
    ROWS,
    TRANSFORMED,
    dataset,
    loss_of,
    model,
    native_batches,
    optimizer,
    transformed,
)
from torch.utils.data import DataLoader, DistributedSampler

import fastload
from fastload import FastLoader, KeyedSampler

SEED = 3
STEPS = -(-ROWS // (2 * BATCH))
MIDDLE = STEPS + 2  # in the second of two epochs


class Training:
    def __init__(self) -> None:
        self.net = prepare_model(model())
        self.optim = optimizer(self.net)
        self.losses: list[float] = []
        torch.manual_seed(SEED)

    def step(self, batch: Any) -> None:
        loss = loss_of(self.net, batch)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.losses.append(loss.item())

    def two_epochs(self, loader: Any) -> list[float]:
        for epoch in range(2):
            if not isinstance(loader.sampler, KeyedSampler):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                self.step(batch)
        return self.losses


def keyed(kind: str = "plain") -> FastLoader[Any]:
    options = {"dataset": dataset()} if kind == "plain" else transformed(kind)
    options |= {"shuffle": True, "seed": SEED, "device": ray.train.torch.get_device()}
    return FastLoader(batch_size=BATCH, **options)


KINDS = ("plain", *TRANSFORMED)


def by_torch(sampler: Any) -> Any:
    return DataLoader(dataset(), BATCH, sampler=sampler)


def compare() -> dict[str, Any]:
    """Losses of this worker by loader, and the batches that were loaded natively for them."""
    found: dict[str, Any] = {}

    def train(name: str, loader: Any) -> None:
        with native_batches() as seen:
            found[name] = Training().two_epochs(loader)
        found[f"{name}, natively"] = len(seen)

    train("by torch", prepare_data_loader(by_torch(DistributedSampler(dataset()))))
    sampler: Any = DistributedSampler(dataset())
    train("sampler", prepare_data_loader(FastLoader(dataset(), BATCH, sampler=sampler)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        unshared = FastLoader(dataset(), BATCH, shuffle=True)
    found["said"] = [str(warning.message) for warning in caught]
    train("replaced", prepare_data_loader(unshared))
    train("keyed by torch", by_torch(KeyedSampler(dataset(), batch_size=BATCH, seed=SEED)))
    train("keyed", keyed())
    train("keyed, prepared", prepare_data_loader(keyed()))
    for kind in TRANSFORMED:
        train(f"keyed, {kind}", keyed(kind))
        train(f"keyed, {kind}, prepared", prepare_data_loader(keyed(kind)))
    padded = transformed("ragged")
    data = fastload.open(padded["dataset"])
    sampler = DistributedSampler(data)
    train("ragged", FastLoader(**padded, batch_size=BATCH, sampler=sampler))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*prepare_data_loader")
        unshared = FastLoader(**padded, batch_size=BATCH, shuffle=True)
    train("ragged, replaced", prepare_data_loader(unshared))
    loader = keyed()
    next(iter(prepare_data_loader(loader)))
    found["counted"] = loader.state_dict()["samples"] // (2 * BATCH)
    return found


def train_with_a_failure(folder: str) -> None:
    """Fails in the second epoch; when Ray has started it again, it goes on there."""
    rank = ray.train.get_context().get_world_rank()
    trainings = {kind: Training() for kind in KINDS}
    loaders = {kind: keyed(kind) for kind in KINDS}
    parts = [(t.net, t.optim, loaders[kind]) for kind, t in trainings.items()]

    def epoch() -> Iterator[int]:
        for batches in zip(*loaders.values(), strict=True):
            for training, batch in zip(trainings.values(), batches, strict=True):
                training.step(batch)
            yield len(trainings["plain"].losses)

    def save_losses(name: str) -> None:
        losses = {kind: training.losses for kind, training in trainings.items()}
        torch.save(losses, Path(folder, f"{name}{rank}.pt"))

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as path:
            saved = torch.load(Path(path, "all.pt"))
        for objects, states in zip(parts, saved, strict=True):
            for target, state in zip(objects, states, strict=True):
                target.load_state_dict(state)
        list(epoch())
        save_losses("second")
        return
    while True:
        for step in epoch():
            if step < MIDDLE:
                continue
            save_losses("first")
            with tempfile.TemporaryDirectory() as path:
                torch.save([[obj.state_dict() for obj in own] for own in parts], f"{path}/all.pt")
                mine = Checkpoint.from_directory(path) if rank == 0 else None
                ray.train.report({}, checkpoint=mine)
            raise RuntimeError("as it was meant to")


def in_worker(config: dict[str, Any]) -> None:
    folder, rank = config["folder"], ray.train.get_context().get_world_rank()
    found = Path(folder, f"found{rank}.pt")
    if not found.exists():
        torch.save(compare(), found)
    train_with_a_failure(folder)


@pytest.fixture
def _ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # where Ray's workers import from: not fastload's source
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else a busy machine starves its workers
    # What Ray is given replaces the variable, by which ray itself may have been found.
    paths = [os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("_ray")
def test_two_workers(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        in_worker,
        train_loop_config={"folder": str(tmp_path)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(tmp_path / "ray"), failure_config=FailureConfig(max_failures=1)
        ),
    )
    trainer.fit()
    for rank in range(2):
        found = torch.load(tmp_path / f"found{rank}.pt")
        for name in ("sampler", "replaced", "keyed", "keyed, prepared"):
            reference = "keyed by torch" if name.startswith("keyed") else "by torch"
            assert found[name] == found[reference], name
            natively = 0 if name == "replaced" else 2 * STEPS
            assert found[f"{name}, natively"] == natively, name
        (said,) = found["said"]
        assert "prepare_data_loader" in said
        assert found["counted"] == 2  # Ray's wrapper is a batch ahead of the training
        for kind in TRANSFORMED:
            assert found[f"keyed, {kind}"] == found[f"keyed, {kind}, prepared"]
            assert found[f"keyed, {kind}, natively"] == 2 * STEPS
        assert found["ragged"] == found["ragged, replaced"]
        assert (found["ragged, natively"], found["ragged, replaced, natively"]) == (2 * STEPS, 0)
        first, second = (torch.load(tmp_path / f"{part}{rank}.pt") for part in ("first", "second"))
        for kind in KINDS:
            whole = found["keyed" if kind == "plain" else f"keyed, {kind}"]
            assert first[kind] + second[kind] == whole
