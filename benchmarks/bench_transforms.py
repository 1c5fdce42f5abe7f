"""How much faster is normalisation in the gather than with torchvision's transforms?

Images of 224 x 224 x 3 uint8 in an .npy file in the page cache become normalised bfloat16
(C, H, W). torchvision's transforms v2 consist of the torch operations below (ToImage, ToDtype with
scale, Normalize, ToDtype), which run here without its dispatcher: image by image, one thread per
core, and batch by batch with torch's threads. First the transforms on images in memory, then whole
loaders.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import main, write_rows

import fastload
from fastload import FastLoader, Normalize, ToChannelsFirst
from fastload.batch.pixels import make_pixels
from fastload.formats.fields import Field
from fastload.tools.bench import system, torch_side
from fastload.tools.bench.timing import Speed, digits, drive, median_ratio, summary, take_turns

SHAPE = (224, 224, 3)
ROW_BYTES = 224 * 224 * 3
BATCH = 64
IMAGES = 8_192
WORKERS = (0, 1, 2)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PLANES = tuple(torch.tensor(numbers).view(-1, 1, 1) for numbers in (MEAN, STD))
STEPS = (Normalize(MEAN, STD, "bfloat16"), ToChannelsFirst())


def measure(
    scale: float = 1.0, folder: Path = Path(), seconds: float = 1.0, rounds: int = 5
) -> dict[str, Any]:
    count = max(2 * BATCH, int(IMAGES * scale))
    file = write_rows(folder / "images.npy", count, ROW_BYTES)
    images = np.load(file, mmap_mode="r").reshape(count, *SHAPE)
    bare: dict[str, Callable[[], float]] = {
        "kernel": partial(rate, by_kernel(images), 1, seconds),
        "per_sample": partial(rate, by_sample(images), 1, seconds),
        "per_batch": partial(rate, by_batch(images), system.core_count(), seconds),
    }
    loaders: dict[str, Callable[[], Any]] = {
        "fastload": partial(drive, partial(fast_loader, images), BATCH, seconds)
    }
    for n in WORKERS:
        options = {"batch_size": BATCH, "workers": n}
        sample = partial(torch_side.loader, ImageDataset(images, transformed), **options)
        batch = partial(BatchTransform, ImageDataset(images), options)
        loaders[f"per_sample/{n}"] = partial(drive, sample, BATCH, seconds)
        loaders[f"per_batch/{n}"] = partial(drive, batch, BATCH, seconds)
    done = take_turns({f"bare {name}": run for name, run in bare.items()} | loaders, rounds, print)
    rates = {f"bare {name}": done.pop(f"bare {name}") for name in bare}
    speeds: dict[str, list[Speed]] = done
    rates |= {name: [speed.samples_per_s for speed in of] for name, of in speeds.items()}
    return {
        "batch_size": BATCH,
        "images": count,
        "row_bytes": ROW_BYTES,
        "rounds": rounds,
        "seconds": seconds,
        "bare": {
            name: {"samples_per_s": digits(statistics.median(rates[f"bare {name}"]))}
            for name in bare
        },
        **{name: summary(of, 2 * ROW_BYTES) for name, of in speeds.items()},
        "ratios": {
            "bare": against(rates, "bare kernel", ["bare per_sample", "bare per_batch"]),
            "loader": against(rates, "fastload", [name for name in speeds if "/" in name]),
        },
    }


def against(rates: dict[str, list[float]], ours: str, others: list[str]) -> dict[str, Any]:
    """Returns the ratio to the fastest of the others."""
    best = max(others, key=lambda name: statistics.median(rates[name]))
    return {"ratio": digits(median_ratio(rates[ours], rates[best])), "against": best}


# --- The steps, in torch


def transformed(images: torch.Tensor) -> torch.Tensor:
    """Converts uint8 (..., H, W, C) to bfloat16 (..., C, H, W) with torchvision's steps."""
    planes = images.movedim(-1, -3).contiguous()
    scaled = planes.to(torch.float32).mul_(1.0 / 255)
    return scaled.sub(PLANES[0]).div_(PLANES[1]).to(torch.bfloat16)


class ImageDataset(torch.utils.data.Dataset[Any]):
    """Images of a memory map, transformed one by one."""

    def __init__(
        self, images: np.ndarray, transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        self.images = images
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        image = torch.from_numpy(self.images[index].copy())
        return image if self.transform is None else self.transform(image)


class BatchTransform:
    """A DataLoader of stored images whose batches are transformed by the consumer."""

    def __init__(self, dataset: ImageDataset, options: dict[str, Any]) -> None:
        self.loader = torch_side.loader(dataset, **options)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(transformed, self.loader)


def fast_loader(images: np.ndarray) -> FastLoader[Any]:
    dataset = fastload.ArrayDataset({"image": images})
    transforms = {"image": STEPS}
    return FastLoader(dataset, BATCH, shuffle=True, drop_last=True, seed=0, transforms=transforms)


# --- The transforms alone


def by_kernel(images: np.ndarray) -> Callable[[], int]:
    """Transforms a batch, a share per core; returns the number of images."""
    pixels = make_pixels(Field("image", "uint8", SHAPE), SHAPE, STEPS)
    out = np.empty((BATCH, *pixels.field.shape), pixels.field.storage)
    batches = Batches(images)

    def share(part: int) -> None:
        for place in range(part, BATCH, system.core_count()):
            pixels.plan.deliver(batches.now[place], out[place], 0, 0, 0)

    return partial(on_every_core, ThreadPoolExecutor(system.core_count()), share, batches)


def by_sample(images: np.ndarray) -> Callable[[], int]:
    """Transforms a batch with torch, image by image."""
    out = torch.empty((BATCH, 3, *SHAPE[:2]), dtype=torch.bfloat16)
    batches = Batches(images)

    def share(part: int) -> None:
        for place in range(part, BATCH, system.core_count()):
            out[place] = transformed(torch.from_numpy(batches.now[place]))

    return partial(on_every_core, ThreadPoolExecutor(system.core_count()), share, batches)


def by_batch(images: np.ndarray) -> Callable[[], int]:
    """Transforms a batch with torch, in one call."""
    batches = Batches(images)

    def batch() -> int:
        batches.advance()
        return len(transformed(torch.from_numpy(batches.now)))

    return batch


class Batches:
    """Yields batches of images in memory."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = np.array(images[: 16 * BATCH])
        self.first = 0
        self.now = self.images[:BATCH]

    def advance(self) -> None:
        self.first = (self.first + BATCH) % (len(self.images) - BATCH + 1)
        self.now = self.images[self.first : self.first + BATCH]


def on_every_core(pool: ThreadPoolExecutor, share: Callable[[int], None], batches: Batches) -> int:
    batches.advance()
    for _ in pool.map(share, range(system.core_count())):
        pass
    return BATCH


def rate(work: Callable[[], int], threads: int, seconds: float) -> float:
    """Returns images per second, with the given number of torch threads per operation."""
    with torch_threads(threads):
        work()
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            count += work()
        return count / (time.perf_counter() - start)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


if __name__ == "__main__":
    main("transforms", measure)
