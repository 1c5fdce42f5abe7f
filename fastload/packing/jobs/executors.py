"""Runs jobs on an executor of somebody else: threads, processes, or the hosts of a cluster.

Nobody can tell how many attempts at a job there are, nor when the last of them ends. So each writes
a file of its own, in the folder of the plan, and this process alone gives the first that is done
its final name. An attempt ends soon after the run that it belongs to.
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
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
_MOST_INPUTS = 16  # that are looked for

Attempted = tuple[str, Written] | Failure | str
"""The file that an attempt has written, and what is in it; or what it raised, or an obstacle."""


@dataclass(frozen=True)
class Run:
    """What a worker must see, wherever it is, to take part in a run.

    Attributes:
        folder: The output.
        token: A file beside the plan, which is there as long as the run goes on.
        inputs: Some of the files that are read, and their sizes.
        host: Where the run was started.
        version: Of fastload there.

    Example:
        >>> run = Run.begin("data/train", ["train.parquet"])  # doctest: +SKIP
        >>> run.obstacle()  # doctest: +SKIP
    """

    folder: str
    token: str
    inputs: tuple[tuple[str, int], ...]
    host: str
    version: str

    @classmethod
    def begin(cls, folder: str, inputs: Sequence[str]) -> Run:
        """Makes the token.

        Raises:
            OSError: it cannot be made, or an input is not there.
        """
        step = max(-(-len(inputs) // _MOST_INPUTS), 1)
        sizes = tuple((path, os.stat(path).st_size) for path in inputs[::step])
        token = _new_name(folder, "run")
        with open(token, "x"):
            pass
        return cls(folder, token, sizes, platform.node(), _core.__version__)

    def end(self) -> None:
        """Removes the token, by which attempts that still run know."""
        with suppress(FileNotFoundError):
            os.unlink(self.token)

    def check(self) -> None:
        """Raises RuntimeError if the run has ended."""
        if not os.path.exists(self.token):
            raise RuntimeError("the run has ended")

    def without_changed(self) -> Run:
        """The same without inputs that are not here any more as they were when it began.

        That they differ for a worker says nothing of it then, but of the input: whoever reads it
        finds out what that means, as without an executor.
        """
        kept = tuple((path, size) for path, size in self.inputs if _size_of(path) == size)
        return replace(self, inputs=kept)

    def obstacle(self) -> str | None:
        """What keeps this process from taking part; None if nothing does."""
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
                return f"{path} is another file for a worker on {here}: it {what}"
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
    tell: Callable[[str], None],
) -> Generator[tuple[int, Written], None, None]:
    """Runs numbered jobs on an executor and gives their results as they are done.

    Twice as many as it has workers are with it at once. Before the first, one of its workers is
    asked whether it can take part.

    Args:
        executor: Which runs them.
        jobs: Each is made when there is room for it.
        run: Of which they are; ended here.
        tell: Called with a sentence if no worker answers for some seconds, which is no error.

    Raises:
        RuntimeError: the workers cannot take part, or died.
        Exception: the first error of a job, with the traceback of its process as the cause.
    """
    flying: dict[Future[Attempted], tuple[int, ShardJob, Run]] = {}
    remaining = iter(jobs)
    try:
        following = next(remaining, None)
        if following is not None:
            run = _first_look(executor, run, tell)
        while flying or following is not None:
            room = 2 * max(_workers_of(executor), 1)
            while following is not None and len(flying) < room:
                number, job = following
                flying[_submit(executor, _attempt, job, run)] = number, job, run
                following = next(remaining, None)
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            # What has succeeded first, so that a failure beside it costs nothing.
            for future in sorted(done, key=_has_failed):
                number, job, own = flying.pop(future)
                attempted = _result(future, os.path.basename(job.path))
                if isinstance(attempted, str):
                    run = _around(attempted, own)
                    flying[_submit(executor, _attempt, job, run)] = number, job, run
                    continue
                if isinstance(attempted, Failure):
                    attempted.raise_here()
                path, written = attempted
                if written.rows:
                    os.replace(path, job.path)
                yield number, written
    finally:
        run.end()
        left = [future for future in flying if not future.cancel()]
        if isinstance(executor, ThreadPoolExecutor):  # they read what the caller is about to close
            wait(left)


@dataclass(frozen=True)
class _Call:
    """A call that is made when it is unpickled, and fails there like any other."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


def _submit(executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    try:
        if isinstance(executor, ThreadPoolExecutor):
            return executor.submit(function, *arguments)
        # Dask's worker would end, and nobody be told, if a message named what it cannot import.
        return executor.submit(pickle.loads, pickle.dumps(_Call(function, arguments)))
    except BrokenExecutor as error:  # by a job before
        broken: Future[Any] = Future()
        broken.set_exception(error)
        return broken


def _first_look(executor: Executor, run: Run, tell: Callable[[str], None]) -> Run:
    """The run in which one of the workers can take part; waits until there is one.

    Raises:
        RuntimeError: it cannot.
    """
    future = _submit(executor, Run.obstacle, run)
    if not wait([future], timeout=_PATIENCE_SECONDS).done:
        tell(
            f"no worker has taken a job in {_PATIENCE_SECONDS:g} s; waiting for one: the cluster "
            "has none (a Dask worker, a free CPU of Ray), or all are at work for somebody else"
        )
    what = _result(future, "a first look")
    return run if what is None else _first_look(executor, _around(what, run), tell)


def _around(obstacle: str, run: Run) -> Run:
    """The run without what may have been in the way.

    Raises:
        RuntimeError: nothing has changed here, so that the obstacle is the worker's.
    """
    changed = run.without_changed()
    if changed == run:
        raise RuntimeError(obstacle)
    return changed


def _attempt(job: ShardJob, run: Run) -> Attempted:
    """Does a job, in a worker, into a file that no other attempt knows."""
    path = _new_name(run.folder, os.path.basename(job.path))
    looked = time.monotonic()

    def advance(_: int) -> None:
        nonlocal looked
        if time.monotonic() - looked >= _LOOK_SECONDS:
            looked = time.monotonic()
            run.check()

    try:
        if (what := run.obstacle()) is not None:
            return what
        written = replace(job, path=path).run(advance)
        try:
            run.check()
        except RuntimeError:
            os.unlink(path)  # nobody else will
            raise
        return path, written
    except ImportError as error:
        said = ImportError(
            f"a worker on {platform.node()} cannot import what reads the input: {error} (a dataset "
            "given as module:object must be found there, by PYTHONPATH for instance)"
        )
        return Failure(said, traceback.format_exc())
    except Exception as error:
        if isinstance(error, OSError) and error.filename == path:
            error.filename = job.path
        return Failure.of(error)


def _size_of(path: str) -> int | None:
    """None if the file cannot be looked at."""
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
    """What a job gave.

    Raises:
        RuntimeError: it did not come to its end.
    """
    try:
        return future.result()
    except Exception as error:  # of the executor: those of jobs come as results
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, BrokenExecutor):
            text = (
                f"a process of the executor died ({text}); too little memory? try fewer workers; "
                "resume=True (--resume) goes on with the rest"
            )
        elif isinstance(error, (ImportError, AttributeError)):
            text = (
                f"a worker cannot import what it needs ({text}): install fastload "
                f"{_core.__version__}, and what reads the input, on all hosts"
            )
        else:
            text = f"{what}: the executor failed: {text}"
        raise RuntimeError(text) from error


def _workers_of(executor: Any) -> int:
    """How many jobs an executor runs at once, as far as it tells."""
    client: Any = getattr(executor, "_client", None)  # Dask's executor
    if hasattr(client, "ncores"):
        return sum(client.ncores().values())
    count = getattr(executor, "_max_workers", None)  # the standard library's, and ours
    return count if isinstance(count, int) else _UNKNOWN_WORKERS
