"""`fastload doctor PATH`: speed of the storage of a dataset, and its cached share."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from fastload.datasets import file_datasets
from fastload.formats.files import absolute
from fastload.tools.bench import load, system
from fastload.tools.doctor import machine
from fastload.tools.measured import Range

_BLOCK_BYTES = 1 << 20
_SECONDS = 1.0  # per measured speed
_FILES = 64  # maximum number of files that are examined
_SAMPLE_BYTES = 256 << 20
_SLICE_BYTES = 16 << 20  # each slice is timed; the speeds form the range
_SLOW_BYTES_PER_S = 500e6  # of storage, below which a faster one is advised


def check(path: str, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """Examines the storage of a dataset and the machine; returns figures in JSON types.

    Reads at most 256 MiB, for at most a second warm and a second cold. Cached pages stay cached:
    the cold speed is measured on files that were not in the page cache.

    Args:
        path: A file, or a folder with files at any depth.
        clock: Function that returns seconds.

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: the files are empty, or the path is remote.
    """
    if not os.path.exists(absolute(path)):
        raise FileNotFoundError(2, "there is no such file or folder", path)
    files = list(itertools.islice(_files(path), 100_000))
    sizes = {file: os.path.getsize(file) for file in files}
    total = sum(sizes.values())
    if total == 0:
        raise ValueError(f"{path} holds no bytes")
    looked = random.Random(0).sample(files, min(_FILES, len(files)))
    looked = [file for file in looked if sizes[file]] or [max(files, key=sizes.__getitem__)]
    cached = {file: system.cached_share(file) for file in looked}
    share = sum(cached[f] * sizes[f] for f in looked) / sum(sizes[f] for f in looked)
    cold = [file for file in looked if cached[file] == 0]
    before = load.snapshot()
    report: dict[str, Any] = {
        "schema": 2,
        "files": len(files),
        "bytes": total,
        "cached_share": share,
        "native": _is_native(path),
        "storage": machine.file_system(path),
        "cold_bytes_per_s": _speed(cold, clock) if cold else None,
        "warm_bytes_per_s": None,
        "machine": machine.facts() | {"memory_available_bytes": system.available_bytes()},
    }
    warm = [file for file in looked if system.cached_share(file) > 0.9]
    report["warm_bytes_per_s"] = _speed(warm, clock) if warm else None
    if cold:
        system.drop_from_cache(cold)  # as it was
    report["load"] = load.difference(before, load.snapshot())
    report["findings"] = list(find(report))
    return report


def _is_native(path: str) -> bool:
    """Returns True if FastLoader reads the path natively."""
    try:
        return file_datasets.open(path) is not None
    except (OSError, ValueError, TypeError, IndexError, KeyError):
        return False  # raw numbers, or files for a dataset of the user's


def _files(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = os.path.join(folder, name)
            if os.path.isfile(file):
                yield file


def _speed(files: list[str], clock: Callable[[], float]) -> dict[str, float]:
    """Returns the range of the speeds of slices that are read one after the other."""
    buffer = bytearray(_BLOCK_BYTES)
    start = begun = clock()
    read = of_slice = 0
    speeds: list[float] = []
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while read < _SAMPLE_BYTES and (count := file.readinto(buffer)):
                read, of_slice, now = read + count, of_slice + count, clock()
                if of_slice >= _SLICE_BYTES or now - start >= _SECONDS:
                    speeds.append(of_slice / max(1e-9, now - begun))
                    of_slice, begun = 0, now
                if now - start >= _SECONDS:
                    return {"low": min(speeds), "high": max(speeds)}
    if of_slice and not speeds:
        speeds.append(of_slice / max(1e-9, clock() - begun))
    return {"low": min(speeds), "high": max(speeds)}


def find(report: dict[str, Any]) -> Iterator[str]:
    """Returns the findings that follow from the numbers of a report."""
    facts, storage, share = report["machine"], report["storage"], report["cached_share"]
    cold, warm = report["cold_bytes_per_s"], report["warm_bytes_per_s"]
    if share < 0.5 and storage["storage"] != "memory":
        if report["bytes"] > 0.8 * facts["memory_available_bytes"]:
            yield "the data do not fit into the page cache: each epoch reads from storage"
        else:
            yield "most of the data are not cached: the first epoch reads from storage"
    better = {"network or user space": "a local disk", "rotating disk": "a solid-state disk"}
    is_slow = cold is not None and cold["high"] < _SLOW_BYTES_PER_S
    is_slow = is_slow and (warm is None or cold["high"] < warm["low"])
    if is_slow and share < 0.9 and storage["storage"] in better:
        text = f"{storage['storage']}, {_rate(cold)} cold: copy the data to "
        text += better[storage["storage"]]
        yield text + (", or read longer runs with order='block'" if report["native"] else "")
    if report["bytes"] / report["files"] < 256 << 10 and report["files"] > 1000:
        yield "many small files: pack this dataset (fastload pack)"
    quota = facts["quota_cores"]
    if quota is not None and quota < facts["cores"]:
        yield f"the cgroup grants {quota:g} of {facts['cores']} cores: no more num_workers"
    if facts["shm_bytes"] < 1 << 30:
        yield "/dev/shm is small: DataLoader's worker processes may die of SIGBUS"
    limit = facts["memlock_bytes"]
    if facts["gpus"] and limit is not None and limit < 64 << 20:
        yield "the limit of locked memory is small: ulimit -l unlimited"
    for gpu in facts["gpus"]:
        if gpu["current_link_width"] != gpu["max_link_width"]:
            yield (
                f"GPU {gpu['address']}: its link is {gpu['current_link_width']} lanes wide, "
                f"of {gpu['max_link_width']}"
            )


def _rate(speed: dict[str, float]) -> str:
    return f"{Range(speed['low'] / 1e6, speed['high'] / 1e6).text()} MB/s"


def _readable(size_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= size:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes / 1e3:.3g} kB"


def _share(share: float) -> str:
    """Formats a percentage that is 0 or 100 only for none or all."""
    return f"{share:.0%}" if share in (0, 1) else f"{min(0.99, max(0.01, share)):.0%}"


def show(report: dict[str, Any]) -> None:
    """Prints the result of `check`."""
    from rich.console import Console

    console = Console(soft_wrap=True, markup=False, highlight=False)
    storage, facts = report["storage"], report["machine"]
    console.print(
        f"{report['files']:,} file{'s' * (report['files'] != 1)}, {_readable(report['bytes'])} on "
        f"{storage['file_system']} ({storage['storage']}); {_share(report['cached_share'])} in "
        "the page cache"
    )
    for name in ("cold", "warm"):
        speed = report[f"{name}_bytes_per_s"]
        console.print(
            f"  {name}: {f'not measured, no {name} file' if speed is None else _rate(speed)}"
        )
    others = report["load"]["others"]
    busy = (
        "load not measured: too little time"
        if others is None
        else f"others used {others:.0%} of them"
    )
    quota = "no quota" if facts["quota_cores"] is None else f"quota {facts['quota_cores']:g}"
    lock = facts["memlock_bytes"]
    console.print(
        f"  {facts['cores']} cores ({busy}), {quota}, "
        f"ranks on this host: {facts['ranks_on_host']}; locked "
        f"memory {'unlimited' if lock is None else f'{lock >> 10} KiB'}; "
        f"/dev/shm {_readable(facts['shm_bytes'])}; GPUs: {len(facts['gpus'])}"
    )
    for finding in report["findings"]:
        console.print(f"  -> {finding}")
