"""How much does it cost to open a dataset of ten thousand shards?

The shards are sparse files, listed in a manifest; one dataset has fields of a fixed size, the other
ragged ones with totals that differ by shard. Opening reads the manifest and checks the size of each
shard; the table of the core, which a loader builds once, is measured separately.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import main

import fastload
from fastload.formats.fields import Field
from fastload.formats.manifest import Manifest, Shards
from fastload.formats.shard import place_shards
from fastload.tools.bench.timing import digits

SHARDS = 10_000
FILE = "shard-{:06d}.safetensors"
FIXED = Field("image", "uint8", (224, 224, 3)), Field("label", "int64", ())
RAGGED = Field("image", "uint8", (), True, "image"), Field("text", "uint8", (), True, "utf8")


def measure(scale: float = 1.0, folder: Path = Path(), rounds: int = 10) -> dict[str, Any]:
    shards = max(10, int(SHARDS * scale))
    result: dict[str, Any] = {"shards": shards, "rounds": rounds}
    for name, fields in (("fixed", FIXED), ("ragged", (*RAGGED, FIXED[1]))):
        where = folder / name
        write_shards(where, fields, shards)
        timed = [opened(where) for _ in range(rounds)]
        result[name] = {
            f"{step}_ms": {
                "best": digits(1e3 * min(times)),
                "median": digits(1e3 * statistics.median(times)),
            }
            for step, times in zip(("open", "table"), zip(*timed, strict=True), strict=True)
        }
        shutil.rmtree(where)
    return result


def opened(folder: Path) -> tuple[float, float]:
    """Returns the seconds to open a dataset, and to build its table."""
    gc.collect()
    begin = time.perf_counter()
    dataset = fastload.open(folder)
    middle = time.perf_counter()
    assert dataset.table.rows == len(dataset)
    return middle - begin, time.perf_counter() - middle


def write_shards(folder: Path, fields: tuple[Field, ...], shards: int) -> None:
    """Writes a manifest, and sparse files of the sizes in it."""
    random = np.random.default_rng(0)

    def counts(most: float) -> tuple[int, ...]:
        return tuple(random.integers(1, most, shards).tolist())

    rows = counts(2_000)
    totals = {field.name: counts(1e8) for field in fields if field.ragged}
    sizes = place_shards(fields, rows, list(totals.values())).file_bytes.tolist()
    group = Shards("main", fields, FILE, rows, tuple(sizes), ("00000000",) * shards, totals)
    structure = {field.name: number for number, field in enumerate(fields)}
    manifest = Manifest(sum(rows), structure, (group,), "0" * 64)
    folder.mkdir()
    for number, size in enumerate(sizes):
        with (folder / group.file(number)).open("wb") as sparse:
            sparse.truncate(size)
    (folder / "fastload.json").write_bytes(manifest.encode("a benchmark"))


if __name__ == "__main__":
    main("open", measure)
