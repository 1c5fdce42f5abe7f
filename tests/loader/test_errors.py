"""Warnings name the line of the user's that led to them, however deep they arise."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload import ArrayDataset, FastLoader, TrainStep
from fastload.training.step_log import StepLog

DATA = ArrayDataset({"x": np.ones((8, 2), "float32")})


def opened_without_checksums() -> None:
    np.save("x.npy", np.zeros(4))
    fastload.open("x.npy", verify="open")


def loaded_without_checksums() -> None:
    np.save("x.npy", np.zeros(4))
    FastLoader("x.npy", verify="lazy")


def unused_arguments() -> None:
    for _ in FastLoader(DATA, num_workers=1, worker_init_fn=print):
        pass


def nothing_to_pin() -> None:
    next(iter(FastLoader(DATA, pin_memory=True, batch_transform=lambda batch: batch)))


def no_batch_left() -> None:
    list(FastLoader(DATA, batch_size=9, drop_last=True, num_workers=2))


def an_epoch_that_is_ignored() -> None:
    loader = FastLoader(DATA, seed=0)
    loader.load_state_dict(loader.state_dict() | {"epoch": 3})
    loader.set_epoch(1)


def a_world_that_changed() -> None:
    world = [1]

    class Group:
        rank = staticmethod(lambda: 0)
        size = staticmethod(lambda: world[0])

    loader = FastLoader(DATA, seed=0, shard=Group())
    len(loader)
    world[0] = 2
    len(loader)


def a_log_on_a_full_disk() -> None:
    log = StepLog("log.jsonl", {})
    with log.step(0, torch.zeros(4)):
        Path("log.jsonl").unlink()
        Path("log.jsonl").mkdir()
    log.flush()


def gradients_of_a_static_graph() -> None:
    with fastload.distributed(device="cpu"):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1), static_graph=True)
        step = TrainStep(
            model,
            torch.optim.SGD(model.parameters()),
            lambda model, batch: model(batch["x"]).mean(),
            precision="fp32",
        )
        for group in FastLoader(DATA, batch_size=4).groups(2):
            step(group)


@pytest.mark.parametrize(
    "cause",
    [
        opened_without_checksums,
        loaded_without_checksums,
        unused_arguments,
        nothing_to_pin,
        no_batch_left,
        an_epoch_that_is_ignored,
        a_world_that_changed,
        a_log_on_a_full_disk,
        gradients_of_a_static_graph,
    ],
)
def test_a_warning_names_the_line_that_led_to_it(
    cause: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        cause()
    own: list[Any] = [w for w in found if "torch" not in w.filename]
    assert {w.filename for w in own} == {__file__}, [str(w) for w in found]
