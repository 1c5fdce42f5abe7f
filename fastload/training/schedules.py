"""Checks that a training step can step an optimizer and a scheduler."""

from __future__ import annotations

import inspect
from typing import Any


def check_steps(optimizer: Any, scheduler: Any) -> None:
    """Checks that a training step can step both, before the first update.

    Args:
        optimizer: A `torch.optim.Optimizer`.
        scheduler: An object with a `step()`, or None. The schedulers inside `SequentialLR` and
            `ChainedScheduler` are checked as well.

    Raises:
        ValueError: a `step` needs arguments (LBFGS, ReduceLROnPlateau); the scheduler belongs to
            another optimizer.
        TypeError: the scheduler has no `step`.
    """
    if needed := _required(optimizer):
        raise ValueError(
            f"{type(optimizer).__name__}.step needs {needed}, but TrainStep calls step(): use an "
            "optimizer that needs one backward per step, or write the loop without TrainStep"
        )
    if scheduler is None:
        return
    for one in (scheduler, *_parts(scheduler)):
        name = type(one).__name__
        if isinstance(one, type) or not callable(getattr(one, "step", None)):
            raise TypeError(f"scheduler must be an object with a method step, not {one!r}")
        if needed := _required(one):
            raise ValueError(
                f"{name}.step needs {needed}, but TrainStep calls scheduler.step() after each step "
                f"of the optimizer: pass no scheduler=, call {name}.step yourself after each epoch "
                "or evaluation, and save its state_dict() next to the checkpoint"
            )
        groups = getattr(getattr(one, "optimizer", None), "param_groups", None)
        own = {id(group) for group in optimizer.param_groups}
        if groups is not None and not any(id(group) in own for group in groups):
            raise ValueError(
                f"{name} belongs to another optimizer: create it with the one of this TrainStep"
            )


def _parts(scheduler: Any) -> list[Any]:
    """Returns the schedulers inside a scheduler, at any depth."""
    own = getattr(scheduler, "_schedulers", None)
    parts = list(own) if isinstance(own, (list, tuple)) else []
    return parts + [inner for part in parts for inner in _parts(part)]


def _required(steps: Any) -> str:
    """Returns the names of the arguments that `step` requires; "" if there are none."""
    try:
        # The method of the class: schedulers wrap the method of the optimizer object.
        _self, *parameters = inspect.signature(type(steps).step).parameters.values()
    except (AttributeError, TypeError, ValueError):  # compiled code may have no signature
        return ""
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(p.name for p in parameters if p.default is p.empty and p.kind not in fixed)
