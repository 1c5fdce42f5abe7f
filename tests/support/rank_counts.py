"""Checks on several ranks of which some have nothing that counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from rank_models import SIZE, WRAPPERS, global_batch, loader, whole, wrapped
from steps import (
    counted_losses,
    dataset,
    distance,
    joined,
    make_model,
    mean_of_counted,
    mse,
    plain_step,
    sgd,
    sum_and_count,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import fastload
from fastload import FastLoader, TrainStep


def ranks_in_which_nothing_counts_add_nothing(folder: Path) -> None:
    """All ranks, or one; groups and single batches; a sum over nothing that is NaN, too."""

    def divided(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        n = batch["n"].sum()
        return counted_losses(model, batch).sum() / n * n, n

    for name in WRAPPERS:
        for loss_fn in (sum_and_count, divided) if name == "ddp" else (sum_and_count,):
            for counting in ((0, 0), (0, 1), (1, 0)):
                for grouped in (True, False):
                    nothing_counts(name, loss_fn, counting, grouped)


def nothing_counts(name: str, loss_fn: Any, counting: tuple[int, int], grouped: bool) -> None:
    model, alone = wrapped(make_model(), name), make_model()
    scheduler = LambdaLR(sgd(model), lambda k: 1.0)
    step = TrainStep(
        model, scheduler.optimizer, loss_fn, precision="fp32", max_norm=1.0, scheduler=scheduler
    )
    expected = sgd(alone)
    factor = counting[dist.get_rank()]
    for number, (group, again) in enumerate(
        zip(loader().groups(2), loader().groups(2), strict=True)
    ):
        batch = joined(group) if grouped is False else group
        whole_batch = joined(again)
        for part in (batch, whole_batch):
            if isinstance(part, dict):
                part["n"] = part["n"] * factor
        if grouped:
            batch._batches = ({**b, "n": b["n"] * factor} for b in batch._batches)
        result = step(batch)
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, whole_batch)
        loss = result.loss
        dist.all_reduce(loss)
        if any(counting):
            found = plain_step(alone, expected, joined(parts), mean_of_counted, max_norm=1.0)
            assert abs(loss.item() / 2 - found) <= 1e-6 * max(1.0, found)
        else:
            assert loss.item() == 0
        assert result.nonfinite.item() == 0
        assert scheduler.last_epoch == number + 1
        assert distance(whole(model), alone) <= 1e-6


def gradients_that_were_not_communicated_do_not_enter(folder: Path) -> None:
    """Left by an error within a group, or by others."""
    for name in WRAPPERS:
        broken, fresh = (wrapped(make_model(), name) for _ in range(2))
        calls: list[int] = []

        def failing(model: nn.Module, batch: Any, calls: list[int] = calls) -> Tensor:
            calls.append(0)
            if len(calls) == 2:
                raise OSError("in the second batch")
            return mse(model, batch)

        step = TrainStep(broken, sgd(broken), failing, precision="fp32")
        try:
            step(next(iter(loader().groups(3))))
            raise AssertionError("it went on")
        except OSError:
            pass
        expected = TrainStep(fresh, sgd(fresh), mse, precision="fp32")
        for group, again in zip(loader().groups(2), loader().groups(2), strict=True):
            step(group)
            expected(again)
            assert distance(whole(broken), whole(fresh)) == 0


def counts_known_beforehand_may_be_zero_on_a_rank(folder: Path) -> None:
    for name in WRAPPERS:
        model, alone = wrapped(make_model(), name), make_model()
        step = TrainStep(model, sgd(model), mean_of_counted, precision="fp32")
        (columns,) = FastLoader(dataset(16), 16)
        columns["n"][[0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]] = (
            0  # 0 / 0 on rank 0, then on both
        )
        data = fastload.ArrayDataset({k: v.clone() for k, v in columns.items()})
        loaders = [FastLoader(data, SIZE, seed=1, num_workers=0) for _ in range(2)]
        expected = sgd(alone)
        for number, (group, again) in enumerate(
            zip(loaders[0].groups(1, count="n"), loaders[1].groups(1), strict=True)
        ):
            result = step(group)
            held = global_batch(again)
            if not number:
                plain_step(alone, expected, held, mean_of_counted)
            else:
                assert result.loss.item() == 0
                plain_step(alone, expected, held, lambda m, b: m(b["x"]).sum() * 0)
            assert result.nonfinite.item() == 0
            assert distance(whole(model), alone) <= 1e-6
