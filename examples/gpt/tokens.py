"""A file of token ids, and the usual dataset over it."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

VOCABULARY = 256  # the tokens are bytes


def write_tokens(folder: Path, count: int = 1_000_000) -> None:
    """Writes `train.bin` and `val.bin`, uint16, from the sources of Python's standard library."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= count:
            break
    tokens = np.frombuffer(bytes(text[:count]), np.uint8).astype(np.uint16)
    cut = len(tokens) * 9 // 10
    folder.mkdir(parents=True, exist_ok=True)
    tokens[:cut].tofile(folder / "train.bin")
    tokens[cut:].tofile(folder / "val.bin")


class TokenWindows(Dataset):
    """Window i is tokens `i * length ... i * length + length`; a sample is (x, y)."""

    def __init__(self, path: Path, length: int) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")
        self.length = length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = index * self.length
        window = self.tokens[first : first + self.length + 1].astype(np.int64)
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])
