"""A log of a training: what each step took, how long it waited for data, and its loss."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastload.groups import Groups
from fastload.structure import flatten

_LINES = 50  # written at once: losses are read from the device no more often than that


class Watch:
    """Iterates over a loader and writes a line of JSON for each step.

    The first line describes the loader. Each other has `epoch`, `step` (counted from 0 over all
    epochs), `start_s` (since the first step), `step_s` (until the following batch is asked for),
    `wait_s` (until the batch was there), `samples`, and what `log` was given. Times are in seconds.
    Ranks other than the first write `run.1.jsonl` and so on beside `run.jsonl`.

    Args:
        loader: Any iterable of batches.
        log: The file; an old one is replaced.
        clock: Seconds.

    Raises:
        TypeError: the loader gives groups, whose batches come during their steps.

    Example:
        >>> watched = Watch(torch.utils.data.DataLoader(range(4)), log="run.jsonl")
        >>> for batch in watched:
        ...     watched.log(loss=batch.float().sum())
        >>> [json.loads(line)["loss"] for line in Path("run.jsonl").read_text().splitlines()[1:]]
        [0.0, 1.0, 2.0, 3.0]
    """

    def __init__(
        self,
        loader: Any,
        log: str | os.PathLike[str],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if isinstance(loader, Groups):
            raise TypeError("watch takes a loader: the batches of a group come during its step")
        self._loader, self._clock = loader, clock
        self._path = _of_rank(os.fspath(log))
        self._rows: list[dict[str, Any]] = []
        self._values: dict[str, Any] = {}
        self._steps = self._epochs = 0
        self._begin: float | None = None
        about = {"fastload_log": 1, "loader": type(loader).__name__}
        for name in ("batch_size", "num_workers"):
            about[name] = getattr(loader, name, None)
        Path(self._path).write_text(json.dumps(about) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epochs = self._epochs, self._epochs + 1
        asked = self._clock()
        batches = iter(self._loader)
        self._begin = asked if self._begin is None else self._begin
        try:
            for batch in batches:
                came = self._clock()
                samples = _samples(batch)
                yield batch
                del batch
                now = self._clock()
                self._write(epoch, asked, came, now, samples)
                asked = now
        finally:
            self._values = {}  # of a step without an end
            self.flush()

    def log(self, **values: Any) -> None:
        """Adds numbers to the line of the step under way: `loss`, say.

        Tensors of one number are read later, many at once: a device is not stopped in each step.

        Raises:
            ValueError: a tensor holds more or fewer numbers than one.
            TypeError: a value is no number.
        """
        for name, value in values.items():
            if torch.is_tensor(value):
                if value.numel() != 1:
                    shape = tuple(value.shape)
                    raise ValueError(f"log({name}=...) takes one number, not a tensor {shape}")
                value = value.detach().clone()  # it may be written to before it is read
            elif isinstance(value, np.generic):
                value = value.item()
            elif not isinstance(value, (int, float)):
                raise TypeError(f"log({name}=...) takes a number, not a {type(value).__name__}")
            self._values[name] = value

    def flush(self) -> None:
        """Writes what is not yet written; the end of each epoch does it, too."""
        rows, self._rows = self._rows, []
        with open(self._path, "a", encoding="utf-8") as file:
            for row in rows:
                plain = {k: v.item() if torch.is_tensor(v) else v for k, v in row.items()}
                file.write(json.dumps(plain) + "\n")

    def _write(self, epoch: int, asked: float, came: float, now: float, samples: int) -> None:
        assert self._begin is not None
        row = {"epoch": epoch, "step": self._steps, "start_s": asked - self._begin}
        row |= {"step_s": now - asked, "wait_s": came - asked, "samples": samples}
        self._rows.append(row | self._values)
        self._values = {}
        self._steps += 1
        if len(self._rows) >= _LINES:
            self.flush()


def watch(loader: Any, log: str | os.PathLike[str]) -> Watch:
    """Iterates over a loader and writes what each step took; see `Watch`.

    Args:
        loader: Any loader.
        log: The file of JSON lines; `fastload report` draws it.

    Example:
        >>> loader = torch.utils.data.DataLoader(range(4))
        >>> [int(batch) for batch in watch(loader, log="run.jsonl")]
        [0, 1, 2, 3]
    """
    return Watch(loader, log)


def _of_rank(path: str) -> str:
    dist = torch.distributed
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    if not rank:
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}.{rank}{suffix}"


def _samples(batch: Any) -> int:
    """The length of the first tensor; 0 without one."""
    for leaf in flatten(batch):
        if torch.is_tensor(leaf) and leaf.dim():
            return len(leaf)
    return 0
