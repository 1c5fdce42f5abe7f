"""FFCV over the same rows; run with the interpreter of an environment that has FFCV.

    python ffcv_side.py X.npy Y.npy FILE.beton BATCH THREADS

Packs the rows and prints a line when ready. Then it reads numbers of seconds from standard input,
one per line, and prints samples per second for each.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from ffcv.fields import IntField, NDArrayField
from ffcv.fields.decoders import IntDecoder, NDArrayDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter


class Rows:
    def __init__(self, x: str, y: str) -> None:
        self.x, self.y = np.load(x, mmap_mode="r"), np.load(y, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        return np.array(self.x[index]), int(self.y[index])


def main() -> None:
    x, y, target, batch, threads = sys.argv[1:]
    rows = Rows(x, y)
    fields = {"x": NDArrayField(np.dtype("uint8"), (rows.x.shape[1],)), "y": IntField()}
    DatasetWriter(target, fields, num_workers=int(threads)).from_indexed_dataset(rows)
    loader = Loader(
        target,
        batch_size=int(batch),
        num_workers=int(threads),
        os_cache=True,
        order=OrderOption.RANDOM,
        drop_last=True,
        seed=0,
        pipelines={"x": [NDArrayDecoder(), ToTensor()], "y": [IntDecoder(), ToTensor()]},
    )
    for _ in loader:  # compiles, and reads the file into the page cache
        pass
    print("ready", flush=True)
    for line in sys.stdin:
        print(rate(loader, int(batch), float(line)), flush=True)


def rate(loader: Loader, batch: int, seconds: float) -> float:
    """Returns samples per second of whole batches, without the first batch of each epoch.

    Every `iter()` of this loader allocates its buffers again and waits for the first batch.
    """
    count, elapsed = 0, 0.0
    while True:
        batches = iter(loader)
        next(batches)
        start = time.perf_counter()
        for _ in batches:
            count += 1
            if elapsed + time.perf_counter() - start >= seconds:
                break
        elapsed += time.perf_counter() - start
        if elapsed >= seconds:
            return count * batch / elapsed


if __name__ == "__main__":
    main()
