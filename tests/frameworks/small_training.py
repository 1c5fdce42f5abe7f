"""What the tests of all trainers share: data, a model, and the losses of a plain loop."""

from __future__ import annotations

import io
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import fastload
from fastload import (
    ArrayDataset,
    DecodeImage,
    Normalize,
    PadTo,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
)
from fastload.loader.native_iterator import _NativeIterator

ROWS, FEATURES, BATCH = 44, 5, 4


def dataset(rows: int = ROWS) -> TensorDataset:
    """Features, targets, and the number of the sample."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, FEATURES, generator=generator)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1, generator=generator)
    return TensorDataset(x, y, torch.arange(rows))


def model() -> nn.Module:
    """Always with the same weights; draws nothing from the global generator."""
    with torch.random.fork_rng():
        made = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return made


def optimizer(net: nn.Module) -> torch.optim.Optimizer:
    """With a state, so that a resume that loses it shows."""
    return torch.optim.Adam(net.parameters(), lr=0.01)


def loss_of(net: nn.Module, batch: Any) -> torch.Tensor:
    """Mean squared error of a batch of `dataset`, or of `transformed`."""
    if not isinstance(batch, dict):
        return nn.functional.mse_loss(net(batch[0]), batch[1])
    features = batch["x"].flatten(1)[:, :FEATURES]
    assert features.is_floating_point(), "the transforms were lost"
    return nn.functional.mse_loss(net(features), batch["y"])


TRANSFORMED = ("fixed", "ragged", "encoded")


def transformed(kind: str) -> dict[str, Any]:
    """Dataset and transforms of a FastLoader: its fields are x, which is transformed, and y.

    "fixed": images, cropped, flipped and normalized; "ragged": numbers, padded; "encoded": images
    that are decoded before. The dataset is packed into a folder in the folder for temporary files.
    """
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (ROWS, 6, 6, 3), dtype=np.uint8)
    targets = rng.normal(size=(ROWS, 1)).astype(np.float32)
    steps = [RandomCrop(4, 1), RandomHorizontalFlip(), Normalize((0.5,) * 3, (0.25,) * 3)]
    steps.append(ToChannelsFirst())
    if kind == "fixed":
        data = ArrayDataset({"x": images, "y": targets})
        return {"dataset": data, "transforms": {"x": steps}}
    numbers = [rng.normal(size=n % FEATURES).astype(np.float32) for n in range(ROWS)]
    x = numbers if kind == "ragged" else list(map(_as_png, images))
    folder = tempfile.mkdtemp()
    fastload.pack([{"x": x, "y": y} for x, y in zip(x, targets, strict=True)], f"{folder}/packed")
    return {
        "dataset": f"{folder}/packed",
        "transforms": {"x": PadTo(FEATURES) if kind == "ragged" else [DecodeImage(), *steps]},
    }


def _as_png(image: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def plain_losses(loader: Iterable[Any], epochs: int) -> list[float]:
    """The losses of the loop that everybody writes."""
    net = model()
    optim = optimizer(net)
    losses = []
    for _epoch in range(epochs):
        for batch in loader:
            loss = loss_of(net, batch)
            optim.zero_grad()
            loss.backward()
            optim.step()
            losses.append(loss.item())
    return losses


@contextmanager
def native_batches() -> Iterator[list[Any]]:
    """Collects the batches that fastload's own iterators hand out meanwhile, in every loader."""
    seen: list[Any] = []
    original = _NativeIterator.__next__

    def counted(self: Any) -> Any:
        batch = original(self)
        seen.append(batch)
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_NativeIterator, "__next__", counted)
        yield seen


def numbers_of(batches: Iterable[Any]) -> list[list[int]]:
    """Which samples the batches hold."""
    return [batch[2].tolist() for batch in batches]


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _in_rank(
    rank: int, task: Callable[..., Any], world: int, port: int, folder: str, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        torch.save(task(*args), Path(folder) / f"rank{rank}.pt")
    finally:
        dist.destroy_process_group()


def in_ranks(task: Callable[..., Any], world: int, folder: Path, *args: Any) -> list[Any]:
    """What `task(*args)` returns in each of `world` processes, which form a gloo group."""
    folder.mkdir(exist_ok=True)
    arguments = (task, world, free_port(), str(folder), args)
    mp.spawn(_in_rank, arguments, nprocs=world)  # type: ignore[no-untyped-call]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world)]
