"""Shared code of the benchmarks: arguments, a folder for data, the result as JSON."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastload.tools.bench import system

FILL_BYTES = 32 << 20


def main(name: str, measure: Callable[..., dict[str, Any]], *options: str) -> None:
    """Runs a benchmark as a program.

    Args:
        name: Name of the benchmark, for the result.
        measure: Called with `scale`, `folder` and each option as a keyword argument.
        options: Names of further arguments, strings or absent.
    """
    parser = argparse.ArgumentParser(description=f"The benchmark {name!r} of fastload.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size (1)")
    parser.add_argument("--folder", type=Path, help="for data; about 2 GB (default: a new one)")
    for option in options:
        parser.add_argument(f"--{option}")
    args = vars(parser.parse_args())
    target = args.pop("json")
    with data_folder(args["folder"]) as args["folder"]:
        result = measure(**args)
    document = {
        "benchmark": name,
        "machine": system.describe(),
        "scale": args["scale"],
        "result": result,
    }
    text = json.dumps(document, indent=1)
    if target:
        target.write_text(text + "\n")
    print(text)


@contextmanager
def data_folder(parent: Path | None):
    """Creates a folder inside `parent` and removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="fastload-", dir=parent) as folder:
        yield Path(folder)


def write_rows(path: Path, rows: int, row_bytes: int) -> Path:
    """Writes an .npy file of random bytes, uint8 (rows, row_bytes), into the page cache."""
    random = np.random.default_rng(row_bytes)
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, row_bytes))
    step = max(1, FILL_BYTES // row_bytes)
    for first in range(0, rows, step):
        part = array[first : first + step]
        part[:] = random.integers(0, 256, part.shape, np.uint8)
    array.flush()
    return path


def write_labels(path: Path, rows: int) -> Path:
    """Writes an .npy file of int64 labels: 0, 1, 2, ..."""
    np.save(path, np.arange(rows, dtype=np.int64))
    return path
