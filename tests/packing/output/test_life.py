"""The output folder: crashes, full disks, Ctrl-C, running twice, overwriting."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import column, content, encoded, noise, put, refused, same_bytes
from slow_pack import finish, start, unfinished
from torch.utils.data import Subset
from waiting import wait_for

import fastload
from fastload import FormatError
from fastload.packing.output import folder

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]


def shards(out: Path) -> list[str]:
    return sorted(name for name in os.listdir(out) if name.startswith("shard-"))


# --- No room ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_no_room_for_a_shard(tmp_path: Path, workers: int) -> None:
    np.save(tmp_path / "x.npy", np.arange(50_000))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    command = [sys.executable, "-m", "fastload", "pack", "x.npy", "out", "--shard-size", "131072"]
    done = subprocess.run(
        [*command, "--workers", str(workers)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"{tmp_path}/out/shard-00000" in done.stderr
    assert "File too large" in done.stderr
    assert os.listdir(tmp_path / "out") == [".fastload"]
    assert "0 of 4 shards are written; to continue: fastload pack x.npy out" in done.stderr
    with pytest.raises(FormatError, match="incomplete pack: 0 of 4 shards"):
        fastload.open(tmp_path / "out")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:1000]))
    fastload.pack(np.arange(5000), tmp_path / "a")
    monkeypatch.undo()
    fastload.pack(np.arange(5000), tmp_path / "b")
    assert same_bytes(tmp_path / "a", tmp_path / "b")


# --- The folder -------------------------------------------------------------------------------


def test_two_at_once_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_LOCK_TIMEOUT_SECONDS", 0.0)
    with unfinished(tmp_path):
        process = start(tmp_path, 1)
        wait_for((tmp_path / "out/shard-000001.safetensors").exists)
        assert "another pack is writing" in refused(np.arange(3), tmp_path / "out")
    assert finish(process)[0] == 0
    assert column(tmp_path / "out")[:, 0].tolist() == list(range(60))


def test_a_second_pack_is_refused_without_overwrite(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(np.arange(40), out, shard_size=64)
    assert len(shards(out)) == 5
    before = {name: (out / name).stat().st_mtime_ns for name in os.listdir(out)}
    with pytest.raises(FileExistsError, match="--overwrite"):
        fastload.pack(np.arange(10), out, shard_size=64)
    assert {name: (out / name).stat().st_mtime_ns for name in os.listdir(out)} == before
    (out / "README").write_text("mine")
    fastload.pack(np.arange(10), out, shard_size=64, overwrite=True)
    assert len(shards(out)) == 2
    assert sorted(os.listdir(out))[0] == "README"
    assert column(out).tolist() == list(range(10))


def test_bad_input_does_not_cost_the_old_dataset(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(np.arange(40), out)
    for source in (np.array([None]), tmp_path / "nothing", [], {"a::b": np.arange(3)}):
        with pytest.raises((TypeError, ValueError, OSError)):
            fastload.pack(source, out, overwrite=True)
        assert len(fastload.open(out)) == 40


def test_an_open_dataset_outlives_its_replacement(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(np.arange(10), out)
    old = fastload.open(out)
    assert old[3] == 3
    fastload.pack(np.arange(10) + 100, out, overwrite=True)
    assert old[4] == 4
    assert fastload.open(out)[4] == 104


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_folders_are_refused(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/shard-000000.safetensors").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("mine", "file", "link"):
        with pytest.raises(FileExistsError):
            fastload.pack(np.arange(3), tmp_path / name, overwrite=overwrite)
    assert os.listdir(tmp_path / "mine") == ["shard-000000.safetensors"]


def test_output_inside_the_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/x.npy", np.arange(3))
    (tmp_path / "link").symlink_to(tmp_path / "in")
    for out in ("in", "in/out", "in/a/../b/out", "link/out"):
        with pytest.raises(ValueError, match="inside the input"):
            fastload.pack(tmp_path / "in", tmp_path / out, overwrite=True)
    assert os.listdir(tmp_path / "in") == ["x.npy"]
    fastload.pack(tmp_path / "in/x.npy", tmp_path / "in/out")  # a file has no inside
    fastload.pack(tmp_path / "in", tmp_path / "in-out")


def test_files_have_the_modes_the_user_wants(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        fastload.pack(np.arange(3), tmp_path / "a/b/out")
    finally:
        os.umask(old)
    for path in (tmp_path / "a/b/out").iterdir():
        assert path.stat().st_mode & 0o777 == 0o640


# Of the process itself; `ru_maxrss` begins with what its parent had.
PEAK = """
import re
def peak():
    with open("/proc/self/status") as file:
        return int(re.findall(r"VmHWM:\\s+(\\d+) kB", file.read())[0]) << 10
"""


def test_few_descriptors_and_little_memory_are_enough(run_python: Run, tmp_path: Path) -> None:
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(256 << 20)
    # One sample is larger than a shard is meant to be; 128 shards, most of memory forbidden.
    run_python(
        f"{PEAK}import resource, fastload, numpy\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\n"
        "now = peak()\n"
        "fastload.pack('x.bin', 'out', dtype='u1', shape=2 << 20, shard_size=1 << 20, workers=1)\n"
        "assert peak() - now < 32 << 20, peak() - now\n"
        "assert len(fastload.open('out')) == 128\n"
    )


def test_shuffled_and_cast_shards_need_little_memory(run_python: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((64 << 10, 256)))  # 128 MiB, a quarter of it as bfloat16
    run_python(
        f"{PEAK}import fastload, numpy, os\n"
        "fastload.pack('x.npy', 'first', shuffle=1, cast={'data': 'bf16'}, limit=9, workers=1)\n"
        "now = peak()\n"
        "for options in ({}, {'shuffle': 1}):\n"
        "    fastload.pack('x.npy', 'out', cast={'data': 'bf16'}, shard_size=16 << 20,\n"
        "                  workers=1, overwrite=True, **options)\n"
        "assert peak() - now < 3 * (16 << 20), (peak() - now) >> 20\n"  # two, and buffers
    )


@pytest.mark.parametrize("how", ["subset", "file"])
def test_a_dataset_does_not_replace_what_it_is_read_from(tmp_path: Path, how: str) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(1000)}, out, shard_size=1 << 10, workers=1)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    source: Any = Subset(fastload.open(out), range(0, 1000, 2))
    options: dict[str, Any] = {}
    if how == "file":
        source = out / "shard-000000.safetensors"
        options = {"kind": "safetensors"}
    with pytest.raises(ValueError, match="lies in the folder that would be replaced"):
        fastload.pack(source, out, overwrite=True, **options)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    fastload.pack(source, tmp_path / "other", **options)


def test_a_failing_replacement_leaves_the_old_dataset(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(1000)}, out, shard_size=1 << 10)
    before = content(out)
    with pytest.raises(ValueError, match="does not fit int8"):
        fastload.pack({"x": np.arange(1000)}, out, overwrite=True, cast={"x": "int8"})
    assert content(out) == before
    assert len(fastload.open(out)) == 1000
    new = {"x": np.arange(5.0), "t": ["a"] * 5}
    fastload.pack(new, out, overwrite=True)
    fastload.pack(new, tmp_path / "clean")
    assert same_bytes(out, tmp_path / "clean")


def test_packing_a_packed_dataset_keeps_what_its_fields_mean(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for number in range(3):
            put(tmp_path / "in" / name / f"{number}.png", encoded(noise(4, 4), "PNG"))
    fastload.pack(tmp_path / "in", tmp_path / "images", encoded=True)
    days = np.arange(6).astype("M8[D]")
    fastload.pack({"d": days, "t": ["é"] * 6, "v": [np.ones(1), np.ones(2)] * 3}, tmp_path / "days")
    for name in ("images", "days"):
        whole = fastload.open(tmp_path / name)
        fastload.pack(whole, tmp_path / "again" / name)
        again = fastload.open(tmp_path / "again" / name)
        assert again.fields == whole.fields
        assert again.manifest.class_fields == whole.manifest.class_fields
        fastload.pack(Subset(whole, [5, 0]), tmp_path / "part" / name)
        part = fastload.open(tmp_path / "part" / name)
        assert part.fields == whole.fields
        assert repr(part[0]) == repr(whole[5])
        fastload.append(whole, tmp_path / "again" / name)
        assert len(fastload.open(tmp_path / "again" / name)) == 12
