"""Fields that are copied to a device as stored, where a kernel applies their transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastload import _core
from fastload.batch.parts import Raw
from fastload.batch.pixels import Pixels
from fastload.formats.columns import Int64Array
from fastload.formats.fields import Field, torch_dtype

_MIN_BYTES = 1024  # of a delivered sample; the CPU converts smaller ones while it copies


class RandomKeys(Protocol):
    """The samples of a batch.

    Attributes:
        draws: int64 (B,): RNG keys of the samples' random transforms; None where no device needs
            them.
    """

    draws: Int64Array | None


class DeviceFields:
    """Fields that are copied as stored; the device applies their transforms.

    A field is excluded if it is larger as stored than as delivered, since the bus is slower than
    the CPU and the device, or if its samples are small. Belongs to one iterator.

    Args:
        fields: Fields of the dataset.
        pixels: Compiled transforms by field name.
        runs: Returns True if the device can apply a compiled transform.

    Attributes:
        spared_bytes: Bytes of a sample that the core need not gather.
    """

    def __init__(
        self,
        fields: Sequence[Field] = (),
        pixels: Mapping[str, Pixels] | None = None,
        runs: Callable[[_core.PixelPlan], bool] = lambda plan: False,
    ) -> None:
        self._pixels = {}
        self._seed = self._epoch = 0
        self.spared_bytes = 0
        for field in fields:
            made = (pixels or {}).get(field.name)
            if made is None or field.ragged or made.out_bytes < _MIN_BYTES:
                continue
            stored_bytes = math.prod(field.shape) * field.storage.itemsize
            if stored_bytes <= made.out_bytes and runs(made.plan):
                self._pixels[field.name] = made
                self.spared_bytes += made.out_bytes - stored_bytes

    def __contains__(self, name: str) -> bool:
        return name in self._pixels

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def are_random(self) -> bool:
        """True if one of these fields has a random transform."""
        return any(pixels.is_random for pixels in self._pixels.values())

    def start(self, seed: int, epoch: int) -> None:
        """Sets the RNG key (seed, epoch) of the following batches."""
        self._seed, self._epoch = seed, epoch

    def leaf(self, name: str, array: npt.NDArray[Any], samples: RandomKeys) -> list[Raw]:
        """Returns the images of a field that are submitted to the device.

        Args:
            name: Name of the field.
            array: Its array of a batch, (B, ...) as stored.
            samples: The samples of the batch.
        """
        pixels, count = self._pixels[name], len(array)
        draws = samples.draws if pixels.is_random else np.zeros(count, np.int64)
        assert pixels.size is not None
        assert draws is not None
        return [
            Raw(
                images=torch.from_numpy(array),
                plan=pixels.plan,
                size=pixels.size,
                seed=self._seed,
                epoch=self._epoch,
                draws=draws,
                shape=(count, *pixels.field.shape),
                dtype=torch_dtype(pixels.field.dtype),
                staging_bytes=pixels.plan.raw_bytes(*pixels.size, count),
            )
        ]
