"""A device in plain Python, whose streams run as early or as late as they may."""

from __future__ import annotations

import collections
import random
import weakref
from collections.abc import Callable
from typing import Any

import torch


class LazyDevice:
    """A device whose streams run when it likes, or when the host waits for them.

    The copies check what must hold: nothing that was launched before their memory was allocated
    may still run, the source may not have been freed, and the target only if its stream waits for
    them before it does anything else.

    Args:
        seed: Decides how far the streams come at each call; None: nowhere.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.queues: dict[str, list[Callable[[], bool]]] = {"main": [], "other": [], "side": []}
        self.run: collections.Counter[str] = collections.Counter()
        self.now = "main"
        self.past: set[int] = set()
        self.events = 0
        self.waits = 0  # of the host
        self.copies = 0
        self.lent: list[str] = []
        self.launched: dict[int, int] = {}  # before a target was allocated
        self.behind: dict[int, int] = {}  # copies that are past with an event
        self.awaited: collections.Counter[str] = collections.Counter()  # copies, by each stream
        self._random = None if seed is None else random.Random(seed)

    def launch(self, stream: str, step: Callable[[], bool]) -> None:
        self.queues[stream].append(step)
        if self._random is not None:
            for _ in range(self._random.randrange(4)):
                self.advance(self._random.choice(list(self.queues)))

    def advance(self, stream: str) -> bool:
        queue, done = self.queues[stream], self.run[stream]
        if done == len(queue) or not queue[done]():
            return False
        self.run[stream] += 1
        return True

    def finish(self) -> None:
        while any(map(self.advance, self.queues)):
            pass
        assert all(self.run[name] == len(queue) for name, queue in self.queues.items())

    # What the prefetcher uses.

    def current(self) -> str:
        return self.now

    def side(self) -> str:
        return "side"

    def record(self, stream: str) -> int:
        self.events += 1
        event = self.events
        self.behind[event] = self.copies if stream == "side" else 0
        self.launch(stream, lambda: self.past.add(event) is None)
        return event

    def wait(self, stream: str, event: int) -> None:
        self.awaited[stream] = max(self.awaited[stream], self.behind[event])
        self.launch(stream, lambda: event in self.past)

    def is_past(self, event: int) -> bool:
        return event in self.past

    def synchronize(self, event: int) -> None:
        self.waits += 1
        while event not in self.past:
            assert any(map(self.advance, self.queues))

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        target = torch.full_like(tensor, -1)
        self.launched[id(target)] = len(self.queues[self.now])
        return target

    def copy(self, stream: str, target: torch.Tensor, source: torch.Tensor) -> None:
        if stream != "side":  # memory of both is freed in the order of the streams that use it
            self.launch(stream, lambda: target.copy_(source) is not None)
            return
        before, home = self.launched[id(target)], self.now
        self.copies += 1
        number, too_early = self.copies, []
        to = weakref.ref(target, lambda _: too_early.append(self.awaited[home] < number))
        origin = weakref.ref(source)

        def step() -> bool:
            ends = to(), origin()
            assert self.run[home] >= before, "the memory is still in use"
            assert too_early != [True], "the target was freed"
            assert ends[1] is not None, "the source was freed"
            if ends[0] is not None:
                ends[0].copy_(ends[1])
            return True

        self.launch(stream, step)

    def use(self, tensor: torch.Tensor, stream: str) -> None:
        self.lent.append(stream)

    def read(self, tensor: torch.Tensor, into: list[list[Any]]) -> None:
        """What a training step does: it launches work on the current stream."""
        self.launch(self.now, lambda: into.append(tensor.tolist()) is None)
