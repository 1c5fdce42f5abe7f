"""Replaces the batches of a training by cached ones, phase by phase, and times its steps."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from fastload.formats.structure import flatten, map_leaves
from fastload.loader.loader import FastLoader
from fastload.tools.bench.load import Snapshot, difference, snapshot
from fastload.tools.doctor.sampled import sample_loading
from fastload.training.nvml import Utilisation

PHASES = ("real", "cached", "device", "alone")
_CACHED = 4  # batches that are repeated
_MAX_READY = 64  # batches that FastLoader prefetches
_SETTLING = 2  # steps after dropping batches
_UNTRAINED = 3  # times the batches of a phase, after which no optimizer is waited for


class Finished(BaseException):
    """Ends the script after the last phase; the script must not catch it."""


class Step(NamedTuple):
    """Time from one request for a batch to the next.

    Attributes:
        start_s: Start, on the clock of the probe.
        wait_s: Time until the batch was available.
        step_s: Duration of the step.
        disturbed: True if another loader yielded batches meanwhile (a validation, for example).
    """

    start_s: float
    wait_s: float
    step_s: float
    disturbed: bool


class Probe:
    """Observes all loaders of a script, and replaces the batches of the training by cached ones.

    The loader of the training is the first one between whose batches an optimizer steps. A phase
    ends after a number of its steps, so that all ranks change phases at the same step: "real"
    batches, "cached" batches on the host, the same on the "device" if there is one, and finally
    each rank "alone", without gradient exchange. The device is synchronised only between phases.

    Args:
        steps: Steps per phase.
        warm_up: Steps before the first phase.
        clock: Function that returns seconds.
        counters: Function that takes snapshots of the load of the machine.

    Example:
        >>> probe = Probe(steps=40)
        >>> loader = torch.utils.data.DataLoader(range(8))
        >>> with probe.installed():
        ...     batches = [int(batch) for batch in loader]
        >>> batches, probe.phase
        ([0, 1, 2, 3, 4, 5, 6, 7], None)
    """

    def __init__(
        self,
        steps: int = 40,
        warm_up: int = 8,
        clock: Callable[[], float] = time.perf_counter,
        counters: Callable[[], Snapshot] = snapshot,
    ) -> None:
        self.steps, self.warm_up, self._clock = steps, warm_up, clock
        self.taken: dict[str, list[Step]] = {}
        self.loader: Any = None
        self.phase: str | None = None
        self.notes: list[str] = []
        self.device = torch.device("cpu")
        self.loads: dict[str, dict[str, Any]] = {}  # load of the machine by phase
        self.epochs = 0  # started by the training's loader during the real phase
        self.batch_bytes = 0  # of a cached batch
        self.loading: dict[str, float | None] | None = None
        self._counters = counters
        self._before: Snapshot | None = None
        self._started: Snapshot | None = None
        self.utilisation = Utilisation(self.device)  # of real batches
        self.on_finish: Callable[[], None] = lambda: None
        self._seen: dict[int, list[Any]] = {}  # loader, its batches, optimizer steps before them
        self._optimizer_steps = self._unsettled = 0
        self._opened: tuple[float, float] | None = None
        self._disturbed = self._writes = self._shares_gradients = self._ended = False
        self._recent: collections.deque[tuple[Any, list[int]]] = collections.deque(maxlen=_CACHED)
        self._cache: list[Any] = []

    # --- Hooks ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Context in which all DataLoaders of this process yield batches through the probe."""
        stock, fast = DataLoader.__iter__, FastLoader.__iter__
        forward: Any = DistributedDataParallel.forward
        probe = self

        def over(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return lambda loader: probe._iterator(loader, original)

        def forward_alone(model: Any, *args: Any, **kwargs: Any) -> Any:
            probe._shares_gradients = not model.static_graph
            if probe.phase == "alone":
                model.require_backward_grad_sync = False
            return forward(model, *args, **kwargs)

        self._started = self._counters()
        hook = register_optimizer_step_post_hook(self._stepped)
        DataLoader.__iter__ = over(stock)  # type: ignore[method-assign]
        FastLoader.__iter__ = over(fast)  # type: ignore[method-assign]
        DistributedDataParallel.forward = forward_alone  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            hook.remove()
            DataLoader.__iter__ = stock  # type: ignore[method-assign]
            FastLoader.__iter__ = fast  # type: ignore[method-assign]
            DistributedDataParallel.forward = forward  # type: ignore[method-assign]

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._optimizer_steps += 1
        if self._optimizer_steps == 1:
            found = [p for group in optimizer.param_groups for p in group["params"]]
            self.device = found[0].device if found else self.device

    def _iterator(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        if loader is self.loader and self._cache:
            return _Watched(self, loader, iter(()), 0.0)
        start = self._clock()
        inner = original(loader)
        if isinstance(inner, _Watched):  # FastLoader calls the method of DataLoader
            return inner
        return _Watched(self, loader, inner, self._clock() - start)

    # --- Steps ---------------------------------------------------------------------------------

    def next(self, watched: _Watched) -> Any:
        """Returns the next batch of a loader, or a cached batch instead.

        Raises:
            StopIteration: the real loader is exhausted.
            Finished: the last phase is over.
        """
        self.utilisation.sample()
        now = self._clock()
        if self.loader is None and self._is_training(watched.loader):
            self.loader = watched.loader
            self._empty(watched.inner)
        if watched.loader is not self.loader:
            self._disturbed = True
            batch = next(watched.inner)
            if self.loader is None:
                self._seen[id(watched.loader)][1] += 1
            return batch
        if self._unsettled:
            self._unsettled -= 1
            return next(watched.inner)
        if self.phase is None:
            now = self._enter("real")
            watched.opening_s = 0.0  # of an epoch that started before
        if self._opened is not None:
            start, wait = self._opened
            self._opened = None
            self.taken[self._now()].append(Step(start, wait, now - start, self._disturbed))
            if len(self.taken[self._now()]) >= self.steps:
                now = self._advance(now)
        self._disturbed = False
        opening, watched.opening_s = watched.opening_s, 0.0
        if self.phase == "real":
            self.epochs += opening > 0
            batch = next(watched.inner)
            self._recent.append((batch, _versions(batch)))
        else:
            opening = 0.0
            cached = self._cache[len(self.taken[self._now()]) % len(self._cache)]
            batch = map_leaves(self._handed_out, cached)
        self._opened = (now - opening, self._clock() - now + opening)
        return batch

    def _empty(self, batches: Any) -> None:
        """Drops batches that were loaded before the phase, which would hide slow loading.

        Their number does not depend on time, so that it is equal on all ranks.
        """
        loader = self.loader
        ready = (loader.prefetch_factor or 2) * loader.num_workers
        if isinstance(loader, FastLoader) and loader.is_native and loader.num_workers:
            ready = _MAX_READY
        with contextlib.suppress(TypeError):  # an IterableDataset may have no length
            ready = min(ready, len(loader) // 4)
        self._unsettled = _SETTLING
        for _ in range(ready):
            next(batches)

    def _now(self) -> str:
        assert self.phase is not None
        return self.phase

    def _is_training(self, loader: Any) -> bool:
        seen = self._seen.setdefault(id(loader), [loader, 0, self._optimizer_steps])
        if seen[1] < self.warm_up:
            return False
        if self._optimizer_steps > seen[2]:
            return True
        if seen[1] < _UNTRAINED * (self.warm_up + self.steps):
            return False
        self.notes.append("no optimizer stepped beside this loader, which gave the most batches")
        return True

    def _handed_out(self, leaf: Any) -> Any:
        return leaf.clone() if self._writes and torch.is_tensor(leaf) else leaf

    # --- Phases --------------------------------------------------------------------------------

    def _advance(self, now: float) -> float:
        """Starts the next phase; returns its start time."""
        self._synchronize()
        done = self.taken[self._now()]
        # Pending work of the device belongs to the last step.
        done[-1] = done[-1]._replace(step_s=done[-1].step_s + self._clock() - now)
        if self._before is not None:
            self.loads[self._now()] = difference(self._before, self._counters())
        if self.phase == "real":
            self.utilisation.sample(now=True)
            self._fill_cache()
        for phase in PHASES[PHASES.index(self._now()) + 1 :]:
            if self._has(phase):
                return self._enter(phase)
        if not self._ended:
            self._ended = True
            if self._started is not None:
                self.loads["whole"] = difference(self._started, self._counters())
            self._sample_loading()
            self.on_finish()
        raise Finished

    def _has(self, phase: str) -> bool:
        leaves = [leaf for batch in self._cache for leaf in flatten(batch)]
        tensors = [leaf for leaf in leaves if torch.is_tensor(leaf)]
        if phase == "cached":
            return self.device.type == "cpu" or any(t.device.type == "cpu" for t in tensors)
        if phase == "device":
            return self.device.type != "cpu"
        return self._shares_gradients and torch.distributed.get_world_size() > 1

    def _enter(self, phase: str) -> float:
        if phase == "device":
            place = self.device
            self._cache = [map_leaves(lambda leaf: _moved(leaf, place), b) for b in self._cache]
        self.phase = phase
        self.taken[phase] = []
        self._synchronize()
        self._before = self._counters()
        if phase == "real":
            self.utilisation = Utilisation(self.device)
        return self._clock()

    def _sample_loading(self) -> None:
        try:
            self.loading = sample_loading(self.loader)
        except Exception as error:  # the dataset may need a worker
            self.notes.append(
                f"samples could not be loaded outside the loader ({type(error).__name__}): whether "
                "fetching or collating takes the time is not known"
            )

    def _fill_cache(self) -> None:
        for batch, versions in self._recent:
            self._writes = self._writes or _versions(batch) != versions
            self._cache.append(map_leaves(_kept, batch))
            self.batch_bytes = sum(_bytes(leaf) for leaf in flatten(batch))
        self._recent.clear()
        if self._writes:
            self.notes.append("the script writes to its batches: each cached one was copied")

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize(self.device)


class _Watched:
    """Iterator over a loader that reports to a probe."""

    def __init__(self, probe: Probe, loader: Any, inner: Any, opening_s: float) -> None:
        self._probe, self.loader, self.inner, self.opening_s = probe, loader, inner, opening_s

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        return self._probe.next(self)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _versions(batch: Any) -> list[int]:
    found = []
    for leaf in flatten(batch):
        if torch.is_tensor(leaf) and not leaf.is_inference():
            found.append(leaf._version)
    return found


def _bytes(leaf: Any) -> int:
    if torch.is_tensor(leaf):
        return leaf.numel() * leaf.element_size()
    return len(leaf) if isinstance(leaf, (str, bytes)) else 8


def _kept(leaf: Any) -> Any:
    if not torch.is_tensor(leaf):
        return leaf
    clone = leaf.detach().clone()
    return clone.pin_memory() if leaf.device.type == "cpu" and leaf.is_pinned() else clone


def _moved(leaf: Any, device: torch.device) -> Any:
    return leaf.to(device) if callable(getattr(leaf, "to", None)) else leaf
