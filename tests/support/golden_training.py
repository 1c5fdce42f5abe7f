"""The training of the checkpoint and logs in tests/golden/d71a9b4; public names only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastload import ArrayDataset, FastLoader, TrainStep, watch

STEPS_BEFORE = 2  # of three in an epoch


def _loss(model: Any, batch: Any) -> Any:
    return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])


def parts(log: Path | None = None) -> tuple[FastLoader[Any], Any, TrainStep]:
    """Loader, model and step of a new training."""
    x = np.arange(24, dtype="f4").reshape(12, 2) / 24
    loader: FastLoader[Any] = FastLoader(
        ArrayDataset({"x": x, "y": x.sum(1, keepdims=True)}), 2, shuffle=True, seed=3
    )
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    log_option: dict[str, Any] = {} if log is None else {"log": log}
    step = TrainStep(
        model, optimizer, _loss, precision="fp32", max_norm=1.0, scheduler=scheduler, **log_option
    )
    return loader, model, step


def losses(loader: FastLoader[Any], step: TrainStep, count: int | None = None) -> list[float]:
    """Trains on groups of two batches; on `count` of them, or to the end of the epoch."""
    found: list[float] = []
    for group in loader.groups(2):
        found.append(step(group).loss.item())
        if len(found) == count:
            break
    return found


def weights(model: Any) -> list[float]:
    """All parameters of the model."""
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def write(out: Path) -> None:
    """Trains, saves inside the epoch, and notes the losses that follow."""
    loader, model, step = parts(out / "step.jsonl")
    losses(loader, step, STEPS_BEFORE)
    step.save(out / "checkpoint.pt", loader)
    rest = losses(loader_at(loader), step)
    (out / "training.json").write_text(
        json.dumps({"losses": rest, "weights": weights(model)}, indent=1) + "\n"
    )
    watched = watch(FastLoader(ArrayDataset(np.arange(10)), 4, num_workers=0), out / "watch.jsonl")
    for _ in range(2):
        for number, _batch in enumerate(watched):
            watched.log(loss=torch.tensor(1 / (1 + number)))
    for _batch in watched:
        break
    watched.flush()


def loader_at(other: FastLoader[Any]) -> FastLoader[Any]:
    """A new loader at the position of another one."""
    loader, _, _ = parts()
    loader.load_state_dict(other.state_dict())
    return loader
