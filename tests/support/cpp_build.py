"""Builds what tests/cpp says, with warnings as errors."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT


def find_tool(name: str) -> str | None:
    """A program of this environment, or else of the machine."""
    beside_python = Path(sys.executable).parent / name
    return str(beside_python) if beside_python.exists() else shutil.which(name)


@functools.cache
def built(target: str) -> Path:
    """The folder of preset `dev`, in which the target is up to date; skips without the tools."""
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    if cmake is None or ninja is None or find_tool(os.environ.get("CXX", "c++")) is None:
        pytest.skip("the C++ tests need a C++ compiler, cmake and ninja")
    build = ROOT / "build" / "dev"
    build.mkdir(parents=True, exist_ok=True)
    with open(build.with_suffix(".lock"), "w") as lock:  # ninja is not made for two at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The cache remembers ninja's path, which goes away with a virtual environment.
        _call(cmake, "--preset", "dev", f"-DCMAKE_MAKE_PROGRAM={ninja}")
        _call(cmake, "--build", str(build), "--target", target)
    return build


def _call(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
