"""Lightning's Trainer with a FastLoader in DataLoader's place."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from small_training import (
    BATCH,
    ROWS,
    TRANSFORMED,
    dataset,
    in_ranks,
    loss_of,
    model,
    native_batches,
    numbers_of,
    optimizer,
    transformed,
)
from torch.utils.data import DataLoader, DistributedSampler

from fastload import FastLoader, KeyedSampler

EPOCHS, STEPS = 3, ROWS // BATCH


class Module(lightning.LightningModule):
    """Trains `model`; keeps each loss, and which samples it came from."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()
        self.losses: list[float] = []
        self.batches: list[Any] = []

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        loss = loss_of(self.net, batch)
        self.losses.append(loss.item())
        self.batches.append(batch)
        return loss

    def predict_step(self, batch: Any, _number: int) -> torch.Tensor:
        return batch[2]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self.net)


class HookedModule(Module):
    """Makes its loader in the hook, where Lightning watches how."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def train_dataloader(self) -> Any:
        return self.make()


def trainer(**options: Any) -> lightning.Trainer:
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": EPOCHS,
    }
    return lightning.Trainer(**(quiet | options))


def fit(loader: Any, **options: Any) -> Module:
    torch.manual_seed(5)
    module = Module()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        trainer(**options).fit(module, loader)
    return module


def keyed(**options: Any) -> FastLoader[Any]:
    return FastLoader(dataset(), BATCH, shuffle=True, seed=3, **options)


def stock_keyed() -> DataLoader[Any]:
    data = dataset()
    return DataLoader(data, BATCH, sampler=KeyedSampler(data, seed=3, batch_size=BATCH))


def with_transforms(kind: str) -> FastLoader[Any]:
    return FastLoader(**transformed(kind), batch_size=BATCH, shuffle=True, seed=3)


MAKERS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "shuffled": (
        lambda: FastLoader(dataset(), BATCH, shuffle=True),
        lambda: DataLoader(dataset(), BATCH, shuffle=True),
    ),
    "workers": (
        lambda: FastLoader(dataset(), BATCH, shuffle=True, num_workers=2),
        lambda: DataLoader(dataset(), BATCH, shuffle=True),
    ),
    "keyed": (keyed, stock_keyed),
}
MAKERS |= {kind: (partial(with_transforms, kind), stock_keyed) for kind in TRANSFORMED}


@pytest.mark.parametrize("name", ["shuffled", "workers", "keyed"])
def test_losses_are_those_with_dataloader(name: str) -> None:
    fast, stock = MAKERS[name]
    with native_batches() as native:
        losses = fit(fast()).losses
    assert len(native) == len(losses) == EPOCHS * STEPS
    assert losses == fit(stock()).losses


def test_a_loader_made_in_the_hook_is_native_too() -> None:
    torch.manual_seed(5)
    module = HookedModule(keyed)
    with native_batches() as native:
        trainer().fit(module)
    assert len(native) == EPOCHS * STEPS
    assert module.losses == fit(stock_keyed()).losses


class Stop(lightning.Callback):
    """Saves after `step` batches of the run, in the middle of an epoch, and ends it."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("name", "step"),
    # At the end of an epoch only the keyed loader is told that Lightning takes it for over.
    [("keyed", step) for step in (2, STEPS - 1, STEPS, STEPS + 4)]
    + [("shuffled", step) for step in (2, STEPS - 1, STEPS + 4)]
    + [(kind, STEPS + 4) for kind in TRANSFORMED],
)
def test_a_resume_has_the_losses_of_the_uninterrupted_run(
    name: str, step: int, tmp_path: Path
) -> None:
    make = MAKERS[name][0]
    whole = fit(make()).losses
    path = tmp_path / "middle.ckpt"
    torch.manual_seed(5)
    first = Module()
    with pytest.raises(SystemExit):
        trainer(callbacks=[Stop(step, path)]).fit(first, make())
    assert first.losses == whole[:step]
    random_state = torch.get_rng_state()
    rest = Module()
    torch.manual_seed(77)
    if name == "shuffled":  # Lightning does not save it
        torch.set_rng_state(random_state)
    with native_batches() as native:
        trainer().fit(rest, make(), ckpt_path=path)
    assert rest.losses == whole[step:]
    assert len(native) == len(rest.losses)


@pytest.mark.parametrize("name", ["keyed", "shuffled"])
def test_a_checkpoint_at_the_end_of_an_epoch_continues_with_the_next(
    name: str, tmp_path: Path
) -> None:
    make = MAKERS[name][0]
    whole = fit(make())
    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}")
    fit(make(), max_epochs=1, enable_checkpointing=True, callbacks=[checkpoint])
    random_state = torch.get_rng_state()
    rest = Module()
    torch.set_rng_state(random_state)
    trainer().fit(rest, make(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert numbers_of(rest.batches) == numbers_of(whole.batches)[STEPS:]
    assert rest.losses == whole.losses[STEPS:]


def test_predict_and_overfit_rebuild_the_loader_and_stay_native() -> None:
    with native_batches() as native:
        found = trainer().predict(Module(), keyed())
    assert torch.cat(found).sort().values.tolist() == list(range(ROWS))
    assert len(native) == STEPS
    masked = FastLoader(dataset(5), BATCH, seed=3, shard=(1, 2), tail="mask")
    with native_batches() as native:
        found = trainer().predict(Module(), masked)
    assert [batch.tolist() for batch in found] == [[3, 4, 0]]
    assert [batch[3].tolist() for batch in native] == [[True, True, False]]
    module = fit(keyed(), overfit_batches=2)
    assert numbers_of(module.batches) == [[0, 1, 2, 3], [4, 5, 6, 7]] * EPOCHS
    for kind in TRANSFORMED:  # the loss says when transforms are lost
        with native_batches() as native:
            assert len(set(fit(with_transforms(kind), overfit_batches=2).losses)) == 2 * EPOCHS
        assert len(native) == 2 * EPOCHS


WORLD = 2


def in_rank(folder: Path) -> dict[str, Any]:
    options = {"strategy": "ddp", "devices": WORLD}
    found: dict[str, Any] = {}
    for name in ("keyed", "shuffled"):
        fast, stock = MAKERS[name]
        with native_batches() as native:
            module = fit(fast(), **options)
        assert len(native) == len(module.losses)
        whole = module.losses
        found[name] = (whole, fit(stock(), **options).losses, numbers_of(module.batches))
        found["sampler " + name] = type(module.trainer.train_dataloader.sampler)
        steps = len(whole) // EPOCHS
        for stop in (steps, steps + 2):
            path = folder / f"{name}{stop}.ckpt"
            with pytest.raises(SystemExit):
                fit(fast(), callbacks=[Stop(stop, path)], **options)
            rest = Module()
            trainer(**options).fit(rest, fast(), ckpt_path=path)
            found.setdefault(f"resumed {name}", []).append((rest.losses, whole[stop:]))
    alone = fit(MAKERS["shuffled"][0](), use_distributed_sampler=False, max_epochs=1, **options)
    found["alone"] = numbers_of(alone.batches)
    return found


def test_two_ranks_with_and_without_an_injected_sampler(tmp_path: Path) -> None:
    ranks = in_ranks(in_rank, WORLD, tmp_path, tmp_path)
    for name, sampler in (("keyed", KeyedSampler), ("shuffled", DistributedSampler)):
        seen: list[int] = []
        for rank in ranks:
            losses, stock, numbers = rank[name]
            assert losses == stock
            for resumed, uninterrupted in rank["resumed " + name]:
                assert resumed == uninterrupted
            assert rank["sampler " + name] is sampler
            seen += [number for batch in numbers[: len(numbers) // EPOCHS] for number in batch]
        assert sorted(seen) == list(range(ROWS))
    assert ranks[0]["alone"] == ranks[1]["alone"]
    assert len(ranks[0]["alone"]) == STEPS
