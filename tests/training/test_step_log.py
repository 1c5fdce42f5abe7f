"""`TrainStep(..., log=)`: a line a step, of groups and of batches, over interruptions."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import steps
import torch
from calibrated import Clock
from steps import HostReads, adam, dataset, make_model, mse
from torch.utils.data import Dataset

from fastload import FastLoader, TrainStep
from fastload.tools.report import Run
from fastload.training import gradients
from fastload.training import log_writer as log_lines
from fastload.training.log_writer import RunLog
from fastload.training.step_log import StepLog

RunTorch = Callable[..., subprocess.CompletedProcess[str]]
ROWS, SIZE = 22, 4


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Training:
    """On a clock: a batch takes 1 s to load and 10 s to learn from, what lies between steps 100."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.clock = clock = Clock()

        class Slow(Dataset[Any]):
            def __init__(self) -> None:
                self.inner = dataset(ROWS)

            def __len__(self) -> int:
                return ROWS

            def __getitems__(self, indices: list[int]) -> list[Any]:
                clock.now += 1
                return [self.inner[index] for index in indices]

        def loss_fn(model: Any, batch: Any) -> torch.Tensor:
            clock.now += 10
            return mse(model, batch)

        self.model = make_model()
        options = {"precision": "fp32", "max_norm": 1.0, "log": path, **options}
        self.step = TrainStep(self.model, adam(self.model), loss_fn, **options)
        self.step._log = StepLog(path, {"precision": "fp32"}, clock=clock)
        self.loader = FastLoader(Slow(), SIZE, shuffle=True, seed=1, num_workers=0)

    def run(self, epochs: int, n: int = 2) -> Iterator[Any]:
        for _ in range(self.loader.state_dict()["epoch"], epochs):
            for group in self.loader.groups(n):
                yield self.step(group)
                self.clock.now += 100
            self.clock.now += 1000  # a validation


def test_groups_are_waited_for_in_their_next(tmp_path: Path) -> None:
    training = Training(tmp_path / "run.jsonl")
    results = list(training.run(2, n=4))
    head, *rows = lines(tmp_path / "run.jsonl")
    assert head.pop("machine")["cores"] >= 1
    assert head.pop("started").endswith(" UTC")
    assert head == {"fastload_log": 1, "precision": "fp32"}
    assert [row.get("epoch_done", False) for row in rows] == [False, True, False, True]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [row["epoch"] for row in rows] == [0, 0, 1, 1]
    assert [row["samples"] for row in rows] == [16, 6, 16, 6]
    assert [row["wait_s"] for row in rows] == [4, 2, 4, 2]
    # Between two steps of an epoch it is the training's time, but nobody waits for data.
    assert [row["step_s"] for row in rows] == [44, 122, 44, 122]
    assert [row["start_s"] for row in rows] == [0, 44, 1266, 1310]
    for row, result in zip(rows, results, strict=True):
        assert row["loss"] == result.loss.item()
        assert row["grad_norm"] == result.grad_norm.item()
        assert row["nonfinite"] == 0


def test_a_batch_alone_was_waited_for_since_the_last_step(tmp_path: Path) -> None:
    training = Training(tmp_path / "run.jsonl", max_norm=None)
    for batch in training.loader:
        training.step(batch)
        training.clock.now += 100
    training.step._log.flush()
    rows = lines(tmp_path / "run.jsonl")[1:]
    assert [row["samples"] for row in rows] == [4, 4, 4, 4, 4, 2]
    assert [row["wait_s"] for row in rows] == [0] + [101] * 5
    assert [row["step_s"] for row in rows] == [10] + [111] * 5
    assert "epoch" not in rows[0]
    assert "grad_norm" not in rows[0]
    run = Run(str(tmp_path / "run.jsonl"))
    assert run.summary()["epoch_s"] is None
    assert run.summary()["wait_share"] == pytest.approx(101 / 111)


def test_a_killed_training_goes_on_in_its_log(tmp_path: Path) -> None:
    whole = [result.loss.item() for result in Training(tmp_path / "whole.jsonl").run(3)]
    path, state = tmp_path / "run.jsonl", tmp_path / "last.pt"
    killed = Training(path)
    for number, _ in enumerate(killed.run(3)):
        if number == 3:
            killed.step.save(state, killed.loader)
            assert len(lines(path)) == 1 + 4  # the log knows what the checkpoint knows
        if number == 7:
            break
    killed.step._log.flush()
    path.write_text(path.read_text()[:-30])  # in the middle of step 7
    for _ in range(2):  # the second time it is killed at once
        resumed = Training(path)
        resumed.step.load(state, resumed.loader)
    losses = [result.loss.item() for result in resumed.run(3)]
    assert losses == whole[4:]
    written = lines(path)
    assert [row["step"] for row in written if "step" in row] == [*range(7), *range(4, 9)]
    found, expected = Run(str(path)), Run(str(tmp_path / "whole.jsonl"))
    assert [step["loss"] for step in found.steps] == whole
    for name in ("step", "epoch", "samples", "wait_s"):
        assert [s[name] for s in found.steps] == [s[name] for s in expected.steps]
    times = [step["start_s"] for step in found.steps]
    assert times == sorted(times)
    assert found.summary() != expected.summary()  # the first step of each process is left out
    assert found.summary()["mean_loss"] == pytest.approx(sum(whole) / 9)


def test_a_kill_right_after_a_checkpoint_costs_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "_SECONDS", 1e9)
    path = tmp_path / "run.jsonl"
    training = Training(path)
    made = training.run(1)
    next(made), next(made)

    def save(*arguments: Any) -> None:
        assert [step["step"] for step in Run(str(path)).steps] == [0, 1]

    monkeypatch.setattr("fastload.training.checkpoint.save", save)
    training.step.save(tmp_path / "last.pt")


def test_going_back_in_one_process(tmp_path: Path) -> None:
    path, state = tmp_path / "run.jsonl", tmp_path / "last.pt"
    training = Training(path)
    training.step.save(state, training.loader)
    list(training.run(1))
    training.step.load(state, training.loader)
    list(training.run(1))
    assert [row.get("step") for row in lines(path)] == [None, 0, 1, 2, None, 0, 1, 2]
    assert [step["step"] for step in Run(str(path)).steps] == [0, 1, 2]


def test_an_old_file_is_replaced_unless_a_checkpoint_was_loaded(tmp_path: Path) -> None:
    path, state = tmp_path / "run.jsonl", tmp_path / "last.pt"
    path.write_text("of somebody else\n")
    training = Training(path)
    training.step.save(state)
    training.step.load(state)
    with pytest.raises(ValueError, match=r"run\.jsonl is not a log of fastload"):
        next(training.run(1))
    assert path.read_text() == "of somebody else\n"
    next(Training(path).run(1))
    assert lines(path)[0]["fastload_log"] == 1


@pytest.mark.parametrize("text", ["", '{"fastl', '{"fastload_log": 1, "precis'])
def test_a_file_that_was_killed_at_once_is_begun_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    RunLog(path, {"by": "hand"}, append=True)
    [head] = lines(path)
    assert (head["fastload_log"], head["by"]) == (1, "hand")


FULL_DISK = """
import resource, signal, sys, torch, warnings
from fastload import TrainStep
model = torch.nn.Linear(2, 1)
step = TrainStep(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, b: m(b).mean(),
                 log=sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = resource.RLIM_INFINITY
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for number in range(240):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit if number > 200 else 4000, limit))
        step(torch.zeros(4, 2))
assert step.steps == 240
assert [w.category for w in said] == [RuntimeWarning], said
assert "are kept until they can be written" in str(said[0].message)
"""


def test_a_full_disk_ends_no_training_and_costs_no_line(
    tmp_path: Path, run_torch: RunTorch
) -> None:
    path = tmp_path / "run.jsonl"
    run_torch(FULL_DISK, str(path))
    assert [step["step"] for step in Run(str(path)).steps] == list(range(240))


def test_a_step_that_fails_leaves_a_line(tmp_path: Path) -> None:
    training = Training(tmp_path / "run.jsonl")
    learn = training.step.loss_fn

    def fails(model: Any, batch: Any) -> torch.Tensor:
        if training.clock.now > 100:
            raise KeyboardInterrupt
        return learn(model, batch)

    training.step.loss_fn = fails
    with pytest.raises(KeyboardInterrupt):
        list(training.run(1))
    _, first, broken = lines(tmp_path / "run.jsonl")
    assert first["step"] == 0
    assert broken == {
        "epoch": 0, "step": 1, "start_s": 22, "step_s": 101, "wait_s": 1, "samples": 4,
        "unfinished": True,
    }  # fmt: skip
    assert [step["step"] for step in Run(str(tmp_path / "run.jsonl")).steps] == [0]


SCRIPT = """
import os, sys, torch, fastload, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of fork() beside threads
watched = fastload.watch([torch.zeros(3)] * 9, log="watched.jsonl")
model = torch.nn.Linear(3, 1)
step = fastload.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1),
    lambda model, x: model(x).sum(), log="step.jsonl")
for number, batch in enumerate(watched):
    watched.log(loss=step(batch).loss)
    if number == 3:
        if os.fork() == 0:
            sys.exit()
        os.wait()
        raise RuntimeError("a bug in the script")
"""


def test_nothing_is_lost_when_a_script_fails(tmp_path: Path, run_torch: RunTorch) -> None:
    """Lines that were not yet written are written at the end, and by the parent alone."""
    done = run_torch(SCRIPT, code=1)
    assert done.stderr.splitlines()[-1] == "RuntimeError: a bug in the script", done.stderr
    assert [row.get("step") for row in lines(tmp_path / "step.jsonl")] == [None, 0, 1, 2, 3]
    assert [row.get("step") for row in lines(tmp_path / "watched.jsonl")] == [None, 0, 1, 2, 3]
    assert lines(tmp_path / "watched.jsonl")[-1]["unfinished"] is True


# --- The device is not waited for --------------------------------------------------------------


class Event:
    """When all before it on a stream is done."""

    passed = False

    def query(self) -> bool:
        if self.passed is None:
            raise RuntimeError("an illegal memory access was encountered")
        return self.passed


@pytest.fixture
def event(monkeypatch: pytest.MonkeyPatch) -> Event:
    event = Event()
    monkeypatch.setattr(log_lines, "copy_to_host", lambda numbers: (numbers, event))
    return event


def filled(path: Path, count: int, first: int = 0, log: RunLog | None = None) -> RunLog:
    log = log or RunLog(path, {}, clock=Clock())
    for number in range(first, first + count):
        row = log.begin(0.0)
        log.put(loss=torch.tensor(float(number)), rate=0.5)
        log.end(row)
    return log


def test_losses_are_written_when_they_have_come(tmp_path: Path, event: Event) -> None:
    path = tmp_path / "run.jsonl"
    log = filled(path, 120)
    assert len(lines(path)) == 1
    event.passed = True
    filled(path, 1, 120, log)
    assert [row["loss"] for row in lines(path)[1:]] == list(range(100))
    log.flush()
    assert [row["loss"] for row in lines(path)[1:]] == list(range(121))


@pytest.mark.parametrize("passed", [False, None])
def test_a_device_that_hangs_or_has_failed_does_not_hold_up_the_end(
    tmp_path: Path, event: Event, passed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "_GRACE_S", 0.01)
    log, event.passed = filled(tmp_path / "run.jsonl", 7), passed
    log.begin(0.0)
    if passed is None:
        log.flush()  # the training is told by itself
    log.close()
    rows = lines(tmp_path / "run.jsonl")[1:]
    assert [row["step"] for row in rows] == list(range(8))
    assert all("loss" not in row for row in rows)
    assert rows[0]["rate"] == 0.5
    assert rows[-1]["unfinished"]


def test_a_step_with_a_log_reads_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_is_on_host", lambda count: False)  # as on a GPU
    model = make_model()
    step = TrainStep(
        model, adam(model, fused=True), steps.sum_and_count, max_norm=1.0, log=tmp_path / "a"
    )
    with HostReads() as reads:
        for group in FastLoader(dataset(ROWS), SIZE, seed=0).groups(2):
            step(group)
    assert reads.count == 0
    assert len(lines(tmp_path / "a")) == 1 + 3


@pytest.mark.parametrize("initialised", [True, False])
def test_ranks_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, initialised: bool
) -> None:
    training = Training(tmp_path / "run.jsonl")
    if initialised:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    else:
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("WORLD_SIZE", "4")
    with training.step._log.step(0, torch.zeros(2)):
        pass
    training.step._log.flush()
    assert [path.name for path in tmp_path.iterdir()] == ["run.3.jsonl"]


def test_whatever_is_logged_is_strict_json(tmp_path: Path) -> None:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    path = tmp_path / "run.jsonl"
    log = RunLog(path, {"batch_size": np.int64(4), "share": float("nan"), "path": path})
    bad = [math.nan, np.float32("inf"), torch.tensor([-math.inf]), torch.tensor(math.nan).half()]
    for value in (*bad, np.int64(2), True, torch.tensor(3)):
        row = log.begin(log.clock())
        log.put(loss=value)
        log.end(row)
    log.close()
    text = path.read_text().splitlines()
    head, *rows = [json.loads(line, parse_constant=refuse) for line in text]
    assert head["batch_size"] == 4
    assert head["share"] is None
    assert head["path"] == str(path)
    assert [row["loss"] for row in rows] == [None] * 4 + [2, True, 3]
    for value in (torch.tensor(1j), "0.5", np.datetime64("2024-01-01"), None):
        with pytest.raises(TypeError, match=r"log\(loss=\.\.\.\) takes a"):
            log.put(loss=value)
