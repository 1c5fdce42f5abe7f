"""Every task that writes a dataset fails, or is killed, at each of its changes to the disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk import Disk, Killed
from packing import content, encoded, noise, put, same_bytes, samples_of

import fastload
from fastload import FormatError
from fastload.packing.output.files import TEMPORARY_PREFIX

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Task:
    """A task that writes a dataset into the folder `out`.

    Attributes:
        run: Does it; the second argument is `resume`.
        prepare: Makes the inputs below a folder, and the old dataset in `out` if there is one.
        keeps_old: The old dataset can be opened until the new one is complete.
    """

    run: Callable[[Path, bool], Any]
    prepare: Callable[[Path], Any] = lambda root: None
    keeps_old: bool = True


def _images(root: Path) -> None:
    for number in range(8):
        good = encoded(noise(4, 5, number), "PNG")
        put(root / "in" / str(number % 2) / f"{number}.png", b"bad" if number in (1, 4) else good)


def _old(root: Path) -> None:
    fastload.pack({"x": np.arange(9)}, root / "out", shard_size=32)


def _two(root: Path) -> None:
    for name in ("a", "b"):
        fastload.pack({"x": np.arange(9)}, root / name, shard_size=32)


def _pack(root: Path, resume: bool) -> Any:
    return fastload.pack({"x": np.arange(20)}, root / "out", shard_size=64, resume=resume)


def _pack_images(root: Path, resume: bool) -> Any:
    options = {"shard_size": 4 * 68, "workers": 1, "resume": resume}
    return fastload.pack(root / "in", root / "out", **options)


def _replace(root: Path, resume: bool) -> Any:
    new = {"y": np.arange(20.0)}
    # A replacement that was killed while its files moved has no old manifest to replace.
    overwrite = not resume or (root / "out/fastload.json").exists()
    return fastload.pack(new, root / "out", shard_size=64, overwrite=overwrite, resume=resume)


def _append(root: Path, resume: bool) -> Any:
    return fastload.append({"x": np.arange(9, 30)}, root / "out", shard_size=64, resume=resume)


def _add_column(root: Path, resume: bool) -> Any:
    new = {"m": np.arange(9.0)}
    return fastload.add_column(root / "out", new, shard_size=32, resume=resume)


def _merge(root: Path, resume: bool) -> Any:
    overwrite = resume  # a merge is not resumed but replaced
    return fastload.merge(root / "out", [root / "a", root / "b"], overwrite=overwrite)


TASKS = {
    "pack": Task(_pack),
    "pack with bad inputs": Task(_pack_images, _images),
    "pack over a dataset": Task(_replace, _old, keeps_old=False),
    "append": Task(_append, _old),
    "add_column": Task(_add_column, _old),
    "merge": Task(_merge, _two),
}


@pytest.mark.parametrize("kill", [False, True], ids=["fails", "killed"])
@pytest.mark.parametrize("name", TASKS)
def test_a_task_survives_a_fault_at_every_change(name: str, kill: bool, tmp_path: Path) -> None:
    """Readers see the old dataset, the new one or a refusal, and a second run completes it."""
    task = TASKS[name]
    start, clean = tmp_path / "start", tmp_path / "clean"
    start.mkdir()
    task.prepare(start)
    shutil.copytree(start, clean)
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch)
        task.run(clean, False)
    changes = disk.changes
    assert len(changes) > 8
    old, new = _samples(start / "out"), _samples(clean / "out")
    for moment in range(1, len(changes) + 1):
        where = f"{changes[moment - 1]}, change {moment} of {len(changes)}"
        root = tmp_path / str(moment)
        shutil.copytree(start, root)
        with pytest.MonkeyPatch.context() as monkeypatch:
            _run_into_fault(task, root, Disk(monkeypatch, moment, kill=kill), where)
        if not kill:
            assert not list((root / "out").glob(f"**/{TEMPORARY_PREFIX}*")), where
        seen = _samples(root / "out")
        assert seen in ([old, new] if task.keeps_old else [old, new, None]), where
        with pytest.MonkeyPatch.context() as monkeypatch:
            Disk(monkeypatch)
            if seen != new:
                _run_again(task, root)
                assert _samples(root / "out") == new, where
                assert same_bytes(root / "out", clean / "out"), where
            else:
                _run_over(root / "out")
        shutil.rmtree(root)


def _run_into_fault(task: Task, root: Path, disk: Disk, where: str) -> None:
    """Runs a task on a disk with a fault. The task may complete if cleaning up failed."""
    try:
        task.run(root, False)
    except Killed:
        pass
    except OSError as error:
        assert error.errno == errno.ENOSPC, where  # noqa: PT017
        assert str(error.filename).startswith(str(root)), where  # noqa: PT017
        assert TEMPORARY_PREFIX not in str(error.filename), where  # noqa: PT017
    else:
        assert _samples(root / "out") is not None, where


def _run_again(task: Task, root: Path) -> None:
    """Runs a task again as its error message or a user would: with resume=True if it started."""
    try:
        task.run(root, True)
    except ValueError:  # nothing to resume: the fault came before the plan
        task.run(root, False)


def _run_over(out: Path) -> None:
    """Packs something else over a complete dataset; it must leave no file of the killed task."""
    fastload.pack({"z": np.arange(3)}, out, overwrite=True)
    assert set(content(out)) == {"fastload.json", "shard-000000.safetensors"}
    assert not (out / ".fastload").exists()


def _samples(out: Path) -> list[Any] | None:
    """The samples of a dataset; None if there is none or it is refused as incomplete."""
    try:
        return samples_of(out)
    except FileNotFoundError:
        return None
    except FormatError as error:
        text = str(error)
        assert "incomplete" in text or "no dataset in this folder" in text
        return None
