"""Encoded images: a field of them, decoding one, and the decoded images of a batch."""

from __future__ import annotations

import bisect
import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import _core
from fastload.batch.pixels import Pixels
from fastload.batch.transforms import MODES, DecodeImage
from fastload.formats.image_depth import in_8_bits

Array = npt.NDArray[Any]

_MAX_PIXELS = 1 << 28  # per image; Pillow refuses larger ones


@dataclass
class Decoded:
    """The decoded images of one field of a batch. A row is a sample's position in the batch.

    Attributes:
        images: uint8 (B, H, W, C), or the result of the field's other transforms; None if the
            images were not known to have one size.
        others: Images that are not in `images`, by row.
        error_row: Row of the first image that could not be decoded.
        error: The error of that image; None: all were decoded.
        failed: Errors of images that cannot be decoded, by row, where such samples are left out.
    """

    images: Array | None
    others: dict[int, Array] = field(default_factory=dict)
    error_row: int = 0
    error: Exception | None = None
    failed: dict[int, Exception] = field(default_factory=dict)

    def each(self) -> list[Array]:
        """Returns the images as a list."""
        if self.images is None:
            return [self.others[row] for row in range(len(self.others))]
        return [self.others.get(row, image) for row, image in enumerate(self.images)]

    def without(self, rows: Sequence[int]) -> Decoded:
        """Returns the images without those of `rows`, which are in ascending order."""
        images = None if self.images is None else np.delete(self.images, rows, 0)
        removed = set(rows)
        others = {
            row - bisect.bisect(rows, row): image
            for row, image in self.others.items()
            if row not in removed
        }
        return Decoded(images, others, self.error_row, self.error)


@dataclass(frozen=True)
class ImageField:
    """A field of encoded images, and the settings for decoding it in one epoch.

    Attributes:
        name: Name of the field.
        transform: How images are decoded.
        pixels: Compiled transforms that follow the decoding; None: there are none.
        seed: Seed of the random transforms.
        epoch: Epoch of the random transforms.
        pool: Memory for images that are copied to a device; None: numpy allocates it.
        sizes: Stored height and width of each image, uint32 (2,) per sample; None: not stored, or
            not needed. A hint for the allocation only: an image may have another size.
        skips: True if samples with images that cannot be decoded are left out of the batch.
    """

    name: str
    transform: DecodeImage
    pixels: Pixels | None = None
    seed: int = 0
    epoch: int = 0
    pool: _core.SlotPool | None = None
    sizes: _core.Table | None = None
    skips: bool = False

    @property
    def needs_sizes(self) -> bool:
        """True if stored sizes of images help to allocate the memory of a batch."""
        fixed = self.transform.size is not None or (self.pixels and self.pixels.out_bytes)
        return not (fixed or self.transform.exif)

    def empty(self, indices: Array) -> Array | None:
        """Allocates the array for the images of these samples; None if their sizes may differ."""
        if self.pixels is not None and self.pixels.out_bytes:
            return self._allocate(
                (len(indices), *self.pixels.field.shape), self.pixels.field.storage
            )
        size = self.transform.size or self._common_size(indices)
        if size is None:
            return None
        shape = self._shape((*size, MODES[self.transform.mode]))
        return self._allocate((len(indices), *shape), self._dtype)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8) if self.pixels is None else self.pixels.field.storage

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the delivered image, given (height, width, channels)."""
        if self.pixels is None:
            return shape
        height, width = self.pixels.plan.out_size(*shape[:2])
        return (shape[2], height, width) if self.pixels.planar else (height, width, shape[2])

    def _common_size(self, indices: Array) -> tuple[int, int] | None:
        """Returns the stored height and width of these images; None if they differ."""
        if self.sizes is None or self.transform.exif or len(indices) == 0:
            return None
        sizes = np.empty((len(indices), 2), np.uint32)
        self.sizes.gather(indices, [sizes])
        height, width = sizes[0].tolist()
        if not 0 < height * width <= _MAX_PIXELS or (sizes != sizes[0]).any():
            return None
        return height, width

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if self.pool is None:
            return np.empty(shape, dtype)
        return self.pool.empty(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def deliver(self, data: bytes, out: Array | None, draw: int) -> Array | None:
        """Decodes an image into `out`.

        Args:
            data: The encoded image.
            out: The array of the delivered image; None: it is allocated.
            draw: RNG key of the sample's random transforms.

        Returns:
            The image, if `out` is None or of another shape; else None.

        Raises:
            Exception: any error of Pillow for data that it cannot decode; ValueError: the image is
                smaller than its crop.
        """
        return self.apply(decode_image(data, self.transform), out, draw)

    def apply(self, image: Array, out: Array | None, draw: int) -> Array | None:
        """Applies the transforms that follow the decoding; see `deliver`."""
        shape = self._shape(image.shape)
        fits = out is not None and out.shape == shape
        if self.pixels is None:
            if out is None or not fits:
                return image
            out[...] = image
            return None
        made = out if out is not None and fits else np.empty(shape, self._dtype)
        self.pixels.plan.deliver(image, made, self.seed, self.epoch, draw)
        return None if fits else made


def decode_image(data: bytes, transform: DecodeImage) -> Array:
    """Decodes an image to uint8 (H, W, C); 16-bit pixels are reduced to their upper 8 bits.

    Raises:
        Exception: any error of Pillow for data that it cannot decode; ValueError: the pixels are
            floats or 32-bit integers.
    """
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as opened:
        turned: Image.Image = opened
        if transform.exif:
            with contextlib.suppress(Exception):  # a broken tag does not spoil the image
                turned = ImageOps.exif_transpose(opened)
        image = in_8_bits(turned).convert(transform.mode)
    if transform.size is not None:
        height, width = transform.size
        if transform.resize is None:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        else:
            short, long = sorted(image.size)
            # As torchvision: the longer side is truncated to an integer, the corner is rounded.
            sides = transform.resize, int(transform.resize * long / short)
            scaled = sides if image.width <= image.height else sides[::-1]
            image = image.resize(scaled, Image.Resampling.BILINEAR)
            left, top = round((scaled[0] - width) / 2), round((scaled[1] - height) / 2)
            image = image.crop((left, top, left + width, top + height))
    return np.asarray(image).reshape(image.height, image.width, -1)
