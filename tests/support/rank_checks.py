"""What `training/test_step_ranks.py` runs on two ranks, all in one start of the processes."""

from __future__ import annotations

import copy
import inspect
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_counts import (
    counts_known_beforehand_may_be_zero_on_a_rank,
    gradients_that_were_not_communicated_do_not_enter,
    ranks_in_which_nothing_counts_add_nothing,
)
from rank_models import SIZE, WRAPPERS, WRAPS, fully_shard, global_batch, loader, whole, wrapped
from steps import (
    adam,
    dataset,
    distance,
    make_model,
    mean_of_counted,
    mse,
    plain_step,
    sgd,
    sum_and_count,
)
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._python_dispatch import TorchDispatchMode

import fastload
from fastload import TrainStep
from fastload.training.checkpoint import _whole


class Reductions(TorchDispatchMode):
    """Counts how often gradients that are sharded are added up over the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "reduce_scatter" in str(func)
        return func(*args, **(kwargs or {}))


# --- The checks --------------------------------------------------------------------------------


def totals_are_sums_over_the_ranks(folder: Path) -> None:
    for rows, options in ((22, {}), (23, {}), (23, {"drop_last": True}), (1, {})):
        for count in (None, "n"):
            for n in (1, 2, 5):
                for group in loader(rows, **options).groups(n, count=count):
                    unit = [len(b["n"]) if count is None else int(b["n"].sum()) for b in group]
                    assert list(group.sizes) == unit
                    held = torch.tensor(sum(unit))
                    dist.all_reduce(held)
                    assert group.total == held
                    assert group.shares == 2


def one_large_batch(name: str, accumulate: int) -> None:
    model, alone = wrapped(make_model(), name), make_model()
    step = TrainStep(model, sgd(model), mse, precision="fp32", max_norm=1.0)
    optimizer = sgd(alone)
    for _epoch in range(2):
        for group, again in zip(
            loader().groups(accumulate), loader().groups(accumulate), strict=True
        ):
            loss = step(group).loss
            dist.all_reduce(loss)
            expected = plain_step(alone, optimizer, global_batch(again), max_norm=1.0)
            assert abs(loss.item() / 2 - expected) <= 1e-6 * max(1.0, expected)
            assert distance(whole(model), alone) <= 1e-6


def steps_are_those_of_one_process(folder: Path) -> None:
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    for name, options in WRAPS.items():
        if set(options) <= set(known):  # older torch has no batched_grad_copy
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                for accumulate in (1, 2, 3, 4) if name in ("ddp", "static_graph") else (2,):
                    one_large_batch(name, accumulate)
            told = [str(w.message) for w in said if "communicated in each batch" in str(w.message)]
            assert len(told) == (3 if name == "static_graph" else 0)  # once for each TrainStep


def steps_of_fsdp2_are_those_of_one_process(folder: Path) -> None:
    for accumulate in (1, 2, 3, 4):
        one_large_batch("fsdp2", accumulate)


def samples_may_count_unequally(folder: Path) -> None:
    for name in WRAPPERS:
        for loss_fn, count in ((mean_of_counted, "n"), (sum_and_count, None)):
            model, alone = wrapped(make_model(), name), make_model()
            step = TrainStep(model, sgd(model), loss_fn, precision="fp32")
            optimizer = sgd(alone)
            for group, again in zip(
                loader().groups(2, count=count), loader().groups(2), strict=True
            ):
                loss = step(group).loss
                dist.all_reduce(loss)
                expected = plain_step(alone, optimizer, global_batch(again), mean_of_counted)
                assert abs(loss.item() / 2 - expected) <= 1e-6 * max(1.0, expected)
                assert distance(whole(model), alone) <= 1e-6


def only_the_last_batch_communicates(folder: Path) -> None:
    calls: list[int] = []

    def counting(state: Any, bucket: Any) -> Any:
        calls.append(0)
        return allreduce_hook(state, bucket)

    counting.__annotations__ = {}  # as text DDP does not know them
    if fully_shard:
        model = wrapped(make_model(), "fsdp2")
        step = TrainStep(model, sgd(model), mse, precision="fp32")
        for group in loader(48).groups(3):
            with Reductions() as reductions:
                step(group)
            assert reductions.count == 2  # one for each of the two layers
    for name, each in (("ddp", 1), ("static_graph", None)):
        calls.clear()
        model = wrapped(make_model(), name)
        model.register_comm_hook(None, counting)
        step = TrainStep(model, sgd(model), mse, precision="fp32")
        for group in loader(48).groups(3):
            before = len(calls)
            step(group)
            assert len(calls) - before == (each or len(group))


def infinity_on_one_rank_stops_all(folder: Path) -> None:
    for name, fused in [("ddp", True), *((name, False) for name in WRAPPERS)]:
        model = wrapped(make_model(), name)
        optimizer = adam(model, fused=fused)
        scheduler = LambdaLR(optimizer, lambda k: 1.0)

        factor = torch.ones(())

        def poisoned(model: nn.Module, batch: Any, factor: Tensor = factor) -> Tensor:
            return mse(model, batch) * factor

        step = TrainStep(
            model, optimizer, poisoned, precision="fp16", scheduler=scheduler, init_scale=256.0
        )
        for number, group in enumerate(loader(80).groups(2)):
            bad = number == 2
            factor.fill_(float("inf") if bad and dist.get_rank() == 0 else 1.0)
            before = whole(model)
            result = step(group)
            assert result.nonfinite.item() == bad
            assert (distance(before, whole(model)) == 0) == bad
        assert step.nonfinite == 1
        assert scheduler.last_epoch == number
        assert step.scaler is not None
        assert step.scaler.get_scale() == 128


def checkpoints_fit_any_wrapper(folder: Path) -> None:
    """Saved by two ranks, loaded by them, and by one process in the parent's test."""
    for name in WRAPPERS:
        model = wrapped(make_model(), name)
        data = loader()
        step = TrainStep(model, adam(model), mse, precision="fp32")
        losses = []
        for group in data.groups(1):
            losses.append(step(group).loss.item())
            if len(losses) == 1:
                step.save(folder / f"{name}.pt", data)
        for other in WRAPPERS:
            model, data = wrapped(make_model(), other), loader()
            again = TrainStep(model, adam(model), mse, precision="fp32")
            again.load(folder / f"{name}.pt", data)
            rest = [again(group).loss.item() for group in data.groups(1)]
            if other == name:
                assert rest == losses[1:]
            assert torch.allclose(torch.tensor(rest), torch.tensor(losses[1:]), rtol=1e-5)
    writes = dist.get_rank() == 0
    state = _whole(step.optimizer.state_dict(), kept=writes)["state"]
    found = [value for entry in state.values() for value in entry.values()]
    assert any(map(torch.is_tensor, found)) == writes  # on a host of many ranks once
    kept = (folder / "ddp.pt").read_bytes()

    class Broken:
        def state_dict(self) -> Any:
            if dist.get_rank():
                raise LookupError("only here")
            return 0

    class Unloadable:
        def state_dict(self) -> Any:
            return {"lock": object()}

    for path, held, error, what in (
        ("missing/last.pt", data, FileNotFoundError, "No such file"),
        ("ddp.pt", Broken(), LookupError, "only here"),
        ("ddp.pt", Unloadable(), TypeError, "loader.lock is a builtins.object"),
    ):
        with pytest.raises(error, match=what):
            step.save(folder / path, held)
    assert (folder / "ddp.pt").read_bytes() == kept


def a_group_that_exists_is_left_as_it_is(folder: Path) -> None:
    with fastload.distributed(device="cpu") as process:
        assert process[:2] == (dist.get_rank(), 2)
    assert dist.is_initialized()


def ddp_train_goes_on_from_its_checkpoint(folder: Path) -> None:
    path = folder / "ddp_train.pt"

    def train(epochs: int, checkpoint: str | None = None, calls: int = 99) -> list[float]:
        left = list(range(calls))

        def loss_fn(model: nn.Module, batch: Any) -> Tensor:
            left.pop()  # IndexError in the call after
            return mse(model, batch)

        return fastload.ddp_train(
            make_model(),
            lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
            dataset(50),
            loss_fn,
            epochs=epochs,
            batch_size=SIZE,
            precision="fp32",
            accumulate=2,
            checkpoint=checkpoint,
            save_every=2,
        )

    losses = train(3)
    assert len(losses) == 9
    assert losses[-1] < losses[0]
    try:
        train(1, str(path), calls=4)  # saved after two of three steps
        raise AssertionError("it went on")
    except IndexError:
        pass
    assert train(2, str(path)) == losses[2:6]
    assert train(3, str(path)) == losses[6:]


CHECKS: list[Callable[[Path], None]] = [
    totals_are_sums_over_the_ranks,
    steps_are_those_of_one_process,
    *([steps_of_fsdp2_are_those_of_one_process] if fully_shard else []),
    samples_may_count_unequally,
    ranks_in_which_nothing_counts_add_nothing,
    counts_known_beforehand_may_be_zero_on_a_rank,
    gradients_that_were_not_communicated_do_not_enter,
    only_the_last_batch_communicates,
    infinity_on_one_rank_stops_all,
    checkpoints_fit_any_wrapper,
    a_group_that_exists_is_left_as_it_is,
    ddp_train_goes_on_from_its_checkpoint,
]


def ends(world: int, rank: int, folder: Path) -> Iterator[str]:
    """How groups end: after an error, and when a rank dies."""
    try:
        with fastload.distributed(rank, world, init_method=f"file://{folder}/second", device="cpu"):
            raise KeyError("in the block")
    except KeyError:
        assert not dist.is_initialized()
    began = time.monotonic()
    try:
        with fastload.distributed(
            rank, world, init_method=f"file://{folder}/third", device="cpu", timeout=120
        ):
            if rank:
                os._exit(9)
            dist.all_reduce(torch.zeros(1))
    except RuntimeError:
        assert not dist.is_initialized()
        assert time.monotonic() - began < 100
        yield ""
        return
    yield "the survivor went on"


def main(rank: int, world: int, folder: Path) -> None:
    """Writes what each check raised, "" for nothing."""
    torch.set_num_threads(1)
    found = {}
    with fastload.distributed(
        rank, world, init_method=f"file://{folder}/first", device="cpu", timeout=240
    ):
        for check in CHECKS:
            try:
                check(folder)
                found[check.__name__] = ""
            except Exception:
                found[check.__name__] = traceback.format_exc()
                break  # the other rank may be somewhere else
    torch.save(copy.copy(found), folder / f"rank{rank}.pt")
    for ended in ends(world, rank, folder):
        found["ends"] = ended
        torch.save(found, folder / f"rank{rank}.pt")
