"""How much faster is packing image files without decoding than MosaicML's MDSWriter?

A folder of JPEG files in class folders, of about ImageNet's sizes, packed with `--encoded`. The
others are MDSWriter, given opened images (`jpeg`, as in its converters) and the bytes of the files
(`bytes`), with a pool whose outputs are merged for two processes; and `cat` of all files into one.
All end when the bytes are on the disk.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import main
from PIL import Image

import fastload
from fastload.tools.bench.timing import digits, median_ratio, take_turns

IMAGES = 16_000
CLASSES = 100
DIFFERENT = 32
WORKERS = (1, 2)
ENCODINGS = ("jpeg", "bytes")


def measure(
    scale: float = 1.0, folder: Path = Path(), rounds: int = 5, mds_python: str | None = None
) -> dict[str, Any]:
    images = write_images(folder / "images", max(CLASSES, int(IMAGES * scale)))
    size = sum(image.stat().st_size for image in images)
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Callable[[], float]] = {"cat": partial(cat, images, folder / "one")}
        for workers in WORKERS:
            contenders[f"pack {workers}"] = partial(pack, folder / "images", folder, workers)
        if mds_python:
            mds = stack.enter_context(Mds(mds_python, folder / "images", folder / "mds"))
            for workers, encoding in itertools.product(WORKERS, ENCODINGS):
                seconds = partial(mds.seconds, encoding, workers)
                contenders[f"mds {encoding} {workers}"] = seconds
        results = {}
        for cache, prepare in {"warm": read, "cold": forget}.items():
            runs = {
                name: partial(speed, run, partial(prepare, images), size)
                for name, run in contenders.items()
            }
            results[cache] = compare(take_turns(runs, rounds, print))
    return {"images": len(images), "bytes": size, "rounds": rounds, **results}


def compare(done: dict[str, list[float]]) -> dict[str, Any]:
    """Returns speeds, and the ratios of `pack` to MDS with as many processes, and to `cat`."""
    pairs = [
        (f"pack {workers}", other)
        for workers, other in itertools.product(WORKERS, done)
        if other == "cat" or (other.startswith("mds") and other.endswith(str(workers)))
    ]
    return {
        "bytes_per_s": {name: digits(statistics.median(rates)) for name, rates in done.items()},
        "ratios": {f"{a} / {b}": digits(median_ratio(done[a], done[b])) for a, b in pairs},
    }


def write_images(folder: Path, count: int) -> list[Path]:
    """Writes JPEG files of noise that compresses like photographs; returns them by name."""
    random = np.random.default_rng(0)
    contents = []
    for _ in range(DIFFERENT):
        height, width = random.integers(300, 500, 2).tolist()
        coarse = random.integers(0, 256, (height // 2, width // 2, 3), np.uint8)
        content = io.BytesIO()
        Image.fromarray(coarse).resize((width, height)).save(content, "JPEG")
        contents.append(content.getvalue())
    paths = []
    for number in range(count):
        path = folder / f"{number * CLASSES // count:03}/{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[number % DIFFERENT])
        paths.append(path)
    return paths


def speed(run: Callable[[], float], prepare: Callable[[], None], size: int) -> float:
    """Returns bytes per second of one call, while no other writes are pending."""
    os.sync()
    prepare()
    return size / run()


def read(images: list[Path]) -> None:
    """Brings the files into the page cache."""
    for image in images:
        image.read_bytes()


def forget(images: list[Path]) -> None:
    """Drops the files from the page cache; their names and sizes stay in memory."""
    for image in images:
        descriptor = os.open(image, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def pack(images: Path, folder: Path, workers: int) -> float:
    begin = time.perf_counter()
    fastload.pack(images, folder / "packed", encoded=True, workers=workers)
    seconds = time.perf_counter() - begin
    shutil.rmtree(folder / "packed")
    return seconds


def cat(images: list[Path], target: Path) -> float:
    names = "\0".join(map(str, images)).encode()
    begin = time.perf_counter()
    with target.open("wb") as file:
        subprocess.run(["xargs", "-0", "cat"], input=names, stdout=file, check=True)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    target.unlink()
    return seconds


class Mds:
    """Another interpreter, which writes the same files."""

    def __init__(self, python: str, images: Path, target: Path) -> None:
        program = Path(__file__).with_name("mds_side.py")
        self._process = subprocess.Popen(
            [python, program, images, target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert next(self._answers()) == "ready"

    def __enter__(self) -> Mds:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def seconds(self, encoding: str, processes: int) -> float:
        self._process.stdin.write(f"{encoding} {processes}\n")
        self._process.stdin.flush()
        return float(next(self._answers()))

    def _answers(self) -> Iterator[str]:
        for line in self._process.stdout:
            yield line.strip()


if __name__ == "__main__":
    main("pack_encoded", measure, "mds-python")
