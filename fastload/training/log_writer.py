"""Writes a training log: a line of JSON per step, many in one write."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastload.errors import refuse_pipe, warn
from fastload.formats import strict_json
from fastload.formats.structure import flatten
from fastload.order.ranks import find_rank
from fastload.training import host
from fastload.training.nvml import Utilisation
from fastload.training.stalls import Stalls

_LINES = 50  # losses are read from the device at most once per so many steps,
_SECONDS = 5.0  # or per so many seconds, which a kill may lose
_GRACE_S = 2.0  # wait for the device at the end of the training
_MAX_PENDING = 100_000  # lines that are kept while the disk is full
_POLL_S = 1e-4

_FIRST = b'{"fastload_log"'

Row = dict[str, Any]


class RunLog:
    """Writes the lines of `fastload.watch` and `TrainStep`, which `fastload report` reads.

    The first line describes writer, time and machine; a resumed training writes another such line.
    Each other line has `epoch`, `step`, `start_s`, `step_s`, `wait_s`, `samples` and the values
    passed to `put`; `gpu_wait_s` with `stalls`, and with those sometimes
    `nvml_utilisation_percent`; and `unfinished` if the step was interrupted. Numbers on a GPU are
    fetched by asynchronous copies and written when they have arrived. Lines that cannot be written,
    for example on a full disk, are kept and written with later lines, and a warning is issued: an
    error of the log never stops the training.

    Numbers that are not finite are written as null, because JSON has no NaN.

    Not thread-safe. A forked child writes nothing.

    Args:
        path: The file. Ranks other than 0 write `run.1.jsonl` and so on next to `run.jsonl`.
        about: Members of the first line.
        append: Append to an existing file, after removing a line that a kill has cut off; else an
            existing file is replaced.
        step: Number of the first step.
        stalls: Event pairs of the device.
        clock: Function that returns seconds.

    Raises:
        OSError: the file cannot be created.
        ValueError: the file to append to is not a log.

    Example:
        >>> log = RunLog("run.jsonl", {"by": "hand"}, clock=lambda: 0.0)
        >>> row = log.begin(log.clock())
        >>> log.put(loss=0.5)
        >>> log.end(row)
        >>> log.flush()
        >>> from fastload.tools.report import Run
        >>> Run("run.jsonl").steps[0]["loss"]
        0.5
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        about: Mapping[str, Any],
        *,
        append: bool = False,
        step: int = 0,
        stalls: Stalls | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self._path, self._owner = _of_rank(os.fspath(path)), os.getpid()
        self._step, self._sent_at = step, clock()
        self._started: float | None = None
        self._row: Row | None = None  # of the current step
        self._values: Row = {}
        self._stalls = stalls or Stalls(torch.device("cpu"))
        self._pairs: list[tuple[Any, Any]] = []
        self._utilisation: Utilisation | None = None
        self._rows: list[Row] = []
        self._in_flight: deque[tuple[list[Row], list[_Fetched | _Stalled]]] = deque()
        self._pending: deque[str] = deque(maxlen=_MAX_PENDING)
        self._has_warned = False
        refuse_pipe(self._path)
        going_on = append and _cut(self._path)
        with open(self._path, "a" if going_on else "w", encoding="utf-8") as file:
            about = {**about, "started": host.now(), "machine": host.describe()}
            file.write(strict_json.dumps({"fastload_log": 1, **about}) + "\n")

    def begin(self, asked: float, epoch: int | None = None) -> Row:
        """Starts a step at the time it requested its first batch; returns its line, for `end`."""
        self.break_off(self._row)
        if self._started is None:
            self._started = asked
        self._row = {} if epoch is None else {"epoch": epoch}
        self._row |= {"step": self._step, "start_s": asked - self._started, "step_s": 0.0}
        self._row |= {"wait_s": 0.0, "samples": 0}
        return self._row

    def mark(self) -> Any:
        """Records an event before or after a wait for a batch; None without a GPU."""
        return self._stalls.mark()

    def stalled(self, before: Any, after: Any) -> None:
        """Adds the time between two marks to the waiting time of the current step."""
        if before is not None and after is not None:
            self._pairs.append((before, after))

    def put(self, **values: Any) -> None:
        """Adds numbers to the line of the current step, or of the next step between two steps.

        Raises:
            ValueError: a tensor does not hold exactly one number.
            TypeError: a value is not a number.
        """
        for name, value in values.items():
            if isinstance(value, Tensor):
                if value.numel() != 1:
                    shape = tuple(value.shape)
                    raise ValueError(f"log({name}=...) takes one number, not a tensor {shape}")
                # The caller may write to the tensor before it is read.
                value = (value.detach() if value.requires_grad else value).clone()
                value = value.reshape(()) if value.dim() else value
                if value.is_complex():
                    raise TypeError(f"log({name}=...) takes a real number, not {value.dtype}")
                self._values[name] = value
                continue
            if hasattr(value, "item"):  # numpy's
                value = value.item()
            if not isinstance(value, (int, float)):
                raise TypeError(f"log({name}=...) takes a number, not a {type(value).__name__}")
            self._values[name] = value

    def end(self, row: Row, *, unfinished: bool = False) -> None:
        """Ends a step; does nothing if it has ended already."""
        if row is not self._row:
            return
        now = self.clock()
        assert self._started is not None
        row["step_s"] = now - self._started - row["start_s"]
        row |= self._values
        if self._pairs:
            row["gpu_wait_s"] = self._pairs
        self._row, self._values, self._pairs = None, {}, []
        self._rows.append(row)
        if unfinished:
            row["unfinished"] = True
        else:
            self._step += 1
        if len(self._rows) >= _LINES or now - self._sent_at >= _SECONDS:
            self._send(now)
        if self._in_flight:
            self._write(patience_s=0.0)

    def break_off(self, row: Row | None) -> None:
        """Ends a step as unfinished, with the values known so far; does nothing if it has ended."""
        if row is not None and row is self._row:
            self.end(row, unfinished=True)
            # Without waiting: after an error the device may be waiting for other ranks.
            self._send(self.clock())
            self._write(patience_s=0.0)

    def flush(self) -> None:
        """Writes the lines of all finished steps; waits for the device."""
        self._send(self.clock())
        self._write(patience_s=math.inf)

    def close(self) -> None:
        """Ends the log: writes all lines, without numbers that the device has not delivered."""
        if os.getpid() != self._owner:
            return
        self.break_off(self._row)
        self._send(self.clock())
        self._write(patience_s=_GRACE_S, at_last=True)

    def _send(self, now: float) -> None:
        rows, self._rows, self._sent_at = self._rows, [], now
        if rows:
            percent = self._percent()
            if percent is not None:
                rows[-1]["nvml_utilisation_percent"] = percent
            stalled = [_Stalled(row, self._stalls) for row in rows if "gpu_wait_s" in row]
            self._in_flight.append((rows, [*_fetch(rows), *stalled]))

    def _percent(self) -> float | None:
        if self._utilisation is None and self._stalls.device is not None:
            self._utilisation = Utilisation(self._stalls.device)
        return None if self._utilisation is None else self._utilisation.ask()

    def _write(self, *, patience_s: float, at_last: bool = False) -> None:
        """Writes lines whose numbers have arrived from the device; `at_last`, also the others."""
        until = time.monotonic() + patience_s
        while self._in_flight:
            rows, fetched = self._in_flight[0]
            if not all(part.has_come(until) for part in fetched) and not at_last:
                break
            self._in_flight.popleft()
            for part in fetched:
                part.put()
            self._pending += [strict_json.dumps(row) + "\n" for row in rows]
        if self._pending and os.getpid() == self._owner:
            self._append_pending()

    def _append_pending(self) -> None:
        end: int | None = None
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                end = file.tell()
                file.writelines(self._pending)
        except OSError as error:
            if end is not None:
                with suppress(OSError):  # remove a partial line
                    os.truncate(self._path, end)
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f"lines of the log {self._path} are kept until they can be written: {error}",
                    RuntimeWarning,
                )
            return
        self._pending.clear()


class _Fetched:
    """Numbers of one dtype on one device, copied to the host in one copy."""

    def __init__(self, places: list[tuple[Row, str]]) -> None:
        self._places, self._came = places, False
        numbers = torch.stack([row[name] for row, name in places])
        self._copy, self._event = copy_to_host(numbers)

    def has_come(self, until: float) -> bool:
        """Waits until then; True if the numbers have arrived or never will (a failed device)."""
        has_passed = self._event is None or _has_passed(self._event, until)
        self._came = bool(has_passed)
        return has_passed is not False

    def put(self) -> None:
        """Puts the numbers into their lines; removes those that did not arrive."""
        values = self._copy.tolist() if self._came else [None] * len(self._places)
        for (row, name), value in zip(self._places, values, strict=True):
            if self._came:
                row[name] = value
            else:
                del row[name]


class _Stalled:
    """Waiting time of the device in a step, read after its events have passed."""

    def __init__(self, row: Row, stalls: Stalls) -> None:
        self._row, self._stalls, self._came = row, stalls, False

    def has_come(self, until: float) -> bool:
        """See `_Fetched.has_come`."""
        has_passed = _has_passed(self._row["gpu_wait_s"][-1][1], until)
        self._came = bool(has_passed)
        return has_passed is not False

    def put(self) -> None:
        """Puts the time into the line, if it is known."""
        pairs = self._row.pop("gpu_wait_s")
        if self._came:
            self._row["gpu_wait_s"] = self._stalls.read(pairs)


def _has_passed(event: Any, until: float) -> bool | None:
    """Waits for an event until then; None if the device has failed, which the training reports."""
    try:
        while not event.query():
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)
    except RuntimeError:
        return None
    return True


def _fetch(rows: list[Row]) -> list[_Fetched]:
    groups: dict[Any, list[tuple[Row, str]]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, Tensor):
                groups.setdefault((value.device, value.dtype), []).append((row, name))
    return [_Fetched(places) for places in groups.values()]


def copy_to_host(numbers: Tensor) -> tuple[Tensor, Any]:
    """Returns a copy on the host and the event that completes it; None: complete already."""
    if numbers.device.type != "cuda":
        return numbers.cpu(), None
    copy, event = numbers.to("cpu", non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(numbers.device))  # may differ from the current device
    return copy, event


def count_samples(batch: Any) -> int:
    """Returns the length of the first tensor of a batch; 0 without tensors."""
    for leaf in flatten(batch):
        if torch.is_tensor(leaf) and leaf.dim():
            return len(leaf)
    return 0


def _of_rank(path: str) -> str:
    rank = find_rank().rank  # a watch may be created before torch.distributed is initialised
    if not rank:
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}.{rank}{suffix}"


def _cut(path: str) -> bool:
    """Removes an incomplete last line; returns False if the file has no complete line."""
    if not Path(path).exists():
        return False
    with open(path, "r+b") as file:
        first = file.readline()
        if _FIRST.startswith(first):  # the first line was cut off
            return False
        if not first.startswith(_FIRST):
            raise ValueError(f"{path} is not a log of fastload: the training cannot append to it")
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - 4096)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                file.truncate(begin + found + 1)
                return True
            end = begin
        return False
