"""Images with more than 8 bits per channel, which Pillow would turn white."""

from __future__ import annotations

from typing import Any

import numpy as np

_BITS_PER_SAMPLE = 258  # a tag of TIFF
_SIXTEEN_BITS = ("PNG", "PPM")  # whose images of Pillow's mode "I" have values in 0..65535


def in_8_bits(image: Any) -> Any:
    """Returns the image with at most 8 bits per channel: of 16-bit channels the upper 8 bits.

    Pillow cuts values above 255 to 255 when it converts 16-bit grey images, but takes the upper 8
    bits of 16-bit colours.

    Args:
        image: An open Pillow image.

    Raises:
        ValueError: its pixels are floats or 32-bit integers, whose range is not known.
    """
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    if image.mode == "F" or (image.mode == "I" and image.format not in _SIXTEEN_BITS):
        raise ValueError(
            f"its pixels are {'floats' if image.mode == 'F' else '32-bit or signed integers'} "
            f"(mode {image.mode!r}), whose range is not known: convert it to 8 or 16 bits, "
            "or pack the numbers as an array"
        )
    from PIL import Image

    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]  # 12 in some TIFF files
    numbers = np.asarray(image).astype(np.uint16) >> (bits - 8)
    return Image.fromarray(np.minimum(numbers, 255).astype(np.uint8))
