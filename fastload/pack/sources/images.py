"""Images as Pillow decodes them for torchvision's ImageFolder, or as the bytes of their files."""

from __future__ import annotations

import io
import re
from types import ModuleType
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.image_depth import in_8_bits
from fastload.pack.sources.base import Array
from fastload.pack.sources.checks import check_counts
from fastload.pack.sources.image_headers import image_size_of
from fastload.pack.sources.kind import Option, library

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""What the names of images end in."""

RESIZE = Option(
    "resize",
    "height and width for all images, one number for both; the aspect ratio is not kept",
    "size",
)
ENCODED = Option("encoded", "keep images as the bytes of their files, of any size", "flag")


class BadRecordError(Exception):
    """What is wrong with the content of an image or record, so that it is left out."""


def image_size(resize: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Height and width as they are given.

    Raises:
        ValueError: they are not positive.
    """
    if resize is None:
        return None
    height, width = (resize, resize) if isinstance(resize, int) else resize
    check_counts(height=height, width=width)
    return height, width


def check_encoded(encoded: bool, resize: object) -> None:
    """Raises ValueError if images are to be kept as they are and to be resized."""
    if encoded and resize is not None:
        raise ValueError("encoded images are kept as they are and cannot be resized")


def size_and_shaping(
    resize: int | tuple[int, int] | None, encoded: bool
) -> tuple[tuple[int, int] | None, dict[str, Any]]:
    """Height and width as they are given, and both options as those that shape the output.

    Raises:
        ValueError: images are to be kept as they are and to be resized.
    """
    check_encoded(encoded, resize)
    size = image_size(resize)
    if size is not None:
        return size, {"resize": list(size)}
    return None, {"encoded": True} if encoded else {}


def decode(content: bytes, size: tuple[int, int] | None) -> Array:
    """The pixels of an image in RGB, uint8 (height, width, 3), resized if a size is given.

    16-bit images become 8-bit ones by their upper 8 bits.

    Raises:
        BadRecordError: it is no image, a damaged one, or one of floats or 32-bit integers.
    """
    return pixels_of(open_image(content), size)


def pixels_of(image: Any, size: tuple[int, int] | None) -> Array:
    """The same of an image that is open.

    Raises:
        BadRecordError: it is damaged.
    """
    try:
        image = in_8_bits(image).convert("RGB")
        if size is not None:
            image = image.resize(size[::-1], pillow().Resampling.BILINEAR)
    except Exception as error:  # decoders raise nearly everything
        raise BadRecordError(_reason(error)) from error
    return np.asarray(image)


def open_image(content: bytes) -> Any:
    """The image with its header read, whatever the suffix of its file says.

    Raises:
        BadRecordError: it is no image.
    """
    if not content:
        raise BadRecordError("empty file")
    module = pillow()
    try:
        return module.open(io.BytesIO(content))
    except module.UnidentifiedImageError as error:
        raise BadRecordError("not an image of a known kind") from error
    except Exception as error:
        raise BadRecordError(_reason(error)) from error


def ppm(pixels: Array) -> bytes:
    """An image file that holds uint8 (height, width, 3) as they are, and opens everywhere."""
    height, width, _ = pixels.shape
    return b"P6 %d %d 255\n" % (width, height) + pixels.tobytes()


def check_image(content: bytes) -> None:
    """Raises BadRecordError unless the bytes begin like an image."""
    if image_size_of(content) == (0, 0):
        open_image(content)


def unequal(a: tuple[str, int, int], b: tuple[str, int, int]) -> FormatError:
    """The error about two images, each with its height and width."""
    sizes = " and ".join(f"{path} is {height}x{width}" for path, height, width in (a, b))
    advice = "give --resize HxW (resize=(H, W)) to make them equal"
    return FormatError(f"images differ in size: {sizes} (height x width); {advice}")


def pillow() -> ModuleType:
    """The module that reads images.

    Raises:
        ImportError: it is not installed.
    """
    return library("PIL.Image", "images", "pillow")


def _reason(error: Exception) -> str:
    # Without addresses of objects, which change from run to run.
    text = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "file", str(error))
    return text or type(error).__name__
