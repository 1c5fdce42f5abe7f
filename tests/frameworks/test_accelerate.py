"""Hugging Face Accelerate with a FastLoader in DataLoader's place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
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
from torch.utils.data import DataLoader

from fastload import FastLoader, KeyedSampler, WeightedSampler
from fastload.integrations import accelerate as integration

EPOCHS, WORLD, STEPS = 3, 2, ROWS // BATCH
TAIL_ROWS = ROWS - 3  # an epoch of these ends with a short batch


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    reset()


def reset() -> None:
    """Forgets the last Accelerator, which leaves singletons behind."""
    AcceleratorState._reset_state()
    GradientState._reset_state()


def keyed(rows: int = ROWS) -> FastLoader[Any]:
    return FastLoader(dataset(rows), BATCH, shuffle=True, seed=3)


def stock_keyed(rows: int = ROWS) -> DataLoader[Any]:
    data = dataset(rows)
    return DataLoader(data, BATCH, sampler=KeyedSampler(data, seed=3, batch_size=BATCH))


def shuffled(rows: int = ROWS) -> FastLoader[Any]:
    return FastLoader(dataset(rows), BATCH, shuffle=True)


def stock_shuffled(rows: int = ROWS) -> DataLoader[Any]:
    return DataLoader(dataset(rows), BATCH, shuffle=True)


def with_transforms(kind: str) -> FastLoader[Any]:
    return FastLoader(**transformed(kind), batch_size=BATCH, shuffle=True, seed=3)


MAKERS: dict[str, Callable[[], Any]] = {
    "keyed": keyed,
    "shuffled": shuffled,
    **{kind: partial(with_transforms, kind) for kind in TRANSFORMED},
}

PAIRS = pytest.mark.parametrize(
    ("fast", "stock"), [(keyed, stock_keyed), (shuffled, stock_shuffled)], ids=["keyed", "shuffled"]
)


class Run:
    """A training with Accelerate."""

    def __init__(self, loader: Any, accumulate: int = 1, **config: Any) -> None:
        reset()
        self.accelerator = accelerate.Accelerator(
            cpu=True,
            gradient_accumulation_steps=accumulate,
            dataloader_config=DataLoaderConfiguration(**config),
        )
        torch.manual_seed(5)
        if isinstance(loader, FastLoader):
            loader = integration.prepare(self.accelerator, loader)
        net = model()
        prepared = self.accelerator.prepare(net, optimizer(net), loader)
        self.net, self.optimizer, self.loader = prepared
        self.losses: list[float] = []
        self.batches: list[Any] = []
        self.steps: list[bool] = []

    def train(self, epochs: int, *, stop_after: int = -1, path: Path | None = None) -> Run:
        for _epoch in range(epochs):
            for batch in self.loader:
                with self.accelerator.accumulate(self.net):
                    loss = loss_of(self.net, batch)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.steps.append(self.accelerator.sync_gradients)
                self.losses.append(loss.item())
                self.batches.append(batch)
                if len(self.losses) == stop_after:
                    self.accelerator.save_state(path)
                    return self
        return self


@PAIRS
@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_are_those_with_dataloader(fast: Any, stock: Any, accumulate: int) -> None:
    with native_batches() as native:
        ours = Run(fast(), accumulate).train(EPOCHS)
    assert len(native) == len(ours.losses) == EPOCHS * STEPS
    assert isinstance(ours.loader, DataLoader)
    theirs = Run(stock(), accumulate).train(EPOCHS)
    assert ours.losses == theirs.losses
    assert ours.steps == theirs.steps  # the last window of an epoch is short


@pytest.mark.parametrize(
    ("name", "stop_after"),
    [(name, stop) for name in ("keyed", "shuffled") for stop in (2, STEPS + 4, STEPS)]
    + [(name, STEPS + 4) for name in TRANSFORMED],
)
def test_a_resume_has_the_losses_of_the_uninterrupted_run(
    name: str, stop_after: int, tmp_path: Path
) -> None:
    make = MAKERS[name]
    config = {"use_stateful_dataloader": True}
    whole = Run(make(), **config).train(EPOCHS).losses
    Run(make(), **config).train(EPOCHS, stop_after=stop_after, path=tmp_path)
    rest = Run(make(), **config)
    rest.accelerator.load_state(tmp_path)
    with native_batches() as native:
        rest.train(EPOCHS - stop_after // STEPS)
    assert rest.losses == whole[stop_after:]
    assert len(native) >= len(rest.losses)
    saved = rest.loader.state_dict()
    rest.loader.load_state_dict(saved)
    assert rest.loader.state_dict() == saved


@pytest.mark.parametrize("kind", TRANSFORMED)
@pytest.mark.parametrize("helper", ["prepare", "none"])
def test_losses_after_accelerates_own_skip_are_those_of_the_whole_run(
    kind: str, helper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It puts a DataLoader over the dataset, where ours was or where Accelerate's was."""
    whole = Run(MAKERS[kind]()).train(2).losses
    if helper == "none":
        monkeypatch.setattr(integration, "prepare", lambda accelerator, loader: loader)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*in the place of.*")
        run = Run(MAKERS[kind]())
    kept = run.loader
    run.loader = accelerate.skip_first_batches(kept, 4)
    for step, loss in enumerate(whole[:4]):  # train on them without the loader
        batch = list(MAKERS[kind]())[step]
        value = loss_of(run.net, batch)
        run.accelerator.backward(value)
        run.optimizer.step()
        run.optimizer.zero_grad()
        assert value.item() == loss
    assert run.train(1).losses == whole[4:STEPS]
    run.losses.clear()
    run.loader = kept
    run.loader.set_epoch(1)  # Accelerate's own loader has not counted the epoch
    assert run.train(1).losses == whole[STEPS:]


@pytest.mark.parametrize("make", [keyed, shuffled])
def test_skip_first_batches_begins_later(make: Callable[[], Any]) -> None:
    whole = numbers_of(Run(make()).loader)
    run = Run(make())
    with native_batches() as native:
        skipped = numbers_of(integration.skip_first_batches(run.loader, 4))
    assert skipped == whole[4:]
    assert len(native) == STEPS - 4
    again = Run(make())
    assert numbers_of(accelerate.skip_first_batches(again.loader, 4)) == whole[4:]


def test_skipping_refuses_random_transforms_whose_epoch_is_not_known() -> None:
    run = Run(FastLoader(**transformed("fixed"), batch_size=BATCH, shuffle=True))
    for loader in (run.loader, run.loader.base_dataloader):
        with pytest.raises(ValueError, match="give FastLoader seed="):
            integration.skip_first_batches(loader, 2)
    with pytest.raises(RuntimeError, match="random transforms depend on"):
        next(iter(accelerate.skip_first_batches(run.loader, 2)))


def test_plain_prepare_says_what_it_costs() -> None:
    reset()
    accelerator = accelerate.Accelerator(cpu=True)
    loader = keyed()
    with pytest.warns(UserWarning, match="in the place of.*integrations.accelerate"):
        replaced = accelerator.prepare(loader)
    assert numbers_of(replaced) == numbers_of(keyed())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator.prepare(loader)
        accelerator.prepare(integration.prepare(accelerator, shuffled()))
        accelerator.prepare(FastLoader([1, 2, 3]))  # torch loads that one anyway
    shared = FastLoader(dataset(), BATCH, seed=0, shard=(0, 2))
    with pytest.warns(UserWarning, match="does not see where the epochs of this"):
        assert accelerator.prepare(shared) is shared


def test_what_is_no_fast_loader_is_refused() -> None:
    reset()
    with pytest.raises(TypeError, match=r"go through accelerator\.prepare, also a DataLoader"):
        integration.prepare(accelerate.Accelerator(cpu=True), DataLoader(dataset()))


def test_the_state_is_not_kept_unless_asked_for(tmp_path: Path) -> None:
    Run(keyed()).train(1, stop_after=3, path=tmp_path)
    rest = Run(keyed())
    rest.accelerator.load_state(tmp_path)
    assert len(rest.train(1).losses) == STEPS  # skip_first_batches is to be used then


TAILS: dict[str, Callable[[], Any]] = {
    "mask": lambda: FastLoader(dataset(TAIL_ROWS), BATCH, shuffle=True, seed=3, tail="mask"),
    "weighted": lambda: FastLoader(
        dataset(TAIL_ROWS), BATCH, sampler=WeightedSampler(torch.ones(TAIL_ROWS), 13, seed=3)
    ),
}


def gathered_of(loader: Any, **config: Any) -> list[int]:
    """Numbers of the samples that count in a metric."""
    run = Run(loader, **config)
    steps = [run.accelerator.gather_for_metrics(batch[2]).tolist() for batch in run.loader]
    return [number for step in steps for number in step]


def in_rank(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    configs: dict[str, dict[str, Any]] = {
        "even": {},
        "uneven": {"even_batches": False},
        "split": {"split_batches": True},
    }
    for name, config in configs.items():
        for make in (shuffled, stock_shuffled):
            with native_batches() as native:
                run = Run(make(TAIL_ROWS), **config)
                found[f"{name} {make.__name__}"] = [numbers_of(run.loader) for _ in range(2)]
            assert bool(native) == (make is shuffled)
    found["padded"] = []
    for helper, config in ((True, {}), (False, {}), (False, {"dispatch_batches": True})):
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            warnings.filterwarnings("ignore", ".*in the place of.*")
            if not helper:
                patch.setattr(integration, "prepare", lambda accelerator, loader: loader)
            data = transformed("ragged")
            run = Run(FastLoader(**data, batch_size=BATCH, shuffle=True), **config)
        seen = set()  # of all ranks; a step that is filled up has samples twice
        for batch in run.loader:
            members = map(run.accelerator.gather, (batch["x"], batch["y"], batch["x_lengths"]))
            seen |= {(y.item(), *x[:n].tolist()) for x, y, n in zip(*members)}
        found["padded"].append(seen)
    config = {"use_stateful_dataloader": True}
    run = Run(keyed(TAIL_ROWS), 2, **config)
    gathered = [run.accelerator.gather_for_metrics(batch[2]).tolist() for batch in run.loader]
    found["gathered"] = gathered
    found["tails"] = {name: gathered_of(make(), **config) for name, make in TAILS.items()}
    masked = Run(TAILS["mask"](), **config)
    masked.loader.load_state_dict(masked.loader.state_dict() | {"samples": 3})
    found["tails"]["resumed"] = [
        (number, real)
        for batch in masked.loader
        for number, real in zip(*masked.accelerator.gather_for_metrics((batch[2], batch[3])))
    ]
    with pytest.raises(ValueError, match="tail='short'"):
        Run(FastLoader(dataset(TAIL_ROWS), BATCH, seed=3, tail="short"))
    run = Run(keyed(TAIL_ROWS), 2, **config).train(EPOCHS)
    found["steps"], whole = run.steps, run.losses
    Run(keyed(TAIL_ROWS), 2, **config).train(EPOCHS, stop_after=8, path=folder)
    rest = Run(keyed(TAIL_ROWS), 2, **config)
    rest.accelerator.load_state(folder)
    found["resumed"] = (rest.train(EPOCHS - 1).losses, whole[8:])
    return found


def test_two_ranks(tmp_path: Path) -> None:
    ranks = in_ranks(in_rank, WORLD, tmp_path, tmp_path / "state")
    for rank in ranks:
        for config in ("even", "uneven", "split"):
            assert rank[f"{config} shuffled"] == rank[f"{config} stock_shuffled"]
        helped, plain, dispatched = rank["padded"]
        assert helped == plain == dispatched
        assert len(helped) == ROWS
        # Each sample once, though the last step is filled up with samples of the first.
        gathered = [number for step in rank["gathered"] for number in step]
        assert sorted(gathered) == list(range(TAIL_ROWS))
        assert sorted(rank["tails"]["mask"]) == list(range(TAIL_ROWS))
        resumed = rank["tails"]["resumed"]
        assert sorted(int(number) for number, _ in resumed) == sorted(rank["tails"]["mask"][3:])
        assert all(real for _, real in resumed)
        assert rank["tails"]["weighted"] == list(WeightedSampler(torch.ones(TAIL_ROWS), 13, seed=3))
        per_epoch = len(rank["steps"]) // EPOCHS
        assert (
            rank["steps"] == [n % 2 == 1 or n == per_epoch - 1 for n in range(per_epoch)] * EPOCHS
        )
        assert rank["resumed"][0] == rank["resumed"][1]
