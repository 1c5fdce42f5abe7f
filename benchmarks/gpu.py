"""Shared code of the benchmarks with a GPU: the device, its clock, its utilisation."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def device_for(name: str | None) -> torch.device:
    """Returns the device of a benchmark: the GPU, or the named one, to test the program."""
    if name is None and not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU; --device cpu tries the program without one")
    return torch.device(name or "cuda", None if name else torch.cuda.current_device())


def describe(device: torch.device) -> dict[str, Any]:
    """Describes the device and its driver, for the result."""
    if device.type != "cuda":
        return {"device": device.type}
    asked = "driver_version,pcie.link.gen.current,pcie.link.width.current"
    driver, generation, width = _ask(device, asked) or (None, None, None)
    return {
        "device": torch.cuda.get_device_name(device),
        "driver": driver,
        "cuda": torch.version.cuda,
        "pcie": {"generation": generation, "width": width},
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Busy:
    """Samples NVML's utilisation: the share of time in which any kernel ran."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.samples: list[float] = []

    @contextmanager
    def watch(self, period_s: float = 0.2) -> Iterator[None]:
        if self._device.type != "cuda":
            yield
            return
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(period_s):
                found = _ask(self._device, "utilization.gpu")
                if found:
                    self.samples.append(float(found[0]))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @property
    def mean(self) -> float | None:
        """Mean utilisation in percent; None if NVML is not available."""
        return sum(self.samples) / len(self.samples) if self.samples else None


def _ask(device: torch.device, what: str) -> list[str] | None:
    query = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        told = subprocess.run(
            [*query, f"--id={uuid}"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None
    return [part.strip() for part in told.stdout.strip().split(",")]


class Stall:
    """Measures how long the device waited for batches: the time between events around `next()`.

    Between two events on the computing stream the device only waits: for the host to return from
    `next()`, or for the copy of the batch.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pairs: list[tuple[Any, Any]] = []
        self.host_s = 0.0

    @contextmanager
    def around(self) -> Iterator[None]:
        start = time.perf_counter()
        before = self._mark()
        yield
        if before is not None:
            self._pairs.append((before, self._mark()))
        self.host_s += time.perf_counter() - start

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    @property
    def device_s(self) -> float | None:
        """Returns seconds, after a synchronisation; None for a device without events."""
        if not self._pairs:
            return None
        return sum(before.elapsed_time(after) for before, after in self._pairs) / 1e3
