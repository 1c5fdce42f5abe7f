"""Trainings whose loader and step take known times, on a clock that stands still otherwise."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastload.tools.bench.load import Snapshot


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now


class Counters:
    """Snapshots of a machine on which a second passes between two of them.

    Args:
        others: Share of all CPU time that other processes use.
    """

    def __init__(self, others: float = 0.0) -> None:
        self.others, self.taken = others, 0

    def __call__(self) -> Snapshot:
        self.taken += 1
        busy, cores = self.others * self.taken, len(os.sched_getaffinity(0))
        idle = (1 - self.others) * self.taken
        return Snapshot(float(self.taken), cores * busy, cores * idle, 0.0, 0, 0, 0, None)


class Loader(DataLoader[Any]):
    """Workers that need so long for a batch, beside the step, on a clock."""

    def __init__(self, clock: Clock, batch_s: float, jitter: float, workers: int) -> None:
        many = {"num_workers": workers, "prefetch_factor": 2} if workers else {}
        super().__init__(torch.zeros(100_000, 1), batch_size=10, **many)
        self.__dict__.update(clock=clock, batch_s=batch_s, jitter=jitter)

    def _get_iterator(self) -> Any:
        return self._batches()

    def _batches(self) -> Iterator[torch.Tensor]:
        draw, clock, workers = random.Random(0), self.clock, max(1, self.num_workers)
        free = [clock.now] * workers  # when each worker can begin
        taken: list[float] = []
        for number in range(len(self)):
            took = self.batch_s * workers * (1 + self.jitter * draw.uniform(-1, 1))
            if self.num_workers == 0:
                clock.now += took
            else:
                room = taken[number - 2 * workers] if number >= 2 * workers else 0.0
                free[number % workers] = max(free[number % workers], room) + took
                clock.now = max(clock.now, free[number % workers])
            taken.append(clock.now)
            yield torch.zeros(10, 1)


def train(clock: Clock, loader: Any, step_s: float, jitter: float = 0.0) -> Callable[[], None]:
    def run() -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = random.Random(1)
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            clock.now += step_s * (1 + jitter * draw.uniform(-1, 1))

    return run
