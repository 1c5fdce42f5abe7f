"""FastLoaders of many kinds, and the ways in which others rebuild them from their attributes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from native_data import assert_same
from ragged import png
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    TensorDataset,
)

import fastload
from fastload import (
    ArrayDataset,
    AsList,
    Cast,
    DecodeImage,
    FastLoader,
    Jagged,
    Mixture,
    Normalize,
    PadTo,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
    TokenDataset,
    WeightedSampler,
)

ROWS, BATCH = 11, 4
NORMALIZE = Normalize((0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
RANDOM = [RandomCrop(5, 2), RandomHorizontalFlip(), NORMALIZE, ToChannelsFirst()]

Rebuild = Callable[[Any], Any]


class Skipping(BatchSampler):
    """As Accelerate's SkipBatchSampler, which skips nothing here."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def parts(loader: Any) -> dict[str, Any]:
    return {"dataset": loader.dataset, "collate_fn": loader.collate_fn}


REBUILDS: dict[str, Rebuild] = {
    "batch sampler": lambda loader: DataLoader(**parts(loader), batch_sampler=loader.batch_sampler),
    "sampler": lambda loader: DataLoader(
        **parts(loader),
        batch_size=loader.batch_size,
        sampler=loader.sampler,
        drop_last=loader.drop_last,
    ),
    "skipping": lambda loader: DataLoader(
        **parts(loader), batch_sampler=Skipping(loader.batch_sampler)
    ),
    "workers": lambda loader: DataLoader(
        **parts(loader), batch_sampler=loader.batch_sampler, num_workers=2
    ),
    "fast": lambda loader: FastLoader(**parts(loader), batch_sampler=loader.batch_sampler),
    "fast sampler": lambda loader: FastLoader(
        **parts(loader), batch_size=loader.batch_size, sampler=loader.sampler
    ),
    "fast skipping": lambda loader: FastLoader(
        **parts(loader),
        batch_sampler=Skipping(loader.batch_sampler),
        seed=9,
        tail="mask" if loader.sampler.tail == "mask" else None,
    ),
    "twice": lambda loader: REBUILDS["sampler"](REBUILDS["fast sampler"](loader)),
    "pickled": lambda loader: REBUILDS["sampler"](pickle.loads(pickle.dumps(loader))),
    "copied": lambda loader: REBUILDS["batch sampler"](copy.deepcopy(loader)),
}


def images() -> ArrayDataset:
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 6, 5, 3), dtype=np.uint8)
    return ArrayDataset({"x": pixels, "y": np.arange(ROWS, dtype=np.int16)})


def packed(folder: Path) -> str:
    """Ragged numbers, text, encoded images of two sizes, and a number."""
    samples = [
        {
            "ids": np.arange(n % 4 + 1, dtype=np.int32),
            "text": "é" * (n % 3),
            "image": png(n, 5 + n % 2),
            "n": n,
        }
        for n in range(ROWS)
    ]
    path = folder / "packed"
    if not path.exists():
        fastload.pack(samples, path)
    return str(path)


def equal_lengths(folder: Path) -> str:
    path = folder / "equal"
    if not path.exists():
        fastload.pack([{"ids": np.arange(3) + n, "word": "a" * n} for n in range(ROWS)], path)
    return str(path)


def tokens(folder: Path) -> TokenDataset:
    path = folder / "tokens.bin"
    if not path.exists():
        np.arange(100, dtype=np.uint16).tofile(path)
    return TokenDataset(path, 8)


def mixture() -> Mixture:
    return Mixture([images(), images()], weights=[2, 1], seed=1)


DETERMINISTIC: dict[str, Callable[[Path], dict[str, Any]]] = {
    "images": lambda _: {
        "dataset": images(),
        "transforms": {"x": [NORMALIZE, ToChannelsFirst()], "y": Cast("float32")},
    },
    "bfloat16": lambda _: {
        "dataset": images(),
        "transforms": {"x": [Cast("bfloat16"), ToChannelsFirst(torch.channels_last)]},
    },
    "mask": lambda _: {"dataset": images(), "tail": "mask", "transforms": {"y": Cast("float16")}},
    "mask only": lambda _: {"dataset": images(), "tail": "mask"},
    "batch_transform": lambda _: {"dataset": images(), "batch_transform": doubled},
    "padded": lambda folder: {
        "dataset": packed(folder),
        "transforms": {
            "ids": PadTo(8, -1),
            "text": PadTo(),
            "image": DecodeImage((4, 4), resize=6),
        },
    },
    "jagged": lambda folder: {
        "dataset": packed(folder),
        "transforms": {
            "ids": Jagged(nested=False),
            "image": [DecodeImage((6, 6)), NORMALIZE, ToChannelsFirst()],
        },
    },
    "nested": lambda folder: {
        "dataset": packed(folder),
        "transforms": {"ids": Jagged(), "text": Jagged(), "image": AsList()},
    },
    "lists": lambda folder: {"dataset": packed(folder), "transforms": {"ids": AsList()}},
    "equal lengths": lambda folder: {
        "dataset": equal_lengths(folder),
        "batch_transform": doubled,
    },
    "no transform": lambda folder: {"dataset": equal_lengths(folder)},
    "tokens": lambda folder: {"dataset": tokens(folder), "batch_transform": len},
    "mixture": lambda _: {"dataset": mixture(), "transforms": {"x": [NORMALIZE]}},
    "weighted": lambda _: {
        "dataset": images(),
        "sampler": WeightedSampler(np.arange(ROWS), tail="mask"),
        "seed": None,
        "shuffle": None,
        "transforms": {"x": [NORMALIZE]},
    },
    "tensors": lambda _: {
        "dataset": TensorDataset(torch.arange(66.0).reshape(ROWS, 6).bfloat16(), torch.arange(11)),
        "transforms": {"0": [Normalize(0.5, (0.5, 1, 2, 3, 4, 5))]},
    },
}


def doubled(batch: Any) -> Any:
    """A batch with everything twice; a plain function, so that it can be pickled."""
    return [batch, batch]


RANDOM_LOADERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "images": lambda _: {"dataset": images(), "transforms": {"x": RANDOM}},
    "mask": lambda _: {"dataset": images(), "transforms": {"x": RANDOM}, "tail": "mask"},
    "block order": lambda _: {"dataset": images(), "transforms": {"x": RANDOM}, "order": "block"},
    "encoded": lambda folder: {
        "dataset": packed(folder),
        "transforms": {"ids": PadTo(), "image": [DecodeImage(), *RANDOM]},
    },
    "mixture": lambda _: {"dataset": mixture(), "transforms": {"x": RANDOM}},
    "weighted": lambda _: {
        "dataset": images(),
        "sampler": WeightedSampler(np.arange(ROWS), 3 * ROWS, seed=4, tail="mask"),
        "seed": None,
        "shuffle": None,
        "transforms": {"x": RANDOM},
    },
}


def loader_of(options: dict[str, Any]) -> FastLoader[Any]:
    return FastLoader(**({"batch_size": BATCH, "seed": 3, "shuffle": True} | options))


def check(way: str, make: Callable[[], FastLoader[Any]]) -> None:
    """Two epochs of a rebuilt loader are those of the FastLoader."""
    whole, again = make(), make()
    assert whole.is_native
    want = [list(whole), list(whole)]
    rebuilt = REBUILDS[way](again)
    assert isinstance(rebuilt, FastLoader) == way.startswith("fast")
    for batches in want:
        assert_batches(list(rebuilt), batches)


def assert_batches(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want)
    for batch, other in zip(got, want, strict=True):
        assert_same(unnested(batch), unnested(other))


def unnested(batch: Any) -> Any:
    """The batch with lists in the place of nested tensors."""
    if isinstance(batch, torch.Tensor):
        return [type(batch), *batch.unbind()] if batch.is_nested else batch
    if isinstance(batch, dict):
        return {key: unnested(member) for key, member in batch.items()}
    return list(map(unnested, batch)) if type(batch) is list else batch


FIXED = {"image": DecodeImage((4, 4))}
