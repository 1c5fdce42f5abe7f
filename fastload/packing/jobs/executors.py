"""Runs jobs on an executor of the user: threads, processes, or the hosts of a cluster.

An executor may start a job several times, and an attempt may end late. So each attempt writes a
separate temporary file in the folder of the plan, and only this process renames the file of the
first attempt that finishes. Attempts end soon after their run.
"""

from __future__ import annotations

import os
import pickle
import platform
import secrets
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fastload import _core
from fastload.formats.packed import WORK_FOLDER
from fastload.packing.jobs.failures import Failure
from fastload.packing.output.files import TEMPORARY_PREFIX
from fastload.packing.output.writer import ShardJob, Written

_UNKNOWN_WORKERS = 32
_CHECK_SECONDS = 1.0  # between two checks of the token
_WARN_SECONDS = 5.0  # without an answer of a worker
_MAX_CHECKED_INPUTS = 16

Attempted = tuple[str, Written] | Failure | str
"""Path and result of the file that an attempt wrote; or its error, or an obstacle."""


@dataclass(frozen=True)
class Run:
    """Requirements that a worker must meet before it writes shards of this run.

    Attributes:
        folder: Output folder.
        token: Path of a file next to the plan that exists as long as the run.
        inputs: Paths and sizes in bytes of some input files.
        host: Host that started the run.
        version: Version of fastload on that host.

    Example:
        >>> run = Run.start("data/train", ["train.parquet"])  # doctest: +SKIP
        >>> run.obstacle()  # doctest: +SKIP
    """

    folder: str
    token: str
    inputs: tuple[tuple[str, int], ...]
    host: str
    version: str

    @classmethod
    def start(cls, folder: str, inputs: Sequence[str]) -> Run:
        """Creates the token.

        Raises:
            OSError: the token cannot be created, or an input does not exist.
        """
        step = max(-(-len(inputs) // _MAX_CHECKED_INPUTS), 1)
        sizes = tuple((path, os.stat(path).st_size) for path in inputs[::step])
        token = _new_name(folder, "run")
        with open(token, "x"):
            pass
        return cls(folder, token, sizes, platform.node(), _core.__version__)

    def end(self) -> None:
        """Removes the token, which stops attempts that still run."""
        with suppress(FileNotFoundError):
            os.unlink(self.token)

    def check(self) -> None:
        """Raises RuntimeError if the run has ended."""
        if not os.path.exists(self.token):
            raise RuntimeError("the run has ended")

    def without_changed(self) -> Run:
        """Returns the run without input files that changed on this host since it started.

        Such a file is no evidence against a worker that sees another size. The job that reads the
        file reports the change, as it does without an executor.
        """
        kept = tuple((path, size) for path, size in self.inputs if _size_of(path) == size)
        return replace(self, inputs=kept)

    def obstacle(self) -> str | None:
        """Returns the reason why this process cannot write shards of the run; None if it can."""
        here = platform.node()
        if self.version != _core.__version__:
            return (
                f"a worker on {here} has fastload {_core.__version__}, {self.host} has "
                f"{self.version}: install the same version on all hosts"
            )
        if not os.path.exists(self.token):
            return (
                f"a worker on {here} does not see the output folder {self.folder} as {self.host} "
                "does: write to a file system that all hosts have under the same path"
            )
        for path, size in self.inputs:
            try:
                found = os.stat(path).st_size
            except OSError as error:
                what = f"{error.strerror}; all hosts need the input under the same path"
                return f"a worker on {here} cannot see the input {path}: {what}"
            if found != size:
                what = f"has {found} bytes there and {size} on {self.host}"
                return f"{path} differs for a worker on {here}: it {what}"
        own = _new_name(self.folder, "probe")
        try:
            with open(own, "x"):
                os.unlink(own)
        except OSError as error:
            return f"a worker on {here} cannot write to {self.folder}: {error.strerror}"
        return None


def run_on(
    executor: Executor,
    jobs: Iterable[tuple[int, ShardJob]],
    run: Run,
    notify: Callable[[str], None],
) -> Generator[tuple[int, Written], None, None]:
    """Runs numbered jobs on an executor and yields their results in order of completion.

    Up to two jobs per worker are submitted at a time. Before the first job, one worker checks that
    it can write shards of the run.

    Args:
        executor: Executor that runs the jobs.
        jobs: Numbered jobs; the next one is created when it can be submitted.
        run: Run of the jobs; this function ends it.
        notify: Called with a sentence if no worker answers for some seconds, which is no error.

    Raises:
        RuntimeError: the workers cannot write shards of the run, or died.
        Exception: the first error of a job, with the traceback of its process as the cause.
    """
    submitted: dict[Future[Attempted], tuple[int, ShardJob, Run]] = {}
    remaining = iter(jobs)
    try:
        following = next(remaining, None)
        if following is not None:
            run = _check_worker(executor, run, notify)
        while submitted or following is not None:
            max_submitted = 2 * max(_workers_of(executor), 1)
            while following is not None and len(submitted) < max_submitted:
                number, job = following
                submitted[_submit(executor, _attempt, job, run)] = number, job, run
                following = next(remaining, None)
            done, _ = wait(submitted, return_when=FIRST_COMPLETED)
            # Results before errors, so that a failure does not discard finished shards.
            for future in sorted(done, key=_has_failed):
                number, job, own = submitted.pop(future)
                attempted = _result(future, os.path.basename(job.path))
                if isinstance(attempted, str):
                    run = _without_obstacle(attempted, own)
                    submitted[_submit(executor, _attempt, job, run)] = number, job, run
                    continue
                if isinstance(attempted, Failure):
                    attempted.raise_here()
                path, written = attempted
                if written.rows:
                    os.replace(path, job.path)
                yield number, written
    finally:
        run.end()
        left = [future for future in submitted if not future.cancel()]
        if isinstance(executor, ThreadPoolExecutor):  # they use files that the caller closes next
            wait(left)


@dataclass(frozen=True)
class _Call:
    """A call that is made during unpickling, so that its errors are those of a job."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


def _submit(executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    try:
        if isinstance(executor, ThreadPoolExecutor):
            return executor.submit(function, *arguments)
        # A Dask worker that cannot import a name in a message exits without reporting an error.
        return executor.submit(pickle.loads, pickle.dumps(_Call(function, arguments)))
    except BrokenExecutor as error:  # broken by an earlier job
        broken: Future[Any] = Future()
        broken.set_exception(error)
        return broken


def _check_worker(executor: Executor, run: Run, notify: Callable[[str], None]) -> Run:
    """Returns the run for which a worker can write shards; waits until a worker answers.

    Raises:
        RuntimeError: the worker cannot write shards of the run.
    """
    future = _submit(executor, Run.obstacle, run)
    if not wait([future], timeout=_WARN_SECONDS).done:
        notify(
            f"no worker has started a job in {_WARN_SECONDS:g} s; waiting for one: the cluster has "
            "no workers (Dask workers, free CPUs of Ray), or all workers are busy with other jobs"
        )
    what = _result(future, "the check of a worker")
    return run if what is None else _check_worker(executor, _without_obstacle(what, run), notify)


def _without_obstacle(obstacle: str, run: Run) -> Run:
    """Returns the run without changed inputs, which may have caused the obstacle.

    Raises:
        RuntimeError: no input changed on this host, so the worker cannot write shards of the run.
    """
    changed = run.without_changed()
    if changed == run:
        raise RuntimeError(obstacle)
    return changed


def _attempt(job: ShardJob, run: Run) -> Attempted:
    """Runs a job in a worker; writes to a file that no other attempt uses."""
    path = _new_name(run.folder, os.path.basename(job.path))
    checked = time.monotonic()

    def advance(_: int) -> None:
        nonlocal checked
        if time.monotonic() - checked >= _CHECK_SECONDS:
            checked = time.monotonic()
            run.check()

    try:
        if (what := run.obstacle()) is not None:
            return what
        written = replace(job, path=path).run(advance)
        try:
            run.check()
        except RuntimeError:
            os.unlink(path)  # no other process knows the path
            raise
        return path, written
    except ImportError as error:
        explained = ImportError(
            f"a worker on {platform.node()} cannot import a module that reads the input: {error} "
            "(a dataset given as module:object must be importable there, for example by PYTHONPATH)"
        )
        return Failure(explained, traceback.format_exc())
    except Exception as error:
        if isinstance(error, OSError) and error.filename == path:
            error.filename = job.path
        return Failure.of(error)


def _size_of(path: str) -> int | None:
    """Returns the size of a file in bytes; None if the file cannot be read."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _new_name(folder: str, name: str) -> str:
    return os.path.join(folder, WORK_FOLDER, f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}-{name}")


def _has_failed(future: Future[Attempted]) -> bool:
    return (
        future.cancelled()
        or future.exception() is not None
        or isinstance(future.result(), (Failure, str))
    )


def _result(future: Future[Any], what: str) -> Any:
    """Returns the result of a call.

    Raises:
        RuntimeError: the executor failed or lost the call.
    """
    try:
        return future.result()
    except Exception as error:  # an error of the executor; errors of jobs are results
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, BrokenExecutor):
            text = (
                f"a process of the executor died ({text}); too little memory? try fewer workers; "
                "resume=True (--resume) continues with the other shards"
            )
        elif isinstance(error, (ImportError, AttributeError)):
            text = (
                f"a worker cannot import a module ({text}): install fastload "
                f"{_core.__version__}, and the packages that read the input, on all hosts"
            )
        else:
            text = f"{what}: the executor failed: {text}"
        raise RuntimeError(text) from error


def _workers_of(executor: Any) -> int:
    """Returns the number of calls that an executor runs at a time, 32 if it is unknown."""
    client: Any = getattr(executor, "_client", None)  # Dask's executor
    if hasattr(client, "ncores"):
        return sum(client.ncores().values())
    count = getattr(executor, "_max_workers", None)  # of the standard library and of RayExecutor
    return count if isinstance(count, int) else _UNKNOWN_WORKERS
