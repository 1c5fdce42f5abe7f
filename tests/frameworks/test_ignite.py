"""PyTorch-Ignite: Engine with the loader's own state, and DeterministicEngine."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from ignite.engine import Engine, Events
from ignite.engine.deterministic import DeterministicEngine
from ignite.handlers import Checkpoint, DiskSaver
from small_training import (
    BATCH,
    ROWS,
    TRANSFORMED,
    dataset,
    loss_of,
    model,
    native_batches,
    numbers_of,
    optimizer,
    transformed,
)
from torch.utils.data import DataLoader

from fastload import FastLoader

EPOCHS = 3
STEPS = ROWS // BATCH


class Training:
    """An engine, with what it trains, what it has seen, and how that is saved."""

    def __init__(self, kind: type[Engine] = Engine) -> None:
        self.net = model()
        self.optim = optimizer(self.net)
        self.losses: list[float] = []
        self.numbers: list[list[int]] = []
        self.engine = kind(self._step)
        torch.manual_seed(7)  # DeterministicEngine draws its seed when it runs

    def _step(self, engine: Engine, batch: Any) -> float:
        loss = loss_of(self.net, batch)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.losses.append(loss.item())
        if isinstance(batch, list):
            self.numbers += numbers_of([batch])
        return loss.item()

    def run(self, loader: Any) -> Training:
        self.engine.run(loader, max_epochs=EPOCHS)
        return self

    def run_until(self, iteration: int, loader: Any) -> dict[str, Any]:
        """Ends after this iteration, with what a checkpoint would hold."""
        saved: dict[str, Any] = {}

        @self.engine.on(Events.ITERATION_COMPLETED(once=iteration))  # type: ignore[untyped-decorator]
        def save(engine: Engine) -> None:
            objects = {"engine": engine, "net": self.net, "optim": self.optim}
            saved.update({name: copy.deepcopy(obj.state_dict()) for name, obj in objects.items()})
            if hasattr(loader, "state_dict"):
                saved["loader"] = loader.state_dict()
            engine.terminate()

        self.run(loader)
        return saved

    def load(self, saved: dict[str, Any]) -> Training:
        for name, target in (("engine", self.engine), ("net", self.net), ("optim", self.optim)):
            target.load_state_dict(saved[name])
        return self


def keyed(**options: Any) -> FastLoader[Any]:
    return FastLoader(dataset(), BATCH, shuffle=True, seed=3, **options)


def with_transforms(kind: str) -> FastLoader[Any]:
    return FastLoader(**transformed(kind), batch_size=BATCH, shuffle=True, seed=3)


@pytest.mark.parametrize("kind", [Engine, DeterministicEngine])
def test_losses_equal_those_of_dataloader(kind: type[Engine]) -> None:
    with native_batches() as seen:
        by_torch = Training(kind).run(DataLoader(dataset(), BATCH, shuffle=True))
        assert not seen
        native = Training(kind).run(FastLoader(dataset(), BATCH, shuffle=True))
    assert native.numbers == by_torch.numbers == numbers_of(seen)
    assert native.losses == by_torch.losses
    assert len(native.losses) == EPOCHS * STEPS


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("iteration", [4, STEPS, STEPS + 4])
def test_engine_resumes_with_the_state_of_the_loader(iteration: int, workers: int) -> None:
    whole = Training().run(keyed(num_workers=workers))
    first = Training()
    saved = first.run_until(iteration, keyed(num_workers=workers))
    loader = keyed(num_workers=workers)
    loader.load_state_dict(saved["loader"])
    with native_batches() as seen:
        second = Training().load(saved).run(loader)
    assert len(seen) == len(second.losses) == EPOCHS * STEPS - iteration
    assert first.numbers + second.numbers == whole.numbers
    assert first.losses + second.losses == whole.losses


def test_checkpoint_handler_saves_the_loader(tmp_path: Path) -> None:
    first, loader = Training(), keyed()
    handler = Checkpoint({"engine": first.engine, "loader": loader}, DiskSaver(str(tmp_path)))
    first.engine.add_event_handler(Events.ITERATION_COMPLETED(once=4), handler)
    first.run(loader)
    second, loader = Training(), keyed()
    saved = torch.load(tmp_path / str(handler.last_checkpoint))
    Checkpoint.load_objects({"engine": second.engine, "loader": loader}, saved)
    assert second.run(loader).numbers == first.numbers[4:]


@pytest.mark.parametrize("iteration", [STEPS, STEPS + 4])
def test_deterministic_engine_resumes_as_with_dataloader(iteration: int) -> None:
    def make(loader_class: Any) -> Any:
        # Without workers the order is drawn too late for it, after it has restored the generators.
        return loader_class(dataset(), BATCH, shuffle=True, num_workers=2)

    for loader_class in (DataLoader, FastLoader):
        whole = Training(DeterministicEngine).run(make(loader_class))
        first = Training(DeterministicEngine)
        saved = first.run_until(iteration, make(loader_class))
        second = Training(DeterministicEngine).load(saved).run(make(loader_class))
        assert first.numbers + second.numbers == whole.numbers
        assert first.losses + second.losses == whole.losses


@pytest.mark.parametrize("iteration", [4, STEPS, STEPS + 4])
def test_deterministic_engine_with_the_keyed_order_is_told_the_epoch(iteration: int) -> None:
    def training(loader: FastLoader[Any]) -> Training:
        made = Training(DeterministicEngine)
        made.engine.add_event_handler(
            Events.EPOCH_STARTED, lambda engine: loader.set_epoch(engine.state.epoch - 1)
        )
        return made

    loader, same = keyed(), keyed()
    with native_batches() as seen:
        with pytest.warns(UserWarning, match="DeterministicEngine has rebuilt"):
            whole = training(loader).run(loader)
    assert len(seen) == EPOCHS * STEPS
    assert whole.numbers == [batch for _ in range(EPOCHS) for batch in numbers_of(same)]
    loader = keyed()
    first = training(loader)
    saved = first.run_until(iteration, loader)
    loader = keyed()  # the engine finds the place by itself
    second = training(loader).load(saved).run(loader)
    assert first.numbers + second.numbers == whole.numbers
    assert first.losses + second.losses == whole.losses


@pytest.mark.parametrize("kind", TRANSFORMED)
def test_engine_resumes_with_transforms(kind: str) -> None:
    whole = Training().run(with_transforms(kind))
    first = Training()
    saved = first.run_until(STEPS + 4, with_transforms(kind))
    loader = with_transforms(kind)
    loader.load_state_dict(saved["loader"])
    second = Training().load(saved).run(loader)
    assert first.losses + second.losses == whole.losses


@pytest.mark.filterwarnings("ignore:.*DeterministicEngine has rebuilt")
@pytest.mark.parametrize("kind", TRANSFORMED)
def test_deterministic_engine_draws_what_the_loader_draws(kind: str) -> None:
    """It rebuilds the loader around lists of indices, which say seed and epoch."""

    def training(loader: FastLoader[Any]) -> Training:
        made = Training(DeterministicEngine)
        made.engine.add_event_handler(
            Events.EPOCH_STARTED, lambda engine: loader.set_epoch(engine.state.epoch - 1)
        )
        return made

    by_engine = Training().run(with_transforms(kind))
    loader = with_transforms(kind)
    with native_batches() as seen:
        whole = training(loader).run(loader)
    assert whole.losses == by_engine.losses
    assert len(seen) == EPOCHS * STEPS
    loader = with_transforms(kind)
    first = training(loader)
    saved = first.run_until(STEPS + 4, loader)
    loader = with_transforms(kind)
    second = training(loader).load(saved).run(loader)
    assert first.losses + second.losses == whole.losses
