"""How much longer is a training step with a loader than one whose batch never leaves the GPU?

ResNet-50 on uint8 images and GPT-2 small on uint16 tokens, in AMP with bfloat16 and float16 (with a
GradScaler). The same step uses one batch that is already on the device (the limit), FastLoader, and
a tuned DataLoader: a persistent worker per core, pinned memory, 4 batches ahead, non-blocking
copies. Images are normalised on the device in all three: by FastLoader's kernel after the copy, or
by torch.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gpu
import models
import numpy as np
import torch
from harness import main, write_rows
from torch.nn import functional as F

import fastload
from fastload import FastLoader, Normalize, ToChannelsFirst
from fastload.tools.bench import system, torch_side
from fastload.tools.bench.timing import digits, median_ratio, take_turns

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE = 224
IMAGES = 16_384
IMAGE_BATCH = 256
LENGTH = 1_024
WINDOWS = 4_096
TOKEN_BATCH = 16
STEPS = 40
WORKERS = system.core_count()
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
Step = Callable[[Any], None]


def measure(
    scale: float = 1.0,
    folder: Path = Path(),
    rounds: int = 3,
    device: str | None = None,
    small: bool = False,
) -> dict[str, Any]:
    """Measures both models; `small` uses tiny models, to test the program."""
    where = gpu.device_for(device)
    cases = [
        make(scale, folder, where, precision, small)
        for make in (Images, Tokens)
        for precision in PRECISIONS
    ]
    return {
        **gpu.describe(where),
        "steps": STEPS,
        "rounds": rounds,
        "cases": [
            {"name": case.name, "precision": case.precision, **compare(case, where, rounds)}
            for case in cases
        ],
    }


def compare(case: Any, device: torch.device, rounds: int) -> dict[str, Any]:
    step = training(case, device)
    cached = case.by_torch(next(iter(case.tuned())))
    sources: dict[str, tuple[Iterable[Any], Callable[[Any], Any]]] = {
        "cached": (itertools.repeat(cached), lambda batch: batch),
        "fastload": (case.fast(), case.by_fastload),
        "dataloader": (case.tuned(), case.by_torch),
    }
    contenders = {name: partial(steps, *source, step, device) for name, source in sources.items()}
    found = take_turns(contenders, rounds, print)
    times = {name: [run["step_s"] for run in runs] for name, runs in found.items()}
    return {
        **{name: medians(runs) for name, runs in found.items()},
        "ratios": {
            name: digits(median_ratio(times[name], times["cached"]))
            for name in ("fastload", "dataloader")
        },
    }


def medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    known = {name for run in runs for name, value in run.items() if value is not None}
    return {name: digits(statistics.median(run[name] for run in runs)) for name in sorted(known)}


def steps(
    batches: Iterable[Any], prepare: Callable[[Any], Any], step: Step, device: torch.device
) -> dict[str, Any]:
    """Trains for some steps; returns the seconds of a step, and the shares spent waiting."""
    source = forever(batches)
    for batch in itertools.islice(source, 5):
        step(prepare(batch))
    gpu.synchronize(device)
    busy, stall = gpu.Busy(device), gpu.Stall(device)
    with busy.watch():
        start = time.perf_counter()
        for _ in range(STEPS):
            with stall.around():
                batch = next(source)
            step(prepare(batch))
        gpu.synchronize(device)
        elapsed = time.perf_counter() - start
    waited = stall.device_s
    return {
        "step_s": elapsed / STEPS,
        "host_wait_share": stall.host_s / elapsed,
        "device_wait_share": None if waited is None else waited / elapsed,
        "busy_percent": busy.mean,
    }


def forever(batches: Iterable[Any]) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(batches))


def training(case: Any, device: torch.device) -> Step:
    torch.manual_seed(0)
    model = case.model().to(device)
    if case.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    scaler = torch.amp.GradScaler(device.type, enabled=case.precision == "fp16")

    def step(batch: Any) -> None:
        with torch.autocast(device.type, PRECISIONS[case.precision]):
            loss = case.loss(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


class Stored(torch.utils.data.Dataset[Any]):
    """The usual dataset over memory maps, which copies one sample."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(np.array(array[index])) for array in self.arrays)


class Images:
    """ResNet-50 on images (224, 224, 3) of 1 000 classes."""

    channels_last = True

    def __init__(
        self, scale: float, folder: Path, device: torch.device, precision: str, small: bool
    ) -> None:
        self.name = "small images" if small else "ResNet-50"
        self._small, self._device, self.precision = small, device, precision
        self.batch = 4 if small else IMAGE_BATCH
        side = 32 if small else SIDE
        count = max(4 * self.batch, int(IMAGES * scale))
        rows = np.load(write_rows(folder / "images.npy", count, side * side * 3), mmap_mode="r")
        self._images = rows.reshape(count, side, side, 3)
        np.save(folder / "labels.npy", np.arange(count, dtype=np.int64) % 1_000)
        self._labels = np.load(folder / "labels.npy", mmap_mode="r")
        planes = torch.tensor((MEAN, STD), device=device).view(2, 3, 1, 1)
        self._mean, self._std = planes

    def model(self) -> torch.nn.Module:
        return models.resnet((1, 1), 8) if self._small else models.resnet()

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    def by_torch(self, batch: Any) -> Any:
        images, labels = (tensor.to(self._device, non_blocking=True) for tensor in batch)
        scaled = images.permute(0, 3, 1, 2).float().mul_(1 / 255)  # keeps channels_last
        normal = scaled.sub_(self._mean).div_(self._std)
        return normal.to(PRECISIONS[self.precision]), labels

    def by_fastload(self, batch: Any) -> Any:
        return batch["image"], batch["label"]

    def fast(self) -> FastLoader[Any]:
        normalize = Normalize(MEAN, STD, PRECISIONS[self.precision])
        return FastLoader(
            fastload.ArrayDataset({"image": self._images, "label": self._labels}),
            self.batch,
            shuffle=True,
            seed=0,
            drop_last=True,
            device=self._device,
            transforms={"image": [normalize, ToChannelsFirst(torch.channels_last)]},
        )

    def tuned(self) -> Any:
        return tuned(Stored(self._images, self._labels), self.batch)


class Tokens:
    """GPT-2 small on windows of 1 024 tokens."""

    channels_last = False

    def __init__(
        self, scale: float, folder: Path, device: torch.device, precision: str, small: bool
    ) -> None:
        self.name = "small tokens" if small else "GPT-2 small"
        self._small, self._device, self.precision = small, device, precision
        self.batch = 4 if small else TOKEN_BATCH
        self._length = 32 if small else LENGTH
        count = max(4 * self.batch, int(WINDOWS * scale))
        random = np.random.default_rng(0)
        self._vocabulary = 64 if small else 50_257
        tokens = random.integers(0, self._vocabulary, count * self._length + 1, np.uint16)
        self._file = folder / "tokens.bin"
        tokens.tofile(self._file)

    def model(self) -> torch.nn.Module:
        if self._small:
            return models.GPT(self._vocabulary, self._length, 1, 64)
        return models.GPT()

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return model(*batch)

    def by_torch(self, batch: Any) -> Any:
        return tuple(tensor.to(self._device, non_blocking=True) for tensor in batch)

    def by_fastload(self, batch: Any) -> Any:
        return batch

    def fast(self) -> FastLoader[Any]:
        dataset = fastload.TokenDataset(self._file, self._length, dtype="uint16")
        return FastLoader(
            dataset, self.batch, shuffle=True, seed=0, drop_last=True, device=self._device
        )

    def tuned(self) -> Any:
        return tuned(self._windows(), self.batch)

    def _windows(self) -> Any:
        return TokenWindows(np.memmap(self._file, np.uint16, "r"), self._length)


class TokenWindows(torch.utils.data.Dataset[Any]):
    """Windows of tokens, and the same windows one token later, int64."""

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = index * self.length
        window = torch.from_numpy(self.tokens[first : first + self.length + 1].astype(np.int64))
        return window[:-1], window[1:]


def tuned(dataset: Any, batch: int) -> Any:
    options = {"prefetch_factor": 4} if WORKERS else {}
    return torch_side.loader(
        dataset,
        batch_size=batch,
        workers=WORKERS,
        pin_memory=torch.cuda.is_available(),
        **options,
    )


if __name__ == "__main__":
    main("train_step", measure, "device")
