"""How near is packing an .npy file to copying it?

Compared with `cp --reflink=never` of the same file, which is in the page cache. Both end when the
bytes are on the disk; packing also validates, divides into shards and computes checksums.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import main, write_rows

import fastload
from fastload.tools.bench.timing import digits, median_ratio, take_turns

ROW_BYTES = 150_528
ROWS = 10_000


def measure(scale: float = 1.0, folder: Path = Path(), rounds: int = 7) -> dict[str, Any]:
    rows = max(100, int(ROWS * scale))
    file = write_rows(folder / "x.npy", rows, ROW_BYTES)
    size = file.stat().st_size
    contenders = {
        "pack": partial(bytes_per_s, pack, file, folder / "packed", size),
        "cp": partial(bytes_per_s, copy, file, folder / "copy", size),
    }
    done = take_turns(contenders, rounds, print)
    return {
        "bytes": size,
        "rounds": rounds,
        **{name: {"bytes_per_s": digits(statistics.median(r))} for name, r in done.items()},
        "ratio": digits(median_ratio(done["pack"], done["cp"])),
    }


def bytes_per_s(
    write: Callable[[Path, Path], None], source: Path, target: Path, size: int
) -> float:
    """Returns the speed of one call, while no other writes are pending."""
    with source.open("rb", buffering=0) as file:  # into the page cache
        while file.read(1 << 24):
            pass
    os.sync()
    begin = time.perf_counter()
    write(source, target)
    seconds = time.perf_counter() - begin
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    return size / seconds


def pack(source: Path, target: Path) -> None:
    fastload.pack(source, target)


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=never", source, target], check=True)
    for path in (target, target.parent):  # the file, and its directory entry
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


if __name__ == "__main__":
    main("pack", measure)
