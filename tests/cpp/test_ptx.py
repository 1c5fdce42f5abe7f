"""The text of the kernels for GPUs: it is fresh, says what it means, and assemblers take it."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
import struct
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from ptx_machine import MEMORY, Kernel

from fastload import _core

DEVICE = ROOT / "csrc/device"
TEXT = (DEVICE / "pixels.ptx").read_text()
# Those of V100, T4, A100, H100 and B200.
GPUS = ("sm_70", "sm_75", "sm_80", "sm_90", "sm_100")


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_ptx", DEVICE / "make_ptx.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _installed(name: str) -> Iterator[str]:
    """A tool of CUDA: the one on PATH, and those of packages that torch brings."""
    packages = Path(sysconfig.get_path("purelib"))
    for folder in ("nvidia/*/bin", "triton/backends/nvidia/bin"):
        yield from map(str, packages.glob(f"{folder}/{name}"))
    on_path = shutil.which(name)
    if on_path:
        yield on_path


def test_it_is_made_of_the_sources(maker: ModuleType) -> None:
    assert f"// Sources: {maker.digest()}\n" in TEXT, "run csrc/device/make_ptx.py"


def test_compiling_again_gives_the_same(maker: ModuleType) -> None:
    compilers = list(_installed("nvcc"))
    if not compilers:
        pytest.skip("there is no nvcc")
    made_by = re.search(r"and nvcc ([\d.]+)\.\n", TEXT)
    assert made_by
    same = [nvcc for nvcc in compilers if maker.release(nvcc) == made_by[1]]
    if not same:
        pytest.skip(f"there is no nvcc of release {made_by[1]}")
    assert maker.make(same[0]) == TEXT


def test_every_operation_on_floats_rounds_by_itself() -> None:
    used = set(re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.]*)\s", TEXT, re.MULTILINE))
    floats = {name for name in used if re.search(r"\.(b?f16|f32|f64)", name)}
    assert {"mul.rn.f32", "sub.rn.f32", "div.rn.f32"} <= floats
    moves = ("ld.", "st.", "mov.", "selp.", "setp.", "cvt.rn.f32.")
    others = {name for name in floats if not name.startswith(moves)}
    assert others == {"mul.rn.f32", "sub.rn.f32", "div.rn.f32"}
    assert not [name for name in floats if ".f16" in name or ".bf16" in name or ".ftz" in name]


@pytest.mark.parametrize("gpu", GPUS)
def test_assemblers_take_it(gpu: str, tmp_path: Path) -> None:
    unknown, taken = [], 0
    for ptxas in _installed("ptxas"):
        command = [ptxas, f"-arch={gpu}", str(DEVICE / "pixels.ptx"), "-o", str(tmp_path / "cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "is not defined for option 'gpu-name'" in done.stderr:
            unknown.append(f"{ptxas} does not know {gpu}")
            continue
        assert done.returncode == 0, f"{ptxas}: {done.stderr}"
        taken += 1
    if not taken:
        pytest.skip("; ".join(unknown) or "there is no ptxas")


def arguments(
    plan: _core.PixelPlan,
    shape: tuple[int, int, int],
    places: tuple[int, int, int],
    images: int,
    planar: bool = False,
    conversion: Any = None,
) -> bytes:
    """`PixelArguments`, as a C++ compiler lays them out. `places`: of images, windows, results."""
    _, _, normalise, scale, means, stds = conversion or ("", "", False, 0.0, [0.0], [1.0])
    padded = [list(constants) + [0.0] * (64 - len(constants)) for constants in (means, stds)]
    out = plan.out_size(*shape[:2])
    numbers = (*places, *shape, *out, planar, images, len(means), normalise, scale)
    return struct.pack("QQQ5i?3xII?3xf64f64f", *numbers, *padded[0], *padded[1])


@pytest.mark.parametrize("name", re.findall(r"\.visible \.entry (\w+)\(", TEXT))
@pytest.mark.parametrize("planar", [False, True])
def test_the_text_computes_what_the_cpu_computes(name: str, planar: bool) -> None:
    """Two images, cut, perhaps mirrored, and beside zeros; if planar, normalised."""
    numbers = {"boolean": "bool", "u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16"}
    numbers |= {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
    _, stored, what, delivered = name.split("_")
    conversion = None
    if what == "to":
        conversion = (numbers[stored], numbers[delivered], planar, 0.3, [0.1, 0, 9], [2.0, 0.7, 3])
        item = {"boolean": 1, "f16": 2, "bf16": 2}.get(stored) or int(stored[1:]) // 8
    else:
        item = int(what)
    plan = _core.PixelPlan(
        item_bytes=item,
        channels=3,
        planar=planar,
        conversion=conversion,
        crop=((4, 6), (2, 2, 2, 2), 0),
        flip=(0.5, False, 1),
    )
    rng = np.random.default_rng(int(planar))
    images = rng.integers(0, 256, (2, 5, 7, 3 * item), np.uint8).view(f"u{item}")
    memory = bytearray(8192)
    memory[: images.nbytes] = images.tobytes()
    drawn = [plan.window(5, 7, 1, 2, index) for index in (4, 7)]
    assert [flip for _, _, flip in drawn] == [False, True]
    memory[2048:2072] = b"".join(struct.pack("ii?3x", *window) for window in drawn)
    places = (MEMORY, MEMORY + 2048, MEMORY + 4096)
    given = arguments(plan, (5, 7, 3), places, 2, planar, conversion)
    kernel = Kernel(TEXT, name)
    for thread in (*range(25), 127):
        special = {"%tid.x": thread, "%ctaid.x": 0, "%ctaid.y": 0, "%nctaid.y": 1}
        with np.errstate(all="ignore"):
            kernel.run(given, memory, special)
    size = item if conversion is None else 4 if delivered == "f32" else 2
    out = np.zeros((2, 4 * 6 * 3), f"u{size}")
    for image, row, index in zip(images, out, (4, 7), strict=True):
        plan.deliver(image, row, 1, 2, index)
    assert memory[4096 : 4096 + out.nbytes] == out.tobytes()
    assert not any(memory[4096 + out.nbytes :])


def test_blocks_take_their_part_of_the_pixels_and_of_the_images() -> None:
    conversion = ("uint8", "bfloat16", False, 1.0, [0.0], [1.0])
    plan = _core.PixelPlan(item_bytes=1, conversion=conversion)
    pixels = np.arange(3 * 600).astype(np.uint8)
    memory = bytearray(pixels.tobytes() + bytes(2 * pixels.size + 248))
    given = arguments(plan, (1, 600, 1), (MEMORY, 0, MEMORY + 2048), 3, False, conversion)
    kernel = Kernel(TEXT, "pixels_u8_to_bf16")
    for block, row, thread in itertools.product(range(2), range(2), range(128)):
        special = {"%tid.x": thread, "%ctaid.x": block, "%ctaid.y": row, "%nctaid.y": 2}
        kernel.run(given, memory, special)
    got = np.frombuffer(memory, np.uint16, pixels.size, 2048).astype(np.uint32) << 16
    np.testing.assert_array_equal(got.view(np.float32), pixels)
