"""Measures one dataset, warm and cold, with each contender in turn."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from fastload import _core
from fastload.batch.sizes import sample_bytes
from fastload.batch.transforms import DecodeImage, PadTo
from fastload.datasets.file_datasets import Dataset
from fastload.formats.columns import FileSource
from fastload.formats.extents import Extents
from fastload.formats.fields import BYTE_STRINGS, IMAGE, TEXT
from fastload.loader.loader import FastLoader
from fastload.tools.bench import load, system, torch_side
from fastload.tools.bench.timing import Speed, digits, drive, drive_once, summary, take_turns
from fastload.training import host

SCHEMA = 2

_SAMPLES, _IMAGES = 256, 64  # of a batch
_MAX_TORCH_ROWS = 2**26  # torch's shuffle makes a Python list of all indices
_LIMIT_INDICES = 2**24
_COLD_SHARE = 0.05  # of the pages of a file that may stay cached in a run that is called cold


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement.

    Attributes:
        batch_size: Samples per batch, at most the length of the dataset; None: 256, or 64 if images
            are decoded.
        seconds: Seconds per contender and round.
        rounds: Number of rounds; medians are reported.
        num_workers: `num_workers` of FastLoader; None: its default.
        torch_workers: Worker counts to try with DataLoader.
        image_size: (height, width) to which both sides scale encoded images after decoding to RGB.
    """

    batch_size: int | None = None
    seconds: float = 1.0
    rounds: int = 3
    num_workers: int | None = None
    torch_workers: tuple[int, ...] = (0, 1, 2, 4)
    image_size: tuple[int, int] = (224, 224)


def measure(
    open_dataset: Callable[[], Dataset],
    settings: Settings,
    announce: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measures a dataset.

    Args:
        open_dataset: Called once per measurement; returns a newly opened dataset.
        settings: Settings of the measurement.
        announce: Called with the name of the next measurement.

    Returns:
        Figures in JSON types; `SCHEMA` is their version.

    Raises:
        ValueError: the dataset has no samples, or its samples have no bytes.
    """
    extents = open_dataset().extents
    row_bytes = sample_bytes(extents)
    if extents.rows == 0 or row_bytes == 0:
        raise ValueError(f"nothing to measure: {extents.rows} samples of {row_bytes} bytes")
    bench = _Bench(open_dataset, extents, row_bytes, settings, announce)
    before = load.snapshot()
    warm = bench.warm()
    cold = bench.cold(warm["dataloader_workers"])
    return {
        "schema": SCHEMA,
        "date": host.now(),
        "machine": system.describe(),
        "load": load.difference(before, load.snapshot()),
        "data": {
            "samples": extents.rows,
            "sample_bytes": row_bytes,
            "fields": {field.name: str(field) for field in extents.fields},
            "files": len(bench.files),
        },
        "delivers": bench.delivers(),
        "settings": {**asdict(settings), "batch_size": bench.batch_size},
        "warm": warm,
        "cold": cold,
    }


class _Bench:
    def __init__(
        self,
        open_dataset: Callable[[], Dataset],
        extents: Extents,
        row_bytes: int,
        settings: Settings,
        announce: Callable[[str], None],
    ) -> None:
        self.open_dataset = open_dataset
        self.extents = extents
        self.row_bytes = row_bytes
        self.settings = settings
        self.announce = announce
        ragged = [f for f in extents.fields if f.ragged and f.logical not in BYTE_STRINGS]
        self.padding = {field.name: PadTo() for field in ragged}
        images = [field.name for field in extents.fields if field.logical == IMAGE]
        self.decoding = {name: DecodeImage(settings.image_size) for name in images}
        default = _IMAGES if images else _SAMPLES
        self.batch_size = min(settings.batch_size or default, extents.rows)
        sources = {source for column in extents.columns for source in column.sources}
        self.files = sorted(s.path for s in sources if isinstance(s, FileSource))

    def fast_loader(self) -> FastLoader[Any]:
        return FastLoader(
            self.open_dataset(),
            batch_size=self.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=self.settings.num_workers,
            seed=0,
            shard=False,
            transforms={**self.padding, **self.decoding},
        )

    def delivers(self) -> dict[str, str]:
        """Describes the form in which both sides deliver each field."""
        height, width = self.settings.image_size
        found = {}
        for field in self.extents.fields:
            if field.name in self.decoding:
                what = f"decoded to RGB and scaled to {height} x {width} by Pillow, uint8"
            elif field.name in self.padding:
                what = f"{field.dtype}, padded with zeros to the longest of the batch"
            elif field.logical in BYTE_STRINGS:
                what = "a list of str" if field.logical == TEXT else "a list of bytes"
            else:
                what = f"{field.dtype} {list(field.shape)}" if field.shape else field.dtype
            found[field.name] = what
        return found

    def torch_loader(self, workers: int) -> Any:
        rows = torch_side.RowDataset(self.extents, self.settings.image_size)
        collates = {"collate_fn": torch_side.padded} if self.padding else {}
        return torch_side.loader(rows, batch_size=self.batch_size, workers=workers, **collates)

    def limit(self) -> Callable[[], float]:
        """Measures samples/s of threads that only gather, with the same kernels."""
        table = self.extents.build()
        count = min(self.extents.rows, _LIMIT_INDICES)
        indices = _core.Permutation(self.extents.rows, 0, 0).indices(0, count)
        threads, seconds = system.core_count(), self.settings.seconds
        return lambda: (
            _core.measure_gather(table, indices, self.batch_size, threads, seconds) / self.row_bytes
        )

    def warm(self) -> dict[str, Any]:
        """Measures all contenders on cached files, if they fit into memory."""
        fits = sum(source_bytes(self.extents)) < 0.8 * system.available_bytes()
        if fits:
            self.announce("reading the files into the page cache")
            system.read_into_cache(self.files)
        seconds = self.settings.seconds
        contenders: dict[str, Callable[[], Any]] = {
            "fastload": partial(drive, self.fast_loader, self.batch_size, seconds),
        }
        if not self.decoding:  # decoding is not limited by copying bytes
            contenders["limit"] = self.limit()
        names = {}
        if self.extents.rows <= _MAX_TORCH_ROWS:
            names = {n: f"DataLoader, {n} workers" for n in self.settings.torch_workers}
        for workers, name in names.items():
            make = partial(self.torch_loader, workers)
            contenders[name] = partial(drive, make, self.batch_size, seconds)
        done = take_turns(contenders, self.settings.rounds, self.announce)
        result: dict[str, Any] = {
            "in_page_cache": fits,
            "limit": None,
            "fastload": summary(done["fastload"], self.row_bytes),
            "dataloader": {
                str(n): summary(done[name], self.row_bytes) for n, name in names.items()
            },
            "dataloader_workers": None,
        }
        if "limit" in done:
            limit = statistics.median(done["limit"])
            result["limit"] = {
                "threads": system.core_count(),
                "samples_per_s": digits(limit),
                "bytes_per_s": digits(limit * self.row_bytes),
            }
            result["of_limit"] = _ratios(_rates(done["fastload"]), done["limit"])
        if names:
            best = max(names, key=lambda n: statistics.median(_rates(done[names[n]])))
            ratios = _ratios(_rates(done["fastload"]), _rates(done[names[best]]))
            result |= {"dataloader_workers": best, "times_dataloader": ratios}
        return result

    def cold(self, torch_workers: int | None) -> dict[str, Any]:
        """Measures one epoch, or `seconds` of it, after dropping the files from the cache."""
        if not self.files:
            return {"skipped": "the data lies in memory"}
        gc.collect()  # a mapped page stays cached
        left = system.drop_from_cache(self.files)
        if left > _COLD_SHARE:
            reason = "the file system lives in memory, or another process maps the files"
            return {"skipped": f"{left:.0%} of a file stayed in the page cache: {reason}"}
        contenders: dict[str, Callable[[], Any]] = {"fastload": self.fast_loader}
        if torch_workers is not None:
            contenders["dataloader"] = partial(self.torch_loader, torch_workers)
        runs = {f"{name}, cold": partial(self._cold_run, make) for name, make in contenders.items()}
        done = take_turns(runs, self.settings.rounds, self.announce)
        result: dict[str, Any] = {}
        for name in contenders:
            rate = statistics.median(done[f"{name}, cold"])
            result[name] = {
                "samples_per_s": digits(rate),
                "bytes_per_s": digits(rate * self.row_bytes),
            }
        if torch_workers is not None:
            ratios = _ratios(done["fastload, cold"], done["dataloader, cold"])
            result |= {"dataloader_workers": torch_workers, "times_dataloader": ratios}
        return result

    def _cold_run(self, make_loader: Callable[[], Any]) -> float:
        system.drop_from_cache(self.files)
        rate = drive_once(make_loader(), self.batch_size, self.settings.seconds)
        gc.collect()
        return rate


def source_bytes(extents: Extents) -> list[int]:
    """Returns the total size of files and memory, each counted once."""
    sources = {source for column in extents.columns for source in column.sources}
    return [source.size_bytes for source in sources]


def _rates(speeds: list[Speed]) -> list[float]:
    return [speed.samples_per_s for speed in speeds]


def _ratios(over: list[float], under: list[float]) -> dict[str, float]:
    """Returns minimum, median and maximum of the ratios within rounds."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    found = {"low": min(ratios), "median": statistics.median(ratios), "high": max(ratios)}
    return {name: digits(ratio) for name, ratio in found.items()}
