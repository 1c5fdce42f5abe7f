"""Images that Pillow decodes as torchvision's ImageFolder, or the encoded bytes of their files."""

from __future__ import annotations

import io
import re
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from fastload.errors import FormatError
from fastload.formats.image_depth import in_8_bits
from fastload.packing.columns import Array
from fastload.packing.image_headers import image_size_of
from fastload.packing.inputs.checks import check_counts
from fastload.packing.inputs.kind import Option, library

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Suffixes of image files."""

RESIZE = Option(
    "resize",
    "resize images to this height and width (or N for both), without keeping the aspect ratio",
    "size",
)
RESIZE_SHORTER = Option(
    "resize_shorter",
    "resize the shorter side of images to N pixels and keep the centre square",
    "count",
)
ENCODED = Option("encoded", "store the image files without decoding them; sizes may differ", "flag")


ADVICE = (
    "--resize-shorter N (resize_shorter=) resizes the shorter side and keeps the square in the "
    "middle, --resize HxW (resize=(H, W)) does not keep the aspect ratio, --encoded (encoded=True) "
    "keeps images as they are"
)
"""Advice for images of different sizes."""


class Size(NamedTuple):
    """Size that images are resized to.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        is_cropped: The shorter side is resized to this size and the square in the middle is kept,
            as by torchvision's `Resize(N)` and `CenterCrop(N)`. Otherwise the aspect ratio changes.
    """

    height: int
    width: int
    is_cropped: bool = False


class BadRecordError(Exception):
    """Raised for a damaged or invalid image or record, which may be left out."""


def size_and_shaping(
    resize: int | tuple[int, int] | None, resize_shorter: int | None, encoded: bool
) -> tuple[Size | None, dict[str, Any]]:
    """Returns the image size, and the given options in JSON types.

    Raises:
        ValueError: sizes are not positive, or more than one of the options is given.
    """
    if encoded and not (resize is None and resize_shorter is None):
        raise ValueError(
            "encoded and resize are mutually exclusive: encoded images cannot be resized"
        )
    if resize_shorter is not None:
        if resize is not None:
            raise ValueError("resize and resize_shorter are mutually exclusive; remove one")
        check_counts(resize_shorter=resize_shorter)
        return Size(resize_shorter, resize_shorter, True), {"resize_shorter": resize_shorter}
    if resize is None:
        return None, {"encoded": True} if encoded else {}
    height, width = (resize, resize) if isinstance(resize, int) else resize
    check_counts(height=height, width=width)
    return Size(height, width), {"resize": [height, width]}


def decode(content: bytes, size: Size | None) -> Array:
    """Returns the RGB pixels of an image, uint8 (height, width, 3), resized if a size is given.

    16-bit images keep their upper 8 bits.

    Raises:
        BadRecordError: the content is no image, is damaged, or has floats or 32-bit integers.
    """
    return pixels_of(open_image(content), size)


def pixels_of(image: Any, size: Size | None) -> Array:
    """Returns the RGB pixels of an opened Pillow image, as `decode` does.

    Raises:
        BadRecordError: the image is damaged.
    """
    try:
        image = in_8_bits(image).convert("RGB")
        if size is not None:
            image = _resized(image, size)
    except Exception as error:  # decoders raise all types of exceptions
        raise BadRecordError(_reason(error)) from error
    return np.asarray(image)


def _resized(image: Any, size: Size) -> Any:
    bilinear = pillow().Resampling.BILINEAR
    if not size.is_cropped:
        return image.resize((size.width, size.height), bilinear)
    shorter, longer = size.width, int(size.width * max(image.size) / min(image.size))
    is_wide = image.size[0] > image.size[1]
    image = image.resize((longer, shorter) if is_wide else (shorter, longer), bilinear)
    left, top = (round((side - shorter) / 2) for side in image.size)
    return image.crop((left, top, left + shorter, top + shorter))


def open_image(content: bytes) -> Any:
    """Opens an image and reads its header; the file suffix is not used.

    Raises:
        BadRecordError: the content is no image.
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
    """Returns a PPM file with unchanged pixels, uint8 (height, width, 3)."""
    height, width, _ = pixels.shape
    return b"P6 %d %d 255\n" % (width, height) + pixels.tobytes()


def check_image(content: bytes) -> None:
    """Raises BadRecordError unless the bytes start like an image."""
    if image_size_of(content) == (0, 0):
        open_image(content)


def unequal(a: tuple[str, int, int], b: tuple[str, int, int]) -> FormatError:
    """Returns the error about two images of different sizes, each (path, height, width)."""
    sizes = " and ".join(f"{path} is {height}x{width}" for path, height, width in (a, b))
    return FormatError(f"images differ in size: {sizes} (height x width); {ADVICE}")


def pillow() -> ModuleType:
    """Returns Pillow's module `PIL.Image`.

    Raises:
        ImportError: Pillow is not installed.
    """
    return library("PIL.Image", "images", "pillow")


def _reason(error: Exception) -> str:
    # Object addresses are removed, because they differ between runs.
    text = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "file", str(error))
    return text or type(error).__name__
