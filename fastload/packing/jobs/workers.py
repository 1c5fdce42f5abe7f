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
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from fastload.packing.inputs.source import Advance
from fastload.packing.jobs.failures import Failure
from fastload.packing.output.writer import ShardJob, Written

_REPORT_SECONDS = 0.1
_MOST_DEATHS = 3  # of one job
_LARGEST_OBJECT_BYTES = 1 << 20
_START = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from fastload.packing.jobs.workers import serve; serve(int(sys.argv[1]))"
)


def run_jobs(
    jobs: Iterable[tuple[int, ShardJob]], workers: int, advance: Advance, keep_open: int
) -> Generator[tuple[int, Written], None, None]:
    """Runs numbered jobs and gives their results as they are done.

    The job of a process that dies is given to a fresh one, until three have died of it.

    Args:
        jobs: Each is made when a process is free for it.
        workers: Processes; with one, this process does it all.
        advance: Told how many samples more were read; of a process that died, that they were not.
        keep_open: A descriptor that the processes hold, too, as long as they live.

    Raises:
        RuntimeError: processes died.
        Exception: the first error of a job, with the traceback of its process as the cause.
    """
    if workers == 1:
        for number, job in jobs:
            yield number, job.run(advance)
        return
    remaining = iter(jobs)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(_Worker(keep_open)) for _ in range(workers)]
        busy: dict[Connection, tuple[_Worker, _Task]] = {}
        orphaned: list[_Task] = []

        def bury(worker: _Worker, task: _Task) -> None:
            advance(-task.read)
            how = worker.death()
            worker.connection.close()
            task.note_death(how)
            orphaned.append(task)
            idle.append(stack.enter_context(_Worker(keep_open)))

        while True:
            while idle and (task := _following(orphaned, remaining)) is not None:
                worker = idle.pop()
                if worker.send(task.job):
                    busy[worker.connection] = worker, task
                else:
                    bury(worker, task)
            if not busy:
                return
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker, task = busy[connection]
                message = worker.receive()
                if isinstance(message, int):
                    task.read += message
                    advance(message)
                    continue
                del busy[connection]
                if message is None:
                    bury(worker, task)
                else:
                    idle.append(worker)
                    yield task.number, message


@dataclass
class _Task:
    """A job on its way.

    Attributes:
        number: Of the job.
        job: To be done.
        read: Samples that the process has reported.
        deaths: Processes that have died of it.
    """

    number: int
    job: ShardJob
    read: int = 0
    deaths: int = 0

    def note_death(self, how: str) -> None:
        """Counts one more process that died.

        Raises:
            RuntimeError: it is not worth another one.
        """
        self.read = 0
        self.deaths += 1
        if self.deaths == _MOST_DEATHS:
            name = os.path.basename(self.job.path)
            raise RuntimeError(
                f"{name}: {self.deaths} worker processes died of it, the last with {how}"
            )


def _following(orphaned: list[_Task], remaining: Iterator[tuple[int, ShardJob]]) -> _Task | None:
    if orphaned:
        return orphaned.pop()
    following = next(remaining, None)
    return None if following is None else _Task(*following)


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

    def send(self, job: ShardJob) -> bool:
        """Gives it a job; tells whether it lives."""
        content = pickle.dumps(job)
        try:
            self.connection.send_bytes(content)
        except OSError:
            return False
        return True

    def receive(self) -> Written | int | None:
        """The result of its job, or how many samples more it has read; None if it died."""
        try:
            content = self.connection.recv_bytes()
        except (EOFError, OSError):
            return None
        message = pickle.loads(content)
        if isinstance(message, Failure):
            message.raise_here()
        assert isinstance(message, (Written, int))
        return message

    def death(self) -> str:
        """How it died, and what may help."""
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        hint = "; too little memory? try fewer workers" if code == -signal.SIGKILL else ""
        return f"{how}{hint}"


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
            answer = pickle.dumps(Failure.of(error))
        report.flush()
        connection.send_bytes(answer)


def _receive_jobs(connection: Connection, jobs: queue.SimpleQueue[bytes]) -> None:
    # Always listening, so that this process ends with the other even in the middle of a job.
    with contextlib.suppress(EOFError, OSError):
        while True:
            jobs.put(connection.recv_bytes())
    os._exit(1)


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
