"""The code base tests itself: layers, versions, the stub, types, lint, formats, sizes."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import fastload
from fastload import _core

ROOT = Path(__file__).parents[1]

# What each folder of csrc may include, besides itself.
CPP_LAYERS = {
    "base": set(),
    "order": {"base"},
    "storage": {"base"},
    "batch": {"base", "storage"},
    "device": {"base", "storage", "batch"},
    "engine": {"base", "order", "storage", "batch", "device"},
    "bindings": {"base", "order", "storage", "batch", "device", "engine"},
}

# What each part of the package may import from it, at any depth of the code. Reading order.
GROUND = {"_core", "errors", "structure", "indexing", "sample_keys"}
DATA = GROUND | {"formats", "pixels", "transforms", "dataset", "array_dataset", "tokens"}
DATA |= {"mixture", "native"}
ORDER = {"_core", "errors", "sample_keys", "ranks", "order", "torch_order", "weighted", "state"}
ORDER |= {"keyed", "streams"}
DEVICE = {"_core", "errors", "formats", "parts", "copies", "shipments", "cuda", "device"}
RUN = DATA | ORDER | DEVICE
RUN |= {"handover", "load_stats", "tables", "decode", "kernels", "batches", "arguments", "run"}
RUN |= {"sample_arrays", "batch_collate", "explain", "left_out"}
LOADER = RUN | {"iterator", "tracking", "trainers", "groups", "stateful", "loader"}
PYTHON_LAYERS = {
    "errors": set(),
    "structure": {"errors"},
    "indexing": set(),
    "sample_keys": set(),
    "formats": GROUND,
    "pixels": {"_core", "formats"},
    "transforms": GROUND | {"formats", "pixels"},
    "dataset": GROUND | {"formats"},
    "array_dataset": GROUND | {"formats", "dataset"},
    "tokens": GROUND | {"formats", "dataset"},
    "mixture": GROUND | {"formats", "dataset"},
    "native": DATA,
    "ranks": {"errors"},
    "order": {"_core", "errors", "sample_keys", "ranks"},
    "torch_order": {"errors"},
    "state": {"errors", "ranks", "order", "torch_order"},
    "weighted": {"_core", "order"},
    "keyed": {"_core", "sample_keys", "order", "state", "weighted"},
    "streams": ORDER | {"formats"},
    "parts": {"_core", "formats"},
    "copies": {"parts"},
    "shipments": {"_core", "formats", "parts"},
    "cuda": DEVICE,
    "device": DEVICE,
    "handover": ORDER | DEVICE | {"handover"},
    "load_stats": {"_core"},
    "tables": DATA,
    "tracking": ORDER | DEVICE | {"structure", "handover", "load_stats", "batch_collate"},
    "decode": {"_core", "errors", "formats", "pixels", "transforms"},
    "kernels": {"_core", "formats", "pixels", "parts"},
    "batches": DATA | {"decode", "parts", "kernels"},
    "left_out": {"formats", "decode", "transforms"},
    "arguments": DATA | ORDER | {"decode", "parts", "kernels", "batches"},
    "sample_arrays": DATA | {"decode"},
    "batch_collate": DATA | ORDER | DEVICE | {"batches", "arguments", "sample_arrays"},
    "explain": DATA | ORDER | {"arguments", "batch_collate"},
    "run": RUN,
    "iterator": RUN,
    "trainers": ORDER,
    "groups": DATA | ORDER,
    "stateful": RUN | {"trainers"},
    "loader": LOADER,
    "nvml": set(),
    "stall": set(),
    "strict_json": set(),
    "log_lines": {"strict_json", "errors", "host", "ranks", "structure", "nvml", "stall"},
    "step_log": {"errors", "groups", "log_lines", "stall"},
    "gradients": {"ranks", "groups"},
    "schedules": set(),
    "plain_state": set(),
    "train": {"errors", "groups", "gradients", "schedules", "plain_state", "checkpoint"}
    | {"log_lines", "stall", "step_log"},
    "checkpoint": {"errors", "ranks", "plain_state"},
    "processes": {"ranks"},
    "loops": LOADER | {"train", "processes"},
    "integrations": LOADER,
    "pack": GROUND | {"formats", "dataset"},
    "verify": GROUND | {"formats"},
    "measured": set(),
    "host": set(),
    "charts": set(),
    "bench": LOADER | {"charts", "host", "measured"},
    "demo": LOADER | {"bench", "pack"},
    "run_log": {"groups", "log_lines", "stall"},
    "runs": {"errors", "measured"},
    "run_charts": {"charts", "host", "runs"},
    "doctor": LOADER | {"bench", "charts", "host", "measured", "nvml"},
    "cli": LOADER
    | {"strict_json", "bench", "demo", "doctor", "pack", "charts", "runs", "run_charts", "verify"},
    "__main__": {"cli"},
}


def sources(*suffixes: str) -> Iterator[Path]:
    """The project's own files with one of the suffixes."""
    for folder in (".", ".ci", "benchmarks", "csrc", "docs", "examples", "fastload", "tests"):
        found = (ROOT / folder).glob("*") if folder in (".", ".ci") else (ROOT / folder).rglob("*")
        yield from sorted(path for path in found if path.is_file() and path.suffix in suffixes)


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', path.read_text(), flags=re.MULTILINE)


def package_imports(path: Path) -> set[str]:
    """First-level names inside `fastload` that a module imports, anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "fastload":
            names = [f"fastload.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("fastload.")}
        assert "fastload" not in names, f"{path}: import the module, not the package"
    return found


# --- Layers -----------------------------------------------------------------------------------


def test_cpp_folders_include_only_lower_layers() -> None:
    for path in [*(ROOT / "csrc").rglob("*.h"), *(ROOT / "csrc").rglob("*.cpp")]:
        folder = path.relative_to(ROOT / "csrc").parts[0]
        for name in includes(path):
            other = name.split("/")[0]
            if (ROOT / "csrc" / other).is_dir() and "/" in name:
                assert other in CPP_LAYERS[folder] | {folder}, f"{path} includes {name}"
            python = name.startswith(("pybind11/", "Python.h", "numpy/", "torch/"))
            assert not python or folder == "bindings", f"{path} includes {name}"


def test_each_cpp_source_includes_its_own_header_first() -> None:
    for path in (ROOT / "csrc").rglob("*.cpp"):
        if path.with_suffix(".h").exists():
            own = path.with_suffix(".h").relative_to(ROOT / "csrc").as_posix()
            assert includes(path)[0] == own, path


def test_cmake_lists_each_cpp_source() -> None:
    listed = set(re.findall(r"^\s*(csrc/\S+\.cpp)$", (ROOT / "CMakeLists.txt").read_text(), re.M))
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*.cpp")}
    assert listed == found


def test_python_modules_import_only_lower_layers() -> None:
    for path in (ROOT / "fastload").rglob("*.py"):
        parts = path.relative_to(ROOT / "fastload").with_suffix("").parts
        if parts == ("__init__",):
            continue
        room = parts[0]
        assert room in PYTHON_LAYERS, f"{path}: give `{room}` its place in PYTHON_LAYERS"
        above = package_imports(path) - PYTHON_LAYERS[room] - {room}
        assert not above, f"{path} imports {sorted(above)}"


@pytest.mark.parametrize(
    "module", ["fastload", "fastload.pack", "fastload.cli", "fastload.formats", "fastload.dataset"]
)
def test_import_leaves_heavy_packages_and_all_kinds_of_input_alone(
    module: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    run_python(
        f"import sys, {module}\n"
        "heavy = {'torch', 'PIL', 'rich', 'matplotlib', 'fastload.pack.sources.kinds'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )


def test_each_public_name_exists() -> None:
    for name in fastload.__all__:
        assert getattr(fastload, name).__doc__, name


# --- Version and stub -------------------------------------------------------------------------


def test_versions_agree() -> None:
    project = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    changes = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert project
    assert changes
    assert fastload.__version__ == project[1] == changes[1]
    assert importlib.metadata.version("fastload") == project[1]


def test_stub_is_fresh(tmp_path: Path) -> None:
    def normal(path: Path) -> str:  # Python 3.12 brought `Buffer` into collections.abc
        text = path.read_text().replace("import typing_extensions\n", "")
        return text.replace("typing_extensions.Buffer", "collections.abc.Buffer")

    run(sys.executable, "-m", "pybind11_stubgen", "fastload._core", "-o", ".", cwd=tmp_path)
    fresh, committed = tmp_path / "fastload/_core.pyi", ROOT / "fastload/_core.pyi"
    assert normal(fresh) == normal(committed), "CONTRIBUTING.md says how to renew it"


# --- Tools ------------------------------------------------------------------------------------


def test_ruff_check() -> None:
    run(sys.executable, "-m", "ruff", "check", ".")


def test_ruff_format() -> None:
    run(sys.executable, "-m", "ruff", "format", "--check", ".")


def test_mypy() -> None:
    run(sys.executable, "-m", "mypy", "--cache-dir", "/dev/null")  # an old cache can lie


def test_clang_format() -> None:
    beside_python = Path(sys.executable).parent / "clang-format"
    program = beside_python if beside_python.exists() else shutil.which("clang-format")
    assert program, "clang-format is part of the extra `test`"
    run(program, "--dry-run", "-Werror", *sources(".h", ".cpp"))


# --- House rules ------------------------------------------------------------------------------


def test_thread_guard_sees_the_threads_of_the_engine(live_threads: Callable[[], set[str]]) -> None:
    rows = np.zeros((8, 1), np.uint8)
    builder = _core.TableBuilder()
    builder.add_group(np.array([8]))
    source = builder.add_memory(rows, rows.ctypes.data, rows.nbytes)
    builder.add_column(0, "x", 1, 1, np.array([source]), np.array([0]))
    order = _core.ArrayOrder(np.arange(8), 2, False)
    fields = [(rows.dtype, rows.shape[1:])]
    before = live_threads()
    engine = _core.Engine(builder.build(), _core.SlotPool(), fields, order, 2, 2)
    assert len(live_threads() - before) == 2
    engine.stop()
    assert live_threads() == before


def test_files_are_short() -> None:
    for path in sources(".py", ".h", ".cpp"):
        count = len(path.read_text().splitlines())
        assert count <= 420, f"{path} has {count} lines: cut it where its jobs part"


def test_nothing_is_left_to_do() -> None:
    for path in sources(".py", ".h", ".cpp", ".md", ".txt", ".toml"):
        left = re.search(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", path.read_text())
        assert not left, f"{path}: {left}"


def test_the_source_folder_says_that_it_is_not_the_package(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "fastload", tmp_path / "fastload", ignore=shutil.ignore_patterns("*.so"))
    command = [sys.executable, "-S", "-c", "import fastload"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "the source of fastload, not the installed package" in done.stderr.splitlines()[-1]
