"""Images in the shape of CIFAR-10, the usual dataset over them, and transforms of a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import Dataset


def write_images(folder: Path, split: str, count: int) -> None:
    """Writes `<split>_images.npy`, uint8 (count, 3, 32, 32), and `<split>_labels.npy`, int64.

    Nothing is downloaded: an image is the shifted pattern of its class plus noise.
    """
    random = np.random.default_rng([len(split), count])
    patterns = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4)).repeat(8, 2).repeat(8, 3)
    labels = random.integers(0, 10, count)
    shifts = random.integers(-6, 7, (count, 2))
    images = np.empty((count, 3, 32, 32), np.uint8)
    for image, label, shift in zip(images, labels, shifts, strict=True):
        noisy = np.roll(patterns[label], shift, (1, 2)) + random.normal(0, 60, image.shape)
        image[:] = noisy.clip(0, 255)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{split}_images.npy", images)
    np.save(folder / f"{split}_labels.npy", labels)


class Images(Dataset):
    """A sample is (image, label): uint8 (3, 32, 32) and an int."""

    def __init__(self, files: tuple[Path, Path]) -> None:
        self.images, self.labels = (np.load(file, mmap_mode="r") for file in files)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.images[index].copy()), int(self.labels[index])


def normalise(images: torch.Tensor) -> torch.Tensor:
    """Converts uint8 to floats with a mean of about 0 and a deviation of about 1."""
    return images.float().div(255).sub(0.5).div(0.25)


def augment(images: torch.Tensor) -> torch.Tensor:
    """Returns random crops of the images padded by 4 pixels, randomly flipped."""
    count, device = len(images), images.device
    padded = functional.pad(images, (4, 4, 4, 4))
    place = torch.arange(32, device=device)
    row, column = torch.randint(9, (2, count, 1), device=device) + place
    flipped = torch.rand(count, 1, device=device) < 0.5
    column = torch.where(flipped, column.flip(1), column)
    sample = torch.arange(count, device=device)
    cropped = padded[sample[:, None, None], :, row[:, :, None], column[:, None, :]]
    return cropped.permute(0, 3, 1, 2)
