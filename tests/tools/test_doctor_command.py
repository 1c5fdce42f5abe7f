"""`fastload doctor`, the command: scripts alone and as ranks, data and the machine, its outputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from calibrated import Clock
from pages import well_formed

from fastload.cli import main
from fastload.tools.bench import load
from fastload.tools.doctor import data, machine, show

# --- The command --------------------------------------------------------------------------------

SCRIPT = """
import sys, time, torch
from helper import DATA
assert __name__ == "__main__" and sys.argv[1:] == ["--lr", "0.1"], sys.argv
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for batch in torch.utils.data.DataLoader(DATA, batch_size=2):
    time.sleep(0.001)
    optimizer.step()
raise SystemExit("not reached")
"""


def test_command_runs_a_script_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("import torch\nDATA = torch.zeros(400, 1)\n")
    page = tmp_path / "report.html"
    words = ["--html", str(page), str(tmp_path / "train.py"), "--lr", "0.1"]
    assert main(["doctor", "--json", "--steps", "10", *words]) == 0
    sys.modules.pop("helper")
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {
        *("schema", "verdict", "sentence", "step_ms", "shares", "perfect_loader_gain", "advice"),
        *("slowest_rank", "machine", "ranks", "notes", "confidence"),
    }
    assert report["schema"] == 2
    assert report["confidence"]["level"] in ("high", "medium", "low")
    [rank] = report["ranks"]
    assert set(rank["loads"]) == {"real", "cached", "whole"}
    assert rank["loading"]["fetch_ms"] > 0
    assert rank["batch_bytes"] == 8
    assert well_formed(page.read_text()).count("svg") == 1
    for label in ("real batches", "cached on the host", "waiting", "ms since the first step"):
        assert label in page.read_text()
    show.show(report)
    assert report["sentence"] in capsys.readouterr().out


def test_wrong_usage_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "no.py")]) == 1
    assert "no such script" in capsys.readouterr().err
    assert main(["doctor", "--steps", "0", "x.py"]) == 1
    assert main(["doctor", str(tmp_path / "no")]) == 1
    assert main(["doctor", str(tmp_path), "more"]) == 1


def test_a_script_that_fails_shows_where(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("def prepare():\n    raise ValueError('mine')\nprepare()\n")
    assert main(["doctor", str(tmp_path / "train.py")]) == 1
    said = capfd.readouterr().err
    assert 'train.py", line 2, in prepare' in said
    assert "fastload: error: mine" in said


RANKS = """
import os, torch
import torch.distributed as dist
store = f"file://{os.getcwd()}/store"
dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.zeros(1000, 1), batch_size=1):
    model(batch).sum().backward()
    optimizer.step()
"""
BOTH = """
import os, sys
import fastload.cli
child = os.fork()
os.environ.update(RANK=str(int(child == 0)), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
code = fastload.cli.main(["doctor", "--json", "--steps", "8", "train.py"])
sys.stdout.flush()
if child == 0:
    os._exit(code)
assert os.waitpid(child, 0)[1] == 0
sys.exit(code)
"""


@pytest.mark.slow
def test_ranks_leave_together_and_the_first_reports(run_torch: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    report = json.loads(run_torch(BOTH).stdout)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    for rank in report["ranks"]:
        assert list(rank["phases"]) == ["real", "cached", "alone"]
        assert all(phase["steps"] == 8 for phase in rank["phases"].values())


def test_reports_are_printed_in_an_ascii_locale(run_torch: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "o = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)\n"
        "for _ in torch.utils.data.DataLoader(torch.zeros(400, 1)): o.step()\n"
    )
    said = run_torch(
        "import io, sys\n"
        "raw = sys.stdout.buffer\n"
        "sys.stdout = io.TextIOWrapper(raw, 'ascii', 'surrogateescape')\n"
        "from fastload.cli import main\n"
        "sys.exit(main(['doctor', '--steps', '8', '--html', 'x.html', 'train.py']))\n"
    )
    assert "# the step  . waiting" in said.stdout


# --- Data and machine ---------------------------------------------------------------------------


def test_data_are_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        path = tmp_path / f"folder/{number}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(1 << 20))
    report = data.check(str(tmp_path))
    assert (report["files"], report["bytes"]) == (3, 3 << 20)
    assert report["cached_share"] == 1
    assert 0 < report["warm_bytes_per_s"]["low"] <= report["warm_bytes_per_s"]["high"]
    assert report["native"] is False
    assert report["machine"]["cores"] >= 1
    assert main(["doctor", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "3 files, 3.15 MB on" in said
    assert "order='block'" not in said, "all of it is cached"
    assert main(["doctor", "--json", str(tmp_path)]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(report)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no bytes"):
        data.check(str(tmp_path / "empty"))


def test_reading_ends_in_time(tmp_path: Path) -> None:
    class Slow(Clock):
        def __call__(self) -> float:
            self.now += 0.3
            return super().__call__()

    (tmp_path / "x.bin").write_bytes(bytes(32 << 20))
    clock = Slow()
    data.check(str(tmp_path), clock)
    assert clock.asked <= 2 * 8


def test_no_more_is_read_than_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(16):
        (tmp_path / f"{number}.bin").write_bytes(bytes(2 << 20))
    monkeypatch.setattr(data, "_SAMPLE_BYTES", 3 << 20)
    before = _read_bytes()
    data.check(str(tmp_path))
    assert _read_bytes() - before < 8 << 20


def _read_bytes() -> int:
    """What this process has read so far, from files and elsewhere."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_the_load_is_what_the_training_and_others_use() -> None:
    before = load.Snapshot(0.0, 1.0, 1.0, 0.5, 100, 1, 0, 0.0)
    after = load.Snapshot(2.0, 4.0, 2.0, 1.5, 400, 3, 1, 1.0)
    found = load.difference(before, after)
    assert (found["own"], found["others"]) == (0.25, 0.5)
    assert found["idle_cores"] == found["cores"] / 4
    assert (found["storage_bytes"], found["major_faults"]) == (300, 2)
    assert (found["pressure"], found["throttled"]) == (0.5, True)
    unknown = load.difference(before, before._replace(storage_bytes=None, pressure_s=None))
    for name in ("own", "others", "idle_cores", "storage_bytes", "pressure"):
        assert unknown[name] is None


WORKERS = """
import os, signal, time
from fastload.tools.bench.load import snapshot
before, (read, write) = snapshot(), os.pipe()
for is_alive in (False, True):
    child = os.fork()
    if child == 0:
        start = time.process_time()
        while time.process_time() - start < 0.1:
            pass
        os.write(write, b".")
        while is_alive:
            time.sleep(1)
        os._exit(0)
    os.read(read, 1)
    if not is_alive:
        os.waitpid(child, 0)
assert snapshot().own_s - before.own_s >= 0.18
os.kill(child, signal.SIGKILL)
"""


def test_the_cpu_time_of_workers_is_the_trainings(run_torch: Any) -> None:
    """Of one that has ended, and of one that is alive."""
    run_torch(WORKERS)


def test_file_systems_are_told_apart(tmp_path: Path) -> None:
    assert machine.file_system("/dev/shm")["storage"] in ("memory", "unknown")
    assert machine.file_system(str(tmp_path))["file_system"] != "unknown"
