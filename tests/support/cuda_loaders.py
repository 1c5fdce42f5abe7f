"""Loaders over the fake CUDA driver, each with its twin on the CPU."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ragged import numbers_of_length, photos, png, ragged_dataset
from torch.utils.data import Dataset

from fastload import (
    ArrayDataset,
    AsList,
    DecodeImage,
    FastLoader,
    Jagged,
    Normalize,
    PadTo,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
)
from fastload.formats.fields import Field

CUDA = "cuda:0"
Pair = collections.namedtuple("Pair", "left right")


def rows(*shape: int, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 127, shape).astype(dtype)


def ragged(logical: str | None = None, shape: tuple[int, ...] = ()) -> ArrayDataset:
    fields = [Field("t", "int64", shape, True), Field("y", "int32", ())]
    samples = [numbers_of_length([(7 * i) % 23 for i in range(30)], shape=shape)]
    return ragged_dataset({"t": 0, "y": 1}, fields, [*samples, list(range(30))])


def texts() -> ArrayDataset:
    fields = [Field("s", "uint8", (), True, "utf8"), Field("y", "int64", ())]
    return ragged_dataset((0, 1), fields, [[b"x" * n for n in range(20)], list(range(20))])


class Anything(Dataset[Any]):
    """What torch loads: tensors that are views, large, small, empty, and no tensors at all."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise KeyError("seven")
        return {
            "large": torch.full((200, 100), index),
            "pair": Pair(torch.tensor(index), f"{index}"),
            "empty": torch.zeros(0),
        }


def growing(samples: list[int]) -> Any:
    """A batch of small tensors, whose shapes no other batch has."""
    numbers = torch.arange(samples[0] * 4)
    return [numbers, numbers.reshape(2, -1), numbers.float(), numbers.reshape(4, -1).t(), samples]


def views(samples: list[int]) -> Any:
    """A batch of tensors that are no blocks of memory."""
    whole = torch.arange(48_000 * len(samples)).reshape(len(samples), -1) + samples[0]
    turned = whole[:, :40_000].reshape(len(samples), 200, 200).transpose(1, 2)
    return [whole[:, ::2], turned, whole[:1, :5].t(), whole[0, :1].expand(3), {"samples": samples}]


STEPS = [RandomCrop((28, 31), padding=2), RandomHorizontalFlip()]

STEPS += [Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bfloat16")]

IMAGES = {"image": rows(60, 32, 30, 3), "y": np.arange(60)}

SMALL = ["int64", "float32", "bool", "uint8", "int64", "complex64", "float32", "int16"]

LARGE = {"x": rows(60, 200, 200), "y": np.arange(60), "z": rows(60, 3, dtype="float32")}

CASES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "bare": lambda: (ArrayDataset(rows(60, 7)), {"seed": 1}),
    "large and small": lambda: (ArrayDataset(LARGE), {"seed": 3, "shuffle": True}),
    "torch's order": lambda: (ArrayDataset(LARGE), {"shuffle": True}),
    "small ones of all kinds": lambda: (
        ArrayDataset([rows(60, *[2] * i, dtype=dtype) for i, dtype in enumerate(SMALL)]),
        {"seed": 1},
    ),
    "another's order": lambda: (ArrayDataset(LARGE), {"batch_sampler": [[3, 1], [], [9] * 5]}),
    "workers": lambda: (ArrayDataset(LARGE), {"num_workers": 2, "shuffle": True}),
    "no workers": lambda: (ArrayDataset(LARGE), {"num_workers": 0}),
    "tuple": lambda: (ArrayDataset((rows(60, 300), [rows(60, 2), {"a": rows(60)}])), {}),
    "namedtuple": lambda: (ArrayDataset(Pair(rows(60, 3), rows(60))), {}),
    "bfloat16": lambda: (ArrayDataset(torch.arange(60).bfloat16()), {}),
    "lists": lambda: (ragged(), {"transforms": {"t": AsList()}}),
    "padded": lambda: (ragged(), {"transforms": {"t": PadTo()}}),
    "jagged": lambda: (ragged(shape=(3,)), {"transforms": {"t": Jagged(nested=False)}}),
    "nested": lambda: (ragged(), {"transforms": {"t": Jagged()}}),
    "texts": lambda: (texts(), {}),
    "images": lambda: (ArrayDataset(IMAGES), {"transforms": {"image": STEPS}, "seed": 2}),
    "planar": lambda: (
        ArrayDataset(IMAGES),
        {"transforms": {"image": [*STEPS, ToChannelsFirst()]}, "seed": 2},
    ),
    "channels last": lambda: (
        ArrayDataset(IMAGES),
        {"transforms": {"image": [*STEPS, ToChannelsFirst("channels_last")]}, "seed": 2},
    ),
    "decoded": lambda: (
        photos([png(i, 90, 90) for i in range(12)]),
        {"transforms": {"image": DecodeImage()}},
    ),
    "decoded, cropped": lambda: (
        photos([png(i, 90, 90) for i in range(12)]),
        {"transforms": {"image": [DecodeImage(size=(80, 70)), *STEPS]}, "seed": 3},
    ),
    "python": lambda: ([{"x": torch.full((99,), i), "name": str(i)} for i in range(60)], {}),
    "python, processes": lambda: (
        [torch.full((9000,), i) for i in range(20)],
        {"num_workers": 1},
    ),
    "ever other shapes": lambda: (list(range(600)), {"collate_fn": growing}),
    "views": lambda: (list(range(23)), {"collate_fn": views}),
}


def loaders(name: str) -> tuple[FastLoader[Any], FastLoader[Any]]:
    """One for the device, and one for the CPU."""
    data, options = CASES[name]()
    size = {} if "batch_sampler" in options else {"batch_size": 7}
    return (
        FastLoader(data, device=CUDA, **size, **options),
        FastLoader(data, **size, **options),
    )


def native(**options: Any) -> FastLoader[Any]:
    return FastLoader(ArrayDataset(LARGE), 4, device=CUDA, num_workers=0, **options)
