"""The training step in one process: the large batch, mixed precision, skipped steps, states."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import steps
import torch
from steps import HostReads, adam, dataset, distance, joined, make_model, mse, plain_step, sgd
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import fastload
from fastload import FastLoader, TrainStep
from fastload.tools.report import Run
from fastload.training.log_writer import copy_to_host

ROWS, SIZE = 22, 4


def loader(rows: int = ROWS, **options: Any) -> FastLoader[Any]:
    return FastLoader(dataset(rows), SIZE, shuffle=True, seed=1, num_workers=0, **options)


def test_accumulated_batches_are_one_large_batch() -> None:
    for accumulate in (1, 2, 3, 4):
        for max_norm in (None, 0.5):
            models = [make_model(), make_model()]
            step = TrainStep(models[0], sgd(models[0]), mse, precision="fp32", max_norm=max_norm)
            optimizer = sgd(models[1])
            for _epoch in range(2):
                # The last batch is smaller, and so is the last group.
                for group, again in zip(
                    loader().groups(accumulate), loader().groups(accumulate), strict=True
                ):
                    result = step(group)
                    loss = plain_step(models[1], optimizer, joined(again), max_norm=max_norm)
                    assert result.loss.item() == pytest.approx(loss, rel=1e-6)
                    assert result.nonfinite.item() == 0
                    assert (result.grad_norm is None) == (max_norm is None)
                    assert distance(*models) <= 1e-6
            assert step.steps == 2 * -(-6 // accumulate)
            assert all(parameter.grad is None for parameter in models[0].parameters())


def test_one_batch_is_a_step_too() -> None:
    models = [make_model(), make_model()]
    step, optimizer = TrainStep(models[0], sgd(models[0]), mse, precision="fp32"), sgd(models[1])
    for batch in loader():
        step(batch)
        plain_step(models[1], optimizer, batch)
    assert distance(*models) == 0


@pytest.mark.parametrize("form", ["count=", "sum and count", "one batch"])
def test_samples_that_count_unequally(form: str) -> None:
    models = [make_model(), make_model()]
    loss_fn = steps.mean_of_counted if form == "count=" else steps.sum_and_count
    step = TrainStep(models[0], sgd(models[0]), loss_fn, precision="fp32")
    optimizer = sgd(models[1])
    count, n = ("n", 3) if form == "count=" else (None, 1 if form == "one batch" else 3)
    for group, again in zip(loader().groups(n, count=count), loader().groups(n), strict=True):
        result = step(next(iter(group)) if form == "one batch" else group)
        loss = plain_step(models[1], optimizer, joined(again), steps.mean_of_counted)
        assert result.loss.item() == pytest.approx(loss, rel=1e-6)
        assert distance(*models) <= 1e-6


def test_mixed_precision_is_close_to_full_precision() -> None:
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        models = [make_model(), make_model()]
        seen = set()

        def loss_fn(model: nn.Module, batch: Any, seen: set[Any] = seen) -> torch.Tensor:
            found = model(batch["x"])
            seen.add(found.dtype)
            return nn.functional.mse_loss(found.float(), batch["y"])

        step = TrainStep(models[0], sgd(models[0]), loss_fn, precision=precision, init_scale=2.0**8)
        optimizer = sgd(models[1])
        for group, again in zip(loader().groups(3), loader().groups(3), strict=True):
            step(group)
            plain_step(models[1], optimizer, joined(again))
        assert seen == {dtype}
        assert 0 < distance(*models) < 3e-2
        assert (step.scaler is None) == (precision == "bf16")
    assert step.scaler is not None
    assert step.scaler.get_scale() == 2.0**8


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    def in_float32(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return mse(model, batch)

    models = [make_model(), make_model()]
    step = TrainStep(models[0], sgd(models[0]), in_float32, precision="fp16", max_norm=0.1)
    optimizer = sgd(models[1])
    for batch in loader():
        result = step(batch)
        plain_step(models[1], optimizer, batch, max_norm=0.1)
        assert distance(*models) <= 1e-6
        assert result.grad_norm is not None
        assert result.grad_norm > 0.1  # as it was before


# --- Steps that are not finite -----------------------------------------------------------------


def poisoned(model: nn.Module, batch: Any) -> torch.Tensor:
    return mse(model, batch) * batch["poison"]


def batches(bad: list[int], count: int, poison: float = float("inf")) -> list[dict[str, Any]]:
    [batch] = FastLoader(dataset(4), 4)
    good = torch.ones(())
    return [batch | {"poison": good * poison if k in bad else good} for k in range(count)]


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_moves_neither_parameters_nor_schedule(fused: bool) -> None:
    model = make_model()
    optimizer = adam(model, fused=fused)
    scheduler = LambdaLR(optimizer, lambda k: 1 / (k + 1))
    step = TrainStep(
        model, optimizer, poisoned, precision="fp16", scheduler=scheduler, init_scale=1024.0
    )
    bad = [0, 3, 4]
    made = 0
    for k, batch in enumerate(batches(bad, 9)):
        before, at = copy.deepcopy(model), scheduler.last_epoch
        result = step(batch)
        made += k not in bad
        assert result.nonfinite.item() == (k in bad)
        assert (distance(before, model) == 0) == (k in bad)
        if not fused:
            assert scheduler.last_epoch == at + (k not in bad) == made
        assert made <= scheduler.last_epoch <= made + 2  # fused: known a step later
    assert step.nonfinite == 3
    assert scheduler.last_epoch == made
    assert step.scaler is not None
    assert step.scaler.get_scale() == 128


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp16, fused"])
def test_a_step_waits_for_the_device_no_more_than_torch_does(precision: str) -> None:
    model = make_model()
    # Only fused optimizers with a schedule on the device would do entirely without.
    optimizer = adam(model, fused=precision != "fp16", foreach=False)
    scheduler = LambdaLR(optimizer, lambda k: 1.0)
    step = TrainStep(
        model, optimizer, poisoned, precision=precision[:4], max_norm=1.0, scheduler=scheduler
    )
    some = batches([1], 3)
    with HostReads() as reads:
        for batch in some:
            step(batch)
    if precision != "fp16":
        assert reads.count == 0
        return
    bare, scaler = make_model(), torch.amp.GradScaler("cpu")
    optimizer = adam(bare, fused=False, foreach=False)
    with HostReads() as alone:
        for batch in some:
            with torch.autocast("cpu", torch.float16):
                loss = poisoned(bare, batch)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(bare.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert reads.count == alone.count > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_too_many_bad_steps_in_a_row_raise(precision: str, max_norm: float | None) -> None:
    def run(bad: list[int], count: int) -> None:
        model = make_model()
        step = TrainStep(
            model, sgd(model), poisoned, precision=precision, max_norm=max_norm, nonfinite_limit=3
        )
        for batch in batches(bad, count, 0.0 if precision != "fp16" else float("inf")):
            if precision != "fp16" and not batch["poison"]:  # the model itself stays finite
                batch = batch | {"x": batch["x"] * float("nan")}
                for group in step.optimizer.param_groups:
                    group["lr"] = 0.0
            kept = copy.deepcopy(model.state_dict())
            step(batch)
            model.load_state_dict(kept)

    run([0, 1, 3, 4, 6, 7], 9)
    run([5, 6, 7], 8)  # it is known a step later
    with pytest.raises(RuntimeError, match="3 consecutive steps were not finite"):
        run([5, 6, 7], 9)


def test_what_a_step_refuses() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="precision must be one of bf16, fp16, fp32, not 'half'"):
        TrainStep(model, sgd(model), mse, precision="half")
    model.half()
    with pytest.raises(ValueError, match=r"parameters of float32, .*; call model.float\(\)"):
        TrainStep(model, sgd(model), mse, precision="fp16")


def test_an_error_leaves_nothing_of_a_group_behind() -> None:
    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        if 3 in batch["i"]:
            raise OSError("bad sample")
        return mse(model, batch)

    model = make_model()
    step = TrainStep(model, sgd(model), failing, precision="fp32")
    before = copy.deepcopy(model)
    groups = FastLoader(dataset(8), 2).groups(2)
    failed = []
    for group in groups:
        try:
            step(group)
        except OSError:
            failed.append(group.samples)
            assert all(parameter.grad is None for parameter in model.parameters())
            assert distance(before, model) == 0
    assert failed == [4]
    assert step.steps == 1
    plain_step(before, sgd(before), joined(list(FastLoader(dataset(8), 4))[1:]))
    assert distance(before, model) <= 1e-6
    with pytest.raises(RuntimeError, match="can be iterated once"):
        step(group)


# --- Checkpoints -------------------------------------------------------------------------------


class Training:
    """All that a checkpoint holds, with random numbers in it."""

    def __init__(self, precision: str = "fp32", scheduled: bool = True, **options: Any) -> None:
        self.model = nn.Sequential(make_model()[0], nn.Dropout(0.3), make_model()[2])
        optimizer = adam(self.model)
        scheduler = LambdaLR(optimizer, lambda k: 0.9**k) if scheduled else None
        self.step = TrainStep(
            self.model, optimizer, mse, precision=precision, scheduler=scheduler, max_norm=1.0
        )
        self.loader = loader(**options)

    def run(self, epochs: int, folder: Path | None = None) -> list[float]:
        """Trains; saves after each step into `folder`. Gives the losses."""
        losses: list[float] = []
        for _epoch in range(self.loader.state_dict()["epoch"], epochs):
            for group in self.loader.groups(2):
                losses.append(self.step(group).loss.item())
                if folder is not None:
                    self.step.save(folder / f"{self.step.steps}.pt", self.loader)
        return losses


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_checkpoint_holds_everything(precision: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    whole = Training(precision).run(2)
    torch.manual_seed(5)
    saved = Training(precision)
    assert saved.run(2, tmp_path) == whole  # saving changes nothing
    assert len(whole) == 6
    for stop in range(1, 7):
        torch.manual_seed(6)
        resumed = Training(precision)
        resumed.step.load(tmp_path / f"{stop}.pt", resumed.loader)
        assert resumed.run(2) == whole[stop:]
        assert resumed.step.steps == 6
        assert distance(saved.model, resumed.model) == 0
    content = torch.load(tmp_path / "1.pt", weights_only=True)
    assert set(content["model"]) == set(saved.model.state_dict())
    assert not list(tmp_path.glob(".*"))


def test_a_checkpoint_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, path = Training(), tmp_path / "last.pt"
    training.step.save(path)
    kept = path.read_bytes()

    def full(content: Any, file: Any) -> None:
        file.write(b"begun")
        raise OSError(28, "No space left on device")

    def full_within(content: Any, file: Any) -> None:
        raise RuntimeError("unexpected pos 64 vs 0")  # as torch has it

    for save, why in ((full, "No space left"), (full_within, "last.pt could not be .* pos 64")):
        monkeypatch.setattr(torch, "save", save)
        with pytest.raises(OSError, match=why):
            training.step.save(path, training.loader)
    assert path.read_bytes() == kept
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.pt"]


def test_what_is_no_checkpoint_of_this_training(tmp_path: Path) -> None:
    training, path = Training(), tmp_path / "last.pt"
    with pytest.raises(FileNotFoundError):
        training.step.load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is no checkpoint"):
        training.step.load(path)
    training.step.save(path)
    whole, numbers = path.read_bytes(), random.Random(0)
    for _ in range(40):
        path.write_bytes(whole[: numbers.randrange(len(whole))])
        with pytest.raises(ValueError, match=r"last.pt is no checkpoint"):
            training.step.load(path)
    torch.save({"model": {}}, path)
    with pytest.raises(ValueError, match=r"no checkpoint that fastload\.TrainStep\.save wrote"):
        training.step.load(path)
    training.step.save(path)
    with pytest.raises(ValueError, match="saved without a loader"):
        training.step.load(path, training.loader)
    training.step.save(path, training.loader)
    other = nn.Linear(3, 1)
    with pytest.raises(ValueError, match="of another model or optimizer"):
        TrainStep(other, sgd(other), mse).load(path)
    unscheduled = Training(scheduled=False)
    with pytest.raises(ValueError, match="the scheduler: there is none here"):
        unscheduled.step.load(path)
    with pytest.raises(ValueError, match="another fingerprint"):
        training.step.load(path, loader(rows=8))
    with pytest.raises(ValueError, match="the state has no 'nonfinite'"):
        training.step.load_state_dict({"steps": 1})
    scaled = Training("fp16")
    scaled.step.load(path, scaled.loader)  # the scaler begins anew
    assert scaled.run(1)


def test_counts_are_waited_for_on_their_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not be the current one: that one's stream is past the copy before it began."""
    recorded = []

    class Counts:
        device = torch.device("cuda:1")

        def to(self, device: str, non_blocking: bool) -> torch.Tensor:
            return torch.zeros(2)

    class Event:
        def record(self, stream: Any = "of the current device") -> None:
            recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"of {device}")
    counts: Any = Counts()
    copy_to_host(counts)
    assert recorded == ["of cuda:1"]


def test_a_skip_that_the_schedule_owes_is_saved(tmp_path: Path) -> None:
    def made() -> tuple[Any, TrainStep]:
        model = make_model()
        optimizer = adam(model, fused=True)
        scheduler = LambdaLR(optimizer, lambda k: 1 / (k + 1))
        step = TrainStep(
            model, optimizer, poisoned, precision="fp16", scheduler=scheduler, init_scale=1024.0
        )
        return scheduler, step

    _, step = made()
    for batch in batches([2], 3):
        step(batch)
    step.save(tmp_path / "last.pt")
    scheduler, resumed = made()
    resumed.load(tmp_path / "last.pt")
    for batch in batches([], 3):
        resumed(batch)
    assert scheduler.last_epoch == 5
    assert resumed.nonfinite == 1


def test_train_with_amp_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    def train(epochs: int, **options: Any) -> list[float]:
        model = make_model()
        return fastload.train_with_amp(
            model, adam(model), loader(), mse, epochs=epochs, accumulate=2, **options
        )

    whole = train(4)
    assert whole[-1] < whole[0]
    files = {"checkpoint": str(tmp_path / "last.pt"), "log": str(tmp_path / "run.jsonl")}
    assert train(2, **files) + train(4, **files) == whole
    assert train(4, **files) == []
    assert [step["loss"] for step in Run(files["log"]).steps] == whole
