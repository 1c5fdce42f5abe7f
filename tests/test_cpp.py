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


BODY = """
#include "batch/pixel_body.h"
using fastload::Number;
uint16_t half(uint8_t x) {
  return fastload::delivered_number<Number::u8, Number::f16, true>(x, 1, 0, 1);
}
uint16_t brain(uint16_t x) {
  return fastload::delivered_number<Number::f16, Number::bf16, false>(x, 1, 0, 1);
}
uint32_t whole(uint16_t x) {
  return fastload::delivered_number<Number::i16, Number::f32, true>(x, 1, 0, 1);
}
int32_t place(const fastload::ImageShape& shape, uint32_t at, uint32_t& channel) {
  return fastload::stored_place(shape, {0, 0, true}, at, channel);
}
"""


def test_the_body_of_the_kernels_is_what_compilers_for_gpus_take() -> None:
    compiler = _tool(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("a C++ compiler is needed")
    flags = ["-std=c++17", "-nostdinc++", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    command = [compiler, *flags, "-Icsrc", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, cwd=ROOT, input=BODY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
