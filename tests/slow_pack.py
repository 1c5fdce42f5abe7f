"""A pack that is slow enough to be broken off at any moment."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOW = """
import time, numpy as np
class Slow:
    def __len__(self): return 60
    def __getitem__(self, i):
        time.sleep(0.01)
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
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


def wait_for(condition: Callable[[], Any]) -> None:
    """Waits until something is true."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
