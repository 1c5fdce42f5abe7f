"""fastload: a data loading engine for PyTorch.

Pack a dataset once, or read files where they lie, and replace ``DataLoader`` by ``FastLoader``::

    fastload pack imagenet/train data/train

    loader = FastLoader("data/train", batch_size=256, shuffle=True, seed=0)

Importing this package does not import torch; using :class:`FastLoader` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    # At once, because the first import of these modules would hide their functions.
    from fastload.pack import pack
    from fastload.verify import verify
except ImportError as error:
    if error.name != "fastload" or "_core" not in str(error):
        raise
    raise ImportError(
        f"{__path__[0]} is the source of fastload, not the installed package: it hides that one "
        "while Python runs in this folder; change to another folder, or install with `pip install "
        "-e .` (CONTRIBUTING.md)",
        name="fastload",
    ) from None

if TYPE_CHECKING:
    from fastload.array_dataset import ArrayDataset
    from fastload.dataset import PackedDataset
    from fastload.dataset import open as open
    from fastload.errors import CudaError, FormatError, StoppedError
    from fastload.loader import FastLoader
    from fastload.loops import ddp_train, train_with_amp
    from fastload.mixture import Mixture
    from fastload.order import KeyedSampler
    from fastload.pack.export import export
    from fastload.pack.grow import add_column, append
    from fastload.pack.merge import merge
    from fastload.pixels import (
        Cast,
        Normalize,
        RandomCrop,
        RandomHorizontalFlip,
        ToChannelsFirst,
    )
    from fastload.processes import distributed
    from fastload.run_log import watch
    from fastload.tokens import TokenDataset
    from fastload.train import TrainStep
    from fastload.transforms import AsList, DecodeImage, Jagged, PadTo
    from fastload.weighted import WeightedSampler

# Where each public name lives; imported when it is first asked for.
_HOMES = {
    "ArrayDataset": "fastload.array_dataset",
    "AsList": "fastload.transforms",
    "Cast": "fastload.pixels",
    "CudaError": "fastload.errors",
    "DecodeImage": "fastload.transforms",
    "FastLoader": "fastload.loader",
    "FormatError": "fastload.errors",
    "Jagged": "fastload.transforms",
    "KeyedSampler": "fastload.order",
    "Mixture": "fastload.mixture",
    "Normalize": "fastload.pixels",
    "PackedDataset": "fastload.dataset",
    "PadTo": "fastload.transforms",
    "RandomCrop": "fastload.pixels",
    "RandomHorizontalFlip": "fastload.pixels",
    "StoppedError": "fastload.errors",
    "ToChannelsFirst": "fastload.pixels",
    "TrainStep": "fastload.train",
    "add_column": "fastload.pack.grow",
    "append": "fastload.pack.grow",
    "ddp_train": "fastload.loops",
    "distributed": "fastload.processes",
    "export": "fastload.pack.export",
    "merge": "fastload.pack.merge",
    "TokenDataset": "fastload.tokens",
    "WeightedSampler": "fastload.weighted",
    "watch": "fastload.run_log",
    "open": "fastload.dataset",
    "train_with_amp": "fastload.loops",
    "__version__": "fastload._core",
}

# Without `open`, which a star import would put in the place of Python's own.
__all__ = [
    "ArrayDataset",
    "AsList",
    "Cast",
    "CudaError",
    "DecodeImage",
    "FastLoader",
    "FormatError",
    "Jagged",
    "KeyedSampler",
    "Mixture",
    "Normalize",
    "PackedDataset",
    "PadTo",
    "RandomCrop",
    "RandomHorizontalFlip",
    "StoppedError",
    "ToChannelsFirst",
    "TokenDataset",
    "TrainStep",
    "WeightedSampler",
    "__version__",
    "add_column",
    "append",
    "ddp_train",
    "distributed",
    "export",
    "merge",
    "pack",
    "train_with_amp",
    "verify",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fastload' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
