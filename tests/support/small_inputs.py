"""Inputs for packs that several processes share: some that are bad, one that is told to be slow."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import encoded, noise, put


def inputs(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Inputs of several kinds, with their options: some records of two cannot be read."""
    np.save(folder / "x.npy", np.random.default_rng(0).random((200, 5)))
    for number in range(40):
        image = encoded(noise(4, 4, number), "PNG")
        put(folder / "images" / "ab"[number % 2] / f"{number:02d}.png", image)
    put(folder / "images/a/07.png", b"no image")
    lines = [json.dumps({"i": i, "text": "x" * (i % 7)}) for i in range(100)]
    lines[33] = "{"
    (folder / "x.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "arrays": (folder / "x.npy", {"shard_size": 1500}),
        "images": (folder / "images", {"shard_size": 300, "shuffle": 1}),
        "lines": (folder / "x.jsonl", {"shard_size": 300}),
    }


def patient(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset by its name, of which one sample breaks, kills or waits, if a file says so.

    None of these is looked at to find out what the samples are. Shards of 1 KiB hold 16.
    """
    text = """
import os, signal, time
import numpy as np
HERE = os.path.dirname(__file__)
def told(what): return os.path.exists(f"{HERE}/{what}")
class Samples:
    def __len__(self): return 200
    def __getitem__(self, i):
        while i == 20 and told("wait"):
            with open(f"{HERE}/waits.new", "w") as file: file.write(str(os.getpid()))
            os.rename(f"{HERE}/waits.new", f"{HERE}/waits")
            time.sleep(0.01)
        if i == 121 and told("break"): raise KeyError("as it was meant to")
        if i == 121 and told("die"): os.kill(os.getpid(), signal.SIGKILL)
        return np.full(8, i)
"""
    (folder / "patient.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.delitem(sys.modules, "patient", raising=False)
    return "patient:Samples"
