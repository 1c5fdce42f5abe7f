"""Packs by executors: which workers and which inputs can take part, and what is said of others."""

from __future__ import annotations

import os
import pickle
import platform
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import content, encoded, noise, put, refused

import fastload
from fastload.packing.jobs.executors import Run
from fastload.packing.kinds import registry as kinds


@pytest.fixture
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_a_worker_that_cannot_take_part_is_named(tmp_path: Path) -> None:
    source, out = tmp_path / "x.npy", tmp_path / "out"
    np.save(source, np.arange(10))
    (out / ".fastload").mkdir(parents=True)
    run = Run.start(str(out), [str(source)])
    assert run.obstacle() is None
    assert len(os.listdir(out / ".fastload")) == 1
    here = platform.node()
    elsewhere = replace(run, host="head", version="0.0.9").obstacle()
    assert elsewhere is not None
    assert f"a worker on {here} has fastload {fastload.__version__}, head has 0.0.9" in elsewhere
    other = replace(run, token=f"{run.token}x").obstacle()
    assert other is not None
    assert f"a worker on {here} does not see the output folder {out} as" in other
    np.save(source, np.arange(11))
    changed = run.obstacle()
    assert changed is not None
    assert f"{source} differs for a worker on {here}: it has 216 bytes there" in changed
    source.unlink()
    gone = run.obstacle()
    assert gone is not None
    assert f"a worker on {here} cannot see the input {source}: No such file" in gone
    run.end()
    run.end()
    assert os.listdir(out / ".fastload") == []
    unwritable = replace(run, token=str(tmp_path), inputs=(), folder="/proc/1").obstacle()
    assert unwritable is not None
    assert f"a worker on {here} cannot write to /proc/1: " in unwritable


@pytest.mark.parametrize("submission", [1, 2, 4])
@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_an_input_that_changes_is_what_it_is_without_an_executor(
    tmp_path: Path, change: str, submission: int
) -> None:
    class Changing(ThreadPoolExecutor):
        submitted = 0

        def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
            self.submitted += 1
            if self.submitted == submission:
                make_change()
            return super().submit(function, *arguments, **options)

    def make_change(_: object = None) -> None:
        (tmp_path / "in/a/7.png").unlink(missing_ok=True)
        if change == "replaced":
            (tmp_path / "in/a/7.png").write_bytes(b"no image")

    def outcome(name: str, strict: bool, **how: Any) -> Any:
        for number in range(10):
            put(tmp_path / f"in/a/{number}.png", encoded(noise(4, 4, number), "PNG"))
        out = tmp_path / f"{name} {strict}"
        with Changing(1) as executor:
            how = how or {"executor": executor}
            try:
                report = fastload.pack(tmp_path / "in", out, strict=strict, shard_size=50, **how)
            except (OSError, ValueError) as error:
                return str(error)
        (notice,) = report.notices
        assert "7.png changed while it was packed" in notice
        return report.skipped, content(out)

    for strict in (False, True):
        alone = outcome("alone", strict, workers=1, progress=make_change)
        assert outcome("executor", strict) == alone
        assert "7.png" in (alone if strict or change == "removed" else alone[0][0].path)


def test_the_question_comes_before_the_first_job(tmp_path: Path) -> None:
    class Elsewhere(ThreadPoolExecutor):
        """Its workers have another file system."""

        asked = 0

        def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
            self.asked += 1
            *jobs, run = arguments
            return super().submit(function, *jobs, replace(run, token="/nowhere"), **options)

    np.save(tmp_path / "x.npy", np.arange(10))
    with Elsewhere(1) as executor:
        with pytest.raises(RuntimeError, match=r"does not see the output folder .*/out as"):
            fastload.pack(tmp_path / "x.npy", tmp_path / "out", executor=executor)
    assert executor.asked == 1


def test_workers_without_fastload(tmp_path: Path) -> None:
    class Bare(Executor):
        """Its worker has Python and nothing else, and ends if a message cannot be read there."""

        def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
            code = (
                "import pickle, sys\n"
                "function, arguments = pickle.load(sys.stdin.buffer)\n"
                "print('read')\n"
                "function(*arguments)\n"
            )
            command = [sys.executable, "-I", "-S", "-c", code]
            message = pickle.dumps((function, arguments))
            done = subprocess.run(command, input=message, capture_output=True, check=False)
            assert done.stdout == b"read\n"
            future: Future[Any] = Future()
            future.set_exception(ImportError(done.stderr.decode().splitlines()[-1]))
            return future

    np.save(tmp_path / "x.npy", np.arange(10))
    message = "a worker cannot import .*No module named 'fastload'.*install fastload"
    with pytest.raises(RuntimeError, match=message):
        fastload.pack(tmp_path / "x.npy", tmp_path / "out", executor=Bare())


def test_a_dataset_that_a_worker_does_not_find(
    tmp_path: Path, processes: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "at_home.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}: raise ModuleNotFoundError('not here')\n"
        "class Data(list):\n    def __init__(self): super().__init__(range(9))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    message = rf"a worker on {platform.node()} cannot import .*: not here .*PYTHONPATH"
    with pytest.raises(ImportError, match=message):
        fastload.pack("at_home:Data", tmp_path / "out", executor=processes)


def test_inputs_that_cannot_travel_are_refused_before_anything_is_written(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    class Mine:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            return index

    np.savez(tmp_path / "x.npz", np.arange(3))
    out = tmp_path / "out"
    for local in (tmp_path / "x.npz", {"x": np.arange(3)}):
        text = refused(local, out, executor=threads)
        assert "one process must read it" in text
        assert "pack it without executor= (--engine), or save it as .npy files first" in text
    fastload.pack(np.arange(3), tmp_path / "append")
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        for grow in (fastload.pack, fastload.append):
            with pytest.raises(ValueError, match=r"executor cannot read this input \(samples\)"):
                grow(Mine(), tmp_path / grow.__name__, executor=processes)
        assert not processes._processes
    assert not out.exists()
    assert not (tmp_path / "pack").exists()
    fastload.pack(Mine(), out, executor=threads, shard_size=64)
    assert len(fastload.open(out)) == 100


def test_executor_and_workers_are_one_choice(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    message = refused(np.arange(3), tmp_path / "out", executor=threads, workers=2)
    assert "mutually exclusive" in message
    message = refused(np.arange(3), tmp_path / "out", executor=4)
    assert "executor must be a concurrent.futures.Executor, not a int" in message


def test_a_file_that_changes_while_its_lines_are_found_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n")
    kind = kinds._BY_NAME["csv"]

    def grow(*arguments: Any, **options: Any) -> Any:
        opened = kind.open(*arguments, **options)
        (tmp_path / "x.csv").write_text("a\n1\n2\n")
        return opened

    monkeypatch.setitem(kinds._BY_NAME, "csv", replace(kind, open=grow))
    report = fastload.pack(tmp_path / "x.csv", tmp_path / "out", kind="csv")
    assert "x.csv changed while it was packed" in report.notices[0]
