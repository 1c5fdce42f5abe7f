"""The code base tests itself: layers, versions, the stub, types, lint, formats, sizes."""

from __future__ import annotations

import ast
import graphlib
import hashlib
import importlib.metadata
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

import fastload
from fastload import _core

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

# What each room of the package may import, besides itself and `_core`, anywhere in its code.
PYTHON_LAYERS = {
    "errors": set(),
    "formats": {"errors"},
    "order": {"errors", "formats"},
    "datasets": {"errors", "formats", "order"},
    "batch": {"errors", "formats", "order"},
    "device": {"errors", "formats", "batch"},
    "loader": {"errors", "formats", "order", "datasets", "batch", "device"},
    "training": {"errors", "formats", "order", "loader"},
    "integrations": {"order", "batch", "loader"},
    "packing": {"errors", "formats", "datasets"},
    "tools": {"errors", "formats", "order", "datasets", "batch", "loader", "training", "packing"},
    "cli": {"formats", "datasets", "packing", "tools"},
}


def modules() -> dict[str, Path]:
    """The modules of the package by name, without the package itself."""
    found = {}
    for path in sorted((ROOT / "fastload").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    del found["fastload"]
    return found


MODULES = modules()


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
    """The modules of `fastload` that a module imports, anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            assert "fastload" not in names, f"{path}: import the module, not the package"
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module or "" for name in inner]
        else:
            continue
        found |= {name for name in names if name in MODULES}
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


def test_rooms_import_only_lower_rooms() -> None:
    for name, path in MODULES.items():
        room = name.split(".")[1]
        if room != "__main__":
            assert room in PYTHON_LAYERS, f"{path}: give `{room}` its place in PYTHON_LAYERS"
            above = {other.split(".")[1] for other in package_imports(path)} - {room}
            above -= PYTHON_LAYERS[room]
            assert not above, f"{path} imports {sorted(above)}"


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: package_imports(path) - {name} for name, path in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError with the circle


def test_rooms_hold_the_modules() -> None:
    assert len(list((ROOT / "fastload").glob("*.py"))) <= 6
    for folder in (ROOT / "fastload").rglob("*"):
        if folder.is_dir() and any(folder.glob("*.py")):
            assert (folder / "__init__.py").exists(), f"{folder} is no package"


@pytest.mark.parametrize(
    "module",
    [
        "fastload.datasets.file_datasets",
        "fastload",
        "fastload.packing",
        "fastload.cli",
        "fastload.formats",
    ],
)
def test_import_leaves_heavy_packages_and_all_kinds_of_input_alone(
    module: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    run_python(
        f"import sys, {module}\n"
        "heavy = {'torch', 'PIL', 'rich', 'matplotlib', 'fastload.packing.kinds.registry'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )


def test_each_public_name_has_a_docstring() -> None:
    for name in dir(fastload):
        assert getattr(fastload, name).__doc__, name


def test_public_classes_are_named_by_the_package() -> None:
    for name in dir(fastload):
        value = getattr(fastload, name)
        if isinstance(value, type):
            assert f"{value.__module__}.{value.__qualname__}" == f"fastload.{name}"
            assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.parametrize("first", ["fastload.packing", "fastload.packing.convert", "fastload.pack"])
def test_pack_is_the_function_after_any_import_order(
    first: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    begin = f"import {first}" if first != "fastload.pack" else "from fastload import pack"
    run_python(
        f"{begin}\nimport fastload, fastload.packing\n"
        "assert fastload.pack is fastload.packing.pack, fastload.pack\n"
        "assert callable(fastload.pack)"
    )


def test_a_star_import_gives_all_public_names_but_open() -> None:
    names: dict[str, object] = {}
    exec("from fastload import *", names)
    assert names.keys() - {"__builtins__"} == set(dir(fastload)) - {"open"} == set(fastload.__all__)


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
    """With a cache of this configuration and these versions of Python and all packages.

    mypy checks a module again if the module or one that it imports has changed. It does not notice
    every change of its surroundings: a cache that outlives an upgrade can lie. CI starts without
    one.
    """
    installed = {f"{each.name} {each.version}" for each in importlib.metadata.distributions()}
    about = [sys.version, (ROOT / "pyproject.toml").read_text(), *sorted(installed)]
    key = hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
    run(sys.executable, "-m", "mypy", "--cache-dir", ROOT / "build" / "mypy" / key)


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


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Qualified names of functions, and their lines from the first statement to the last."""

    def below(node: ast.AST, name: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from below(child, name)
                continue
            inner = f"{name}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                is_documented = ast.get_docstring(child) is not None
                first = child.body[min(int(is_documented), len(child.body) - 1)]
                yield inner, (child.end_lineno or 0) - first.lineno + 1
            yield from below(child, inner)

    return below(ast.parse(path.read_text()), "")


def cpp_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Names of functions, and their lines between the braces, as clang-format lays them out."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if not line.endswith("{"):
            continue
        first = number
        while first and not re.search(r"[;{}:]$|^$|^\s*(#|//|template)", lines[first - 1]):
            first -= 1
        head = " ".join(lines[first : number + 1]).strip()
        named = re.match(r"[^=]*?([~\w]+)\(", head)
        # Lambdas belong to the function they stand in.
        inner = r"(\} )?(if|else|for|while|switch|do|try|catch)\b|.*\[[^\]]*\]( ?\{|\()"
        if named and not re.match(inner, head):
            indent = len(lines[first]) - len(lines[first].lstrip())
            close = re.compile(rf" {{0,{indent}}}\}}")
            yield named[1], next(n for n, end in enumerate(lines[number:]) if close.match(end)) - 1


def test_functions_are_short() -> None:
    """The programs of tests/cpp are left out: their `main` is a list of cases."""
    long = set()
    for path in sources(".py", ".h", ".cpp"):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("tests/cpp/"):
            continue
        found = python_functions(path) if path.suffix == ".py" else cpp_functions(path)
        long |= {f"{name}: {function}" for function, lines in found if lines > 70}
    assert not long, "more than 70 lines: cut them where their jobs part"


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
