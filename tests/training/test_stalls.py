"""How long the GPU waited, in the lines of a log: on a device of a clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from calibrated import Clock
from pages import well_formed

from fastload.cli import main
from fastload.training import log_writer as log_lines
from fastload.training.log_writer import RunLog
from fastload.training.stalls import Stalls
from fastload.training.step_log import StepLog
from fastload.training.watch import Watch


class Cuda:
    """A device that works through what it was given, behind a host on the same clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.free_at = clock, 0.0
        self.in_use, self.captured, self.fails = True, False, False
        self.made: list[Any] = []

    def launch(self, seconds: float) -> None:
        self.free_at = max(self.free_at, self.clock.now) + seconds

    def is_initialized(self) -> bool:
        return self.in_use

    def is_current_stream_capturing(self) -> bool:
        return self.captured

    def current_device(self) -> int:
        return 1

    def current_stream(self, device: torch.device) -> torch.device:
        assert str(device) == "cuda:1"
        return device

    def Event(self, enable_timing: bool) -> Event:
        assert enable_timing
        self.made.append(Event(self))
        return self.made[-1]


class Event:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda

    def record(self, stream: torch.device) -> None:
        self.at = max(self.cuda.free_at, self.cuda.clock.now)

    def query(self) -> bool:
        if self.cuda.fails:
            raise RuntimeError("an illegal memory access was encountered")
        return self.cuda.clock.now >= self.at

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query()
        return 1e3 * (other.at - self.at)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Its clock goes on while somebody sleeps."""
    cuda = Cuda(Clock())

    def sleep(seconds: float) -> None:
        cuda.clock.now += 1000

    monkeypatch.setattr(log_lines.time, "sleep", sleep)
    return cuda


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


class Loader:
    """A batch takes so long to load."""

    def __init__(self, clock: Clock, times: list[float]) -> None:
        self.clock, self.times = clock, times

    def __iter__(self) -> Iterator[torch.Tensor]:
        for seconds in self.times:
            self.clock.now += seconds
            yield torch.zeros(4)


def watched(path: Path, cuda: Cuda, times: list[float]) -> Watch:
    found = Watch(Loader(cuda.clock, times), path, cuda.clock)
    found._lines._stalls = Stalls(None, cuda)
    return found


def test_only_a_device_without_work_waits(tmp_path: Path, cuda: Cuda) -> None:
    """The host launches 10 s of work in 1 s; a wait is hidden behind what is left of that."""
    for _ in watched(tmp_path / "run.jsonl", cuda, [1, 2, 9, 30, 8]):
        cuda.launch(10)
        cuda.clock.now += 1
    waits = [row["gpu_wait_s"] for row in lines(tmp_path / "run.jsonl")]
    assert waits == pytest.approx([1, 0, 0, 14, 0])
    assert [row["wait_s"] for row in lines(tmp_path / "run.jsonl")] == [1, 2, 9, 30, 8]


def test_lines_wait_for_the_device_and_not_the_other_way_round(tmp_path: Path, cuda: Cuda) -> None:
    seen = []
    for number, _ in enumerate(watched(tmp_path / "run.jsonl", cuda, [0] * 200)):
        cuda.launch(1)
        cuda.clock.now += 0.5 if number < 100 else 2  # first the device falls behind
        seen.append(len(lines(tmp_path / "run.jsonl")))
    assert 0 < seen[60] <= 31  # of steps that the device is through with
    assert seen == sorted(seen)
    assert seen[-1] > 100
    assert len(lines(tmp_path / "run.jsonl")) == 200
    assert len(cuda.made) < 2 * 200  # they are used again


def test_there_is_no_such_figure_without_cuda(tmp_path: Path, cuda: Cuda) -> None:
    cuda.in_use = False
    for number, _ in enumerate(watched(tmp_path / "run.jsonl", cuda, [1] * 4)):
        cuda.in_use = number >= 0  # used from the first step on
        cuda.captured = number == 1
    cuda.in_use = True
    rows = lines(tmp_path / "run.jsonl")
    assert ["gpu_wait_s" in row for row in rows] == [False, True, False, True]
    assert Stalls(torch.device("cpu"), cuda).mark() is None
    device = type("OnCpu", (list,), {"device": torch.device("cpu")})()
    assert Watch(device, tmp_path / "b.jsonl")._lines.mark() is None


def test_a_device_that_fails_costs_the_figure_only(tmp_path: Path, cuda: Cuda) -> None:
    for _ in watched(tmp_path / "run.jsonl", cuda, [1] * 4):
        cuda.fails = True
    assert len(lines(tmp_path / "run.jsonl")) == 4
    assert not any("gpu_wait_s" in row for row in lines(tmp_path / "run.jsonl"))


def test_a_training_step_times_the_device_too(tmp_path: Path, cuda: Cuda) -> None:
    log = StepLog(tmp_path / "run.jsonl", {}, Stalls(torch.device("cuda"), cuda), cuda.clock)
    for number in range(3):
        with log.step(number, torch.zeros(4)):
            cuda.launch(10)
            cuda.clock.now += 1
        cuda.clock.now += 12  # the next batch
    with log.step(3, torch.zeros(4)):  # in the middle of it batches are waited for
        for _ in log.timed(Loader(cuda.clock, [0, 15, 2])):
            cuda.launch(10)
    log.flush()
    rows = lines(tmp_path / "run.jsonl")
    assert "gpu_wait_s" not in rows[0]
    assert [row["gpu_wait_s"] for row in rows[1:]] == pytest.approx([3, 3, 3 + 5])


def test_the_report_says_how_busy_the_gpu_was(
    tmp_path: Path, cuda: Cuda, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(tmp_path / "gpu.jsonl", {}, stalls=Stalls(None, cuda), clock=cuda.clock)
    for _ in range(5):
        row = log.begin(cuda.clock.now)
        before = log.mark()
        cuda.clock.now += 0.1
        log.stalled(before, log.mark())
        cuda.clock.now += 0.9
        log.end(row)
    log.flush()
    plain = RunLog(tmp_path / "cpu.jsonl", {}, clock=cuda.clock)
    plain.end(plain.begin(0.0))
    plain.flush()
    page = tmp_path / "page.html"
    files = [str(tmp_path / "gpu.jsonl"), str(tmp_path / "cpu.jsonl")]
    assert main(["report", *files, "--html", str(page), "--plot", str(tmp_path / "a.svg")]) == 0
    shown = capsys.readouterr().out
    assert "90 %" in shown
    assert "GPU busy, % of the time</text>" in page.read_text()
    assert well_formed(page.read_text()).count("svg") == 3
    assert main(["report", "--json", *files]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gpu"]["gpu_busy"] == pytest.approx(0.9)
    assert found["cpu"]["gpu_busy"] is None
