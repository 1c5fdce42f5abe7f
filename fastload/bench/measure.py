"""What `fastload bench` measures: one dataset, warm and cold, by each contender in turn."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from fastload import _core, host
from fastload.bench import system, torch_side
from fastload.bench.timing import (
    Speed,
    digits,
    drive,
    drive_once,
    median_ratio,
    summary,
    take_turns,
)
from fastload.dataset import Dataset
from fastload.formats.extents import Extents, FileSource
from fastload.formats.fields import BYTE_STRINGS
from fastload.loader import FastLoader
from fastload.native import sample_bytes
from fastload.transforms import PadTo

SCHEMA = 1

_MAX_TORCH_ROWS = 2**26  # torch's shuffle makes a Python list of all indices
_LIMIT_INDICES = 2**24
_COLD_SHARE = 0.05  # of the pages of a file that may stay cached in a run that is called cold


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        batch_size: Samples of a batch; no more than the dataset has.
        seconds: Of each contender in each round.
        rounds: Turns of each contender; medians are reported.
        num_workers: Of FastLoader; None leaves it to FastLoader.
        torch_workers: Worker counts of DataLoader to try.
    """

    batch_size: int = 256
    seconds: float = 1.0
    rounds: int = 3
    num_workers: int | None = None
    torch_workers: tuple[int, ...] = (0, 1, 2, 4)


def measure(
    open_dataset: Callable[[], Dataset],
    settings: Settings,
    announce: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measures a dataset; see `SCHEMA` for the version of the result, which is ready for JSON.

    Args:
        open_dataset: Opens it anew at each call.
        settings: How to measure.
        announce: Told what is measured next.

    Raises:
        ValueError: there are no samples, or they hold no bytes.
    """
    extents = open_dataset().extents
    row_bytes = sample_bytes(extents)
    if extents.rows == 0 or row_bytes == 0:
        raise ValueError(f"nothing to measure: {extents.rows} samples of {row_bytes} bytes")
    bench = _Bench(open_dataset, extents, row_bytes, settings, announce)
    warm = bench.warm()
    return {
        "schema": SCHEMA,
        "date": host.now(),
        "machine": system.describe(),
        "data": {
            "samples": extents.rows,
            "sample_bytes": row_bytes,
            "fields": {field.name: str(field) for field in extents.fields},
            "files": len(bench.files),
        },
        "settings": {**asdict(settings), "batch_size": bench.batch_size},
        "warm": warm,
        "cold": bench.cold(warm["dataloader_workers"]),
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
        self.batch_size = min(settings.batch_size, extents.rows)
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
            transforms=self.padding,
        )

    def torch_loader(self, workers: int) -> Any:
        rows = torch_side.RowDataset(self.extents)
        collates = {"collate_fn": torch_side.padded} if self.padding else {}
        return torch_side.loader(rows, batch_size=self.batch_size, workers=workers, **collates)

    def limit(self) -> Callable[[], float]:
        """Measures samples/s of threads that only gather, by the same kernels."""
        table = self.extents.build()
        count = min(self.extents.rows, _LIMIT_INDICES)
        indices = _core.Permutation(self.extents.rows, 0, 0).indices(0, count)
        threads, seconds = system.core_count(), self.settings.seconds
        return lambda: (
            _core.measure_gather(table, indices, self.batch_size, threads, seconds) / self.row_bytes
        )

    def warm(self) -> dict[str, Any]:
        """All contenders on files that lie in the page cache, if the memory holds them."""
        fits = sum(source_bytes(self.extents)) < 0.8 * system.available_bytes()
        if fits:
            self.announce("reading the files into the page cache")
            system.read_into_cache(self.files)
        seconds = self.settings.seconds
        contenders: dict[str, Callable[[], Any]] = {
            "limit": self.limit(),
            "fastload": partial(drive, self.fast_loader, self.batch_size, seconds),
        }
        names = {}
        if self.extents.rows <= _MAX_TORCH_ROWS:
            names = {n: f"DataLoader, {n} workers" for n in self.settings.torch_workers}
        for workers, name in names.items():
            make = partial(self.torch_loader, workers)
            contenders[name] = partial(drive, make, self.batch_size, seconds)
        done = take_turns(contenders, self.settings.rounds, self.announce)
        limit = statistics.median(done["limit"])
        result: dict[str, Any] = {
            "in_page_cache": fits,
            "limit": {
                "threads": system.core_count(),
                "samples_per_s": digits(limit),
                "bytes_per_s": digits(limit * self.row_bytes),
            },
            "fastload": summary(done["fastload"], self.row_bytes),
            "dataloader": {
                str(n): summary(done[name], self.row_bytes) for n, name in names.items()
            },
            "dataloader_workers": None,
        }
        result["of_limit"] = digits(median_ratio(_rates(done["fastload"]), done["limit"]))
        if names:
            best = max(names, key=lambda n: statistics.median(_rates(done[names[n]])))
            ratio = median_ratio(_rates(done["fastload"]), _rates(done[names[best]]))
            result |= {"dataloader_workers": best, "times_dataloader": digits(ratio)}
        return result

    def cold(self, torch_workers: int | None) -> dict[str, Any]:
        """One epoch, or `seconds` of it, right after the files were dropped from the cache."""
        if not self.files:
            return {"skipped": "the data lies in memory"}
        gc.collect()  # a page that is still mapped stays cached
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
            ratio = median_ratio(done["fastload, cold"], done["dataloader, cold"])
            result |= {"dataloader_workers": torch_workers, "times_dataloader": digits(ratio)}
        return result

    def _cold_run(self, make_loader: Callable[[], Any]) -> float:
        system.drop_from_cache(self.files)
        rate = drive_once(make_loader(), self.batch_size, self.settings.seconds)
        gc.collect()
        return rate


def source_bytes(extents: Extents) -> list[int]:
    """The size of each file or piece of memory, once."""
    sources = {source for column in extents.columns for source in column.sources}
    return [source.size_bytes for source in sources]


def _rates(speeds: list[Speed]) -> list[float]:
    return [speed.samples_per_s for speed in speeds]
