"""Builds the C++ tests with warnings as errors, once for all test processes and runs."""

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
    """The folder of preset `dev`, in which the target is up to date; skips without the tools.

    The folder is kept between runs: ninja compiles what has changed, headers of the system
    included. It does not see that the compiler itself has changed; then the folder is built again.
    """
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    compiler = find_tool(os.environ.get("CXX", "c++"))
    if cmake is None or ninja is None or compiler is None:
        pytest.skip("the C++ tests need a C++ compiler, cmake and ninja")
    build = ROOT / "build" / "dev"
    build.parent.mkdir(exist_ok=True)
    # The cache remembers ninja's path, which goes away with a virtual environment.
    options = [f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    # A compiler cache such as ccache takes no objects made with precompiled headers.
    cached = "CMAKE_CXX_COMPILER_LAUNCHER" in os.environ
    options.append(f"-DCMAKE_DISABLE_PRECOMPILE_HEADERS={'ON' if cached else 'OFF'}")
    with open(build.with_suffix(".lock"), "w") as lock:  # ninja is not made for two at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_by = f"{compiler}\n{_call(compiler, '--version')}{os.environ.get('CXXFLAGS', '')}"
        stamp = build / "compiler.txt"
        if build.exists() and not (stamp.exists() and stamp.read_text() == made_by):
            shutil.rmtree(build)
        build.mkdir(exist_ok=True)
        stamp.write_text(made_by)
        _call(cmake, "--preset", "dev", *options)
        _call(cmake, "--build", str(build), "--target", target)
    return build


def _call(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
