"""How much faster are padded batches of different lengths than with pad_sequence?

Sequences of 16 to 512 int64 tokens, in one safetensors file of values and offsets in the page
cache; batches of 64, shuffled, padded to the longest of the batch. DataLoader uses a dataset over
memory maps of the same file and the usual `pad_sequence` collate.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import main
from torch.nn.utils.rnn import pad_sequence

import fastload
from fastload.tools.bench import torch_side
from fastload.tools.bench.timing import Speed, digits, drive, median_ratio, summary, take_turns

BATCH = 64
WORKERS = (0, 1, 2)
SAMPLES = 200_000
LENGTHS = (16, 512)


def measure(
    scale: float = 1.0, folder: Path = Path(), seconds: float = 1.0, rounds: int = 5
) -> dict[str, Any]:
    samples = max(4 * BATCH, int(SAMPLES * scale))
    file, lengths = write_sequences(folder / "sequences.safetensors", samples)
    dataset = SequenceDataset(file, lengths)
    contenders: dict[str, Callable[[], Any]] = {
        "fastload": partial(drive, partial(fast_loader, file), BATCH, seconds)
    }
    for n in WORKERS:
        make = partial(torch_side.loader, dataset, collate_fn=padded, batch_size=BATCH, workers=n)
        contenders[f"dataloader/{n}"] = partial(drive, make, BATCH, seconds)
    done: dict[str, list[Speed]] = take_turns(contenders, rounds, print)
    rates = {name: [speed.samples_per_s for speed in speeds] for name, speeds in done.items()}
    mean_bytes = 8 * float(lengths.mean())
    best = max(
        (f"dataloader/{n}" for n in WORKERS), key=lambda name: statistics.median(rates[name])
    )
    return {
        "batch_size": BATCH,
        "samples": samples,
        "mean_length": digits(float(lengths.mean())),
        "rounds": rounds,
        "seconds": seconds,
        **{name: summary(speeds, round(mean_bytes)) for name, speeds in done.items()},
        "ratios": {
            "dataloader": {
                "ratio": digits(median_ratio(rates["fastload"], rates[best])),
                "against": best,
            }
        },
    }


def fast_loader(file: Path) -> fastload.FastLoader:
    return fastload.FastLoader(
        fastload.open(file),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        seed=0,
        transforms={"t": fastload.PadTo()},
    )


class SequenceDataset(torch.utils.data.Dataset):
    """The usual dataset: a memory map, and the offset of each sequence."""

    def __init__(self, file: Path, lengths: np.ndarray) -> None:
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        [header] = np.fromfile(file, "<u8", 1).tolist()
        self.values = np.memmap(file, np.int64, "r", 8 + header, (int(self.offsets[-1]),))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.values[self.offsets[index] : self.offsets[index + 1]].copy())


def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        "t": pad_sequence(samples, batch_first=True),
        "t_lengths": torch.tensor([len(sample) for sample in samples]),
    }


def write_sequences(path: Path, samples: int) -> tuple[Path, np.ndarray]:
    """Writes a safetensors file of a ragged field `t`; returns the lengths of its samples."""
    random = np.random.default_rng(samples)
    lengths = random.integers(*LENGTHS, samples)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = random.integers(0, 50_257, offsets[-1])
    split, end = values.nbytes, values.nbytes + offsets.nbytes
    tensors = {
        "t::values": {"dtype": "I64", "shape": values.shape, "data_offsets": [0, split]},
        "t::offsets": {"dtype": "I64", "shape": offsets.shape, "data_offsets": [split, end]},
    }
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        values.tofile(file)
        offsets.tofile(file)
    return path, lengths


if __name__ == "__main__":
    main("ragged", measure)
