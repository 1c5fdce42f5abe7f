"""A pack that is slow enough to be broken off at any moment, and waits in its midst if told to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import PATIENCE_S

SLOW = """
import os, time, numpy as np
class Slow:
    def __len__(self): return 60
    def __getitem__(self, i):
        time.sleep(0.005)
        while i >= 40 and all(map(os.path.exists, ("wait", "out/.fastload/plan.json"))):
            time.sleep(0.005)
        return np.full(100, i)
"""
COMMAND = [sys.executable, "-m", "fastload"]
ARGUMENTS = ["slow:Slow", "out", "--shard-size", "4096"]
SHARDS = 15


def start(where: Path, workers: int, *options: str, task: str = "pack") -> subprocess.Popen[str]:
    """Starts the pack, or an append, in a folder."""
    if not (where / "slow.py").exists():
        (where / "slow.py").write_text(SLOW)
    command = [*COMMAND, task, *ARGUMENTS, "--workers", str(workers), *options]
    return subprocess.Popen(command, cwd=where, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Waits for the end; gives exit code and stderr."""
    _, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stderr


@contextmanager
def unfinished(where: Path) -> Iterator[None]:
    """What is packed in a folder waits for the end of this block before its shard 10."""
    (where / "wait").touch()
    try:
        yield
    finally:
        (where / "wait").unlink()
