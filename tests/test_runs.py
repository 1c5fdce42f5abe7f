"""`fastload.watch` and `fastload report`: what is logged, and what logs come to."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calibrated import Clock
from pages import well_formed
from steps import HostReads
from torch.utils.data import DataLoader

from fastload import ArrayDataset, FastLoader, log_lines, svg, watch
from fastload.cli import main
from fastload.run_log import Watch
from fastload.runs import Run, page


def logged(path: Path, step_s: float, wait_s: float, epochs: int = 2, loss: bool = True) -> Path:
    """A log of batches of 4, 4 and 2 samples."""
    clock = Clock()

    class Slow(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 10

        def __getitems__(self, indices: list[int]) -> list[int]:
            clock.now += wait_s
            return indices

    watched = Watch(DataLoader(Slow(), 4), path, clock)
    for _ in range(epochs):
        for number, _ in enumerate(watched):
            clock.now += step_s
            if loss:
                watched.log(loss=torch.tensor(1.0 / (1 + number), requires_grad=True))
    return path


def test_each_step_has_its_line(tmp_path: Path) -> None:
    first, *lines = logged(tmp_path / "a.jsonl", 0.03, 0.01).read_text().splitlines()
    head = {"fastload_log": 1, "loader": "DataLoader", "batch_size": 4, "num_workers": 0}
    assert json.loads(first) == head
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == list(range(6))
    assert [row["epoch"] for row in rows] == [0] * 3 + [1] * 3
    assert [row["samples"] for row in rows] == [4, 4, 2] * 2
    assert [row["loss"] for row in rows[:2]] == [1.0, 0.5]
    for number, row in enumerate(rows):
        assert row["wait_s"] == pytest.approx(0.01)
        assert row["step_s"] == pytest.approx(0.04)
        assert row["start_s"] == pytest.approx(0.04 * number)


def test_a_watched_loader_is_the_loader_for_all_else(tmp_path: Path) -> None:
    loader = DataLoader(torch.arange(10), 4)
    watched = watch(loader, log=tmp_path / "a.jsonl")
    assert len(watched) == 3
    assert watched.dataset is loader.dataset
    for batch in watched:
        assert batch.tolist() == [0, 1, 2, 3]
        break
    _, line = (tmp_path / "a.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert (row["step"], row["samples"], row["unfinished"]) == (0, 4, True)


def test_losses_are_read_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched, fetch = [], log_lines._fetch
    monkeypatch.setattr(log_lines, "_fetch", lambda rows: fetched.append(len(rows)) or fetch(rows))
    watched = Watch([torch.zeros(1)] * 120, tmp_path / "a.jsonl", Clock())
    with HostReads() as reads:
        for number, _ in enumerate(watched):
            watched.log(loss=torch.tensor(1.0), seen=torch.tensor(number))
    assert fetched == [50, 50, 20]
    assert reads.count == 0
    assert [step["seen"] for step in Run(str(tmp_path / "a.jsonl")).steps] == list(range(120))


def test_lines_are_written_before_long(tmp_path: Path) -> None:
    clock = Clock()
    for number, _ in enumerate(Watch([0] * 9, tmp_path / "a.jsonl", clock)):
        assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 1 + number // 3 * 3
        clock.now += 2.0


def test_a_loss_that_is_written_to_again_is_what_it_was(tmp_path: Path) -> None:
    total = torch.zeros(())
    watched = watch([torch.zeros(1)] * 3, log=tmp_path / "a.jsonl")
    for _ in watched:
        total += 1
        watched.log(loss=total)
    assert [step["loss"] for step in Run(str(tmp_path / "a.jsonl")).steps] == [1, 2, 3]


def test_what_is_no_number_is_refused_at_once(tmp_path: Path) -> None:
    watched = watch([torch.zeros(1)], log=tmp_path / "a.jsonl")
    for _ in watched:
        watched.log(loss=np.float32(0.5), seen=np.int64(3), rate=0.1)
        with pytest.raises(ValueError, match=r"log\(loss=...\) takes one number.*\(2,\)"):
            watched.log(loss=torch.zeros(2))
        with pytest.raises(TypeError, match=r"log\(loss=...\) takes a number, not a NoneType"):
            watched.log(loss=None)
    step = Run(str(tmp_path / "a.jsonl")).steps[0]
    assert (step["loss"], step["seen"], step["rate"]) == (0.5, 3, 0.1)


def test_what_was_logged_in_a_step_without_an_end_is_not_of_the_next(tmp_path: Path) -> None:
    watched = watch([torch.zeros(1)], log=tmp_path / "a.jsonl")
    for _ in watched:
        watched.log(loss=1.0)
        break
    for _ in watched:
        pass
    _, broken, step = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert broken["loss"] == 1.0
    assert "loss" not in step
    assert Run(str(tmp_path / "a.jsonl")).steps == [step]


def test_a_loss_that_is_not_finite_is_left_out_of_its_curve(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    watched = watch([torch.zeros(1)] * 4, log=path)
    for loss, _ in zip((1.0, float("inf"), float("nan"), 2.0), watched, strict=True):
        watched.log(loss=loss)
    lines = re.findall(r'points="([^"]*)"', page([Run(str(path))]))
    assert [len(line.split()) for line in lines] == [4, 4, 2, 2]
    assert not any("nan" in line or "inf" in line for line in lines)


@pytest.mark.parametrize("losses", [(float("inf"), float("-inf")), (1e308, 1e308)])
def test_losses_without_a_mean_are_reported(tmp_path: Path, losses: tuple[float, float]) -> None:
    path = tmp_path / "a.jsonl"
    watched = watch([torch.zeros(1)] * 600, log=path)
    for step, _ in enumerate(watched):
        watched.log(loss=losses[step % 2])
    run = Run(str(path))
    assert math.isnan(run.summary()["loss"] or 0)
    assert "nan" in page([run])


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = logged(tmp_path / "baseline.jsonl", 0.01, 0.03)
    fast = logged(tmp_path / "fast.jsonl", 0.01, 0.0)
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    files = ["--html", str(page), "--plot", str(picture)]
    assert main(["report", str(slow), f"fastload={fast}", *files]) == 0
    shown = capsys.readouterr().out
    for expected in ("baseline", "fastload", "4.00x", "75.0%", "0.0%"):
        assert expected in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    seen = well_formed(page.read_text())
    assert seen.count("svg") == 4
    assert seen.count("polyline") == 8
    assert main(["report", "--json", str(slow)]) == 0
    [summary] = json.loads(capsys.readouterr().out).values()
    assert summary["samples_per_s"] == pytest.approx(16 / (5 * 0.04))
    assert summary["epoch_s"] == pytest.approx(0.12)


def test_large_numbers_are_written_out() -> None:
    drawn = svg.lines([[(1.0, 51_112.4), (3.0, 0.0)]], x="steps", y="samples/s")
    assert "samples/s, up to 51,112<" in drawn
    assert "steps, up to 3<" in drawn


def test_a_loss_below_0_is_inside_its_picture() -> None:
    drawn = svg.lines([[(1.0, -3.0), (2.0, -1.0), (3.0, -1.5)]], x="steps", y="loss")
    assert "loss, from -3 to 0<" in drawn
    (points,) = re.findall(r'points="([^"]*)"', drawn)
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights[0] == 178
    assert all(18 <= height <= 178 for height in heights)


def test_a_run_without_losses_has_no_convergence(tmp_path: Path) -> None:
    log = logged(tmp_path / "a.jsonl", 0.01, 0.0, loss=False)
    page = tmp_path / "a.html"
    assert main(["report", str(log), "--html", str(page)]) == 0
    assert well_formed(page.read_text()).count("svg") == 2


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    log = logged(tmp_path / "a.jsonl", 0.01, 0.0)
    page = tmp_path / "a.html"
    assert main(["report", f"<script>&={log}", "--html", str(page)]) == 0
    assert "script" not in well_formed(page.read_text())


STEP = {"step": 0, "start_s": 0.0, "step_s": 0.0, "wait_s": 0.0, "samples": 4}


def as_log(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in ({"fastload_log": 1}, *rows))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}\n",
        as_log(),
        as_log() + "nonsense\n",
        "\x00",
        as_log(STEP) + "\udcff\n",
        as_log(STEP | {"loss": None}),
        as_log(STEP, STEP | {"step": "1"}),
        as_log(STEP | {"step_s": "1"}),
    ],
)
def test_what_is_no_log_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(text, errors="surrogateescape")
    assert main(["report", str(tmp_path / "a.jsonl")]) == 1
    assert "a.jsonl" in capsys.readouterr().err


def test_steps_that_took_no_time_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(as_log(STEP, STEP | {"step": 1}))
    assert main(["report", str(tmp_path / "a.jsonl")]) == 0


def test_a_log_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    log = logged(tmp_path / "a.jsonl", 0.01, 0.0)
    steps: list[Any] = Run(str(log)).steps
    log.write_text(log.read_text()[:-20])
    assert Run(str(log)).steps == steps[:-1]


def test_groups_are_not_watched(tmp_path: Path) -> None:
    loader = FastLoader(ArrayDataset(np.arange(8)), batch_size=2)
    with pytest.raises(TypeError, match=r"takes a loader.*TrainStep\(\.\.\., log=\)"):
        watch(loader.groups(2), log=tmp_path / "run.jsonl")
