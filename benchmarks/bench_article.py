"""How much faster does training get, step by step, as in articles on data loading?

A small ResNet trains on 50 000 images of 32 x 32 pixels: with a DataLoader without workers over a
folder of PNG files, a tuned DataLoader over these, a tuned DataLoader over the packed dataset, and
FastLoader over the packed dataset. All use the same batches in the same order, from torch's
DistributedSampler, so their losses must be equal. It runs with one process, and with two that
exchange gradients (DDP). Waiting is the time in `next()`, as logged by `fastload.watch`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gpu
import models
import numpy as np
import torch
from harness import main
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import fastload
from fastload import FastLoader
from fastload.tools.bench import system
from fastload.tools.bench.timing import digits, median_ratio, take_turns
from fastload.tools.demo import ImageFolder, reproducible, write_pngs
from fastload.tools.report import Run

IMAGES = 50_000
SIDE = 32
BATCH = 128  # samples of all ranks
EPOCHS = 2
LAYERS, WIDTH = (1, 1, 1), 16
Make = Callable[[DistributedSampler], Any]


def measure(
    scale: float = 1.0,
    folder: Path = Path(),
    rounds: int = 3,
    device: str | None = None,
    worlds: tuple[int, ...] = (1, 2),
    batch: int = BATCH,
) -> dict[str, Any]:
    """Measures on `device`; by default the GPU if there is one, which ranks share if necessary."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    count = max(4 * batch, int(IMAGES * scale))
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
    write_pngs(pixels, np.arange(count) % 10, folder / "images")
    fastload.pack(folder / "images", folder / "packed")
    return {
        **gpu.describe(where),
        "images": count,
        "batch_size": batch,
        "epochs": EPOCHS,
        "rounds": rounds,
        "worlds": [trained(folder, where, rounds, world, batch) for world in worlds],
    }


def trained(
    folder: Path, device: torch.device, rounds: int, world: int, batch: int
) -> dict[str, Any]:
    """Runs all trainings with this number of processes, which are reused."""
    target = folder / f"world{world}"
    target.mkdir()
    arguments = (world, folder, target, device, rounds, batch // world)
    if world == 1:
        process(0, *arguments)
    else:
        torch.multiprocessing.spawn(process, arguments, world)
    each = [json.loads((target / f"{rank}.json").read_text()) for rank in range(world)]
    runs = {name: [together(run) for run in zip(*(of[name] for of in each))] for name in each[0]}
    losses = [run.pop("losses") for found in runs.values() for run in found]
    speeds = {name: [run["samples_per_s"] for run in found] for name, found in runs.items()}
    return {
        "world": world,
        "cases": {
            name: {key: digits(statistics.median(run[key] for run in found)) for key in found[0]}
            for name, found in runs.items()
        },
        "ratios": {name: digits(median_ratio(speeds["fastload"], speeds[name])) for name in speeds},
        "steps": len(losses[0][0]),
        "losses_are_identical": all(other == losses[0] for other in losses),
    }


def together(ranks: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Results of one training on all its ranks."""
    names = ["wait_share", "step_ms", *(["gpu_busy"] if ranks[0]["gpu_busy"] is not None else [])]
    mean = {name: statistics.fmean(rank[name] for rank in ranks) for name in names}
    return {
        "samples_per_s": sum(rank["samples_per_s"] for rank in ranks),
        "epoch_s": max(rank["epoch_s"] for rank in ranks),
        "losses": [rank["losses"] for rank in ranks],
        **mean,
    }


def process(
    rank: int, world: int, folder: Path, target: Path, device: torch.device, rounds: int, batch: int
) -> None:
    """Runs one rank: trains with each loader in turn, and writes the results to a file."""
    torch.set_num_threads(max(1, system.core_count() // world))
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    where = torch.device("cuda", rank % gpus) if gpus else device
    # Ranks that share a GPU cannot use NCCL.
    backend = where if world <= gpus else "cpu"
    meeting = f"file://{target.absolute()}/meeting"
    with fastload.distributed(rank, world, init_method=meeting, device=backend):
        with reproducible(where):
            made = cases(folder, world, where, batch)
            log = target / (f"log.{rank}.jsonl" if rank else "log.jsonl")
            train(made["fastload"], where, target, log, epochs=1)  # first steps are slow
            contenders = {
                name: partial(train, make, where, target, log) for name, make in made.items()
            }
            found = take_turns(contenders, rounds, print if rank == 0 else lambda _: None)
    (target / f"{rank}.json").write_text(json.dumps(found))


def cases(folder: Path, world: int, device: torch.device, batch: int) -> dict[str, Make]:
    """Returns the loaders by name, as functions of a sampler."""
    workers = max(1, system.core_count() // world)
    files = ImageFolder(folder / "images")
    packed = fastload.PackedDataset(folder / "packed")
    options: dict[str, Any] = {"batch_size": batch, "drop_last": True}
    tuned = {
        "num_workers": workers,
        "persistent_workers": True,
        "prefetch_factor": 4,
        "pin_memory": device.type == "cuda",
    }
    place = {"device": device} if device.type == "cuda" else {}
    return {
        "dataloader": lambda sampler: DataLoader(files, sampler=sampler, **options),
        "tuned": lambda sampler: DataLoader(files, sampler=sampler, **options, **tuned),
        "packed": lambda sampler: DataLoader(packed, sampler=sampler, **options, **tuned),
        "fastload": lambda sampler: FastLoader(packed, sampler=sampler, **options, **place),
    }


def train(
    make: Make, device: torch.device, target: Path, log: Path, epochs: int | None = None
) -> dict[str, Any]:
    """Trains from scratch; returns the summary of the log, and all losses."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    sampler = DistributedSampler(ImageFolder(target.parent / "images"), world, rank, seed=0)
    torch.manual_seed(0)
    model: torch.nn.Module = models.resnet(LAYERS, WIDTH).to(device)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    precision = "fp16" if device.type == "cuda" else "fp32"
    step = fastload.TrainStep(model, optimizer, loss, precision=precision)
    watched = fastload.watch(make(sampler), log=target / "log.jsonl")
    for epoch in range(epochs or EPOCHS):
        sampler.set_epoch(epoch)
        for batch in watched:
            images, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
            watched.log(loss=step((images, labels)).loss)
    run = Run(str(log))
    return {**run.summary(), "losses": [step["loss"] for step in run.steps]}


def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    planes = images.permute(0, 3, 1, 2).contiguous()
    return F.cross_entropy(model(planes.float().div(255)), labels)


if __name__ == "__main__":
    main("article", measure, "device")
