"""`fastload doctor`, the command: scripts alone and as ranks, data and the machine, its outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from calibrated import Clock
from pages import well_formed

from fastload.cli import main
from fastload.doctor import data, machine, show

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
        *("slowest_rank", "machine", "ranks", "notes"),
    }
    assert report["schema"] == 1
    assert sum(report["shares"].values()) == pytest.approx(1)
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
import sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.zeros(1000, 1), batch_size=1):
    time.sleep(0.03 if dist.get_rank() == 1 else 0.0)
    model(batch).sum().backward()
    optimizer.step()
"""


def test_ranks_leave_together_and_the_first_reports(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "fastload", "doctor", "--json", "--steps", "8"]
    verdicts = []
    for _ in range(3):  # what is measured beside other processes may be anything
        done = subprocess.run(
            [*command, str(tmp_path / "train.py")],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
        for rank in report["ranks"]:
            assert list(rank["phases"]) == ["real", "cached", "alone"]
            assert all(phase["steps"] == 8 for phase in rank["phases"].values())
        verdicts.append((report["verdict"], report["slowest_rank"]))
        if verdicts[-1] == ("synchronisation-bound", 1):
            break
    assert verdicts[-1] == ("synchronisation-bound", 1), verdicts


# --- Data and machine ---------------------------------------------------------------------------


def test_data_are_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        path = tmp_path / f"folder/{number}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(1 << 20))
    report = data.check(str(tmp_path))
    assert (report["files"], report["bytes"]) == (3, 3 << 20)
    assert report["cached_share"] == 1
    assert report["warm_bytes_per_s"] > 0
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


def test_file_systems_are_told_apart(tmp_path: Path) -> None:
    assert machine.file_system("/dev/shm")["storage"] in ("memory", "unknown")
    assert machine.file_system(str(tmp_path))["file_system"] != "unknown"
