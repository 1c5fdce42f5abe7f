"""How near is a warm FastLoader to the limit of the memory, and how far from other loaders?

Rows of four sizes and an int64 label, in .npy files that lie in the page cache; batches of 256,
shuffled. The limit is what threads reach that only gather these rows into private buffers.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from harness import main, write_labels, write_rows
from torch_datasets import BatchedDataset, MemmapDataset, identity

from fastload import ArrayDataset, FastLoader, _core
from fastload.tools.bench import system, torch_side
from fastload.tools.bench.timing import Speed, digits, drive, median_ratio, summary, take_turns

BATCH = 256
WORKERS = (0, 1, 2, 4)
ROWS = {150_528: 10_000, 3_072: 400_000, 512: 2_000_000, 64: 12_000_000}
FFCV_SIZES = (150_528, 3_072, 512)


def measure(
    scale: float = 1.0,
    folder: Path = Path(),
    ffcv_python: str | None = None,
    seconds: float = 1.0,
    rounds: int = 5,
) -> dict[str, Any]:
    results = []
    for row_bytes, full in ROWS.items():
        rows = max(4 * BATCH, int(full * scale))
        x = write_rows(folder / "x.npy", rows, row_bytes)
        y = write_labels(folder / "y.npy", rows)
        with ExitStack() as stack:
            ffcv = None
            if ffcv_python and row_bytes in FFCV_SIZES:
                ffcv = stack.enter_context(Ffcv(ffcv_python, x, y))
            results.append(compare(x, y, row_bytes + 8, seconds, rounds, ffcv))
    return {"batch_size": BATCH, "rounds": rounds, "seconds": seconds, "sizes": results}


def compare(
    x: Path, y: Path, sample_bytes: int, seconds: float, rounds: int, ffcv: Ffcv | None
) -> dict[str, Any]:
    """One row size: every contender once a round."""
    dataset = ArrayDataset({"x": x, "y": y})
    rows = len(dataset)
    indices = _core.Permutation(rows, 0, 0).indices(0, rows)
    threads = system.core_count()

    def limit() -> float:
        rate = _core.measure_gather(dataset.table, indices, BATCH, threads, seconds)
        return rate / sample_bytes

    contenders: dict[str, Callable[[], Any]] = {
        "limit": limit,
        "fastload": partial(drive, partial(fast_loader, x, y), BATCH, seconds),
    }
    plain, batched = MemmapDataset(x, y), BatchedDataset(x, y)
    for n in WORKERS:
        make = partial(torch_side.loader, plain, batch_size=BATCH, workers=n)
        contenders[f"dataloader/{n}"] = partial(drive, make, BATCH, seconds)
        make = partial(make.func, batched, collate_fn=identity, **make.keywords)
        contenders[f"batched/{n}"] = partial(drive, make, BATCH, seconds)
    if ffcv:
        contenders["ffcv"] = partial(ffcv.rate, seconds)
    done = take_turns(contenders, rounds, lambda step: print(f"{sample_bytes} bytes: {step}"))
    return conclude(done, rows, sample_bytes)


def conclude(done: dict[str, list[Any]], rows: int, sample_bytes: int) -> dict[str, Any]:
    """Medians of every contender, and ratios to the best of each kind."""
    result: dict[str, Any] = {"row_bytes": sample_bytes - 8, "rows": rows}
    rates = {name: [samples_per_s(each) for each in speeds] for name, speeds in done.items()}
    for name, speeds in done.items():
        if isinstance(speeds[0], Speed):
            result[name] = summary(speeds, sample_bytes)
        else:
            rate = statistics.median(speeds)
            result[name] = {
                "samples_per_s": digits(rate),
                "bytes_per_s": digits(rate * sample_bytes),
            }
    ratios = {}
    for kind in ("limit", "dataloader", "batched", "ffcv"):
        of_kind = [name for name in rates if name.split("/")[0] == kind]
        if of_kind:
            best = max(of_kind, key=lambda name: statistics.median(rates[name]))
            ratios[kind] = {
                "ratio": digits(median_ratio(rates["fastload"], rates[best])),
                "against": best,
            }
    return result | {"ratios": ratios}


def samples_per_s(measured: Speed | float) -> float:
    return measured.samples_per_s if isinstance(measured, Speed) else measured


def fast_loader(x: Path, y: Path) -> FastLoader:
    dataset = ArrayDataset({"x": x, "y": y})
    return FastLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True, seed=0)


class Ffcv:
    """FFCV in a process of its own interpreter, idle between measurements."""

    def __init__(self, python: str, x: Path, y: Path) -> None:
        self.target = x.with_name("rows.beton")
        program = Path(__file__).with_name("ffcv_side.py")
        arguments = [x, y, self.target, BATCH, system.core_count()]
        self.process = subprocess.Popen(
            [python, program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Ffcv:
        while (line := self.process.stdout.readline()) != "ready\n":
            if not line:
                raise RuntimeError("FFCV ended before it was ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.target.unlink()

    def rate(self, seconds: float) -> float:
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


if __name__ == "__main__":
    main("loader", measure, "ffcv-python")
