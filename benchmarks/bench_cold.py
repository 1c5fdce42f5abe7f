"""How near is FastLoader to the disk when nothing is cached?

Random rows of 150 528 bytes, each once, after the file was dropped from the page cache, compared
with `fio` reading blocks of about this size at random, with direct I/O.
"""

from __future__ import annotations

import gc
import json
import shutil
import statistics
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import main, write_labels, write_rows
from torch_datasets import MemmapDataset

import fastload
from fastload.tools.bench import system
from fastload.tools.bench.timing import digits, drive_once, median_ratio, take_turns

ROW_BYTES = 150_528
ROWS = 10_000
BATCH = 256
FIO = ["--ioengine=libaio", "--rw=randread", "--bs=148k", "--iodepth=32", "--direct=1"]


def measure(scale: float = 1.0, folder: Path = Path(), rounds: int = 5) -> dict[str, Any]:
    rows = max(2 * BATCH, int(ROWS * scale))
    x = write_rows(folder / "x.npy", rows, ROW_BYTES)
    y = write_labels(folder / "y.npy", rows)
    contenders = {
        "fastload": partial(from_cold, [x], lambda: fast_loader(x)),
        "dataloader/4": partial(from_cold, [x, y], lambda: torch_loader(x, y)),
    }
    if shutil.which("fio"):
        contenders["fio"] = partial(fio_bytes_per_s, x)
    done = take_turns(contenders, rounds, print)
    result: dict[str, Any] = {"row_bytes": ROW_BYTES, "rows": rows, "rounds": rounds}
    result |= {name: {"bytes_per_s": digits(statistics.median(r))} for name, r in done.items()}
    result["ratios"] = {
        name: digits(median_ratio(done["fastload"], done[name]))
        for name in done
        if name != "fastload"
    }
    if "fio" not in done:
        result["fio"] = "not installed"
    return result


def from_cold(files: list[Path], make_loader: Any) -> float:
    """Returns bytes/s of one epoch, including the start of the loader."""
    gc.collect()
    left = system.drop_from_cache(files)
    if left > 0.01:
        raise RuntimeError(f"{left:.0%} of a file stayed in the page cache")
    return ROW_BYTES * drive_once(make_loader(), BATCH, float("inf"))


def fast_loader(x: Path) -> Any:
    return fastload.FastLoader(
        fastload.open(x), batch_size=BATCH, shuffle=True, drop_last=True, seed=0
    )


def torch_loader(x: Path, y: Path) -> Any:
    return torch.utils.data.DataLoader(
        MemmapDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=4
    )


def fio_bytes_per_s(file: Path) -> float:
    command = ["fio", "--name=rows", f"--filename={file}", "--readonly", *FIO]
    done = subprocess.run(
        [*command, "--output-format=json"], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


if __name__ == "__main__":
    main("cold", measure)
