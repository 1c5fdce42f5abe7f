"""Images that a device delivers by itself, of what is stored."""

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

_LEAST_BYTES = 1024  # of a sample; less is made by the CPU, while it copies


class Drawn(Protocol):
    """Which samples a batch holds.

    Attributes:
        draws: int64 (B,), of which random transforms make what they draw; None where no device
            draws.
    """

    draws: Int64Array | None


class RawFields:
    """The fields that are copied as they are stored, of which the device makes what is delivered.

    Those that would be larger than what is delivered are not, for the bus is slower than its ends.

    Args:
        fields: Of the dataset.
        pixels: What becomes of numbers, by the names of fields.
        runs: Whether the device can do that.

    Attributes:
        spared_bytes: Of a sample, which the core would gather if it delivered them.
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
            if made is None or field.ragged or made.out_bytes < _LEAST_BYTES:
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
        """Whether something is drawn for one of them."""
        return any(pixels.is_random for pixels in self._pixels.values())

    def begin(self, seed: int, epoch: int) -> None:
        """Says of what the following batches draw."""
        self._seed, self._epoch = seed, epoch

    def leaf(self, name: str, array: npt.NDArray[Any], samples: Drawn) -> list[Raw]:
        """What is submitted of a field.

        Args:
            name: Of the field.
            array: Of a batch, (B, ...) as it is stored.
            samples: Of the batch.
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
