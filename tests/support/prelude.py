"""What the re-enacted reports share: small data, and ways to make the files they are about."""

from __future__ import annotations

import io
import os
import tarfile
from typing import Any

import numpy as np

import fastload
from fastload import ArrayDataset, FastLoader

X = np.arange(32, dtype="f4").reshape(8, 4) / 32
DATA = ArrayDataset({"x": X})


def one_batch() -> dict[str, Any]:
    """All of `DATA` in one batch."""
    batch: dict[str, Any] = next(iter(FastLoader(DATA, 8)))
    return batch


def put(path: str, content: bytes) -> None:
    """Writes a file, and the folders above it."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def packed(source: Any, **options: Any) -> list[Any]:
    """The samples of a source after it is packed."""
    fastload.pack(source, "out", overwrite=True, **options)
    dataset = fastload.open("out")
    return [dataset[index] for index in range(len(dataset))]


def tar(name: str, members: list[tuple[str, bytes]]) -> None:
    """Writes a tar file of regular members."""
    with tarfile.open(name, "w") as archive:
        for path, content in members:
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
