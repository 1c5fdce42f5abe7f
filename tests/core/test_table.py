"""Tables through the bindings: lifetimes, errors as Python classes, SIGBUS, few descriptors."""

from __future__ import annotations

import errno
import gc
import math
import os
import resource
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from core_tables import Owner, file_table, int64, memory_table
from paths import SUPPORT
from waiting import assert_takes_less

import fastload
from fastload import _core

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def gathered(table: _core.Table, indices: np.ndarray, row_bytes: int) -> np.ndarray:
    out = np.full((len(indices), row_bytes), 0xEE, np.uint8)
    table.gather(indices, [out])
    return out


@pytest.fixture
def rows_file(tmp_path: Path) -> tuple[Path, np.ndarray]:
    data = np.random.default_rng(0).integers(0, 256, (64, 4096), np.uint8)
    path = tmp_path / "rows ü.bin"
    data.tofile(path)
    return path, data


def test_gather_equals_fancy_indexing_for_every_kernel() -> None:
    random = np.random.default_rng(1)
    indices = random.integers(0, 50, 200)
    arrays = [random.integers(0, 256, (50, n), np.uint8) for n in (1, 8, 600, 3072, 20_000)]
    table = memory_table(*arrays)
    assert (table.rows, table.column_count) == (50, 5)
    assert _core.copy_kernels()[-1] == "portable"
    try:
        for kernel in [*_core.copy_kernels(), "auto"]:
            _core.set_copy_kernel(kernel)
            out = [np.zeros((200, a.shape[1]), np.uint8) for a in arrays]
            table.gather(indices, out)
            for got, array in zip(out, arrays):
                np.testing.assert_array_equal(got, array[indices])
    finally:
        _core.set_copy_kernel("auto")
    with pytest.raises(ValueError, match="mmx"):
        _core.set_copy_kernel("mmx")


def test_booleans_are_normalised() -> None:
    data = np.array([0, 1, 2, 255], np.uint8).view(bool)
    out = np.zeros(4, bool)
    memory_table(data).gather(int64(0, 1, 2, 3), [out])
    assert out.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_index_map_reorders_and_repeats() -> None:
    data = np.arange(10, dtype=np.int64)
    table = memory_table(data, index_map=int64(9, 9, 0))
    out = np.zeros(2, np.int64)
    table.gather(int64(2, 0), [out])
    assert (table.rows, out.tolist()) == (3, [0, 9])


def test_an_index_map_overwritten_in_use_cannot_read_elsewhere() -> None:
    index_map = int64(0, 1, 2)
    table = memory_table(np.arange(10, dtype=np.int64), index_map=index_map)
    index_map[1] = 2**40
    with pytest.raises(IndexError, match="index map was changed"):
        table.gather(int64(1), [np.zeros(1, np.int64)])


def test_memory_and_index_map_live_as_long_as_the_table() -> None:
    owners = [Owner(np.arange(5, dtype=np.int64)), Owner(int64(4, 3))]
    held = [weakref.ref(owner) for owner in owners]
    table = memory_table(np.asarray(owners[0]), index_map=np.asarray(owners[1]))
    del owners
    gc.collect()
    out = np.zeros(2, np.int64)
    table.gather(int64(0, 1), [out])
    assert out.tolist() == [4, 3]
    assert all(owner() is not None for owner in held)
    del table
    gc.collect()
    assert all(owner() is None for owner in held)


def test_indices_outside_are_named() -> None:
    table = memory_table(np.zeros(4, np.int64))
    for wrong in (4, -1, 2**62, -(2**63)):
        with pytest.raises(IndexError, match=f"index {wrong} .* 4 samples"):
            table.gather(int64(0, wrong), [np.zeros(2, np.int64)])


@pytest.mark.parametrize(
    "out",
    [
        [],
        [np.zeros(2, np.int64), np.zeros(2, np.int64)],
        [np.zeros(1, np.int64)],
        [np.zeros(3, np.int64)],
        [np.zeros(4, np.int64)[::2]],
        [np.frombuffer(bytes(16), np.int64)],
    ],
)
def test_gather_refuses_wrong_destinations(out: list[np.ndarray]) -> None:
    with pytest.raises(ValueError):
        memory_table(np.zeros(4, np.int64)).gather(int64(0, 1), out)


def test_builder_checks_everything(tmp_path: Path) -> None:
    builder = _core.TableBuilder()
    group = builder.add_group(int64(3))
    source = builder.add_file(str(tmp_path / "later"), 24)
    for wrong_group in (-1, 1):
        with pytest.raises(IndexError):
            builder.add_column(wrong_group, "x", 8, 8, int64(source), int64(0))
    for wrong_source in (-1, 1, 2**40):
        with pytest.raises(IndexError):
            builder.add_column(group, "x", 8, 8, int64(wrong_source), int64(0))
    with pytest.raises(ValueError, match="null byte"):
        builder.add_file("a\0b", 1)
    with pytest.raises(ValueError, match="negative"):
        builder.add_file("a", -1)
    with pytest.raises(ValueError):
        builder.add_group(int64(-1))
    with pytest.raises(ValueError, match="index map"):
        builder.add_group(int64(3), int64(3))
    with pytest.raises(ValueError, match="'auto', 'mmap' or 'pread'"):
        _core.TableBuilder("aio")
    builder.add_column(group, "x", 8, 8, int64(source), int64(0))
    assert builder.build().rows == 3
    with pytest.raises(ValueError, match="built"):
        builder.add_group(int64(3))


def test_extents_that_leave_their_file_are_a_format_error() -> None:
    builder = _core.TableBuilder()
    source = builder.add_file("/data/x.bin", 23)
    builder.add_column(builder.add_group(int64(3)), "label", 8, 8, int64(source), int64(0))
    with pytest.raises(fastload.FormatError, match=r"'label'.*24.*/data/x\.bin.*23") as caught:
        builder.build()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_missing_and_forbidden_files_raise_as_open_does(tmp_path: Path, io: str) -> None:
    table = file_table([tmp_path / "none"], 1, 8, io)
    with pytest.raises(FileNotFoundError) as caught:
        gathered(table, int64(0), 8)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / "none")
    (tmp_path / "dir").mkdir()
    with pytest.raises(OSError, match="dir"):
        gathered(file_table([tmp_path / "dir"], 1, 8, io), int64(0), 8)
    if os.geteuid() != 0:
        (tmp_path / "secret").write_bytes(bytes(8))
        (tmp_path / "secret").chmod(0)
        with pytest.raises(PermissionError):
            gathered(file_table([tmp_path / "secret"], 1, 8, io), int64(0), 8)


def test_file_names_that_are_no_unicode(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe x"
    Path(os.fsdecode(path)).write_bytes(bytes(range(8)))
    for name in (path, os.fsdecode(path)):
        builder = _core.TableBuilder()
        source = builder.add_file(name, 8)
        builder.add_column(builder.add_group(int64(1)), "x", 8, 8, int64(source), int64(0))
        assert gathered(builder.build(), int64(0), 8).tolist() == [list(range(8))]
    table = file_table([Path(os.fsdecode(path + b"!"))], 1, 8)
    with pytest.raises(FileNotFoundError) as caught:
        gathered(table, int64(0), 8)
    assert os.fsencode(caught.value.filename) == path + b"!"


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_file_cut_short_in_use_raises_for_its_lost_samples_only(
    rows_file: tuple[Path, np.ndarray], io: str
) -> None:
    path, data = rows_file
    table = file_table([path], 64, 4096, io)
    np.testing.assert_array_equal(gathered(table, int64(63, 0), 4096), data[[63, 0]])
    os.truncate(path, 40 * 4096)
    for _ in range(20):
        with pytest.raises(OSError, match=r"'x' of sample 50.*cut to 163840 bytes") as caught:
            gathered(table, int64(1, 50, 2), 4096)
        assert caught.value.filename == str(path)
        np.testing.assert_array_equal(gathered(table, int64(39, 1), 4096), data[[39, 1]])


def test_a_file_cut_short_before_its_first_use_is_a_format_error(
    rows_file: tuple[Path, np.ndarray],
) -> None:
    path, _ = rows_file
    table = file_table([path], 64, 4096)
    os.truncate(path, 4096)
    with pytest.raises(fastload.FormatError, match="cut short"):
        gathered(table, int64(0), 4096)


def test_a_file_replaced_by_rename_goes_on_through_the_old_mapping(
    rows_file: tuple[Path, np.ndarray],
) -> None:
    path, data = rows_file
    table = file_table([path], 64, 4096, "mmap")
    gathered(table, int64(0), 4096)
    other = path.with_name("other")
    other.write_bytes(bytes(64 * 4096))
    other.rename(path)
    np.testing.assert_array_equal(gathered(table, int64(5, 63), 4096), data[[5, 63]])


FAULTHANDLER = """
import faulthandler, os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from core_tables import file_table, int64
from pathlib import Path
path = Path("rows.bin")
def fault():
    path.write_bytes(bytes(16 * 4096))
    table = file_table([path], 16, 4096, "mmap")
    out = np.zeros((1, 4096), np.uint8)
    table.gather(int64(15), [out])
    os.truncate(path, 4096)
    for _ in range(3):
        try:
            table.gather(int64(15), [out])
            raise SystemExit("no error")
        except OSError as error:
            assert "sample 15" in str(error)
for step in sys.argv[2].split():
    {"fault": fault, "enable": faulthandler.enable, "disable": faulthandler.disable}[step]()
"""
REAL_SIGBUS = """
import mmap
with open("lost", "wb+") as file:
    file.truncate(8192)
    lost = mmap.mmap(file.fileno(), 8192)
    file.truncate(4096)
    lost[5000]
"""
ORDERS = [
    "fault",
    "enable fault",
    "fault enable fault",
    "enable fault disable fault",
    "fault enable fault disable fault",
    "fault enable disable fault enable fault",
    "enable disable fault enable fault enable fault disable fault",
]


@pytest.mark.parametrize("steps", ORDERS)
def test_faulthandler_may_be_switched_in_any_order(run_python: Run, steps: str) -> None:
    run_python(FAULTHANDLER, str(SUPPORT), steps)


@pytest.mark.parametrize("steps", ORDERS)
def test_a_real_sigbus_still_kills_and_faulthandler_still_tells(tmp_path: Path, steps: str) -> None:
    code = FAULTHANDLER + REAL_SIGBUS
    args = [sys.executable, "-c", code, str(SUPPORT), steps]
    done = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == -7, done.stderr
    on = steps.rfind("enable") > steps.rfind("disable")
    if on:
        assert "Fatal Python error: Bus error" in done.stderr


def test_300_files_with_64_descriptors(run_python: Run, tmp_path: Path) -> None:
    code = """
import resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from pathlib import Path
import numpy as np
from core_tables import file_table
paths = [Path(f"{i}.bin") for i in range(300)]
for i, path in enumerate(paths):
    np.full((2, 8), i, np.uint16).tofile(path)
held = [open(paths[0]) for _ in range(25)]
for io in ("mmap", "pread"):
    table = file_table(paths, 2, 16, io)
    for _ in range(3):
        indices = np.random.default_rng(0).permutation(600)
        out = np.zeros((600, 8), np.uint16)
        table.gather(indices, [out])
        assert (out == (indices // 2)[:, None]).all()
"""
    run_python(code, str(SUPPORT))


def test_no_descriptor_left_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(8))
    table = file_table([tmp_path / "a"], 1, 8)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="cannot open") as caught:
            gathered(table, int64(0), 8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE
    assert gathered(table, int64(0), 8).tolist() == [[0] * 8]


def test_threads_may_gather_from_one_table_at_once(rows_file: tuple[Path, np.ndarray]) -> None:
    path, data = rows_file
    table = file_table([path], 64, 4096)
    indices = np.tile(np.arange(64), 20)
    expected = data[indices]
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                np.testing.assert_array_equal(gathered(table, indices, 4096), expected)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_daemon_thread_in_gather_at_exit_is_harmless(run_python: Run) -> None:
    code = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from core_tables import memory_table
data = np.zeros((2000, 20_000), np.uint8)
table = memory_table(data)
out, indices = np.empty_like(data), np.arange(2000)[::-1].copy()
def work():
    while True:
        table.gather(indices, [out])
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""
    for _ in range(3):
        assert run_python(code, str(SUPPORT)).stderr == ""


def test_a_forked_child_is_told_to_open_the_dataset_again() -> None:
    table = memory_table(np.zeros(4, np.int64))
    child = os.fork()
    if child == 0:
        try:
            table.gather(int64(0), [np.zeros(1, np.int64)])
        except fastload.StoppedError as error:
            os._exit(0 if "open the dataset again" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_measure_gather_measures_and_checks_its_arguments(tmp_path: Path) -> None:
    table = memory_table(np.zeros((64, 3072), np.uint8))
    indices = np.arange(64)

    def measures() -> float:
        start = time.monotonic()
        speed = _core.measure_gather(table, indices, 16, 2, 0.05)
        return time.monotonic() - start if speed > 1e8 else math.inf

    assert_takes_less(2, measures)
    for batch, threads in [(0, 1), (65, 1), (16, 0)]:
        with pytest.raises(ValueError):
            _core.measure_gather(table, indices, batch, threads, 0.01)
    with pytest.raises(IndexError):
        _core.measure_gather(table, indices + 1, 16, 1, 0.01)
    (tmp_path / "f").write_bytes(bytes(80))
    with pytest.raises(ValueError, match="pread"):
        _core.measure_gather(file_table([tmp_path / "f"], 10, 8, "pread"), indices[:4], 2, 1, 0.01)


def test_crc32c_of_any_buffer() -> None:
    data = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)
    assert _core.crc32c(b"123456789") == 0xE3069283
    assert _core.crc32c(b"6789", _core.crc32c(b"12345")) == 0xE3069283
    assert _core.crc32c(data) == _core.crc32c(data.tobytes()) == _core.crc32c(memoryview(data))
    assert _core.crc32c(data.reshape(50, 100)) == _core.crc32c(data)
    head, tail = _core.crc32c(data[:1234]), _core.crc32c(data[1234:])
    assert _core.crc32c_combine(head, tail, 5000 - 1234) == _core.crc32c(data)
    with pytest.raises(ValueError, match="contiguous"):
        _core.crc32c(data[::2])
    with pytest.raises(TypeError):
        _core.crc32c("text")
