"""A training under torchrun, of which the tests kill a rank: `FOLDER` and the options below.

It logs the bits of each step's loss, goes on from its last checkpoint when torchrun starts it anew,
and in the end trains once more without a break.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from steps import FEATURES, adam, dataset, mse
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from waiting import wait_for

import fastload
from fastload import FastLoader, TrainStep

EPOCHS, ROWS, SIZE, SAVE_EVERY = 2, 100, 4, 3


def train(process: Any, log: Path, checkpoint: Path, die_after: int = 0, pause: float = 0) -> None:
    torch.manual_seed(5 + process.rank)  # dropout differs between the ranks, and goes on, too
    net = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    model = DistributedDataParallel(net)
    optimizer = adam(model)
    step = TrainStep(
        model,
        optimizer,
        mse,
        precision="fp32",
        max_norm=1.0,
        scheduler=CosineAnnealingLR(optimizer, 100),
    )
    loader: Any = FastLoader(dataset(ROWS), SIZE, shuffle=True, seed=1, drop_last=True)
    if checkpoint.exists():
        step.load(checkpoint, loader)
    for _epoch in range(loader.state_dict()["epoch"], EPOCHS):
        for group in loader.groups(2):
            time.sleep(pause)
            loss = step(group).loss
            dist.all_reduce(loss)
            if process.rank == 0:
                with log.open("a") as file:
                    file.write(json.dumps([step.steps, (loss.item() / 2).hex()]) + "\n")
            if process.rank == 1 and step.steps == die_after:
                wait_for(lambda: log.read_text().count("\n") == die_after)
                os.kill(os.getpid(), signal.SIGKILL)
            if step.steps % SAVE_EVERY == 0:
                step.save(checkpoint, loader)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0, help="before each step")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    torch.set_num_threads(1)
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    with fastload.distributed(device="cpu", timeout=240) as process:
        (folder / f"pid{process.rank}").write_text(str(os.getpid()))
        die_after = arguments.die_after if is_first else 0
        train(process, folder / "broken.jsonl", folder / "broken.pt", die_after, arguments.pause)
        train(process, folder / "whole.jsonl", folder / "whole.pt")


if __name__ == "__main__":
    main()
