"""How long a GPU waited for batches, by its own clock."""

from __future__ import annotations

from typing import Any

import torch


class Stalls:
    """Pairs of events around what waits for data, on the stream that computes.

    Between the two the device has nothing to do but to wait: for the host to come back with a
    batch, or for a copy that the stream was told to wait for. A batch that was ready costs nothing,
    however long the host took to fetch it, as long as the device has work left. Nobody waits for
    an event: it is read when it has passed.

    Args:
        device: A CUDA device; None: the current one when CUDA is first in use.
        cuda: What gives events and streams.

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
        """The CUDA device, once it has been marked."""
        return self._device if self._in_use else None

    def mark(self) -> Any:
        """An event on the device's current stream.

        None where there is no such clock: on other devices, before anybody has used CUDA, and while
        a graph is captured.
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
        """Seconds between the events of all pairs, which must have passed; they are used again."""
        milliseconds = 0.0
        for before, after in pairs:
            milliseconds += before.elapsed_time(after)
            self._free += [before, after]
        return milliseconds / 1e3
