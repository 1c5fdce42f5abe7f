"""Steps in which some batches, or all of them, have nothing that counts; gradients of others."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from steps import FEATURES, adam, distance, joined, make_model, mse, plain_step, sgd
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import fastload
from fastload import ArrayDataset, FastLoader, TrainStep
from fastload.training import gradients

PRECISIONS = ("fp32", "bf16", "fp16")


def data(counts: list[int], size: int = 4) -> FastLoader[Any]:
    """Batches of `size` samples, all of which count, or none, as `counts` says."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(len(counts) * size, FEATURES, generator=generator)
    n = torch.tensor(counts).repeat_interleave(size)
    return FastLoader(
        ArrayDataset({"x": x, "y": x.sum(1, keepdim=True), "n": n}), size, seed=0, num_workers=0
    )


def losses(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch["x"]) - batch["y"]).float().square().squeeze(1) * batch["n"]


def summed(model: nn.Module, batch: Any) -> Any:
    return losses(model, batch).sum(), batch["n"].sum()


def chosen(model: nn.Module, batch: Any) -> Any:
    """The mean of an empty tensor is NaN, and its gradient 0."""
    counts = batch["n"] > 0
    return losses(model, batch)[counts].mean() * counts.sum(), batch["n"].sum()


def divided(model: nn.Module, batch: Any) -> Any:
    """The gradient of 0 / 0 is NaN, too."""
    n = batch["n"].sum()
    return losses(model, batch).sum() / n * n, n


def constant(model: nn.Module, batch: Any) -> Any:
    """As some write it to save the forward."""
    return summed(model, batch) if batch["n"].any() else (torch.zeros(()), 0)


def mean(model: nn.Module, batch: Any) -> Tensor:
    """NaN where nothing counts."""
    return losses(model, batch).sum() / batch["n"].sum()


KINDS: tuple[Callable[..., Any], ...] = (summed, chosen, divided, constant)


def in_number(loss_fn: Callable[..., Any], kind: type) -> Callable[..., Any]:
    """The same with a count that is no tensor."""

    def numbered(model: nn.Module, batch: Any) -> Any:
        loss, count = loss_fn(model, batch)
        return loss, kind(int(count))

    return numbered


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("loss_fn", KINDS)
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_where_nothing_counts_a_step_is_one_with_gradients_of_zero(
    precision: str, loss_fn: Callable[..., Any], grouped: bool, max_norm: float | None
) -> None:
    model, alone = make_model(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    scheduler = LambdaLR(optimizer, lambda k: 1 / (k + 1))
    step = TrainStep(
        model, optimizer, loss_fn, precision=precision, scheduler=scheduler, max_norm=max_norm
    )
    for group in data([0, 0]).groups(2):
        result = step(group if grouped else joined(group))
    expected = torch.optim.SGD(alone.parameters(), lr=0.1, weight_decay=0.5)
    for parameter in alone.parameters():
        parameter.grad = torch.zeros_like(parameter)
    expected.step()  # decays the weights
    assert distance(model, alone) == 0
    assert result.loss.item() == 0
    assert result.nonfinite.item() == 0
    assert result.grad_norm is None or result.grad_norm.item() == 0
    assert scheduler.last_epoch == 1
    assert step.nonfinite == 0


@pytest.mark.parametrize("loss_fn", KINDS)
@pytest.mark.parametrize("count", [None, int, float, np.int64])
def test_a_batch_in_which_nothing_counts_adds_nothing(
    loss_fn: Callable[..., Any], count: type | None
) -> None:
    for counts in ([0, 1, 0], [1, 0, 2], [2, 1, 0]):
        model, alone = make_model(), make_model()
        counted = loss_fn if count is None else in_number(loss_fn, count)
        step = TrainStep(model, sgd(model), counted, precision="fp32")
        group, again = (next(iter(data(counts).groups(3))) for _ in range(2))
        loss = step(group).loss.item()
        expected = plain_step(alone, sgd(alone), joined(again), mean)
        assert loss == pytest.approx(expected, rel=1e-6)
        assert distance(model, alone) <= 1e-6


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("counts", [[0, 0], [0, 3], [2, 0]])
def test_counts_that_are_known_beforehand(precision: str, counts: list[int]) -> None:
    model, alone = make_model(), make_model()
    step = TrainStep(model, sgd(model), mean, precision=precision, max_norm=1.0, init_scale=256.0)
    group, again = next(iter(data(counts).groups(2, count="n"))), next(iter(data(counts).groups(2)))
    result = step(group)
    assert result.nonfinite.item() == 0
    if not sum(counts):
        assert result.loss.item() == 0
        assert distance(model, alone) == 0
        return
    expected = plain_step(alone, sgd(alone), joined(again), mean, max_norm=1.0)
    assert result.loss.item() == pytest.approx(expected, rel=1e-2)
    assert distance(model, make_model()) > 0
    assert distance(model, alone) <= (1e-6 if precision == "fp32" else 1e-2)


def test_counts_of_both_kinds_may_be_zero() -> None:
    model = make_model()
    step = TrainStep(model, sgd(model), summed, precision="fp32")
    assert step(next(iter(data([0, 0]).groups(2, count="n")))).loss.item() == 0
    assert distance(model, make_model()) == 0


def test_on_a_gpu_a_group_in_which_nothing_counts_gives_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where counts are not looked at."""
    monkeypatch.setattr(gradients, "_is_on_host", lambda count: False)
    for loss_fn in (summed, chosen, divided):
        for grouped in (True, False):
            model = make_model()
            step = TrainStep(model, sgd(model), loss_fn, precision="fp32", max_norm=1.0)
            for group in data([0, 0]).groups(2):
                assert step(group if grouped else joined(group)).loss.item() == 0
            assert distance(model, make_model()) == 0


def test_a_mean_that_is_nan_is_a_step_that_is_not_finite() -> None:
    model = make_model()
    step = TrainStep(
        model, sgd(model), lambda m, b: divided(m, b)[0], precision="fp16", init_scale=2.0
    )
    (batch,) = data([0])
    assert step(batch).nonfinite.item() == 1
    assert distance(model, make_model()) == 0


def test_sparse_gradients_are_weighted_too() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 2, sparse=True)

        def forward(self, index: Tensor) -> Tensor:
            return self.table(index)

    model = Bag()
    before = copy.deepcopy(model)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, b: (m(b["i"]).sum() * b["n"].sum(), b["n"].sum()),
        precision="fp32",
    )
    data = ArrayDataset({"i": torch.arange(4), "n": torch.tensor([0, 0, 3, 1])})
    for number, group in enumerate(FastLoader(data, 1, seed=0).groups(2)):
        step(group)
        if not number:
            assert distance(model, before) == 0
    assert distance(model, before) == pytest.approx(0.1 * 3 / 4)


@pytest.mark.parametrize(
    ("count", "error", "what"),
    [
        (-1, ValueError, "finite and not negative, got -1"),
        (math.nan, ValueError, "got nan"),
        (torch.tensor(-2), ValueError, "-2"),
        (torch.ones(2), TypeError, r"one number, not a tensor \(2,\)"),
        ("3", TypeError, "a number, not '3'"),
    ],
)
def test_what_is_no_count_is_refused(count: Any, error: type[Exception], what: str) -> None:
    model = make_model()
    step = TrainStep(model, sgd(model), lambda m, b: (summed(m, b)[0], count), precision="fp32")
    (batch,) = data([1])
    with pytest.raises(error, match=what):
        step(batch)
    with pytest.raises(TypeError, match="such a tensor and a count"):
        TrainStep(model, sgd(model), lambda m, b: (*summed(m, b), 1))(batch)
    assert distance(model, make_model()) == 0


def test_sums_and_means_do_not_mix_in_one_group() -> None:
    model = make_model()

    def either(m: nn.Module, b: Any) -> Any:
        return summed(m, b) if b["n"].any() else losses(m, b).mean()

    for counts in ([0, 1], [1, 0]):
        step = TrainStep(model, sgd(model), either, precision="fp32")
        with pytest.raises(TypeError, match="for all batches of a group, or none"):
            step(next(iter(data(counts).groups(2))))


# --- Gradients of others -----------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("grouped", [True, False])
def test_gradients_that_others_left_do_not_enter(precision: str, grouped: bool) -> None:
    models, options = [make_model(), make_model()], {"precision": precision, "max_norm": 1.0}
    for number, model in enumerate(models):
        step = TrainStep(model, adam(model), mse, init_scale=256.0, **options)  # type: ignore[arg-type]
        for group in data([1, 1, 1, 1]).groups(2):
            if number:
                mse(model, {"x": torch.ones(2, FEATURES), "y": torch.ones(2, 1)}).backward()
            step(group if grouped else joined(group))
    assert distance(*models) == 0


def test_what_loss_fn_itself_sends_backward_enters() -> None:
    """It is a part of the step; only what was there before it is not."""
    model, alone = make_model(), make_model()

    def in_two(m: nn.Module, b: Any) -> Tensor:
        mse(m, b).backward()
        return mse(m, b)

    (batch,) = data([1])
    TrainStep(model, sgd(model), in_two, precision="fp32")(batch)
    plain_step(alone, sgd(alone), batch, lambda m, b: 2 * mse(m, b))
    assert distance(model, alone) <= 1e-6


# --- The parameters that the optimizer has now -------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_parameters_that_are_added_later_are_stepped_as_all(precision: str) -> None:
    models = [make_model(), make_model()]
    for number, model in enumerate(models):
        layers = [list(model[0].parameters()), list(model[2].parameters())]  # type: ignore[index]
        groups = [{"params": layer} for layer in layers]
        optimizer = torch.optim.SGD(groups[:1] if number else groups, lr=0.1)
        step = TrainStep(
            model, optimizer, summed, precision=precision, max_norm=0.01, init_scale=256.0
        )
        if number:
            optimizer.add_param_group(groups[1])
        for group in data([1, 0, 0, 0, 2, 1]).groups(2):
            step(group)
    assert distance(*models) == 0
    assert distance(models[0], make_model()) > 0


def test_parameters_that_are_taken_away_are_left_alone() -> None:
    model = make_model()
    optimizer = adam(model)
    step = TrainStep(model, optimizer, mse, precision="fp32", max_norm=1.0)
    (batch,) = data([1])
    optimizer.param_groups[0]["params"] = list(model[2].parameters())  # type: ignore[index]
    model[0].requires_grad_(False)  # type: ignore[index]
    left, before = copy.deepcopy(model[0]), copy.deepcopy(model)  # type: ignore[index]
    norm = step(batch).grad_norm
    assert distance(left, model[0]) == 0  # type: ignore[index]
    mse(before, batch).backward()
    own = [p.grad.norm() for p in before[2].parameters() if p.grad is not None]  # type: ignore[index]
    assert norm is not None
    assert norm.item() == pytest.approx(torch.stack(own).norm().item(), rel=1e-6)


def test_an_optimizer_may_begin_without_parameters() -> None:
    model, alone = make_model(), make_model()
    optimizer = torch.optim.SGD([{"params": []}], lr=0.1, momentum=0.9)
    step = TrainStep(model, optimizer, mse, precision="fp32", max_norm=1.0)
    (batch,) = data([1])
    step(batch)
    assert distance(model, alone) == 0
    optimizer.add_param_group({"params": model.parameters()})
    step(batch)
    plain_step(alone, sgd(alone), batch, max_norm=1.0)
    assert distance(model, alone) <= 1e-6


def test_parameters_of_float16_that_are_added_later_are_refused() -> None:
    model, half = make_model(), nn.Linear(2, 2).half()
    optimizer = sgd(model)
    step = TrainStep(model, optimizer, mse, precision="fp16")
    optimizer.add_param_group({"params": half.parameters()})
    (batch,) = data([1])
    with pytest.raises(ValueError, match=r"parameters of float32, .*; call model.float\(\)"):
        step(batch)
    assert distance(model, make_model()) == 0


def test_under_ddp_a_constant_loss_is_refused_rather_than_waited_for() -> None:
    (batch,) = data([0])
    with fastload.distributed(device="cpu"):
        model = nn.parallel.DistributedDataParallel(make_model())
        step = TrainStep(model, sgd(model), constant, precision="fp32")
        with pytest.raises(
            ValueError, match=r"run the model, and return \(output.sum\(\) \* 0, 0\)"
        ):
            step(batch)
