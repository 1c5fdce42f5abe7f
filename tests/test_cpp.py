"""Builds the C++ tests with warnings as errors and runs each program as one case."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(path.stem for path in (ROOT / "tests/cpp").glob("*_test.cpp"))
assert PROGRAMS, "tests/cpp is empty"


def _tool(name: str) -> str | None:
    beside_python = Path(sys.executable).parent / name
    return str(beside_python) if beside_python.exists() else shutil.which(name)


def _call(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def build_folder() -> Path:
    """The folder of preset `dev`, up to date."""
    cmake, ninja = _tool("cmake"), _tool("ninja")
    if cmake is None or ninja is None or _tool(os.environ.get("CXX", "c++")) is None:
        pytest.skip("the C++ tests need a C++ compiler, cmake and ninja")
    build = ROOT / "build" / "dev"
    build.mkdir(parents=True, exist_ok=True)
    with open(build.with_suffix(".lock"), "w") as lock:  # ninja is not made for two at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The cache remembers ninja's path, which goes away with a virtual environment.
        _call(cmake, "--preset", "dev", f"-DCMAKE_MAKE_PROGRAM={ninja}")
        _call(cmake, "--build", str(build))
    return build


@pytest.mark.parametrize("program", PROGRAMS)
def test_cpp(program: str, build_folder: Path) -> None:
    done = subprocess.run(
        [build_folder / program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
