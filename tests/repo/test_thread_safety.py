"""Clang's thread-safety analysis finds no guarded member of csrc accessed without its mutex."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11
import pytest
from paths import ROOT

CSRC = ROOT / "csrc"
FLAGS = [
    "-std=c++20",
    f"-I{CSRC}",
    *("-isystem", pybind11.get_include()),
    *("-isystem", sysconfig.get_paths()["include"]),
    *("-Wno-everything", "-Wthread-safety", "-Wthread-safety-beta"),  # beta: the order of locks
]
CHECKS = ["--allow-no-checks", "--checks=-*,clang-diagnostic-*", "--warnings-as-errors=*"]


def has_mutex(path: Path) -> bool:
    """Return True if a source, or a header that it includes, declares a mutex."""
    text = path.read_text()
    names = re.findall(r'^#include "(.*/.*)"$', text, flags=re.MULTILINE)
    headers = [(CSRC / name).read_text() for name in names if name != "base/mutex.h"]
    return any(re.search(r"\bMutex\b", one) for one in [text, *headers])


@functools.cache
def surroundings() -> tuple[Path | str, str]:
    """Return the program, and a digest of it, of its arguments and of all headers of csrc."""
    next_to_python = Path(sys.executable).parent / "clang-tidy"
    program = next_to_python if next_to_python.exists() else shutil.which("clang-tidy")
    assert program, "clang-tidy is part of the extra `test`"
    version = subprocess.run([program, "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(b"\n".join([version, *(word.encode() for word in [*CHECKS, *FLAGS])]))
    for header in sorted(CSRC.rglob("*.h")):
        digest.update(f"{header}\n{header.read_text()}".encode())
    return program, digest.hexdigest()


def analysed(path: Path) -> str:
    """What the analysis reports for a source and its headers; empty if nothing.

    The report on the same content by the same program is read from build/thread_safety.
    """
    program, around = surroundings()
    name = hashlib.sha256(f"{around}{path.name}{path.read_text()}".encode()).hexdigest()
    known = ROOT / "build" / "thread_safety" / name
    if known.exists():
        return known.read_text()
    command = [program, "--quiet", *CHECKS, path, "--", *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not done.stdout.strip()), done.stdout + done.stderr
    known.parent.mkdir(parents=True, exist_ok=True)
    part = known.with_name(f"{name}.{os.getpid()}")
    part.write_text(done.stdout)
    part.rename(known)
    return done.stdout


def test_guarded_members_are_accessed_with_their_mutex_held() -> None:
    paths = [path for path in sorted(CSRC.rglob("*.cpp")) if has_mutex(path)]
    assert CSRC / "engine/worker.cpp" in paths
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = list(pool.map(analysed, paths))
    assert not any(reports), "\n".join(filter(None, reports))


@pytest.mark.parametrize(
    ("source", "right", "wrong", "report"),
    [
        pytest.param(
            "engine/engine.cpp",
            "  MutexLock lock(mutex_);\n  if (spare_",
            "  if (spare_",
            r"'spare_' requires holding mutex 'mutex_'",
            id="a_member_is_read_without_a_lock",
        ),
        pytest.param(
            "storage/file_cache.cpp",
            "  MutexLock lock(mutex_);\n  files_.push_back",
            "  files_.push_back",
            r"'files_' requires holding mutex 'mutex_'",
            id="a_file_is_added_without_a_lock",
        ),
        pytest.param(
            "device/cuda_device.cpp",
            "  MutexLock lock(mutex_);\n  throw CudaError(poison_, poison_code_)",
            "  throw CudaError(poison_, poison_code_)",
            r"'poison_code_' requires holding mutex 'mutex_'",
            id="the_sticky_error_is_read_without_a_lock",
        ),
        pytest.param(
            "device/transfer.cpp",
            "    MutexLock lock(side_->mutex());\n",
            "",
            r"'enqueue' requires holding mutex 'side_->mutex_'",
            id="copies_of_two_transfers_may_mix",
        ),
        pytest.param(
            "engine/worker.cpp",
            "    mutex_.unlock();\n    work_on(scratch, claimed);\n    mutex_.lock();\n",
            "    work_on(scratch, claimed);\n",
            r"cannot call function 'work_on' while mutex 'mutex_' is held",
            id="a_worker_locks_twice",
        ),
        pytest.param(
            "engine/worker.cpp",
            "    mutex_.lock();\n  }\n  mutex_.unlock();\n",
            "    mutex_.lock();\n  }\n",
            r"mutex 'mutex_' is still held at the end of function",
            id="a_worker_ends_with_the_lock",
        ),
        pytest.param(
            "engine/worker.cpp",
            "  MutexLock lock(join_mutex_);\n  for",
            "  MutexLock early(mutex_);\n  MutexLock lock(join_mutex_);\n  for",
            r"mutex 'join_mutex_' must be acquired before 'mutex_'",
            id="two_locks_are_taken_in_the_wrong_order",
        ),
    ],
)
def test_a_seeded_violation_is_reported(
    source: str, right: str, wrong: str, report: str, tmp_path: Path
) -> None:
    text = (CSRC / source).read_text()
    assert text.count(right) == 1, f"{source} must have once: {right}"
    seeded = tmp_path / Path(source).name
    seeded.write_text(text.replace(right, wrong))
    assert re.search(report, analysed(seeded))


def test_each_mutex_can_be_analysed_and_is_named_by_an_annotation() -> None:
    for path in [*CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")]:
        text = path.read_text()
        if path != CSRC / "base/mutex.h":
            assert not re.search(r"std::(\w*mutex|\w*_lock|lock_guard)\b", text), path
            for name in re.findall(r"^ *(?:mutable )?Mutex (\w+)[; ]", text, flags=re.MULTILINE):
                assert re.search(rf"FL_\w+\(.*\b{name}\)", text), f"{path}: what does {name} guard?"
