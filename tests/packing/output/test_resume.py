"""Packs that were broken off and continued: killed, interrupted, without room, changed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from broken_off import stopped_at, watched
from packing import column, encoded, noise, put, refused, same_bytes
from slow_pack import SHARDS, finish, start, unfinished
from waiting import wait_for

import fastload
from fastload import FormatError
from fastload.formats.manifest import Skipped
from fastload.packing import plan
from fastload.packing.output.files import write_all
from fastload.packing.output.journal import Journal
from fastload.packing.output.writer import Written

pytestmark = pytest.mark.slow


def journal(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / ".fastload/journal.jsonl").read_text().splitlines()]


def lives(process: psutil.Process) -> bool:
    """Whether it runs; one that nobody has waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_any_moment_and_resumed(tmp_path: Path, workers: int) -> None:
    out, clean = tmp_path / "out", tmp_path / "clean"
    clean.mkdir()
    assert finish(start(clean, 1))[0] == 0
    shutil.copy2(clean / "slow.py", tmp_path / "slow.py")
    random = np.random.default_rng(workers)
    for round_ in range(4):
        done = set(out.glob("shard-*"))
        process = start(tmp_path, workers, "--resume")
        wait_for((out / ".fastload/plan.json").exists)
        if round_:  # once at the very start
            wait_for(
                lambda old=done, run=process: set(out.glob("shard-*")) - old or run.poll() == 0
            )
            time.sleep(random.uniform(0, 0.08))
        process.kill()
        finish(process)
        if (out / "fastload.json").exists():  # it was faster
            break
        with pytest.raises(FormatError, match="incomplete pack"):
            fastload.open(out)
    (out / ".tmp-1-shard-000099.safetensors").write_text("stale")
    (out / "shard-000099.safetensors").write_text("stale")
    assert finish(start(tmp_path, workers, "--resume"))[0] == 0
    assert same_bytes(out, clean / "out")


def test_what_an_attempt_of_before_removes_meanwhile_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, unlink = tmp_path / "out", os.unlink
    np.save(tmp_path / "x.npy", np.arange(10))
    with stopped_at(monkeypatch, 0):
        fastload.pack(tmp_path / "x.npy", out)
    stale = out / ".fastload" / ".tmp-0-shard"
    stale.touch()

    def after_another(path: Any, **options: Any) -> None:
        if os.fspath(path) == os.fspath(stale):
            unlink(path)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", after_another)
    fastload.pack(tmp_path / "x.npy", out, resume=True)


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    with unfinished(tmp_path):
        process = start(tmp_path, 2)
        wait_for(lambda: len(psutil.Process(process.pid).children()) == 2)
        children = psutil.Process(process.pid).children()
        process.kill()
        finish(process)
        wait_for(lambda: not any(map(lives, children)))


def test_the_job_of_a_worker_that_was_killed_is_done_by_another(tmp_path: Path) -> None:
    out, clean = tmp_path / "out", tmp_path / "clean"
    clean.mkdir()
    assert finish(start(clean, 1))[0] == 0
    with unfinished(tmp_path):
        process = start(tmp_path, 2)
        seen = psutil.Process(process.pid)
        for shard in (1, 5):
            wait_for((out / f"shard-{shard:06d}.safetensors").exists)
            killed, descriptors = set(seen.children()), seen.num_fds()
            for child in killed:
                child.kill()
            wait_for(lambda old=killed: len(set(seen.children()) - old) == 2)
            wait_for(lambda most=descriptors: seen.num_fds() <= most)  # nothing is kept of them
    code, stderr = finish(process)
    assert code == 0, stderr
    assert same_bytes(out, clean / "out")


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path, workers: int) -> None:
    out = tmp_path / "out"
    with unfinished(tmp_path):
        process = start(tmp_path, workers)
        noted = out / ".fastload/journal.jsonl"
        wait_for(lambda: noted.exists() and noted.stat().st_size)
        children = psutil.Process(process.pid).children()
        for target in [*(child.pid for child in children), process.pid]:  # as a terminal does
            os.kill(target, signal.SIGINT)
        code, stderr = finish(process)
    assert code == 130
    assert "Traceback" not in stderr
    written = len(journal(out))
    assert 1 <= written < SHARDS
    assert stderr.endswith(
        f"fastload: interrupted; {written} of {SHARDS} shards are written; to continue: fastload "
        f"pack slow:Slow out --shard-size 4096 --workers {workers} --resume\n"
    )
    wait_for(lambda: not any(map(lives, children)))
    assert not list(out.glob(".tmp-*"))
    with pytest.raises(FormatError, match=rf"incomplete pack: \d+ of {SHARDS} shards"):
        fastload.open(out)
    before = {line["shard"]: line["crc32c"] for line in journal(out)}
    kept = {n: (out / f"shard-{n:06d}.safetensors").stat().st_ino for n in before}
    assert finish(start(tmp_path, workers, "--resume"))[0] == 0
    assert kept == {n: (out / f"shard-{n:06d}.safetensors").stat().st_ino for n in before}
    assert column(out)[:, 0].tolist() == list(range(60))


# --- Resumed ----------------------------------------------------------------------------------


def test_finished_shards_are_kept_and_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(40).reshape(20, 2))
    pack = {"source": tmp_path / "x.npy", "shard_size": 64, "workers": 1}
    with stopped_at(monkeypatch, 3) as seen:
        fastload.pack(out=tmp_path / "out", **pack)
    assert seen == [0, 1, 2]
    with watched(monkeypatch) as seen:
        report = fastload.pack(out=tmp_path / "out", resume=True, **pack)
    assert seen == [3, 4]
    assert (report.rows, report.shards) == (20, 5)
    fastload.pack(out=tmp_path / "clean", **pack)
    assert same_bytes(tmp_path / "out", tmp_path / "clean")
    # Once more: there is nothing to do.
    again = fastload.pack(out=tmp_path / "out", resume=True, **pack)
    assert again.notices == ("the dataset was already complete",)
    with pytest.raises(FileExistsError, match="holds another packed dataset"):
        fastload.pack(out=tmp_path / "out", resume=True, **{**pack, "shard_size": 32})
    with pytest.raises(ValueError, match="resume and overwrite are mutually exclusive"):
        fastload.pack(out=tmp_path / "out", resume=True, overwrite=True, **pack)


def test_resume_of_nothing_begins(tmp_path: Path) -> None:
    fastload.pack(np.arange(3), tmp_path / "new", resume=True)
    (tmp_path / "empty").mkdir()
    fastload.pack(np.arange(3), tmp_path / "empty", resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("precious")
    assert "choose another" in refused(np.arange(3), tmp_path / "mine", resume=True)


@pytest.mark.parametrize(
    "damage", ["missing", "truncated", "other header", "torn line", "bad line", "no journal"]
)
def test_what_does_not_fit_the_journal_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    source, out = {"x": np.arange(20)}, tmp_path / "out"
    with stopped_at(monkeypatch, 4):
        fastload.pack(source, out, shard_size=32)
    shard, lines = out / "shard-000002.safetensors", out / ".fastload/journal.jsonl"
    if damage == "missing":
        shard.unlink()
    elif damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "other header":
        shard.write_bytes(shard.read_bytes().replace(b'"fastload.shard":"', b'"fastload.shard":" '))
    elif damage == "torn line":
        lines.write_bytes(lines.read_bytes()[:-1])
    elif damage == "bad line":
        text = lines.read_text().splitlines(keepends=True)
        lines.write_text("".join([*text[:2], '{"group": 1}\n', *text[2:]]))
    else:
        lines.unlink()
    want = {"torn line": [3, 4], "bad line": [2, 3, 4], "no journal": [0, 1, 2, 3, 4]}
    with watched(monkeypatch) as seen:
        fastload.pack(source, out, shard_size=32, resume=True)
    assert seen == want.get(damage, [2, 4])
    fastload.pack(source, tmp_path / "clean", shard_size=32)
    assert same_bytes(out, tmp_path / "clean")


def test_a_journal_goes_on_behind_its_last_whole_line(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.jsonl")
    shards = [Written(n, 4096, n, (Skipped(f"{n}/ä\n", "broken"),), ((n, 1),)) for n in range(4)]
    with contextlib.closing(Journal(path)) as first:
        first.add("main", 0, shards[0])
        first.add("main", 1, shards[1])
        first.add("other", 1, shards[2])
        first.drop("main", 1)
    content = Path(path).read_bytes()
    for size in range(len(content) + 1):
        Path(path).write_bytes(content[:size])
        with contextlib.closing(Journal(path)) as again:
            lines = content[:size].count(b"\n")
            before = {("main", 0): shards[0], ("main", 1): shards[1], ("other", 1): shards[2]}
            want = dict(list(before.items())[:lines])
            if lines == 4:
                del want["main", 1]
            assert again.written == want
            again.add("main", 3, shards[3])
        with contextlib.closing(Journal(path)) as more:
            assert more.written == {**want, ("main", 3): shards[3]}


def images(root: Path, bad: tuple[int, ...] = ()) -> None:
    for number in range(24):
        content = b"no image" if number in bad else encoded(noise(4, 5, number), "PNG")
        put(root / f"{number % 3}/{number:02d}.png", content)


def test_an_archive_is_read_on_from_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(40).reshape(20, 2), y=np.arange(20.0))
    with stopped_at(monkeypatch, 3):
        fastload.pack(tmp_path / "a.npz", tmp_path / "out", shard_size=96)
    fastload.pack(tmp_path / "a.npz", tmp_path / "out", shard_size=96, resume=True)
    fastload.pack(tmp_path / "a.npz", tmp_path / "clean", shard_size=96)
    assert same_bytes(tmp_path / "out", tmp_path / "clean")


# --- Refused ----------------------------------------------------------------------------------


def test_an_incomplete_folder_is_refused_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with stopped_at(monkeypatch, 2):
        fastload.pack(np.arange(20), out, shard_size=32)
    message = refused(np.arange(20), out, shard_size=32)
    for part in ("2 of 5 shards are written", "--resume", "resume=True", "--overwrite"):
        assert part in message
    fastload.pack(np.arange(5), out, overwrite=True)
    assert column(out).tolist() == [0, 1, 2, 3, 4]
    assert sorted(os.listdir(out)) == ["fastload.json", "shard-000000.safetensors"]


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"shard_size": 64}, "rows_each: 4 -> 8"),
        ({"limit": 10}, "source.limit: none -> 10"),
        ({"shuffle": 3}, "source.shuffle: none -> 3"),
        ({"cast": {"data": "f32"}}, 'source.cast: none -> {"data": "float32"}'),
        ({"split": {"a": 0.5, "b": 0.5}}, 'splits: none -> [["a", "0.5"], ["b", "0.5"]]'),
    ],
)
def test_other_options_are_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], difference: str
) -> None:
    with stopped_at(monkeypatch, 2):
        fastload.pack(np.arange(20), tmp_path / "out", shard_size=32)
    message = refused(np.arange(20), tmp_path / "out", **{"shard_size": 32, **options}, resume=True)
    assert difference in message
    assert "--overwrite" in message
    assert len(journal(tmp_path / "out")) == 2


def test_another_input_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images(tmp_path / "in")
    np.save(tmp_path / "x.npy", np.arange(20))
    for source, changed in (("in", "in/0/00.png"), ("x.npy", "x.npy")):
        out, file = tmp_path / f"{source}-out", tmp_path / changed
        with stopped_at(monkeypatch, 1):
            fastload.pack(tmp_path / source, out, shard_size=64, workers=1)
        status = file.stat()
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        message = refused(tmp_path / source, out, shard_size=64, workers=1, resume=True)
        assert f"stamp.{file}[1]: {status.st_mtime_ns} -> {status.st_mtime_ns + 1}" in message
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        fastload.pack(tmp_path / source, out, shard_size=64, workers=1, resume=True)


def test_many_files_are_stamped_folder_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_STAMPED_FILES", 10)
    images(tmp_path / "in")
    with stopped_at(monkeypatch, 1):
        fastload.pack(tmp_path / "in", tmp_path / "out", shard_size=64, workers=1)
    (tmp_path / "in/1/25.png").write_bytes((tmp_path / "in/1/01.png").read_bytes())
    message = refused(tmp_path / "in", tmp_path / "out", shard_size=64, workers=1, resume=True)
    assert f"stamp.{tmp_path}/in/1[0]: 8 -> 9" in message
    assert "rows: 24 -> 25" in message


# --- No room ----------------------------------------------------------------------------------


def test_all_is_written_or_an_error(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        write_all(file.fileno(), memoryview(b"abc"))
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_another_input_in_memory_is_not_mixed_in(tmp_path: Path) -> None:
    class Samples:
        def __init__(self, value: int, stop: int = 1000) -> None:
            self.value, self.stop = value, stop

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> dict[str, np.ndarray]:
            if index == self.stop:
                raise RuntimeError("not yet")
            return {"x": np.full(3, self.value)}

    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match="not yet"):
        fastload.pack(Samples(1, 601), out, shard_size=400, workers=1)
    with pytest.raises(ValueError, match="input or options changed: stamp"):
        fastload.pack(Samples(2), out, shard_size=400, workers=1, resume=True)
    fastload.pack(Samples(1), out, shard_size=400, workers=1, resume=True)
    assert {int(x) for x in column(out, "x").flat} == {1}


def test_an_input_that_changed_after_it_was_packed_is_not_complete(tmp_path: Path) -> None:
    path, out = tmp_path / "x.npy", tmp_path / "out"
    np.save(path, np.arange(10))
    fastload.pack(path, out)
    fastload.pack(path, out, resume=True)
    np.save(path, np.arange(10) + 100)
    os.utime(path, ns=(time.time_ns() + 10**9,) * 2)
    with pytest.raises(FileExistsError, match=r"x\.npy changed after it was packed"):
        fastload.pack(path, out, resume=True)
