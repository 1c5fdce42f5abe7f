"""How near is a warm FastLoader to the limit of the memory, and how far from other loaders?

Rows of four sizes and an int64 label, in .npy files that lie in the page cache; batches of 256,
shuffled. The limit is what a separate program reaches whose threads only gather these rows into
private slots (gather_limit.cpp). `--base FOLDER` compares with another version of the package.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from harness import main, write_labels, write_rows
from loader_side import main_thread_us, make_loader
from side import HERE, GatherLimit, Side, build_gather_limit
from torch_datasets import BatchedDataset, MemmapDataset, identity

import fastload
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
    base: str | None = None,
    seconds: float | str | None = None,
    rounds: int | str | None = None,
) -> dict[str, Any]:
    """Measures each row size.

    Args:
        scale: Share of the rows.
        folder: For data.
        ffcv_python: The interpreter of an environment with FFCV.
        base: A folder with another `fastload`, to compare with that alone: torch takes no turn.
        seconds: Of one contender in one round; default: 1.
        rounds: Default: 5.
    """
    seconds, rounds = float(seconds or 1), int(rounds or 5)
    program, results = build_gather_limit(folder), []
    for row_bytes, full in ROWS.items():
        rows = max(4 * BATCH, int(full * scale))
        x = write_rows(folder / "x.npy", rows, row_bytes)
        y = write_labels(folder / "y.npy", rows)
        with ExitStack() as stack:
            threads = system.core_count()
            limit = stack.enter_context(GatherLimit(program, (x, y), rows, BATCH, threads))
            contenders = {
                f"limit/{kernel}": partial(limit.measure, kernel, seconds / 3)
                for kernel in limit.KERNELS
            }
            if base:
                contenders |= versions(stack, x, y, seconds, base)
            else:
                contenders |= loaders(x, y, seconds)
                if ffcv_python and row_bytes in FFCV_SIZES:
                    ffcv = stack.enter_context(Ffcv(ffcv_python, x, y))
                    contenders["ffcv"] = partial(ffcv.rate, seconds)
            name = f"{row_bytes + 8} bytes: "
            done = take_turns(contenders, rounds, lambda step: print(name + step))  # noqa: B023
        results.append(conclude(done, rows, row_bytes + 8))
        print(line_of(results[-1]), flush=True)
    return {"batch_size": BATCH, "rounds": rounds, "seconds": seconds, "sizes": results}


def loaders(x: Path, y: Path, seconds: float) -> dict[str, Callable[[], Any]]:
    """This package, and DataLoader with several counts of workers."""
    contenders: dict[str, Callable[[], Any]] = {
        "fastload": partial(drive, partial(make_loader, x, y, BATCH), BATCH, seconds),
        "main_us": lambda: main_thread_us(make_loader(x, y, BATCH)),
    }
    plain, batched = MemmapDataset(x, y), BatchedDataset(x, y)
    for n in WORKERS:
        make = partial(torch_side.loader, plain, batch_size=BATCH, workers=n)
        contenders[f"dataloader/{n}"] = partial(drive, make, BATCH, seconds)
        make = partial(make.func, batched, collate_fn=identity, **make.keywords)
        contenders[f"batched/{n}"] = partial(drive, make, BATCH, seconds)
    return contenders


def versions(
    stack: ExitStack, x: Path, y: Path, seconds: float, base: str
) -> dict[str, Callable[[], Any]]:
    """This package and another version, each in a process of its own."""
    contenders: dict[str, Callable[[], Any]] = {}
    here = str(Path(fastload.__file__).parents[1])
    for name, folder in (("base", base), ("fastload", here)):
        command = [sys.executable, HERE / "loader_side.py", x, y, BATCH]
        side = stack.enter_context(Side(command, {"PYTHONPATH": folder}))
        contenders[name] = lambda side=side: json.loads(side.ask(str(seconds)))
    return contenders


def conclude(done: dict[str, list[Any]], rows: int, sample_bytes: int) -> dict[str, Any]:
    """Medians of every contender, and ratios to the best of each kind."""
    result: dict[str, Any] = {"row_bytes": sample_bytes - 8, "rows": rows}
    main_us = done.pop("main_us", None)
    rates = {name: [samples_per_s(each) for each in speeds] for name, speeds in done.items()}
    for name, speeds in done.items():
        if isinstance(speeds[0], Speed):
            result[name] = summary(speeds, sample_bytes)
        elif isinstance(speeds[0], dict):
            result[name] = {
                key: digits(statistics.median(each[key] for each in speeds)) for key in speeds[0]
            }
        else:
            result[name] = {"samples_per_s": digits(statistics.median(speeds))}
        result[name]["bytes_per_s"] = digits(result[name]["samples_per_s"] * sample_bytes)
    if main_us is not None:
        result["fastload"]["main_us"] = digits(statistics.median(main_us))
    ratios = {}
    for kind in ("limit", "dataloader", "batched", "ffcv", "base"):
        of_kind = [name for name in rates if name.split("/")[0] == kind]
        if of_kind:
            best = max(of_kind, key=lambda name: statistics.median(rates[name]))
            ratios[kind] = {
                "ratio": digits(median_ratio(rates["fastload"], rates[best])),
                "against": best,
            }
    if "base" in rates:
        best = ratios["limit"]["against"]
        ratio = digits(median_ratio(rates["base"], rates[best]))
        ratios["base/limit"] = {"ratio": ratio, "against": best}
    return result | {"ratios": ratios}


def line_of(size: dict[str, Any]) -> str:
    """The figures that matter most, for the one who waits."""
    parts = [f"{size['row_bytes']} B"]
    for name, ratio in (("fastload", "limit"), ("base", "base/limit")):
        if name in size:
            us = 1e6 * BATCH / size[name]["samples_per_s"]
            parts.append(
                f"{name} {size['ratios'][ratio]['ratio']} of the limit, {us:.1f} us a batch, "
                f"{size[name]['main_us']} us on the main thread"
            )
            if "cpu_us" in size[name]:
                parts[-1] += f", {size[name]['cpu_us']} us of CPU"
    limit = size["ratios"]["limit"]["against"]
    us = 1e6 * BATCH / size[limit]["samples_per_s"]
    parts.append(f"{limit} {us:.1f} us a batch, {size[limit]['cpu_us']} us of CPU")
    return "; ".join(parts)


def samples_per_s(measured: Any) -> float:
    if isinstance(measured, dict):
        return measured["samples_per_s"]
    return measured.samples_per_s if isinstance(measured, Speed) else measured


class Ffcv(Side):
    """FFCV in a process of its own interpreter."""

    def __init__(self, python: str, x: Path, y: Path) -> None:
        self.target = x.with_name("rows.beton")
        arguments = [x, y, self.target, BATCH, system.core_count()]
        super().__init__([python, HERE / "ffcv_side.py", *arguments])

    def __exit__(self, *reason: object) -> None:
        super().__exit__(*reason)
        self.target.unlink()

    def rate(self, seconds: float) -> float:
        """Samples per second."""
        return float(self.ask(str(seconds)))


if __name__ == "__main__":
    main("loader", measure, "ffcv-python", "base", "seconds", "rounds")
