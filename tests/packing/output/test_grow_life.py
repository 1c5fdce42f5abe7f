"""Datasets that should have grown: broken off, killed, without room, two at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broken_off import stopped_at, watched
from packing import column, content, same_bytes
from slow_pack import finish, start, unfinished
from waiting import wait_for

import fastload
from fastload.packing.output import folder

pytestmark = pytest.mark.slow

# --- Broken off -------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("task", ["append", "add_column"])
def test_broken_off_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, resume: bool
) -> None:
    def grow(out: Path, **options: Any) -> Any:
        if task == "append":
            return fastload.append({"x": np.arange(9, 30)}, out, shard_size=32, **options)
        new = {"m": np.arange(9.0)}
        return fastload.add_column(out, new, shard_size=16, **options)

    for name in ("out", "clean"):
        fastload.pack({"x": np.arange(9)}, tmp_path / name, shard_size=32)
    out, first = tmp_path / "out", 3 if task == "append" else 0
    before = content(out)
    with stopped_at(monkeypatch, first + 2):
        grow(out)
    assert {name: content(out)[name] for name in before} == before
    assert len(fastload.open(out)) == 9
    with watched(monkeypatch) as seen:
        grow(out, resume=resume)
    assert seen[0] == (first + 2 if resume else first)
    grow(tmp_path / "clean")
    assert same_bytes(out, tmp_path / "clean")
    if resume:
        with pytest.raises(ValueError, match="there is nothing to resume"):
            grow(out, resume=True)
        assert same_bytes(out, tmp_path / "clean")


def test_a_change_of_mind_after_a_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(9)}, out)
    with stopped_at(monkeypatch, 1):
        fastload.add_column(out, np.arange(9.0), name="m", shard_size=16)
    assert (out / "m-000000.safetensors").exists()
    with pytest.raises(ValueError, match=r"remove --resume \(resume=True\) to start again"):
        fastload.append({"x": np.arange(3)}, out, resume=True)
    fastload.append({"x": np.arange(3)}, out)
    assert not (out / "m-000000.safetensors").exists()
    assert len(fastload.open(out)) == 12
    with stopped_at(monkeypatch, 3):
        fastload.append({"x": np.arange(9)}, out, shard_size=16)
    fastload.pack(np.arange(2), out, overwrite=True)
    assert sorted(os.listdir(out)) == ["fastload.json", "shard-000000.safetensors"]


def test_ctrl_c_of_an_append_tells_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(np.zeros((4, 100), int), out)
    with unfinished(tmp_path):
        process = start(tmp_path, 1, task="append")
        wait_for((out / "shard-000003.safetensors").exists)
        process.send_signal(signal.SIGINT)
        code, stderr = finish(process)
    assert code == 130
    assert stderr.endswith(
        "of 15 shards are written; to continue: fastload append slow:Slow out --shard-size 4096 "
        "--workers 1 --resume\n"
    )
    assert len(fastload.open(out)) == 4
    assert finish(start(tmp_path, 1, "--resume", task="append"))[0] == 0
    assert column(out)[4:, 0].tolist() == list(range(60))


def test_only_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_LOCK_TIMEOUT_SECONDS", 0.0)
    out = tmp_path / "out"
    fastload.pack(np.zeros((4, 100), int), out)
    with unfinished(tmp_path):
        process = start(tmp_path, 1, task="append")
        wait_for((out / "shard-000003.safetensors").exists)
        for call in (
            lambda: fastload.append(np.zeros((4, 100), int), out),
            lambda: fastload.pack(np.arange(3), out, overwrite=True),
        ):
            with pytest.raises(FileExistsError, match="another pack is writing"):
                call()
    assert finish(process)[0] == 0
    assert len(fastload.open(out)) == 64
