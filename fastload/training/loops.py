"""Two complete training loops, to read, copy and change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastload.loader.loader import FastLoader
from fastload.training.process_group import distributed
from fastload.training.step import Loss, TrainStep


def train_with_amp(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: FastLoader[Any],
    loss_fn: Loss,
    *,
    epochs: int,
    precision: str = "bf16",
    accumulate: int = 1,
    checkpoint: str | None = None,
    log: str | None = None,
) -> list[float]:
    """Trains in mixed precision with `accumulate` batches per step; returns the loss of each step.

    Resumes from `checkpoint` if it exists, and writes it after each epoch. Step times are written
    to `log`, for `fastload report`.

    Example:
        >>> data = ArrayDataset({"x": np.ones((8, 2), "float32")})
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> losses = train_with_amp(model, optimizer, FastLoader(data, batch_size=4),
        ...     lambda model, batch: model(batch["x"]).square().mean(), epochs=3)
        >>> len(losses), losses[-1] < losses[0]
        (6, True)
    """
    step = TrainStep(model, optimizer, loss_fn, precision=precision, max_norm=1.0, log=log)
    if checkpoint is not None and os.path.exists(checkpoint):
        step.load(checkpoint, loader)
    losses = []
    for _epoch in range(loader.state_dict()["epoch"], epochs):
        for group in loader.groups(accumulate):
            losses.append(step(group).loss)
        if checkpoint is not None:
            step.save(checkpoint, loader)
    return [loss.item() for loss in losses]


def ddp_train(
    model: nn.Module,
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    data: Any,
    loss_fn: Loss,
    *,
    epochs: int,
    batch_size: int,
    precision: str = "bf16",
    accumulate: int = 1,
    checkpoint: str | None = None,
    save_every: int = 1000,
    log: str | None = None,
) -> list[float]:
    """Trains with DDP, under torchrun or in one process; returns the loss of each step.

    Resumes from `checkpoint` if it exists, and writes it after each epoch and every `save_every`
    steps. `data` is any dataset that FastLoader accepts. Step times are written to `log`, one file
    per rank, for `fastload report`.

    Example:
        >>> losses = ddp_train(torch.nn.Linear(2, 1), lambda p: torch.optim.SGD(p, lr=0.1),
        ...     torch.ones(8, 2), lambda model, x: model(x).square().mean(), epochs=3, batch_size=4)
        >>> len(losses), losses[-1] < losses[0]
        (6, True)
    """
    with distributed() as process:
        loader: FastLoader[Any] = FastLoader(
            data, batch_size, shuffle=True, seed=0, drop_last=True, device=process.device
        )
        ddp = DistributedDataParallel(model.to(process.device))
        optimizer = make_optimizer(ddp.parameters())
        step = TrainStep(ddp, optimizer, loss_fn, precision=precision, max_norm=1.0, log=log)
        if checkpoint is not None and os.path.exists(checkpoint):
            step.load(checkpoint, loader)
        losses = []
        for _epoch in range(loader.state_dict()["epoch"], epochs):
            for group in loader.groups(accumulate):
                losses.append(step(group).loss)
                if checkpoint is not None and step.steps % save_every == 0:
                    step.save(checkpoint, loader)
            if checkpoint is not None:
                step.save(checkpoint, loader)
        found = torch.stack(losses) if losses else torch.zeros(0, device=process.device)
        torch.distributed.all_reduce(found)  # the first wait for the device
        return (found / process.world).tolist()
