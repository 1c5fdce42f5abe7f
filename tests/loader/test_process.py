"""Fork, spawn, exit and Ctrl-C: nothing hangs, nothing dies, nothing is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import assert_takes_less

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]

BEGIN = """
import gc, os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork() beside threads
import numpy as np, torch
import fastload
from fastload import ArrayDataset, FastLoader
np.save("x.npy", np.arange(1000))
def values(loader): return [batch.tolist() for batch in loader]
def make(batch_size=10, **options): return FastLoader("x.npy", batch_size, **options)
"""


def quiet(run_torch: Run, code: str, **options: Any) -> None:
    done = run_torch(BEGIN + textwrap.dedent(code), **options)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("options", ["", "num_workers=2", "num_workers=0", "seed=1, shuffle=True"])
def test_fork_in_mid_epoch(run_torch: Run, options: str) -> None:
    quiet(
        run_torch,
        f"""
        signal.alarm(120)
        loader = make({options})
        whole = sorted(sum(values(loader), []))
        batches = iter(loader)
        seen = sum((next(batches).tolist() for _ in range(50)), [])
        children = []
        for exits in ("return", "_exit", "raise"):
            pid = os.fork()
            if pid:
                children.append(pid)
                continue
            try:
                next(batches)
                os._exit(9)
            except fastload.StoppedError as error:
                assert "parent process" in str(error)
            del batches
            gc.collect()
            assert sorted(sum(values(loader), [])) == whole
            assert sorted(sum(values(make({options})), [])) == whole
            half_used = iter(loader)
            next(half_used)
            if exits == "_exit":
                os._exit(0)
            sys.exit(0 if exits == "return" else 3)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        assert codes == [0, 0, 3], codes
        seen += sum(values(batches), [])
        assert sorted(seen) == whole
        """,
    )


def test_a_child_forked_while_a_thread_draws_gets_an_error(run_torch: Run) -> None:
    quiet(
        run_torch,
        """
        class Slow:
            def __iter__(self):
                yield from range(given)
                draws.set()
                go_on.wait()
                yield 7
        for given in (0, 5):
            draws, go_on = threading.Event(), threading.Event()
            batches = iter(make(1, sampler=Slow(), num_workers=0))
            for _ in range(given):
                next(batches)
            thread = threading.Thread(target=next, args=(batches,))
            thread.start()
            draws.wait()
            pid = os.fork()
            if pid == 0:
                signal.alarm(120)
                try:
                    next(batches)
                except fastload.StoppedError as error:
                    os._exit("parent process" in str(error))
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            go_on.set()
            thread.join()
            assert code == 1, code
        """,
    )


def test_a_persistent_iterator_starts_anew_in_a_child(run_torch: Run) -> None:
    quiet(
        run_torch,
        """
        signal.alarm(120)
        loader = make(num_workers=2, persistent_workers=True)
        next(iter(loader))
        pid = os.fork()
        if pid == 0:
            assert len(values(loader)) == 100
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(values(loader)) == 100
        """,
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loaders_in_other_processes(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        BEGIN
        + textwrap.dedent(
            """
            import torch.multiprocessing as mp
            def child(loader, want):
                assert values(loader) == want
            if __name__ == "__main__":
                loader = make(seed=1, shuffle=True, num_workers=1)
                list(loader)
                loader.set_epoch(5)
                want = values(loader)
                loader.set_epoch(5)
                context = mp.get_context(sys.argv[1])
                process = context.Process(target=child, args=(loader, want), daemon=True)
                process.start()
                process.join(200)
                assert process.exitcode == 0, process.exitcode
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script, method], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "code",
    [
        "batches = iter(make(num_workers=2)); next(batches)",
        "cycle = [iter(make())]; cycle.append(cycle); next(cycle[0]); del cycle",
        "batches = iter(make(num_workers=2))",
        "batches = iter(make()); kept = list(batches); batch = kept[0]",
        "loader = make(num_workers=1, persistent_workers=True); next(iter(loader))",
        "batches = iter(make()); next(batches); os._exit(0)",
        "import atexit; batches = iter(make()); atexit.register(lambda: next(batches))",
    ],
)
def test_exit_with_a_live_iterator(run_torch: Run, code: str) -> None:
    quiet(run_torch, code)


def test_exit_with_an_iterator_in_the_frame_of_an_exception(run_torch: Run) -> None:
    code = BEGIN + "batches = iter(make())\nnext(batches)\nfor batch in batches:\n    1 / 0\n"
    done = run_torch(code, code=1)
    assert done.stderr.strip().endswith("ZeroDivisionError: division by zero")
    assert done.stderr.count("Traceback") == 1


def test_exit_while_daemon_threads_take_batches(run_torch: Run) -> None:
    quiet(
        run_torch,
        """
        def forever():
            try:
                while True:
                    for batch in make(num_workers=2):
                        pass
            except (fastload.StoppedError, RuntimeError):  # the interpreter is going
                time.sleep(600)
        for _ in range(4):
            threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.3)
        """,
    )


@pytest.mark.parametrize("options", ["num_workers=0", "num_workers=2", "shuffle=True, seed=0"])
def test_a_daemon_thread_that_takes_batches_at_exit_prints_nothing(
    run_torch: Run, options: str
) -> None:
    quiet(
        run_torch,
        f"""
        loader = make({options})
        def forever():
            while True:
                for batch in loader:
                    pass
        def slowly():
            for batch in make(num_workers=1):
                time.sleep(0.01)
        for target in (forever, forever, slowly):
            threading.Thread(target=target, daemon=True).start()
        time.sleep(0.2)
        """,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_daemon_thread_that_decodes_images_at_exit_prints_nothing(
    run_python: Run, workers: int
) -> None:
    code = f"""
        from fastload import _core  # first, so that its hook at exit is called last
        import io, threading, time
        import fastload, numpy as np
        from PIL import Image
        encoded = io.BytesIO()
        Image.fromarray(np.zeros((64, 64, 3), "u1")).save(encoded, "PNG")
        fastload.pack([{{"image": encoded.getvalue()}}] * 20, "images")
        loader = fastload.FastLoader("images", 4, num_workers={workers},
                                     transforms={{"image": fastload.DecodeImage(size=(32, 32))}})
        def forever():
            while True:
                for batch in loader:
                    pass
        for _ in range(3):
            threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.3)
        """
    done = run_python(textwrap.dedent(code))
    assert (done.stdout, done.stderr) == ("", "")


WAITING = """
from fastload import _core
data = fastload.open("x.npy")
order = _core.PushedOrder()
fields = [(field.storage, field.shape) for field in data.fields]
engine = _core.Engine(data.table, _core.SlotPool(), fields, order, 1, 2)
"""


def test_exit_while_a_daemon_thread_waits(run_torch: Run) -> None:
    quiet(
        run_torch,
        WAITING
        + """
def wait():
    try:
        engine.next()
    except fastload.StoppedError:
        time.sleep(600)
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.2)
""",
    )


def test_ctrl_c_while_waiting(tmp_path: Path) -> None:
    code = (
        BEGIN
        + WAITING
        + textwrap.dedent(
            """
            try:
                print("waiting", flush=True)
                engine.next()
            except KeyboardInterrupt:
                order.push(np.array([3]))
                assert engine.next()[0].tolist() == [3]
                print("interrupted", flush=True)
            """
        )
    )

    def interrupted() -> float:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.2)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        took = time.monotonic() - start
        assert process.communicate(timeout=60) == ("", None)
        assert process.returncode == 0
        return took

    assert_takes_less(1, interrupted, tries=5)


def test_ctrl_c_in_a_training_loop(tmp_path: Path) -> None:
    code = BEGIN + textwrap.dedent(
        """
        loader = FastLoader(ArrayDataset(np.arange(1 << 20)), 1, num_workers=2, shuffle=True)
        while True:
            for number, batch in enumerate(loader):
                if number == 1000:
                    print("running", flush=True)
        """
    )

    def interrupted() -> float:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        assert process.stdout.readline() == "running\n"
        time.sleep(0.1)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        took = time.monotonic() - start
        assert errors.count("Traceback") == 1
        assert errors.strip().endswith("KeyboardInterrupt")
        assert process.returncode in (-signal.SIGINT, 1, 130)
        return took

    assert_takes_less(5, interrupted, tries=5)


def test_torch_stays_unimported_until_it_is_needed(run_python: Run) -> None:
    run_python(
        "import sys, fastload, fastload.order.ranks\n"
        "fastload.order.ranks.find_rank()\n"
        "assert 'torch' not in sys.modules\n"
        "fastload.FastLoader\n"
        "assert 'torch' in sys.modules"
    )


TWO_RANKS = """
import torch.distributed as dist
from torch.utils.data import DistributedSampler
loader = FastLoader("x.npy", 10, shuffle=True, seed=0)  # before the group exists
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
epochs = [sum(values(loader), []) for _ in range(2)]
batches = iter(loader)
mid = [next(batches).tolist() for _ in range(3)]
state = loader.state_dict()
gathered = [None, None]
dist.all_gather_object(gathered, (epochs, mid, state))
(a, mid_a, state_a), (b, mid_b, state_b) = gathered
assert state_a == state_b
for left, right in zip(a, b):
    assert len(left) == len(right) == 500
    assert sorted(left + right) == list(range(1000))
assert a[0] != a[1]
assert loader.sampler.rank == rank and loader.sampler.num_replicas == 2
assert len(loader) == 50
dist.destroy_process_group()
"""


def test_two_ranks_share_the_data(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BEGIN + TWO_RANKS)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, script, tmp_path / "meeting"],
            cwd=tmp_path / str(rank),
            env=environment | {"RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
