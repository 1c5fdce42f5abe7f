"""GPU utilisation as NVML, nvidia-smi and most monitors define it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

MEANING = "the share of the time in which any kernel ran, however little of the GPU it used"

_PERIOD_S = 0.25  # NVML averages over 1/6 to 1 second


class Utilisation:
    """Samples the utilisation of a device, a few times per second.

    The result is None without the package nvidia-ml-py (`pip install nvidia-ml-py`), which is
    imported with the first sample, and if NVML has no value: on other devices and for MIG
    instances.

    Args:
        device: A CUDA device; other devices have no utilisation.
        clock: Function that returns seconds.

    Example:
        >>> utilisation = Utilisation(torch.device("cpu"))
        >>> utilisation.sample()
        >>> utilisation.percent is None
        True
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device, self._clock = device, clock
        self._at = clock()
        self._ask: Callable[[], float] | None = None
        self._unknown = device.type != "cuda"
        self._values: list[float] = []

    def sample(self, *, now: bool = False) -> None:
        """Reads a sample if the period has passed, or if `now`."""
        if not now and self._clock() - self._at < _PERIOD_S:
            return
        value = self.ask()
        if value is not None:
            self._values.append(value)
        self._at = self._clock()

    def ask(self) -> float | None:
        """Returns the current utilisation in percent, or None."""
        if self._unknown:
            return None
        try:
            if self._ask is None:
                self._ask = _asker(self._device)
            return self._ask()
        except _Unknown:
            self._unknown = True
            return None

    @property
    def percent(self) -> float | None:
        """Mean of the samples; None without samples."""
        return statistics.fmean(self._values) if self._values else None


class _Unknown(Exception):
    """NVML has no value for this device."""


def _asker(device: torch.device) -> Callable[[], float]:
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise _Unknown from error

    def known(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            raise _Unknown from error

    # By UUID: NVML numbers all GPUs, CUDA only those in CUDA_VISIBLE_DEVICES.
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:  # before torch 2.5
        raise _Unknown
    known(pynvml.nvmlInit)
    handle = known(pynvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
    return lambda: float(known(pynvml.nvmlDeviceGetUtilizationRates, handle).gpu)
