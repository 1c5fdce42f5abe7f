"""The training step goes on after an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from steps import FEATURES, make_model, mse, sgd

from fastload import TrainStep


@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan")])
def test_a_norm_that_would_turn_or_end_the_gradients_is_refused(max_norm: float) -> None:
    model = make_model()
    with pytest.raises(ValueError, match="max_norm must be above 0, or None, not"):
        TrainStep(model, sgd(model), mse, max_norm=max_norm)


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_scaler_forgets_a_step_that_failed(
    max_norm: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    optimizer = sgd(model)
    step = TrainStep(model, optimizer, mse, precision="fp16", max_norm=max_norm, init_scale=2.0)
    x, y = torch.ones(2, FEATURES), torch.ones(2, 1)
    batch = {"x": x, "y": y}
    step(batch)
    failing: list[Any] = [RuntimeError("no memory is left")]
    update = optimizer.step

    def fail(*args: Any, **kwargs: Any) -> Any:
        if failing:
            raise failing.pop()
        return update(*args, **kwargs)

    monkeypatch.setattr(optimizer, "step", fail)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(RuntimeError, match="no memory"):
        step(batch)
    assert all(map(torch.equal, before, model.parameters()))
    assert step.scaler is not None
    assert step.scaler.get_scale() == 2.0
    assert step(batch).nonfinite.item() == 0
    assert not any(map(torch.equal, before, model.parameters()))
