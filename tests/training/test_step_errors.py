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
        with pytest.raises(TypeError, match=f"loss_fn must return a mean loss.* {what}"):
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
        ValueError, match=r"last\.pt is damaged: .*data/\d+ does not match its checksum"
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


# --- State that cannot be loaded ---------------------------------------------------------------


class Schedule:
    """A function with a state, as LambdaLR saves it."""

    def __init__(self, **state: Any) -> None:
        self.__dict__.update(state)

    def __call__(self, epoch: int) -> Any:
        return np.float64(0.5)


def with_state(where: str, value: Any) -> tuple[TrainStep, Any]:
    """A step, and its loader, with a value in the state of one of its parts."""
    model = make_model()
    if where == "model":

        class Extra(torch.nn.Sequential):
            def get_extra_state(self) -> Any:
                return value

            def set_extra_state(self, state: Any) -> None:
                self.extra = state

        model = Extra(*model)  # type: ignore[misc]
    optimizer = adam(model)
    if where == "optimizer":
        optimizer.param_groups[0]["note"] = value
    schedule = Schedule(**({"note": value} if where == "scheduler" else {}))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)

    class Loader:
        def state_dict(self) -> dict[str, Any]:
            return {"epoch": np.int64(3), "note": value if where == "loader" else 0}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    return TrainStep(model, optimizer, mse, precision="fp32", scheduler=scheduler), Loader()


PLACES = {
    "model": r"model\._extra_state",
    "optimizer": r"optimizer\.param_groups\[0\]\.note",
    "scheduler": r"step\.scheduler\.lr_lambdas\[0\]\.note",
    "loader": r"loader\.note",
}


@pytest.mark.parametrize("where", PLACES)
def test_a_state_that_cannot_be_loaded_is_refused_and_the_old_file_stays(
    where: str, tmp_path: Path
) -> None:
    path = tmp_path / "last.pt"
    saved(path)
    kept = path.read_bytes()
    for value, kind in ((object(), "builtins.object"), (lambda: 0, "builtins.function")):
        step, loader = with_state(where, value)
        with pytest.raises(TypeError, match=rf"{PLACES[where]} is a {kind}, which torch.load"):
            step.save(path, loader)
        assert path.read_bytes() == kept
        assert [entry.name for entry in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.parametrize("where", PLACES)
def test_numbers_and_arrays_of_numpy_may_be_in_any_state(where: str, tmp_path: Path) -> None:
    path, table = tmp_path / "last.pt", np.linspace(0, 1, 5)
    for value in (np.float64(0.25), table):
        step, loader = with_state(where, value)
        step({"x": torch.ones(2, FEATURES), "y": torch.ones(2, 1)})
        step.save(path, loader)
        torch.load(path, weights_only=True)
        again, other = with_state(where, 0)
        again.load(path, other)
        assert other.state["epoch"] == 3
        assert again.steps == 1
        assert again.scheduler.get_last_lr() == step.scheduler.get_last_lr()
        loaded = {
            "optimizer": again.optimizer.param_groups[0].get("note"),
            "scheduler": again.scheduler.lr_lambdas[0].__dict__.get("note"),
            "loader": other.state["note"],
            "model": getattr(again.model, "extra", None),
        }
        np.testing.assert_array_equal(loaded[where], value)
        assert type(loaded[where]) is (np.ndarray if value is table else float)


def test_the_state_of_a_step_is_plain_for_other_savers(tmp_path: Path) -> None:
    step, _ = with_state("none", 0)
    step({"x": torch.ones(2, FEATURES), "y": torch.ones(2, 1)})
    torch.save(step.state_dict(), tmp_path / "step.pt")
    assert torch.load(tmp_path / "step.pt", weights_only=True) == step.state_dict()


def test_a_file_that_was_written_badly_does_not_replace_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that lies: what is there is read again before it takes the place."""
    path = tmp_path / "last.pt"
    step = saved(path)
    kept, save = path.read_bytes(), torch.save

    def damaging(content: Any, file: Any) -> None:
        save(content, file)
        file.seek(file.tell() // 2)
        file.write(b"?" * 64)

    monkeypatch.setattr(torch, "save", damaging)
    with pytest.raises(OSError, match=r"last\.pt could not be written"):
        step.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == kept
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.pt"]


def test_an_error_of_the_loader_is_raised_as_it_is(tmp_path: Path) -> None:
    class Loader:
        def state_dict(self) -> Any:
            raise KeyError("no state")

    with pytest.raises(KeyError, match="no state"):
        with_state("none", 0)[0].save(tmp_path / "last.pt", Loader())
    assert not list(tmp_path.iterdir())
