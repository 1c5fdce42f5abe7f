"""Trains a multilayer perceptron on a table of numbers in memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from fastload import FastLoader


def table(rows: int) -> TensorDataset:
    """Returns eight columns and a price that depends on them: a sample is (features, price)."""
    random = np.random.default_rng(0)
    features = random.normal(size=(rows, 8)).astype(np.float32)
    price = features[:, 0] * features[:, 1] + np.sin(2 * features[:, 2]) + features[:, 3:].sum(1)
    price += random.normal(0, 0.1, rows)
    return TensorDataset(torch.from_numpy(features), torch.from_numpy(price.astype(np.float32)))


@torch.no_grad()
def error(model: nn.Module, loader: Iterable, device: str) -> float:
    model.eval()
    squares = torch.cat([(model(x.to(device))[:, 0] - y.to(device)) ** 2 for x, y in loader])
    model.train()
    return squares.mean().sqrt().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, valid = random_split(table(args.rows), [0.9, 0.1])
    loader = FastLoader(train, batch_size=args.batch_size, shuffle=True)
    valid_loader = FastLoader(valid, batch_size=args.batch_size)

    model = nn.Sequential(
        nn.Linear(8, args.width),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(args.width, args.width),
        nn.ReLU(),
        nn.Linear(args.width, 1),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device))[:, 0], y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader)}")
        print(f"epoch {epoch}: validation error {error(model, valid_loader, device)}")


if __name__ == "__main__":
    main()
