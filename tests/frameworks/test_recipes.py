"""Blocks of docs/guides/recipes.md that need DeepSpeed or torchao, in one process on the CPU."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.ops
import pytest
import torch
from small_training import in_ranks

_PATH = Path(__file__).parents[1] / "support/recipes.py"
_SPEC = importlib.util.spec_from_file_location("recipes", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
recipes: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(recipes)


def zero(folder: str) -> dict[str, Any]:
    """The model after the steps of the recipe, and after those of one large batch."""
    os.chdir(folder)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles that first
    names: Any = recipes.run("", "deepspeed")
    model, loss_fn = names["make_model"](), names["loss_fn"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in names["FastLoader"](names["data"], 24, shuffle=True, seed=0):
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    return {"zero": names["engine"].module.state_dict(), "plain": model.state_dict()}


def test_zero_makes_the_steps_of_large_batches(tmp_path: Path) -> None:
    """Also the last one, of two batches instead of three."""
    [found] = in_ranks(zero, 1, tmp_path, str(tmp_path))
    for name, parameter in found["plain"].items():
        torch.testing.assert_close(found["zero"][name], parameter)


@pytest.mark.filterwarnings("default")
def test_fp8_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(recipes.run("", "torchao")["losses"]) == 20
