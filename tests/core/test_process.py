"""Exit, fork and lack of memory: what happens to a process that has engines."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable

import numpy as np
import pytest
from core_tables import batches_of, counting, engine_over, int64
from paths import SUPPORT

import fastload
from fastload import _core

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]
HERE = str(SUPPORT)

EXIT = """
import gc, os, sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from core_tables import counting, engine_over, memory_table
from fastload import _core
FIELDS = [(np.dtype(np.int64), ())]
def waiting(workers=1):
    return engine_over(memory_table(np.arange(9)), FIELDS, _core.PushedOrder(), workers)
def running(workers=2):
    table, fields, plan = counting(100_000, 10)
    return engine_over(table, fields, plan, workers, depth=64)
"""


@pytest.mark.parametrize(
    "code",
    [  # in a global, a module, a cycle, dropped at once, leaked; daemon threads that wait or work
        "engine = running(); engine.next()",
        "import builtins; builtins.kept = [running() for _ in range(5)]",
        "gc.disable(); cycle = [running()]; cycle.append(cycle); del cycle",
        "batches = [running().next() for _ in range(20)]",
        "engine = running(); sys.modules['kept'] = engine; import ctypes;"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))",
        "for w in (0, 1): threading.Thread(target=waiting(w).next, daemon=True).start()\n"
        "time.sleep(0.1)",
        "def work():\n    while True:\n        engine = waiting()\n"
        "        try:\n            engine.next(0.06)\n        except Exception:\n            pass\n"
        "for _ in range(3): threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.2)",
        "def work():\n    while True:\n        engine = running()\n"
        "        while engine.next() is not None: pass\n"
        "for _ in range(3): threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.2)\ntry: sys.exit()\nfinally: pass",
    ],
)
def test_the_interpreter_exits_silently(run_python: Run, code: str) -> None:
    took = []
    for _ in range(3):
        start = time.monotonic()
        done = run_python(EXIT + code, HERE)
        lines = [line for line in done.stderr.splitlines() if "StoppedError" not in line]
        assert not any("terminate" in line or "Fatal" in line for line in lines), done.stderr
        took.append(time.monotonic() - start)
    assert min(took) < 10


def in_child(body: Callable[[], object]) -> int:
    """The exit status of a forked child that runs `body` and leaves as a script does."""
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        try:
            body()
            gc.collect()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_a_forked_child_gets_an_error_and_may_make_its_own() -> None:
    table, fields, plan = counting(10_000, 10)
    pool = _core.SlotPool()
    order = _core.PushedOrder()
    waiting = engine_over(table, fields, order)
    for _ in range(6):
        engine = _core.Engine(table, pool, fields, plan, 2, 8)
        kept = [engine.next() for _ in range(5)]

        def child(engine: _core.Engine = engine, kept: list[object] = kept) -> None:
            for old in (engine, waiting):
                with pytest.raises(fastload.StoppedError, match="parent"):
                    old.next()
                old.stop()
                old.stats()
            with pytest.raises(fastload.StoppedError):
                order.push(int64(1))
            with pytest.raises(fastload.StoppedError):
                _core.Engine(table, pool, fields, plan, 1, 2)
            kept.clear()
            own_table, own_fields, own_plan = counting(1000, 10)
            own = _core.Engine(own_table, pool, own_fields, own_plan, 2, 4)
            assert sum(len(batch[0]) for batch in batches_of(own)) == 1000

        assert in_child(child) == 0
        rest = [batch[0] for batch in batches_of(engine)]
        np.testing.assert_array_equal(np.concatenate(rest), np.arange(50, 10_000))


def test_a_forked_child_exits_silently_through_the_interpreter(run_python: Run) -> None:
    code = """
import multiprocessing, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
engine, idle = running(), waiting()
batch = engine.next()
def consume():
    try: idle.next()
    except Exception: pass
consumer = threading.Thread(target=consume, daemon=True)
consumer.start()
time.sleep(0.05)
took = []
for _ in range(5):
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    took.append(time.monotonic() - start)
assert min(took) < 1.5, took
def work(): pass
process = multiprocessing.get_context("fork").Process(target=work)
process.start(); process.join()
assert process.exitcode == 0
engine.next()
"""
    assert run_python(EXIT + code, HERE).stderr == ""


def test_no_memory_for_a_batch_is_a_memory_error(run_python: Run) -> None:
    code = """
import resource
table, fields, _ = counting(10, 2)
order = _core.PushedOrder()
engine = engine_over(table, fields, order, 1)
order.push(np.zeros(40_000_000, np.int64)); order.push(np.zeros(3, np.int64)); order.finish()
"""
    limit = "resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))\n"
    code = code.replace("engine =", "LIMIT = 3 << 30; " + limit + "engine =")
    code += """
held = []
try:
    while True: held.append(np.zeros(1 << 26, np.uint8))
except MemoryError:
    del held[-3:]
try:
    engine.next()
    raise SystemExit("no error")
except MemoryError:
    pass
assert len(engine.next()[0]) == 3
assert engine.next() is None
"""
    run_python(EXIT + code, HERE)


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL"
)
def test_a_free_threaded_python_stays_without_a_gil(run_python: Run) -> None:
    run_python("import sys, fastload._core\nassert not sys._is_gil_enabled()")
