"""Trains a small GPT on a file of tokens, like nanoGPT."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from model import GPT
from tokens import VOCABULARY, TokenWindows, write_tokens
from torch.utils.data import DataLoader


def batches_of(split: str, args: argparse.Namespace, shuffle: bool = False) -> Iterable:
    windows = TokenWindows(args.folder / f"{split}.bin", args.length)
    return DataLoader(windows, args.batch_size, shuffle, num_workers=2, drop_last=True)


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Returns the learning rate: linear warm-up, then a cosine down to a tenth."""
    if step < args.warmup:
        return args.learning_rate * (step + 1) / (args.warmup + 1)
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def evaluate(model: GPT, loader: Iterable, device: str, batches: int) -> float:
    model.eval()
    losses = [model(x.to(device), y.to(device)) for x, y in itertools.islice(loader, batches)]
    model.train()
    return torch.stack(losses).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("data/gpt"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--evaluate-every", type=int, default=100)
    args = parser.parse_args()

    torch.manual_seed(1337)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not (args.folder / "train.bin").exists():
        write_tokens(args.folder)

    loader = batches_of("train", args, shuffle=True)
    val_loader = batches_of("val", args)
    model = GPT(VOCABULARY, args.length, width=args.width).to(device)
    optimizer = model.optimizer(args.learning_rate, weight_decay=0.1)
    step = seen = 0
    while step < args.steps:
        for x, y in loader:
            loss = model(x.to(device, non_blocking=True), y.to(device, non_blocking=True))
            (loss / args.accumulate).backward()
            seen += 1
            if seen % args.accumulate:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            print(f"step {step}: loss {loss.item()}")
            if step % args.evaluate_every == 0 or step == args.steps:
                print(f"step {step}: val loss {evaluate(model, val_loader, device, batches=20)}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
