"""Is memory flat in a long run, and are slots made only once?

Two thousand batches over many epochs, of which the last two are kept, as in a training step. The
figures start after three batches, when the loader has filled its queue, as it does while the first
step of a training compiles.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from harness import main, write_labels, write_rows

from fastload import ArrayDataset, FastLoader
from fastload.tools.bench.system import Resident

ROW_BYTES = 150_528
ROWS = 4_000
BATCH = 256
BATCHES = 2_000
LOOKS = 40
START_SECONDS = 1.0


def measure(scale: float = 1.0, folder: Path = Path()) -> dict[str, Any]:
    rows = max(4 * BATCH, int(ROWS * scale))
    count = max(2 * LOOKS, int(BATCHES * scale))
    x = write_rows(folder / "x.npy", rows, ROW_BYTES)
    y = write_labels(folder / "y.npy", rows)
    dataset = ArrayDataset({"x": x, "y": y})
    loader = FastLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True, seed=0)
    batches = chain.from_iterable(repeat(loader))
    kept: deque[Any] = deque(islice(batches, 2), maxlen=2)
    kept.append(next(batches))
    time.sleep(START_SECONDS)
    anonymous, allocations = [], []
    for look in range(LOOKS + 1):
        kept.extend(islice(batches, count // LOOKS if look else 0))
        anonymous.append(Resident.now().anonymous_bytes)
        allocations.append(loader._resources.pool.allocation_count)
    return {
        "row_bytes": ROW_BYTES,
        "batches": LOOKS * (count // LOOKS),
        "anonymous_bytes": anonymous,
        "anonymous_growth_bytes": max(anonymous) - anonymous[0],
        "slot_allocations": allocations,
        "slot_allocations_after_start": allocations[-1] - allocations[0],
    }


if __name__ == "__main__":
    main("memory", measure)
