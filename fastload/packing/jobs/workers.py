"""Runs jobs in this process or in several.

The processes are plain interpreters that receive pickled jobs through a socket. Unlike processes of
`multiprocessing`, they do not import the user's main module, so scripts need no
`if __name__ == "__main__"` guard, and they exit when this process exits for any reason.
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
_MAX_DEATHS = 3  # of processes, per job
_MAX_PICKLE_BYTES = 1 << 20
_START = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from fastload.packing.jobs.workers import serve; serve(int(sys.argv[1]))"
)


def run_jobs(
    jobs: Iterable[tuple[int, ShardJob]], workers: int, advance: Advance, keep_open: int
) -> Generator[tuple[int, Written], None, None]:
    """Runs numbered jobs and yields their results in order of completion.

    If a process dies, a new process repeats its job; three deaths with the same job raise.

    Args:
        jobs: Numbered jobs; the next one is created when a process is free.
        workers: Number of processes; 1 runs all jobs in this process.
        advance: Called with the number of samples read since the last call; negative for the
            samples of a process that died.
        keep_open: Descriptor that the processes inherit and keep open until they exit.

    Raises:
        RuntimeError: three processes died with the same job.
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
        to_repeat: list[_Task] = []

        def replace_dead(worker: _Worker, task: _Task) -> None:
            advance(-task.read)
            how = worker.death()
            worker.connection.close()
            task.note_death(how)
            to_repeat.append(task)
            idle.append(stack.enter_context(_Worker(keep_open)))

        while True:
            while idle and (task := _next_task(to_repeat, remaining)) is not None:
                worker = idle.pop()
                if worker.send(task.job):
                    busy[worker.connection] = worker, task
                else:
                    replace_dead(worker, task)
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
                    replace_dead(worker, task)
                else:
                    idle.append(worker)
                    yield task.number, message


@dataclass
class _Task:
    """A job and its attempts.

    Attributes:
        number: Number of the job.
        job: The job.
        read: Number of samples that its process has reported.
        deaths: Number of processes that died while they ran it.
    """

    number: int
    job: ShardJob
    read: int = 0
    deaths: int = 0

    def note_death(self, how: str) -> None:
        """Counts another process that died.

        Raises:
            RuntimeError: the job has reached the maximum number of deaths.
        """
        self.read = 0
        self.deaths += 1
        if self.deaths == _MAX_DEATHS:
            name = os.path.basename(self.job.path)
            raise RuntimeError(
                f"{name}: {self.deaths} worker processes died while writing it, the last with {how}"
            )


def _next_task(to_repeat: list[_Task], remaining: Iterator[tuple[int, ShardJob]]) -> _Task | None:
    if to_repeat:
        return to_repeat.pop()
    following = next(remaining, None)
    return None if following is None else _Task(*following)


def can_travel(value: object) -> bool:
    """Returns whether another process can recreate the value from a small pickle.

    Definitions of the main module cannot be imported there.
    """
    pickled = _LimitedFile()
    try:
        pickle.dump(value, pickled)
        pickle.loads(pickled.content)  # torch cannot unpickle float8 tensors
    except Exception:  # the methods of the value may raise anything
        return False
    return b"__main__" not in pickled.content


class _LimitedFile:
    """A file in memory with a maximum size."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, data: Any) -> int:
        if len(self.content) + memoryview(data).nbytes > _MAX_PICKLE_BYTES:
            raise ValueError("the pickle is too large")
        self.content += data
        return len(data)


class _Worker:
    """A worker process, seen from this process."""

    def __init__(self, keep_open: int) -> None:
        self.connection, remote = Pipe()
        command = [sys.executable, "-c", _START, str(remote.fileno()), *sys.path]
        # The worker inherits the mask: only this process handles Ctrl-C, and kills the workers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            descriptors = [remote.fileno(), keep_open]
            self._process = subprocess.Popen(
                command, pass_fds=descriptors, stdin=subprocess.DEVNULL
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        remote.close()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self._process.kill()
        self._process.wait()

    def send(self, job: ShardJob) -> bool:
        """Sends a job; returns False if the process has died."""
        content = pickle.dumps(job)
        try:
            self.connection.send_bytes(content)
        except OSError:
            return False
        return True

    def receive(self) -> Written | int | None:
        """Returns the result of the job or the number of newly read samples; None if it died."""
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
        """Returns how the process died, with a hint."""
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        hint = "; too little memory? try fewer workers" if code == -signal.SIGKILL else ""
        return f"{how}{hint}"


def serve(descriptor: int) -> None:
    """Runs the jobs that arrive on a socket, in a worker process, until the socket is closed."""
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
    # Always receiving, so that this process exits with the other one even during a job.
    with contextlib.suppress(EOFError, OSError):
        while True:
            jobs.put(connection.recv_bytes())
    os._exit(1)


class _Report:
    """Reports the number of read samples, at most ten times per second."""

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
