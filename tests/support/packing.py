"""What the tests of packing share: inputs, and how outputs are read and compared."""

from __future__ import annotations

import filecmp
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload.packing.reading import read_rows


def same_bytes(a: Path, b: Path) -> bool:
    """Whether two folders hold the same files, byte for byte."""
    names = sorted(os.listdir(a))
    return names == sorted(os.listdir(b)) and filecmp.cmpfiles(a, b, names, False)[0] == names


def content(path: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def column(path: Path, name: str = "data") -> np.ndarray:
    """A whole fixed field of a packed folder, through the core."""
    dataset = fastload.open(path)
    number = [field.name for field in dataset.fields].index(name)
    found = read_rows(dataset, np.arange(len(dataset)))[number]
    assert isinstance(found, np.ndarray)
    return found


def refused(source: Any, out: Path, **options: Any) -> str:
    """The message with which a pack is refused; no manifest may be left."""
    with pytest.raises((ValueError, TypeError, KeyError, OSError, ImportError)) as raised:
        fastload.pack(source, out, **options)
    assert not (out / "fastload.json").exists()
    return f"{raised.type.__name__}: {raised.value}"


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def samples_of(path: Path) -> list[Any]:
    """All samples of a packed folder, in Python's own types."""
    dataset = fastload.open(path)
    return [plain(dataset[row]) for row in range(len(dataset))]


def plain(value: Any) -> Any:
    """Arrays and numbers of numpy as lists and numbers of Python, in the same containers."""
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def damaged(source: Path, out: Path, *parts: str, **options: Any) -> None:
    """Checks that a pack ends in one FormatError, whose message has all the parts."""
    text = refused(source, out, overwrite=True, **options)
    assert text.startswith("FormatError"), text
    for part in parts:
        assert part in text, text


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
