"""Builds the C++ tests with warnings as errors and runs each program as one case."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cpp_build import built, find_tool
from paths import ROOT

pytestmark = pytest.mark.slow

PROGRAMS = sorted(path.stem for path in (ROOT / "tests/cpp").glob("*_test.cpp"))
assert PROGRAMS, "tests/cpp is empty"


@pytest.fixture(scope="session")
def build_folder() -> Path:
    """The folder of preset `dev`, up to date."""
    return built("all")


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
    compiler = find_tool(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("a C++ compiler is needed")
    flags = ["-std=c++17", "-nostdinc++", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    command = [compiler, *flags, "-Icsrc", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, cwd=ROOT, input=BODY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
