"""A transfer to the fake GPU, with what it copies and where to."""

from __future__ import annotations

import numpy as np

from fastload import _core

LARGE = np.arange(100_000, dtype=np.uint32)
SMALL = np.arange(50, dtype=np.int64)


class Rig:
    """A transfer, what it copies, and where to."""

    def __init__(self, library: str) -> None:
        self.device = _core.CudaDevice(0, library)
        self.pool = _core.SlotPool(self.device)
        self.pool.reserve(1 << 20)
        self.times = _core.StreamTimes(self.device)
        self.transfer = _core.Transfer(self.device, self.pool, self.times)
        self.large = np.zeros_like(LARGE)
        self.slab = np.zeros(1024, np.uint8)

    def submit(self, stream: int = 0) -> int:
        form = _core.ShipmentForm([(0, LARGE.nbytes)], [(1, 512, 400), (2, 0, 80)])
        sources = [LARGE, SMALL, SMALL.ctypes.data]
        targets = [self.large.ctypes.data, self.slab.ctypes.data]
        return self.transfer.submit(form, sources, targets, [], stream)

    def check(self) -> None:
        np.testing.assert_array_equal(self.large, LARGE)
        np.testing.assert_array_equal(self.slab[:80].view(np.int64), SMALL[:10])
        np.testing.assert_array_equal(self.slab[512:912].view(np.int64), SMALL)
