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
from small_training import BATCH, ROWS, dataset, loss_of, model, native_batches, optimizer
from torch.utils.data import DataLoader, DistributedSampler

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


def keyed() -> FastLoader[Any]:
    return FastLoader(
        dataset(), BATCH, shuffle=True, seed=SEED, device=ray.train.torch.get_device()
    )


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
    loader = keyed()
    next(iter(prepare_data_loader(loader)))
    found["counted"] = loader.state_dict()["samples"] // (2 * BATCH)
    return found


def train_with_a_failure(folder: str) -> None:
    """Fails in the second epoch; when Ray has started it again, it goes on there."""
    rank = ray.train.get_context().get_world_rank()
    training, loader = Training(), keyed()
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as path:
            saved = torch.load(Path(path, "all.pt"))
        training.net.load_state_dict(saved["net"])
        training.optim.load_state_dict(saved["optim"])
        loader.load_state_dict(saved["loader"])
        for batch in loader:
            training.step(batch)
        torch.save(training.losses, Path(folder, f"second{rank}.pt"))
        return
    while True:
        for batch in loader:
            training.step(batch)
            if len(training.losses) < MIDDLE:
                continue
            torch.save(training.losses, Path(folder, f"first{rank}.pt"))
            with tempfile.TemporaryDirectory() as path:
                objects = {"net": training.net, "optim": training.optim, "loader": loader}
                states = {name: obj.state_dict() for name, obj in objects.items()}
                torch.save(states, Path(path, "all.pt"))
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
        first, second = (torch.load(tmp_path / f"{part}{rank}.pt") for part in ("first", "second"))
        assert first + second == found["keyed"]
