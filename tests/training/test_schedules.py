"""What a training step cannot step is refused when it is made, not after an update."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from steps import adam, make_model, mse, sgd
from torch.optim import lr_scheduler as schedules

from fastload import TrainStep


def test_schedulers_of_torch_that_step_by_themselves_are_taken() -> None:
    model = make_model()
    optimizer = sgd(model)
    makers: list[Any] = [
        lambda: schedules.LambdaLR(optimizer, lambda k: 1.0),
        lambda: schedules.MultiplicativeLR(optimizer, lambda k: 1.0),
        lambda: schedules.StepLR(optimizer, 2),
        lambda: schedules.MultiStepLR(optimizer, [2]),
        lambda: schedules.ConstantLR(optimizer),
        lambda: schedules.LinearLR(optimizer),
        lambda: schedules.ExponentialLR(optimizer, 0.9),
        lambda: schedules.PolynomialLR(optimizer),
        lambda: schedules.CosineAnnealingLR(optimizer, 5),
        lambda: schedules.CosineAnnealingWarmRestarts(optimizer, 5),
        lambda: schedules.CyclicLR(optimizer, 0.1, 0.2),
        lambda: schedules.OneCycleLR(optimizer, 0.1, 9),
        lambda: schedules.ChainedScheduler([schedules.LinearLR(optimizer)]),
        lambda: schedules.SequentialLR(
            optimizer, [schedules.LinearLR(optimizer), schedules.StepLR(optimizer, 2)], [1]
        ),
        lambda: torch.optim.swa_utils.SWALR(optimizer, 0.1),
    ]
    batch = {"x": torch.ones(2, 5), "y": torch.ones(2, 1)}
    for make in makers:
        scheduler = make()
        step = TrainStep(model, optimizer, mse, precision="fp32", scheduler=scheduler)
        before = scheduler.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR calls its parts with an epoch
            step(batch)
        assert scheduler.state_dict() != before


class Plain:
    """Knows no optimizer."""

    def __init__(self) -> None:
        self.count = 0

    def step(self, *, epoch: int | None = None, **_more: Any) -> None:
        self.count += 1


def test_any_object_with_a_step_is_taken() -> None:
    model = make_model()
    scheduler = Plain()
    step = TrainStep(model, sgd(model), mse, precision="fp32", scheduler=scheduler)
    step({"x": torch.ones(2, 5), "y": torch.ones(2, 1)})
    assert scheduler.count == 1


def test_a_scheduler_that_needs_a_metric_is_refused() -> None:
    model = make_model()
    optimizer = sgd(model)

    class OfEpochs:
        def step(self, epoch: int, metric: float | None = None) -> None:
            raise AssertionError("it was called")

    class Chained:
        _schedulers = (schedules.ReduceLROnPlateau(optimizer),)

        def step(self) -> None:
            raise AssertionError("it was called")

    for scheduler, needs in (
        (schedules.ReduceLROnPlateau(optimizer), r"ReduceLROnPlateau\.step needs metrics"),
        (OfEpochs(), r"OfEpochs\.step needs epoch"),
        (Chained(), r"ReduceLROnPlateau\.step needs metrics"),
    ):
        with pytest.raises(ValueError, match=f"{needs}.*pass no scheduler=, call .* yourself"):
            TrainStep(model, optimizer, mse, scheduler=scheduler)


def test_what_is_no_scheduler_is_refused() -> None:
    model = make_model()
    for scheduler in (lambda k: 1.0, schedules.StepLR, 0.1):
        with pytest.raises(TypeError, match="an object with a method step"):
            TrainStep(model, sgd(model), mse, scheduler=scheduler)


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    model = make_model()
    other = sgd(model)
    for scheduler in (
        schedules.StepLR(other, 2),
        schedules.ChainedScheduler([schedules.StepLR(other, 2)]),
    ):
        with pytest.raises(ValueError, match="belongs to another optimizer"):
            TrainStep(model, adam(model), mse, scheduler=scheduler)
    # A wrapper around the optimizer shares its groups.
    wrapper = sgd(model)
    wrapper.param_groups = other.param_groups
    TrainStep(model, wrapper, mse, scheduler=scheduler)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    model = make_model()
    with pytest.raises(ValueError, match=r"LBFGS\.step needs closure"):
        TrainStep(model, torch.optim.LBFGS(model.parameters()), mse)
