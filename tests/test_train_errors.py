"""The training step goes on after an error."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steps import FEATURES, adam, distance, make_model, mse, sgd

from fastload import ArrayDataset, FastLoader, TrainStep


@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan")])
def test_a_norm_that_would_turn_or_end_the_gradients_is_refused(max_norm: float) -> None:
    model = make_model()
    with pytest.raises(ValueError, match="max_norm must be above 0, or None, not"):
        TrainStep(model, sgd(model), mse, max_norm=max_norm)


@pytest.mark.parametrize(
    ("loss", "what"),
    [(None, "not None"), (0.5, "not 0.5"), (torch.ones(2, 1), r"not a tensor \(2, 1\)")],
)
@pytest.mark.parametrize("counted", [False, True])
def test_what_is_no_loss_is_refused(loss: Any, what: str, counted: bool) -> None:
    model = make_model()
    step = TrainStep(model, sgd(model), lambda model, batch: (loss, 2) if counted else loss)
    loader = FastLoader(ArrayDataset(np.ones((4, 2))), batch_size=2)
    for group in (torch.ones(2, 1), next(iter(loader.groups(2)))):
        with pytest.raises(TypeError, match=f"loss_fn must give a mean loss.* {what}"):
            step(group)


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


# --- Damaged checkpoints -----------------------------------------------------------------------


def saved(path: Path) -> TrainStep:
    model = make_model()
    step = TrainStep(model, adam(model), mse, precision="fp32")
    step({"x": torch.ones(2, FEATURES), "y": torch.ones(2, 1)})
    step.save(path)
    return step


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("pipe", "is a file"), ("none/last.pt", "No such file")):
        with pytest.raises(OSError, match=reason) as caught:
            saved(tmp_path / name)
        assert caught.value.filename == str(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    for name in ("disk/there.pt", "disk/new.pt"):
        (tmp_path / "disk/there.pt").touch()
        (tmp_path / "link.pt").symlink_to(name)
        saved(tmp_path / "link.pt")
        assert (tmp_path / "link.pt").is_symlink()
        assert (tmp_path / name).stat().st_size > 0
        (tmp_path / "link.pt").unlink()


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path, numbers = tmp_path / "last.pt", random.Random(0)
    original, whole = saved(path), path.read_bytes()
    content = torch.load(path, weights_only=True)
    refused = harmless = 0
    flips = range(0, len(whole), max(1, len(whole) // 250))
    model = make_model()
    step = TrainStep(model, adam(model), mse, precision="fp32")
    for place in flips:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << numbers.randrange(8)
        path.write_bytes(damaged)
        try:
            step.load(path)
        except ValueError as error:
            refused += "last.pt is damaged" in str(error) or "is no checkpoint" in str(error)
        else:  # a date, or a byte between two parts
            harmless += 1
            assert distance(model, original.model) == 0
            assert str(torch.load(path, weights_only=True)) == str(content)
    assert refused + harmless == len(flips)
    assert refused > harmless


def test_a_flipped_bit_in_a_weight_names_its_part(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    step = saved(path)
    weight = step.model.state_dict()["2.weight"].numpy().tobytes()
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(weight) + 5] ^= 1
    path.write_bytes(damaged)
    assert torch.load(path, weights_only=True)["step"]["steps"] == 1  # torch sees nothing
    with pytest.raises(
        ValueError, match=r"last\.pt is damaged: .*data/\d+ does not fit its checksum"
    ):
        step.load(path)


def test_checkpoints_have_checksums_where_torch_was_told_to_leave_them_out(tmp_path: Path) -> None:
    options = torch.serialization
    if not hasattr(options, "set_crc32_options"):
        pytest.skip("torch before 2.6 always writes them")
    options.set_crc32_options(False)
    try:
        step = saved(tmp_path / "last.pt")
        assert options.get_crc32_options() is False
    finally:
        options.set_crc32_options(True)
    step.load(tmp_path / "last.pt")
