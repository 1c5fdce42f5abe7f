"""Seeds faults in copies of the product, and demands that the tests of that room fail.

    python tests/support/seeded_faults.py [--list] [NAME ...]

Each fault replaces one text in one file. A text that is not there exactly once is an error, so that
a fault cannot stay behind when the code moves on. The tests must pass over an unchanged copy first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faults import FAULTS
from paths import ROOT


class PythonTests:
    """The tests of Python files, which import a copy of the package.

    Args:
        folder: For the copy.
    """

    def __init__(self, folder: Path) -> None:
        from fastload import _core

        self.source = folder / "python"
        without = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "fastload", self.source / "fastload", ignore=without)
        shutil.copy(_core.__file__, self.source / "fastload")
        self._out = folder / "out"

    def passes(self, tests: str) -> bool:
        """Runs them. Tests that could not be collected are an error, not a failure."""
        path = os.pathsep.join([str(self.source), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += [f"--basetemp={self._out}", str(ROOT / "tests" / tests)]
        environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        done = _run(command, environment)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"the tests did not run\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
        return done.returncode == 0


class CppTests:
    """The programs of tests/cpp, built from a copy of the sources in build/faults.

    The build is kept, so that a fault compiles what depends on its file.
    """

    def __init__(self) -> None:
        self.source = ROOT / "build" / "faults" / "source"
        for name in ("csrc", "tests/cpp", "CMakeLists.txt", "CMakePresets.json"):
            for path in [ROOT / name, *(ROOT / name).rglob("*")]:
                target = self.source / path.relative_to(ROOT)
                if path.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                elif not target.exists() or target.read_bytes() != path.read_bytes():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(path.read_bytes())

    def passes(self, tests: str) -> bool:
        """Builds a program and runs it. A fault that does not compile is an error."""
        build = self.source / "build" / "dev"
        for command in (["--preset", "dev"], ["--build", str(build), "--target", tests]):
            done = _run(["cmake", *command], dict(os.environ), self.source)
            if done.returncode != 0:
                raise RuntimeError(f"the build failed\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
        return _run([str(build / tests)], dict(os.environ)).returncode == 0


def _run(
    command: list[str], environment: dict[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder or tempfile.gettempdir(),
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    except subprocess.TimeoutExpired:  # a test that hangs has found the fault, too
        return subprocess.CompletedProcess(command, 1, "", "")


def main() -> int:
    """Runs the faults that are named, or all; 1 if one of them is not found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="words of names (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names only")
    arguments = parser.parse_args()
    chosen = [
        fault
        for fault in FAULTS
        if not arguments.names or any(word in fault.name for word in arguments.names)
    ]
    for fault in chosen:
        fault.check()
    if arguments.list:
        print(*(f"{fault.file}: {fault.name}" for fault in chosen), sep="\n")
        return 0
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        runners: dict[bool, PythonTests | CppTests] = {}
        clean: dict[str, bool] = {}
        for fault in chosen:
            is_python = fault.file.endswith(".py")
            if is_python not in runners:
                runners[is_python] = PythonTests(Path(folder)) if is_python else CppTests()
            runner, started = runners[is_python], time.monotonic()
            if fault.tests not in clean:
                clean[fault.tests] = runner.passes(fault.tests)
            if not clean[fault.tests]:
                raise RuntimeError(f"{fault.tests} fails without a fault")
            path = runner.source / fault.file
            whole = path.read_text()
            path.write_text(whole.replace(fault.old, fault.new))
            try:
                found = not runner.passes(fault.tests)
            finally:
                path.write_text(whole)
            seconds = time.monotonic() - started
            print(f"{'found ' if found else 'MISSED'} {seconds:4.0f} s  {fault.name}", flush=True)
            missed += [] if found else [fault.name]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
