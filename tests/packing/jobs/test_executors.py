"""Packs whose shards an executor writes: what comes out, and what happens when things go wrong."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broken_off import watched
from packing import content, same_bytes
from rich.console import Console
from small_inputs import inputs, patient
from waiting import wait_for

import fastload
from fastload import FormatError
from fastload.packing.jobs import executors
from fastload.packing.jobs.executors import Run
from fastload.packing.progress import ProgressDisplay

pytestmark = pytest.mark.slow


@pytest.fixture
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


# --- What is written --------------------------------------------------------------------------


def test_the_same_files_by_whomever(
    tmp_path: Path, threads: ThreadPoolExecutor, processes: ProcessPoolExecutor
) -> None:
    for name, (source, options) in inputs(tmp_path).items():
        fastload.pack(source, tmp_path / "alone" / name, workers=1, **options)
        alone = content(tmp_path / "alone" / name)
        for executor in (threads, processes):
            seen: list[Any] = []
            out = tmp_path / type(executor).__name__ / name
            report = fastload.pack(source, out, executor=executor, progress=seen.append, **options)
            assert content(out) == alone
            assert len(report.skipped) == (name != "arrays")
            assert not (out / ".fastload").exists()
            assert seen[-1].rows == seen[-1].rows_total
            rows = [now.rows for now in seen]
            assert rows == sorted(set(rows))
            assert len(rows) >= len(alone)  # at the start, and for each shard


def test_growing_and_replacing(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    np.save(tmp_path / "x.npy", np.arange(100))
    np.save(tmp_path / "y.npy", np.arange(200.0))
    hows: dict[str, dict[str, Any]] = {"a": {"workers": 1}, "b": {"executor": threads}}
    for name, how in hows.items():
        out, options = tmp_path / name, {"shard_size": 100, **how}
        fastload.pack({"old": np.arange(3)}, out)
        dataset = fastload.ArrayDataset({"x": np.load(tmp_path / "x.npy", "r")})
        fastload.pack(dataset, out, overwrite=True, workers=1)
        fastload.pack(fastload.open(out), out.with_suffix(".2"), **options)
        out = out.with_suffix(".2")
        fastload.append(fastload.open(tmp_path / name), out, **options)
        fastload.add_column(out, tmp_path / "y.npy", **options)
        fastload.pack(tmp_path / "y.npy", tmp_path / name, overwrite=True, **options)
    assert same_bytes(tmp_path / "a", tmp_path / "b")
    assert same_bytes(tmp_path / "a.2", tmp_path / "b.2")
    assert len(content(tmp_path / "a.2")) > 20


def test_no_more_than_twice_its_workers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flying: list[int] = []

    def counted(futures: Any, **options: Any) -> Any:
        flying.append(len(futures))
        return wait(futures, **options)

    monkeypatch.setattr(executors, "wait", counted)
    np.save(tmp_path / "x.npy", np.arange(1000))
    with ThreadPoolExecutor(3) as executor:
        fastload.pack(tmp_path / "x.npy", tmp_path / "out", executor=executor, shard_size=200)
    assert max(flying) == 6


def test_a_notice_names_the_wait_if_no_worker_has_started_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Event()

    class Late(ThreadPoolExecutor):
        """Begins when its pack has lost its patience."""

        def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
            def late() -> Any:
                assert begin.wait(60)
                return function(*arguments)

            return super().submit(late)

    def impatient(futures: Any, **options: Any) -> Any:
        waited = wait(futures, **options)
        begin.set()
        return waited

    monkeypatch.setattr(executors, "_WARN_SECONDS", 0.01)
    monkeypatch.setattr(executors, "wait", impatient)
    np.save(tmp_path / "x.npy", np.arange(100))
    shown = io.StringIO()
    message = "no worker has started a job in 0.01 s; waiting for one"
    with Late(1) as executor:
        with ProgressDisplay(Console(file=shown, width=1000)) as display:
            fastload.pack(tmp_path / "x.npy", tmp_path / "a", executor=executor, progress=display)
        begin.clear()
        with pytest.warns(RuntimeWarning, match=message) as warned:
            fastload.pack(tmp_path / "x.npy", tmp_path / "b", executor=executor)
    assert shown.getvalue().count(message) == 1
    assert warned[0].filename == __file__
    assert same_bytes(tmp_path / "a", tmp_path / "b")


# --- When something goes wrong ----------------------------------------------------------------


def test_the_first_error_ends_the_pack_and_the_rest_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: ProcessPoolExecutor
) -> None:
    name, out = patient(tmp_path, monkeypatch), tmp_path / "out"
    fastload.pack(name, tmp_path / "alone", workers=1, shard_size=1024)
    (tmp_path / "break").touch()
    with pytest.raises(RuntimeError, match="sample 121: KeyError: 'as it was meant to'") as raised:
        fastload.pack(name, out, executor=processes, shard_size=1024)
    assert "in __getitem__" in str(raised.value.__cause__)
    (tmp_path / "break").unlink()
    with pytest.raises(FormatError, match=r"incomplete pack: [78] of 13 shards"):
        fastload.open(out)
    wait_for(lambda: not list(out.rglob(".tmp-*")))  # an attempt may have gone on for a moment
    (tmp_path / "die").touch()
    message = r"process of the executor died \(BrokenProcessPool: .*; too little memory.*--resume"
    with pytest.raises(RuntimeError, match=message):
        fastload.pack(name, out, executor=processes, shard_size=1024, resume=True)
    (tmp_path / "die").unlink()
    kept = {int(path.name[6:12]) for path in out.glob("shard-*")}
    assert kept >= set(range(7))
    with ThreadPoolExecutor(2) as other, watched(monkeypatch) as seen:
        fastload.pack(name, out, executor=other, shard_size=1024, resume=True)
    assert set(seen) == set(range(13)) - kept
    assert same_bytes(out, tmp_path / "alone")


def test_threads_have_ended_when_the_input_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
) -> None:
    name, out = patient(tmp_path, monkeypatch), tmp_path / "out"
    (tmp_path / "wait").touch()
    timer = threading.Timer(0.3, (tmp_path / "wait").unlink)

    def progress(now: Any) -> None:
        if now.rows > 100:
            timer.start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:  # which keeps the frames of the pack
        fastload.pack(name, out, executor=threads, shard_size=1024, progress=progress)
    assert not (tmp_path / "wait").exists()
    del raised
    timer.join()
    assert not list(out.rglob(".tmp-*"))
    fastload.pack(name, out, executor=threads, shard_size=1024, resume=True)
    fastload.pack(name, tmp_path / "alone", workers=1, shard_size=1024)
    assert same_bytes(out, tmp_path / "alone")


def test_a_shard_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
) -> None:
    replace_file = os.replace

    def full(source: str, target: str) -> None:
        if target.endswith("shard-000003.safetensors"):
            raise OSError(28, "No space left on device")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", full)
    np.save(tmp_path / "x.npy", np.arange(100))
    with pytest.raises(OSError, match="No space left on device") as raised:
        fastload.pack(tmp_path / "x.npy", tmp_path / "out", executor=threads, shard_size=100)
    assert raised.value.filename == str(tmp_path / "out/shard-000003.safetensors")
    assert not list((tmp_path / "out").rglob(".tmp-*"))


def test_a_pool_that_is_broken_when_a_job_comes(tmp_path: Path) -> None:
    class Broken(ThreadPoolExecutor):
        asked = 0

        def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
            self.asked += 1
            if self.asked == 3:
                raise BrokenProcessPool("as it was meant to")
            return super().submit(function, *arguments, **options)

    np.save(tmp_path / "x.npy", np.arange(100))
    message = r"died \(BrokenProcessPool: as it was meant to\).*--resume"
    with Broken(1) as executor, pytest.raises(RuntimeError, match=message):
        fastload.pack(tmp_path / "x.npy", tmp_path / "out", executor=executor, shard_size=100)


class Twice(ThreadPoolExecutor):
    """Makes another attempt at each job, once the pack is done."""

    def __init__(self) -> None:
        super().__init__(1)
        self.again: list[Any] = []

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        self.again.append(lambda: function(*arguments, **options))
        return super().submit(function, *arguments, **options)


def test_an_attempt_that_outlives_its_run_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, source = tmp_path / "out", inputs(tmp_path)["lines"][0]
    with Twice() as executor:
        fastload.pack(source, out, executor=executor, shard_size=300)
    before = content(out)
    late = [attempt() for attempt in executor.again[1:]]  # the first is the question
    assert all("does not see the output folder" in attempt for attempt in late)
    monkeypatch.setattr(Run, "obstacle", lambda _: None)  # as if they had begun before it ended
    (out / ".fastload").mkdir()
    late = [attempt() for attempt in executor.again[1:]]
    assert all("the run has ended" in str(attempt.error) for attempt in late)
    assert os.listdir(out / ".fastload") == []
    (out / ".fastload").rmdir()
    assert content(out) == before


def test_a_file_that_a_late_attempt_removes_itself(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before the pack does."""
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*listed(path), ".tmp-0-gone"])
    np.save(tmp_path / "x.npy", np.arange(10))
    assert fastload.pack(tmp_path / "x.npy", tmp_path / "out", executor=threads).rows == 10


def test_a_slow_attempt_notices_that_its_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_CHECK_SECONDS", 0.0)
    name = patient(tmp_path, monkeypatch)
    with Twice() as executor:
        fastload.pack(name, tmp_path / "out", executor=executor, shard_size=1024)
    monkeypatch.setattr(Run, "obstacle", lambda _: None)
    (late,) = {str(attempt().error) for attempt in executor.again[1:2]}
    assert late == "the run has ended"


def test_processes_that_outlive_the_pack_do_not_hold_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, out = patient(tmp_path, monkeypatch), tmp_path / "out"
    script = (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        "import fastload\n"
        "with ProcessPoolExecutor(1, get_context('fork')) as executor:\n"
        f"    fastload.pack('{name}', 'out', executor=executor, shard_size=1024)\n"
    )
    (tmp_path / "wait").touch()
    process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    wait_for((tmp_path / "waits").exists)
    process.kill()
    process.wait()
    (tmp_path / "wait").unlink()
    try:
        fastload.pack(name, out, shard_size=1024, workers=1, resume=True)
    finally:
        os.kill(int((tmp_path / "waits").read_text()), signal.SIGKILL)
    fastload.pack(name, tmp_path / "alone", workers=1, shard_size=1024)
    assert same_bytes(out, tmp_path / "alone")
