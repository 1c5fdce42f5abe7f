"""Kills packs at random moments and resumes them: the folder must equal an uninterrupted one.

    python tests/soak/kill_resume.py [--moments 50] [--seed 0]

Each round packs a folder of images, some of them broken, so that gaps are closed at the end, or a
dataset of texts and arrays of varying length. The pack and all its workers are killed with SIGKILL
at a random moment, several times over, and then resumed to the end.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

MODULE = """
import time, numpy as np
class Ragged:
    def __len__(self): return 240
    def __getitem__(self, i):
        time.sleep(0.001)
        return {"t": "text " * (i % 7), "r": np.arange(i % 11), "x": np.full(30, i)}
"""
SOURCES = {
    "images": "images --shard-size 3000",
    "shuffled images": "images --shard-size 3000 --shuffle 5 --split a=0.5,b=0.5",
    "ragged": "ragged:Ragged --shard-size 4000",
    "shuffled ragged": "ragged:Ragged --shard-size 4000 --shuffle 1 --cast x=f32",
}


def main() -> int:
    """Runs the rounds; the exit code is 1 if a folder differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--moments", type=int, default=50, help="total number of kills (default: 50)"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        prepare(where)
        took = {name: clean_run(where, name) for name in SOURCES}
        kills = rounds = 0
        while kills < arguments.moments:
            name = draw.choice(list(SOURCES))
            landed = one_round(where, name, draw, took[name])
            same = same_folders(where / "out", where / f"{name}-clean")
            kills += landed
            rounds += 1
            print(f"{name}: {landed} kills, {'identical' if same else 'DIFFERENT'}", flush=True)
            if not same:
                return 1
    print(f"{kills} kills in {rounds} packs, all folders byte-identical to undisturbed ones")
    return 0


def prepare(where: Path) -> None:
    """Writes the inputs."""
    (where / "ragged.py").write_text(MODULE)
    pixels = np.random.default_rng(0)
    for number in range(200):
        path = where / f"images/{number % 4}/{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 17 == 3:
            path.write_bytes(b"broken")
        else:
            Image.fromarray(pixels.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(path)


def start(where: Path, name: str, out: str, workers: int) -> subprocess.Popen[bytes]:
    """Starts a pack in a process group of its own."""
    source, *options = SOURCES[name].split()
    command = [sys.executable, "-m", "fastload", "pack", source, out, *options]
    return subprocess.Popen(
        [*command, "--workers", str(workers), "--resume"],
        cwd=where,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def clean_run(where: Path, name: str) -> float:
    """Packs without interruption; returns the seconds."""
    begin = time.monotonic()
    code = start(where, name, f"{name}-clean", 1).wait()
    assert code in (0, 3), code
    return time.monotonic() - begin


def one_round(where: Path, name: str, draw: random.Random, took: float) -> int:
    """Packs with kills in between; gives how many hit a running pack."""
    shutil.rmtree(where / "out", ignore_errors=True)
    landed = 0
    for _ in range(draw.randint(1, 4)):
        process = start(where, name, "out", draw.choice([1, 2, 3]))
        until = time.monotonic() + 20
        while not (where / "out/.fastload").exists() and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.001)
        time.sleep(draw.uniform(0, took * 0.6))
        landed += process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if (where / "out/fastload.json").exists():
            break
    code = start(where, name, "out", draw.choice([1, 2])).wait()
    assert code in (0, 3), code
    return landed


def same_folders(a: Path, b: Path) -> bool:
    """Whether two folders hold the same files, byte for byte."""
    names = sorted(os.listdir(a))
    return names == sorted(os.listdir(b)) and filecmp.cmpfiles(a, b, names, False)[0] == names


if __name__ == "__main__":
    sys.exit(main())
