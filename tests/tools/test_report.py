"""`fastload.watch` and `fastload report`: what is logged, and what logs come to."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calibrated import Clock
from pages import well_formed
from steps import HostReads
from torch.utils.data import DataLoader

from fastload import ArrayDataset, FastLoader, watch
from fastload.cli import main
from fastload.tools.report import Run, table
from fastload.tools.report_charts import Curve, _faint, find_charts, page
from fastload.training import log_writer as log_lines
from fastload.training.watch import Watch


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


STEP = {"step": 0, "start_s": 0.0, "step_s": 0.0, "wait_s": 0.0, "samples": 4}


def as_log(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in ({"fastload_log": 1}, *rows))


def test_each_step_has_its_line(tmp_path: Path) -> None:
    first, *lines = logged(tmp_path / "a.jsonl", 0.03, 0.01).read_text().splitlines()
    head = json.loads(first)
    assert head.pop("started").endswith(" UTC")
    assert head.pop("machine")["cores"] >= 1
    about = {"loader": "DataLoader", "batch_size": 4, "num_workers": 0, "batches": 3}
    assert head == {"fastload_log": 1, **about}
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


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_a_gap_of_its_curve_and_a_note(
    tmp_path: Path, missing: float | None
) -> None:
    rows = [STEP | {"step": n, "loss": missing if n == 2 else float(n)} for n in range(4)]
    (tmp_path / "a.jsonl").write_text(as_log(*rows))
    run = Run(str(tmp_path / "a.jsonl"))
    [curve, _] = [chart.curves[0] for chart in find_charts([run]) if chart.title == "loss"]
    assert curve is not None
    np.testing.assert_array_equal(curve.y, [0, 1, np.nan, 3])
    assert run.notes() == ["1 of 4 losses are not finite, the first at step 2"]
    summary = run.summary()
    assert (summary["mean_loss"], summary["last_loss"]) == (None, 3.0)
    assert "not finite (4 steps)" in page([run])


@pytest.mark.parametrize("losses", [(float("inf"), float("-inf")), (1e308, 1e308)])
def test_losses_without_a_mean_are_reported(
    tmp_path: Path, losses: tuple[float, float], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    rows = [STEP | {"step": n, "loss": losses[n % 2]} for n in range(30)]
    path.write_text(as_log(*rows))
    assert main(["report", str(path), "--json"]) == 0
    [summary] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail).values()
    assert summary["mean_loss"] is None
    assert "not finite" in page([Run(str(path))])


def test_a_smooth_line_is_the_time_weighted_mean_of_the_steps_around(tmp_path: Path) -> None:
    times = np.random.default_rng(0).uniform(0.5, 2.0, 200)
    rows = [STEP | {"step": n, "step_s": step_s} for n, step_s in enumerate(times)]
    (tmp_path / "a.jsonl").write_text(as_log(*rows))
    curve = find_charts([Run(str(tmp_path / "a.jsonl"))])[0].curves[0]
    assert curve is not None
    assert curve.window == 5
    weights = np.array([1, 2, 3, 4, 5, 4, 3, 2, 1])
    for step in (4, 100, 195):
        want = 4 * weights.sum() / (weights * times[step - 4 : step + 5]).sum()
        assert curve.smooth[step] == pytest.approx(want)
    np.testing.assert_allclose(curve.y, 4 / times)


def test_a_faint_line_keeps_every_spike() -> None:
    y = np.ones(10_000)
    y[[1234, 7777]] = 50.0, -50.0
    x, drawn = _faint(Curve(np.arange(10_000.0), y, y, 1))
    assert len(x) <= 800
    assert (drawn.max(), drawn.min()) == (50, -50)
    assert {1234, 7777} <= set(x.astype(int))


def epochs_of(tmp_path: Path, *lengths: int, head: dict[str, Any] | None = None) -> Run:
    """A run with epochs of so many steps of a second."""
    numbers = [epoch for epoch, length in enumerate(lengths) for _ in range(length)]
    rows = [STEP | {"step": n, "epoch": e, "step_s": 1.0} for n, e in enumerate(numbers)]
    text = as_log(*rows).replace(
        '{"fastload_log": 1}', json.dumps({"fastload_log": 1, **(head or {})})
    )
    (tmp_path / "a.jsonl").write_text(text)
    return Run(str(tmp_path / "a.jsonl"))


def test_the_time_of_an_epoch_is_of_finished_ones(tmp_path: Path) -> None:
    run = epochs_of(tmp_path, 10, 10, 3)
    assert [epoch.finished for epoch in run.epochs()] == [True, True, False]
    assert run.summary()["epoch_s"] == 10
    assert run.summary()["unfinished_epochs_s"] == [3]
    assert any("epoch 2 is not finished" in note for note in run.notes())
    assert [epoch.finished for epoch in epochs_of(tmp_path, 10, 10).epochs()] == [True, True]
    whole = epochs_of(tmp_path, 5, head={"batches": 5})
    assert [epoch.finished for epoch in whole.epochs()] == [True]


def test_an_only_epoch_that_is_unfinished_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    run = epochs_of(tmp_path, 5, head={"batches": 6})
    assert main(["report", str(tmp_path / "a.jsonl")]) == 0
    assert "> 5.00 (unfinished)" in capsys.readouterr().out
    assert "&gt; 5.00 (unfinished)" in page([run])


def test_the_loss_in_the_table_says_of_how_many_steps_it_is_the_mean(tmp_path: Path) -> None:
    for count, cell in ((30, "19.50"), (3, "1.000 (3 steps)"), (1, "0 (1 step)")):
        rows = [STEP | {"step": n, "loss": float(n)} for n in range(count)]
        (tmp_path / "a.jsonl").write_text(as_log(*rows))
        titles, [row] = table([Run(str(tmp_path / "a.jsonl"))])
        assert row[titles.index("mean loss of the last 20 steps")] == cell


def test_a_page_shows_machine_date_settings_and_resumes(tmp_path: Path) -> None:
    machine = {"cpu": "A CPU", "cores": 8, "gpu": None, "torch": "2.13.0"}
    head = {"fastload_log": 1, "started": "2026-01-02 03:04:05 UTC", "machine": machine}
    head |= {"batch_size": 4}
    rows = [json.dumps(STEP | {"step": n}) for n in range(3)]
    first = json.dumps(head)
    (tmp_path / "a.jsonl").write_text("\n".join([first, *rows[:2], first, *rows[1:]]) + "\n")
    run = Run(str(tmp_path / "a.jsonl"))
    assert run.resumed == [1]
    shown = page([run])
    for expected in ("2026-01-02 03:04:05 UTC", "8 cores of A CPU", "batch_size 4", "at step 1<"):
        assert expected in shown


def test_logs_that_are_named_alike_are_told_apart_by_their_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = []
    for folder in "ab":
        (tmp_path / folder).mkdir()
        logs.append(str(logged(tmp_path / folder / "run.jsonl", 0.01, 0.0)))
    assert main(["report", "--json", *logs]) == 0
    assert list(json.loads(capsys.readouterr().out)) == logs
    assert main(["report", f"x={logs[0]}", f"x={logs[1]}"]) == 1
    assert "NAME=LOG" in capsys.readouterr().err


def test_without_matplotlib_the_tables_are_there_and_how_to_install_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    log, shown = logged(tmp_path / "a.jsonl", 0.01, 0.0), tmp_path / "a.html"
    assert main(["report", str(log), "--html", str(shown)]) == 0
    said = capsys.readouterr().out
    assert "samples/s" in said
    assert "pip install matplotlib" in said
    assert "pip install matplotlib" in shown.read_text()
    assert well_formed(shown.read_text()).count("table") == 2
    assert main(["report", str(log), "--json", "--plot", str(tmp_path / "a.png")]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)
    assert "pip install matplotlib" in said.err


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = logged(tmp_path / "baseline.jsonl", 0.01, 0.03)
    fast = logged(tmp_path / "fast.jsonl", 0.01, 0.0)
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    files = ["--html", str(page), "--plot", str(picture)]
    assert main(["report", str(slow), f"fastload={fast}", *files]) == 0
    shown = capsys.readouterr().out
    for expected in ("baseline", "fastload", "4.0x", "75 %", "0 %"):
        assert expected in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    seen = well_formed(page.read_text())
    assert seen.count("svg") == 4
    text = page.read_text()
    for label in ("samples/s", "waiting for data, % of a step", "seconds of training", "step"):
        assert f">{label}</text>" in text
    assert main(["report", "--json", str(slow)]) == 0
    [summary] = json.loads(capsys.readouterr().out).values()
    assert summary["samples_per_s"] == pytest.approx(16 / (5 * 0.04))
    assert summary["epoch_s"] == pytest.approx(0.12)
    assert (summary["mean_loss_steps"], summary["last_loss"]) == (6, pytest.approx(1 / 3))


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}\n",
        as_log(),
        as_log() + "nonsense\n",
        "\x00",
        as_log(STEP) + "\udcff\n",
        as_log(STEP | {"loss": "1"}),
        as_log(STEP | {"step_s": None}),
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
    with pytest.raises(TypeError, match=r"needs a loader of batches.*TrainStep\(\.\.\., log=\)"):
        watch(loader.groups(2), log=tmp_path / "run.jsonl")
