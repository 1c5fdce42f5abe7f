"""Runs jobs in this process or in several.

The processes are plain interpreters that are sent pickled jobs through a socket. Unlike those of
`multiprocessing` they never import the user's main module again, so scripts need no guard, and
they end when this process does, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from fastload.pack.sources.base import Advance
from fastload.pack.writer import ShardJob, Written

_REPORT_SECONDS = 0.1
_LARGEST_OBJECT_BYTES = 1 << 20
_START = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from fastload.pack.workers import serve; serve(int(sys.argv[1]))"
)


def run_jobs(
    jobs: Iterable[tuple[int, ShardJob]], workers: int, advance: Advance, keep_open: int
) -> Iterator[tuple[int, Written]]:
    """Runs numbered jobs and gives their results as they are done.

    Args:
        jobs: Each is made when a process is free for it.
        workers: Processes; with one, this process does it all.
        advance: Told how many samples more were read.
        keep_open: A descriptor that the processes hold, too, as long as they live.

    Raises:
        RuntimeError: a process died.
        Exception: the first error of a job, with the traceback of its process as the cause.
    """
    if workers == 1:
        for number, job in jobs:
            yield number, job.run(advance)
        return
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(_Worker(keep_open)) for _ in range(workers)]
        busy: dict[Any, tuple[_Worker, int]] = {}
        remaining = iter(jobs)
        while True:
            while idle and (following := next(remaining, None)) is not None:
                worker, (number, job) = idle.pop(), following
                worker.send(job)
                busy[worker.connection] = worker, number
            if not busy:
                return
            for connection in wait(list(busy)):
                worker, number = busy[connection]
                if isinstance(message := worker.receive(), Written):
                    idle.append(worker)
                    del busy[connection]
                    yield number, message
                else:
                    advance(message)


def can_travel(value: object) -> bool:
    """Tells whether another process can make the value from a small pickle.

    What the main module defines cannot be found there.
    """
    pickled = _Limited()
    try:
        pickle.dump(value, pickled)
        pickle.loads(pickled.content)  # torch cannot make float8 tensors again
    except Exception:  # whatever the value's own methods raise
        return False
    return b"__main__" not in pickled.content


class _Limited:
    """A file that refuses to become large."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, data: Any) -> int:
        if len(self.content) + memoryview(data).nbytes > _LARGEST_OBJECT_BYTES:
            raise ValueError("too large")
        self.content += data
        return len(data)


class _RemoteTraceback(Exception):
    """Shows where in the other process an error arose."""


@dataclass(frozen=True)
class _Failure:
    error: Exception
    text: str


class _Worker:
    """The near end of a process."""

    def __init__(self, keep_open: int) -> None:
        self.connection, far_end = Pipe()
        command = [sys.executable, "-c", _START, str(far_end.fileno()), *sys.path]
        # The mask is inherited: Ctrl-C is for this process alone, which then ends the others.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            descriptors = [far_end.fileno(), keep_open]
            self._process = subprocess.Popen(
                command, pass_fds=descriptors, stdin=subprocess.DEVNULL
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        far_end.close()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self._process.kill()
        self._process.wait()

    def send(self, job: ShardJob) -> None:
        try:
            self.connection.send_bytes(pickle.dumps(job))
        except OSError as error:
            raise self._death() from error

    def receive(self) -> Written | int:
        try:
            message = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._death() from error
        if isinstance(message, _Failure):
            raise message.error from _RemoteTraceback(f"\n{message.text}")
        assert isinstance(message, (Written, int))
        return message

    def _death(self) -> RuntimeError:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        hint = "; too little memory? try fewer workers" if code == -signal.SIGKILL else ""
        return RuntimeError(f"a worker process died ({how}){hint}")


def serve(descriptor: int) -> None:
    """The far end: runs the jobs that arrive, until the near end is gone."""
    connection = Connection(descriptor)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive_jobs, args=(connection, jobs), daemon=True).start()
    while True:
        content = jobs.get()
        report = _Report(connection)
        try:
            answer = pickle.dumps(pickle.loads(content).run(report.advance))
        except Exception as error:
            answer = _pickled_failure(error)
        report.flush()
        connection.send_bytes(answer)


def _receive_jobs(connection: Connection, jobs: queue.SimpleQueue[bytes]) -> None:
    # Always listening, so that this process ends with the other even in the middle of a job.
    with contextlib.suppress(EOFError, OSError):
        while True:
            jobs.put(connection.recv_bytes())
    os._exit(1)


def _pickled_failure(error: Exception) -> bytes:
    text = traceback.format_exc()
    try:
        pickled = pickle.dumps(_Failure(error, text))
        pickle.loads(pickled)
    except Exception:  # an exception with a constructor of its own
        return pickle.dumps(_Failure(RuntimeError(f"{type(error).__name__}: {error}"), text))
    return pickled


class _Report:
    """Tells the near end of progress, not more often than it can be seen."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows = 0
        self._last = time.monotonic()

    def advance(self, rows: int) -> None:
        self._rows += rows
        if time.monotonic() - self._last >= _REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._connection.send_bytes(pickle.dumps(self._rows))
        self._rows, self._last = 0, time.monotonic()
