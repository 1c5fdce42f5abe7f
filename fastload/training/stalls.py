"""Time that a GPU waited for batches, measured by CUDA events."""

from __future__ import annotations

from typing import Any

import torch


class Stalls:
    """Pairs of events around a wait for data, on the stream that computes.

    Between the two events the device only waits: for the host to return with a batch, or for a
    copy that the stream waits for. A wait of the host costs nothing as long as the device has work
    left. No thread waits for an event: it is read after it has passed.

    Args:
        device: A CUDA device; None: the current device when CUDA is first used.
        cuda: Module that provides events and streams.

    Example:
        >>> stalls = Stalls(torch.device("cpu"))
        >>> stalls.mark() is None
        True
    """

    def __init__(self, device: torch.device | None = None, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._free: list[Any] = []
        self._in_use = False

    @property
    def device(self) -> torch.device | None:
        """The CUDA device after the first mark; else None."""
        return self._device if self._in_use else None

    def mark(self) -> Any:
        """Records an event on the device's current stream.

        Returns:
            The event. None on other devices, before CUDA is initialized, and while a graph is
            captured.
        """
        device, cuda = self._device, self._cuda
        if device is None or device.type == "cuda":
            if not cuda.is_initialized() or cuda.is_current_stream_capturing():
                return None
            if device is None or device.index is None:
                device = self._device = torch.device("cuda", cuda.current_device())
            self._in_use = True
            event = self._free.pop() if self._free else cuda.Event(enable_timing=True)
            event.record(cuda.current_stream(device))
            return event
        return None

    def read(self, pairs: list[tuple[Any, Any]]) -> float:
        """Returns the seconds between the events of all pairs, which have passed; reuses them."""
        milliseconds = 0.0
        for before, after in pairs:
            milliseconds += before.elapsed_time(after)
            self._free += [before, after]
        return milliseconds / 1e3
