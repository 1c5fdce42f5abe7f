"""Decode stage: threads that decode images between the engine and the consumer."""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy.typing as npt

from fastload.batch.images import Decoded, ImageField, decode_image
from fastload.errors import StoppedError

Array = npt.NDArray[Any]
Arrays = list[Any]

_ENVIRONMENT_ERRORS = (MemoryError, ImportError)  # not caused by the image
_STOP_PATIENCE_S = 0.4  # for decode threads to end


class Source(Protocol):
    """Yields the batches of an epoch in order, as the engine does."""

    def next(self, timeout_s: float = 0.0) -> Any:
        """Returns the arrays of the next batch; None after the last one."""

    def is_ready(self) -> bool:
        """Returns True if `next` need not wait: for a batch, its error or the end of the epoch."""

    def describe_due(self) -> str:
        """Describes what the next batch is waiting for; part of a timeout message."""

    def stop(self) -> None:
        """Ends every wait in `next`."""


@dataclass
class _Job:
    """A batch in the stage: its arrays, or the error that was raised for it."""

    arrays: Arrays | None
    error: BaseException | None = None
    tasks: Iterator[Callable[[], None]] = field(default_factory=lambda: iter(()))
    total: int = 0
    left: int = 0


class _Images:
    """The images of one field of a batch, with a task for each of them."""

    def __init__(self, field: ImageField, values: Array, offsets: Array, samples: Array) -> None:
        indices, draws = samples
        self._field = field
        self._draws = draws.tolist()
        self._values = values
        self._bounds = offsets.tolist()
        self._lock = threading.Lock()
        self.decoded = Decoded(field.empty(indices))
        self.tasks = [partial(self._decode, row) for row in range(len(indices))]

    def _decode(self, row: int) -> None:
        decoded = self.decoded
        if decoded.error is not None and decoded.error_row < row:
            return  # the batch has failed
        try:
            data = self._values[self._bounds[row] : self._bounds[row + 1]].tobytes()
            try:
                image = decode_image(data, self._field.transform)
            except Exception as error:
                if not self._field.skips or isinstance(error, _ENVIRONMENT_ERRORS):
                    raise
                with self._lock:
                    decoded.failed[row] = error
                return
            out = None if decoded.images is None else decoded.images[row]
            other = self._field.apply(image, out, self._draws[row])
            if other is not None:
                decoded.others[row] = other
        except Exception as error:  # Pillow's plugins raise many kinds
            with self._lock:
                if decoded.error is None or row < decoded.error_row:
                    decoded.error_row, decoded.error = row, error


class DecodeStage:
    """Decodes the images of an engine's batches, and yields the batches in the same order.

    A thread decodes an image of a batch in the stage. If there is none, it takes the next batch
    from the engine, unless `depth` batches are in the stage. Without threads, `next` does both.

    Args:
        source: Yields the arrays. A field of images has two, bytes and offsets. The last array,
            int64 (2, B), holds the dataset's indices and the RNG keys of the samples.
        fields: The fields of images by the number of their first array, in ascending order.
        threads: Number of threads.
        depth: Maximum number of batches in the stage.
    """

    def __init__(
        self, source: Source, fields: Mapping[int, ImageField], threads: int, depth: int
    ) -> None:
        self._source = source
        self._fields = dict(fields)
        self._depth = depth
        self._pid = os.getpid()
        self._changed = threading.Condition()  # guards what follows
        self._jobs: collections.deque[_Job] = collections.deque()
        self._open: collections.deque[_Job] = (
            collections.deque()
        )  # with tasks that no thread has started
        self._taking = False
        self._stopped = False
        self._patience_s = _STOP_PATIENCE_S
        self._threads = [
            threading.Thread(target=self._work, name=f"fastload-decode-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def next(self, timeout_s: float = 0.0) -> Arrays | None:
        """Returns the arrays of the next batch, each field of images as `Decoded`; None at the end.

        Args:
            timeout_s: Seconds to wait; 0: no limit.

        Raises:
            TimeoutError: the batch was not complete in time.
            StoppedError: the stage was stopped.
        """
        if not self._threads or self._pid != os.getpid():  # a forked child has no threads
            job = self._job_of(self._source.next(timeout_s))
            for task in job.tasks:
                task()
            return job.arrays
        end = time.monotonic() + timeout_s if timeout_s else None
        with self._changed:
            while not (self._jobs and self._jobs[0].left == 0):
                if self._stopped:
                    raise StoppedError("the iterator was stopped")
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(self._due())
                self._changed.wait(left)
            job = self._jobs[0]
            if job.arrays is not None or job.error is not None:  # the end stays in the queue
                self._jobs.popleft()
                self._changed.notify_all()
        if job.error is not None:
            raise job.error
        return job.arrays

    def is_ready(self) -> bool:
        """Returns True if `next` need not wait."""
        with self._changed:
            return self._stopped or bool(self._jobs and self._jobs[0].left == 0)

    def describe_due(self) -> str:
        """Describes what the next batch is waiting for."""
        with self._changed:
            return self._due()

    def _due(self) -> str:
        if not self._jobs:
            return self._source.describe_due()
        job = self._jobs[0]
        return f"decoding, {job.total - job.left} of {job.total} images done"

    def stop(self) -> None:
        """Stops the source and ends the threads. Idempotent; any thread may call it.

        It waits a limited time for threads inside a long decode or a stalled read, so that Ctrl-C
        takes effect. Such a thread ends when it returns, and keeps the memory that it uses alive.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            self._stopped = True
            self._jobs.clear()  # a stage that outlives its iterator must not keep batches
            self._open.clear()
            self._changed.notify_all()
        self._source.stop()
        end = time.monotonic() + self._patience_s
        self._patience_s = 0.0  # a second call does not wait again
        for thread in self._threads:
            if thread is not threading.current_thread():  # the garbage collector may call this
                thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._stopped or self._open or self._may_take()):
                    self._changed.wait()
                if self._stopped:
                    return
                job = self._open[0] if self._open else None
                task = next(job.tasks, None) if job else None
                if job and task is None:
                    self._open.popleft()
                    continue
                self._taking = self._taking or job is None
            if job is None or task is None:
                self._take()
                continue
            task()
            with self._changed:
                job.left -= 1
                if job.left == 0:
                    self._changed.notify_all()
            del job, task  # a waiting thread must not keep a batch

    def _may_take(self) -> bool:
        ended = self._jobs and self._jobs[-1].arrays is None and self._jobs[-1].error is None
        return not self._taking and not ended and len(self._jobs) < self._depth

    def _job_of(self, arrays: Arrays | None) -> _Job:
        if arrays is None:
            return _Job(None)
        delivered, tasks, number = [], [], 0
        samples = arrays[-1]
        while number < len(arrays):
            field = self._fields.get(number)
            if field is None:
                delivered.append(arrays[number])
                number += 1
                continue
            images = _Images(field, arrays[number], arrays[number + 1], samples)
            delivered.append(images.decoded)
            tasks += images.tasks
            number += 2
        return _Job(delivered, None, iter(tasks), len(tasks), len(tasks))

    def _take(self) -> None:
        try:
            job = self._job_of(self._source.next())
        except BaseException as error:
            job = _Job(None, error)
        with self._changed:
            self._taking = False
            self._changed.notify_all()
            if self._stopped:
                return
            self._stopped = isinstance(job.error, StoppedError)
            self._jobs.append(job)
            if job.left:
                self._open.append(job)
