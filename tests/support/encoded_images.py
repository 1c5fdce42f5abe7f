"""Datasets of encoded images, and their pixels as Pillow decodes them."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from ragged import photos, png

from fastload import ArrayDataset, DecodeImage

EXACT = {"image": DecodeImage((4, 6))}


def several(count: int = 23) -> ArrayDataset:
    return photos([png(i, 3 + i % 5, 4 + i % 3) for i in range(count)])


def by_pillow(data: bytes, size: tuple[int, int] | None = (4, 6)) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if size is not None:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image)
