"""Inputs of the packs in tests/golden/d71a9b4, made with public names and numpy only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fastload

ROWS, SHARD_SIZE = 20, 1024
STOP_AT = "FASTLOAD_GOLDEN_STOP_AT"
"""Environment variable: the row at which the process that packs is killed."""


def sample(row: int) -> dict[str, Any]:
    """Row of every packed dataset: fixed and ragged fields."""
    return {
        "x": np.arange(row, row + 24, dtype="f4"),
        "tokens": np.arange(row % 5, dtype="i4") + row,
        "text": f"row {row}",
    }


def samples(first: int, end: int) -> list[dict[str, Any]]:
    """Rows from `first` to `end`."""
    return [sample(row) for row in range(first, end)]


def _has_shards() -> bool:
    # Ragged fields are read twice, first for their lengths.
    journal = Path("out/.fastload/journal.jsonl")
    return journal.exists() and journal.stat().st_size > 0


class Rows:
    """A dataset of ROWS rows, which may kill its process."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        if os.environ.get(STOP_AT) == str(row) and _has_shards():
            os.kill(os.getpid(), signal.SIGKILL)
        return self.value(row)

    def value(self, row: int) -> Any:
        return sample(row)


class More(Rows):
    """What is appended: the rows from ROWS on."""

    def value(self, row: int) -> Any:
        return sample(ROWS + row)


class Column(Rows):
    """What is added as a column."""

    def value(self, row: int) -> Any:
        return {"y": np.full(24, row, "i8")}


def _task(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **({"shard_size": SHARD_SIZE, "workers": 1} | options))


TASKS: dict[str, Callable[..., Any]] = {
    "pack": lambda out, **options: _task(fastload.pack, Rows(), out, **options),
    "append": lambda out, **options: _task(fastload.append, More(), out, **options),
    "add_column": lambda out, **options: _task(fastload.add_column, out, Column(), **options),
}
"""What was killed; each with the path of the packed folder, and options that differ."""


def image_folder(folder: Path) -> None:
    """Writes two classes of PPM images, one of them damaged."""
    for name, content in {
        "cat/0.ppm": b"P6 2 1 255\nfast!!",
        "cat/1.ppm": b"P6 broken",
        "dog/0.ppm": b"P6 2 1 255\n" + bytes(range(6)),
        "dog/1.ppm": b"P6 2 1 255\nslower",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


IMAGES = [(b"fast!!", 0), (bytes(range(6)), 1), (b"slower", 1)]
"""Pixels and class of the images that can be read."""
