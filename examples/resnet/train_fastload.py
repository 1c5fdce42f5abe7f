"""Trains a small ResNet on images of 32 x 32 pixels, like the CIFAR experiments."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from images import augment, normalise, write_images
from model import resnet
from torch import nn

from fastload import ArrayDataset, FastLoader


def batches_of(split: str, args: argparse.Namespace, **options: bool) -> Any:
    files = args.folder / f"{split}_images.npy", args.folder / f"{split}_labels.npy"
    return FastLoader(ArrayDataset(files), batch_size=args.batch_size, **options)


@torch.no_grad()
def accuracy(model: nn.Module, loader: Iterable, device: str) -> float:
    model.eval()
    hits = count = 0
    for image, label in loader:
        scores = model(normalise(image.to(device)))
        hits += (scores.argmax(1) == label.to(device)).sum().item()
        count += len(label)
    model.train()
    return hits / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("data/resnet"))
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=3, help="in each of three stages")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not args.folder.exists():
        write_images(args.folder, "train", args.images)
        write_images(args.folder, "test", args.images // 5)

    loader = batches_of("train", args, shuffle=True, drop_last=True)
    test_loader = batches_of("test", args)
    model = resnet(args.blocks).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), args.learning_rate, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.learning_rate, total_steps=args.epochs * len(loader)
    )
    for epoch in range(args.epochs):
        for step, (image, label) in enumerate(loader):
            image = augment(normalise(image.to(device, non_blocking=True)))
            label = label.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            print(f"epoch {epoch}, step {step}: loss {loss.item()}")
        print(f"epoch {epoch}: test accuracy {accuracy(model, test_loader, device)}")


if __name__ == "__main__":
    main()
