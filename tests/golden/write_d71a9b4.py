"""Writes tests/golden/d71a9b4 with the fastload of that commit; it is never written again.

The folder holds what users of that version have on their disks: packed datasets, states of loaders,
a checkpoint, logs of trainings and packs that were killed. In a worktree of d71a9b4 with its core
built in place, and PYTHONPATH naming that worktree and this project's tests/support::

    python tests/golden/write_d71a9b4.py tests/golden/d71a9b4
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import golden_packs
import golden_training
import numpy as np
import torch
from golden_loaders import LOADERS, TOKENS, listed

import fastload


def write_datasets(folder: Path) -> None:
    """Every kind of packed dataset, and what append, add_column and merge make of one."""
    options: dict[str, Any] = {"shard_size": golden_packs.SHARD_SIZE, "workers": 1}
    first, second = golden_packs.samples(0, 6), golden_packs.samples(6, 9)
    fastload.pack(first, folder / "grown", split={"train": 0.5, "val": 0.5}, **options)
    fastload.append(second, folder / "grown", split="val", **options)
    fastload.add_column(folder / "grown", [{"y": row * 10} for row in range(9)], **options)
    with tempfile.TemporaryDirectory() as made:
        parts = [Path(made, "a"), Path(made, "b")]
        for part, rows in zip(parts, (first, second), strict=True):
            fastload.pack(rows, part, **options)
        fastload.merge(folder / "merged", parts)
        golden_packs.image_folder(Path(made, "images"))
        fastload.pack(Path(made, "images"), folder / "images", **options)
    shuffled = {"shuffle": 7, "limit": 5, "cast": {"x": "float16"}, "fields": ["x", "text"]}
    fastload.pack(golden_packs.samples(0, 9), folder / "selected", **shuffled, **options)


def write_states(path: Path) -> None:
    """States of each loader inside and after its first epoch, and the batches that follow."""
    np.arange(93, dtype="u2").tofile(TOKENS)
    found = []
    for name, make in LOADERS.items():
        for taken in (2, None):
            torch.manual_seed(4)
            loader = make()
            if taken is None:
                list(loader)
                state = loader.state_dict()
            else:
                iterator = iter(loader)
                for _ in range(taken):
                    next(iterator)
                state = loader.state_dict()
                del iterator
            resumed = make()
            resumed.load_state_dict(state)
            found.append({"loader": name, "taken": taken, "state": state, "then": listed(resumed)})
    lines = ",\n".join(json.dumps(of, separators=(",", ":")) for of in found)
    path.write_text(f"[\n{lines}\n]\n")


def write_killed_packs(folder: Path) -> None:
    """A pack, an append and an added column that were killed while they read row 13."""
    for name in golden_packs.TASKS:
        where = folder / name
        where.mkdir(parents=True)
        if name != "pack":
            run(where, "pack")
        run(where, name, stop_at="13")
        assert (where / "out/.fastload/journal.jsonl").stat().st_size, name
        assert (where / "out/fastload.json").exists() == (name != "pack")


def run(where: Path, name: str, stop_at: str | None = None) -> None:
    """Runs a task in a process of its own, which kills itself if `stop_at` is given."""
    done = subprocess.run(
        [sys.executable, "-c", f"import golden_packs; golden_packs.TASKS[{name!r}]('out')"],
        cwd=where,
        env=os.environ | ({} if stop_at is None else {golden_packs.STOP_AT: stop_at}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if stop_at is None else -9), done.stderr


def main(out: Path) -> None:
    """Writes everything into a new folder."""
    out.mkdir(parents=True)
    write_datasets(out)
    write_states(out / "states.json")
    write_killed_packs(out / "killed")
    golden_training.write(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
