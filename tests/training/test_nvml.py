"""The utilisation that NVML gives is quoted by the doctor, with what it means."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from calibrated import Clock, Counters, Loader, train
from pages import well_formed

from fastload.cli import main
from fastload.tools.doctor import script, show
from fastload.tools.doctor.phases import Probe
from fastload.tools.report import Run
from fastload.training.log_writer import RunLog
from fastload.training.nvml import MEANING, Utilisation
from fastload.training.stalls import Stalls

GPU = torch.device("cuda", 1)


class Nvml:
    """In the place of the module pynvml."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.asked, self.fails_in = 0, ""

    def _may_fail(self, name: str) -> None:
        if name == self.fails_in:
            raise self.NVMLError(name)

    def nvmlInit(self) -> None:
        self._may_fail("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._may_fail("handle")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._may_fail("rates")
        assert handle == "GPU-1234-of-cuda:1"
        self.asked += 1
        return SimpleNamespace(gpu=90 + self.asked, memory=0)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    def properties(device: torch.device) -> Any:
        return SimpleNamespace(uuid=f"1234-of-{device}")

    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return fake


def test_samples_are_few(nvml: Nvml) -> None:
    clock = Clock()
    utilisation = Utilisation(GPU, clock)
    for _ in range(100):
        clock.now += 0.01
        utilisation.sample()
    assert nvml.asked in (3, 4)
    utilisation.sample(now=True)
    assert utilisation.percent == 90 + (1 + nvml.asked) / 2


@pytest.mark.parametrize("where", ["package", "uuid", "init", "handle", "rates", "device"])
def test_it_is_absent_where_nobody_knows(
    nvml: Nvml, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.fails_in = where
    if where == "package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    if where == "uuid":
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: object())
    utilisation = Utilisation(torch.device("cpu") if where == "device" else GPU)
    for _ in range(2):
        utilisation.sample(now=True)
    assert utilisation.percent is None
    assert nvml.asked == 0


def test_the_doctor_quotes_it_and_judges_without(
    nvml: Nvml, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def examined(device: torch.device | None) -> dict[str, Any]:
        clock = Clock()
        probe, loader = Probe(20, clock=clock, counters=Counters()), Loader(clock, 0.04, 0.0, 1)
        if device is not None:
            probe_utilisation = Utilisation(device, clock)
            monkeypatch.setattr(
                "fastload.tools.doctor.phases.Utilisation", lambda device: probe_utilisation
            )
        report = script.watch(train(clock, loader, 0.02), probe)
        assert report is not None
        return report

    plain, quoting = examined(None), examined(GPU)
    assert plain["ranks"][0]["nvml_utilisation_percent"] is None
    percent = quoting["ranks"][0]["nvml_utilisation_percent"]
    assert percent == pytest.approx(90 + (1 + nvml.asked) / 2)
    assert 2 < nvml.asked < 20
    for name in ("verdict", "sentence", "shares", "advice", "notes"):
        assert plain[name] == quoting[name]
    show.show(plain)
    assert "NVML" not in capsys.readouterr().out
    show.show(quoting)
    assert f"NVML's GPU utilisation: {percent:.0f} %: {MEANING}." in capsys.readouterr().out
    well_formed(show.page(quoting))
    assert MEANING in show.page(quoting)
    quoting["ranks"].append(plain["ranks"][0] | {"rank": 1, "nvml_utilisation_percent": 7.0})
    assert show.quoted(quoting)[0].startswith(
        f"NVML's GPU utilisation: {percent:.0f} % (rank 0), 7 % (rank 1): "
    )


def test_the_log_quotes_it_now_and_then(
    nvml: Nvml, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Event:
        def record(self, stream: Any) -> None:
            pass

        def query(self) -> bool:
            return True

        def elapsed_time(self, other: Any) -> float:
            return 10.0

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: False,
        current_stream=lambda device: device,
        Event=lambda enable_timing: Event(),
    )
    clock = Clock()
    log = RunLog(tmp_path / "run.jsonl", {}, stalls=Stalls(GPU, cuda), clock=clock)
    for _ in range(120):
        row = log.begin(clock.now)
        log.stalled(log.mark(), log.mark())
        clock.now += 0.05
        log.end(row)
    log.flush()
    run = Run(str(tmp_path / "run.jsonl"))
    said = {step["step"]: step.get("nvml_utilisation_percent") for step in run.steps}
    assert {step: percent for step, percent in said.items() if percent} == {
        49: 91.0,
        99: 92.0,
        119: 93.0,
    }
    assert main(["report", str(tmp_path / "run.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert "NVML" in shown
    assert "92 %" in shown
    assert "80 %" in shown  # busy, by the device's own clock
