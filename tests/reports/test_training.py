"""Reports about the training step."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from prelude import X, one_batch
from torch import Tensor, nn

from fastload import ArrayDataset, FastLoader, TrainStep
from fastload.tools.report import Run


# lightning#591, BigGAN-PyTorch#25
def test_gradients_that_another_step_left_do_not_enter() -> None:
    def loss(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return net(batch["x"]).square().mean()

    batch = one_batch()
    generator, discriminator, alone = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    alone.load_state_dict(discriminator.state_dict())
    generates = TrainStep(
        generator,
        torch.optim.SGD(generator.parameters(), lr=0.0),
        lambda model, batch: discriminator(model(batch["x"])).mean(),
        precision="fp32",
    )
    judges = TrainStep(
        discriminator,
        torch.optim.SGD(discriminator.parameters(), lr=0.1),
        loss,
        precision="fp32",
    )
    generates(batch)
    judges(batch)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    loss(alone, batch).backward()
    optimizer.step()
    assert (discriminator.weight - alone.weight).abs().max() == 0


# pytorch#116349, torchtune#2341
def test_a_group_in_which_no_label_counts_leaves_the_weights() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        scores, labels = model(batch["x"]), batch["y"]
        return nn.functional.cross_entropy(scores, labels, reduction="sum"), (labels >= 0).sum()

    for precision in ("bf16", "fp16", "fp32"):
        model = nn.Linear(4, 3)
        before = model.weight.detach().clone()
        step = TrainStep(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            loss,
            precision=precision,
            max_norm=1.0,
        )
        data = ArrayDataset({"x": X, "y": torch.full((8,), -100)})
        for group in FastLoader(data, 4).groups(2):
            assert step(group).loss == 0
        assert torch.equal(model.weight, before)


def test_parameters_that_the_optimizer_got_later_are_clipped() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model[1].parameters(), lr=1.0)
    step = TrainStep(
        model,
        optimizer,
        lambda model, batch: model(batch["x"]).square().mean() * 1e4,
        precision="fp32",
        max_norm=1.0,
    )
    optimizer.add_param_group({"params": list(model[0].parameters())})
    step(one_batch())
    moved = [(p - b).norm() for p, b in zip(model.parameters(), before, strict=True)]
    assert 0.99 < torch.stack(moved).norm() < 1.001


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_the_log_is_json_where_a_loss_is_not_finite(loss: float) -> None:
    model = nn.Linear(4, 1)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        lambda model, batch: model(batch["x"]).mean() * loss,
        precision="fp32",
        max_norm=1.0,
        log="run.jsonl",
    )
    step(one_batch())
    step.save("a.pt")  # writes the lines

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    with open("run.jsonl") as file:
        rows = [json.loads(line, parse_constant=refuse) for line in file]
    assert rows[1]["loss"] is None
    assert rows[1]["grad_norm"] is None
    assert rows[1]["nonfinite"] == 1
    run = Run("run.jsonl")
    assert [step["loss"] for step in run.steps] == [None]
    json.dumps(run.summary(), allow_nan=False)


# pytorch#98921, stable-baselines3#1900
def test_a_checkpoint_with_a_numpy_learning_rate_can_be_loaded() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: 0.5 * (1 + np.cos(np.pi * epoch / 100))
    )
    step = TrainStep(
        model,
        optimizer,
        lambda model, batch: model(batch["x"]).mean(),
        precision="fp32",
        scheduler=scheduler,
    )
    step(one_batch())
    rates = scheduler.get_last_lr()
    step.save("a.pt")
    step(one_batch())
    step.load("a.pt")
    assert scheduler.get_last_lr() == rates
    assert step.steps == 1


def test_a_scheduler_that_needs_a_metric_is_refused_before_an_update() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau\.step needs metrics"):
        TrainStep(model, optimizer, lambda model, batch: batch, scheduler=scheduler)
