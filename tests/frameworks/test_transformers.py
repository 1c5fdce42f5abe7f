"""Hugging Face's Trainer with a FastLoader in DataLoader's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_training import (
    BATCH,
    ROWS,
    TRANSFORMED,
    in_ranks,
    loss_of,
    model,
    native_batches,
    transformed,
)
from small_training import dataset as tensors
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers import trainer as trainer_module

from fastload import ArrayDataset, FastLoader, KeyedSampler
from fastload.integrations.accelerate import skip_first_batches

EPOCHS, STEPS, WORLD = 3, ROWS // BATCH, 2


class Model(nn.Module):
    """`model`, as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, x: Any, y: Any, x_lengths: Any = None) -> dict[str, Any]:
        return {"loss": loss_of(self.net, {"x": x, "y": y})}


def dataset() -> ArrayDataset:
    x, y, _ = tensors().tensors
    return ArrayDataset({"x": x.numpy(), "y": y.numpy()})


class FastTrainer(Trainer):
    """The lines to change."""

    def get_train_dataloader(self) -> Any:
        return FastLoader(
            self.train_dataset, self.args.train_batch_size, shuffle=True, seed=self.args.seed
        )


class StockTrainer(Trainer):
    def get_train_dataloader(self) -> Any:
        data, size, seed = self.train_dataset, self.args.train_batch_size, self.args.seed
        sampler = KeyedSampler(data, seed=seed, batch_size=size)
        return DataLoader(data, size, sampler=sampler)


class TransformingTrainer(Trainer):
    """The lines to change, for data with transforms; `kind` is set by the test."""

    kind = "fixed"

    def get_train_dataloader(self) -> Any:
        size, seed = self.args.train_batch_size, self.args.seed
        return FastLoader(**transformed(self.kind), batch_size=size, shuffle=True, seed=seed)


class Losses(TrainerCallback):
    """Collects the loss of each step; ends the run after `stop_after` of them."""

    def __init__(self, stop_after: int) -> None:
        self.losses: list[float] = []
        self.stop_after = stop_after

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.stop_after:
            control.should_save = control.should_training_stop = True


def train(
    kind: type[Trainer], folder: Path, *, stop_after: int = -1, accumulate: int = 1, **options: Any
) -> list[float]:
    losses = Losses(stop_after)
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=3,
    )
    trainer = kind(Model(), arguments, train_dataset=dataset(), callbacks=[losses])
    trainer.train(**options)
    return losses.losses


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_are_those_with_dataloader(accumulate: int, tmp_path: Path) -> None:
    with native_batches() as native:
        losses = train(FastTrainer, tmp_path, accumulate=accumulate)
    assert len(native) == EPOCHS * STEPS
    assert len(losses) == EPOCHS * -(-STEPS // accumulate)
    assert losses == train(StockTrainer, tmp_path, accumulate=accumulate)
    assert len(set(losses)) == len(losses)


@pytest.mark.parametrize("stop_after", [STEPS + 4, STEPS])
def test_a_resume_has_the_losses_of_the_uninterrupted_run(stop_after: int, tmp_path: Path) -> None:
    whole = train(FastTrainer, tmp_path / "whole")
    train(FastTrainer, tmp_path, stop_after=stop_after)
    with native_batches() as native:
        rest = train(FastTrainer, tmp_path, resume_from_checkpoint=True)
    assert rest == whole[stop_after:]
    # The Trainer loads the rest of the broken epoch through a DataLoader of its own.
    assert len(native) == len(rest) // STEPS * STEPS


@pytest.mark.parametrize("helper", [False, True])
@pytest.mark.parametrize("kind", TRANSFORMED)
def test_a_resume_keeps_the_transforms(
    kind: str, helper: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransformingTrainer, "kind", kind)
    whole = train(TransformingTrainer, tmp_path / "whole")
    train(TransformingTrainer, tmp_path, stop_after=STEPS + 4)
    if helper:
        monkeypatch.setattr(trainer_module, "skip_first_batches", skip_first_batches)
    with native_batches() as native:
        rest = train(TransformingTrainer, tmp_path, resume_from_checkpoint=True)
    assert rest == whole[STEPS + 4 :]
    assert len(native) == (len(rest) if helper else STEPS)


def in_rank(folder: Path) -> tuple[list[float], list[list[float]]]:
    with native_batches() as native:
        losses = train(FastTrainer, folder)
    return losses, [batch["y"].flatten().tolist() for batch in native]


def test_two_ranks_share_the_data(tmp_path: Path) -> None:
    ranks = in_ranks(in_rank, WORLD, tmp_path, tmp_path / "out")
    steps = [len(targets) // EPOCHS for _, targets in ranks]
    assert steps == [-(-STEPS // WORLD)] * WORLD
    assert len(ranks[0][0]) == EPOCHS * steps[0]
    for epoch in range(EPOCHS):
        seen = [y for _, ys in ranks for b in ys[epoch * steps[0] :][: steps[0]] for y in b]
        assert sorted(seen) == sorted(tensors().tensors[1].flatten().tolist())
