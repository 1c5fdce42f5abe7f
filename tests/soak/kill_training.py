"""Kills ranks of a training under torchrun at random moments: its losses must not change by a bit.

    python tests/soak/kill_training.py [--moments 10] [--seed 0] [--ranks 2]

Each round is one training that loses a random rank (SIGKILL) at random moments until it has ended;
torchrun starts it anew and it goes on from its last checkpoint. Killed may also be a rank that is
writing one, or that has only just begun.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "support/torchrun_training.py"


def main() -> int:
    """Runs the rounds; the exit code is 1 if a loss differed or a training did not end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--moments", type=int, default=10, help="total number of kills (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    kills = rounds = 0
    while kills < arguments.moments:
        with tempfile.TemporaryDirectory() as folder:
            landed, code = one_round(Path(folder), draw, arguments.ranks)
            kills += landed
            rounds += 1
            steps = {True: 0, False: 0} if code else compared(Path(folder))
            print(f"{landed} kills, exit code {code}, {steps[True]} losses equal", flush=True)
            if code or steps[False]:
                print(f"{steps[False]} losses DIFFERENT")
                return 1
    print(f"{kills} kills in {rounds} trainings, all losses equal to those without a break")
    return 0


def one_round(folder: Path, draw: random.Random, ranks: int) -> tuple[int, int]:
    """How many kills landed, and torchrun's exit code."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "--max-restarts=100", "--monitor-interval=0.1"]
    landed = 0
    log = folder / "log"
    with log.open("w") as file:
        done = subprocess.Popen(
            [*command, str(SCRIPT), str(folder), "--pause", "0.2"], stdout=file, stderr=file
        )
        while done.poll() is None:
            time.sleep(draw.uniform(0.5, 12))
            pid_file = folder / f"pid{draw.randrange(ranks)}"
            if not pid_file.exists() or done.poll() is not None:
                continue
            pid = int(pid_file.read_text())
            with suppress(FileNotFoundError, ProcessLookupError):
                if SCRIPT.name in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
                    landed += 1
    if done.returncode:
        print(log.read_text()[-4000:])
    return landed, done.returncode


def compared(folder: Path) -> dict[bool, int]:
    """How many losses, also those of steps that were made again, are the right ones."""
    broken, whole = (
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("broken", "whole")
    )
    right = dict(whole)
    found = {True: 0, False: 0}
    for number, loss in [*broken, *whole]:
        found[right[number] == loss] += 1
    assert set(dict(broken)) == set(right)
    return found


if __name__ == "__main__":
    sys.exit(main())
