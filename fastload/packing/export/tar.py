"""Exports a dataset to tar files that WebDataset reads."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from urllib.parse import quote

import numpy as np

from fastload.datasets.file_datasets import Dataset, PackedDataset
from fastload.formats.fields import BYTE_STRINGS, Field
from fastload.packing.cast import decoded
from fastload.packing.columns import AnyColumn, Array, Ragged
from fastload.packing.output.files import new_file
from fastload.packing.reading import blocks

_MAX_SAMPLES = 10_000
_MAX_BYTES = 1 << 30

# Offset and value of the magic bytes of encoded images and sounds, and their suffix.
_SUFFIXES = (
    (0, b"\xff\xd8\xff", "jpg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (8, b"WEBP", "webp"),
    (0, b"GIF8", "gif"),
    (0, b"BM", "bmp"),
    (0, b"P6", "ppm"),
    (0, b"II*\0", "tif"),
    (0, b"MM\0*", "tif"),
    (0, b"fLaC", "flac"),
    (8, b"WAVE", "wav"),
    (0, b"OggS", "ogg"),
    (0, b"ID3", "mp3"),
)


def write_tars(dataset: Dataset, folder: str, advance: Callable[[int], None]) -> list[str]:
    """Writes `shard-000000.tar`, ... into a folder; returns notices about fields stored otherwise.

    The name of a member consists of the number of the sample, the field and a suffix: `cls` for
    class numbers, `txt` for text, the file suffix of encoded images and sounds, `bin` for other
    bytes, otherwise `npy`.
    """
    classes = dataset.manifest.class_fields if isinstance(dataset, PackedDataset) else {}
    samples = _samples(dataset, set(classes), advance)
    sample = next(samples, None)
    number = 0
    while sample is not None:
        with (
            new_file(os.path.join(folder, f"shard-{number:06d}.tar")) as descriptor,
            os.fdopen(os.dup(descriptor), "wb") as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive,
        ):
            count = 0
            while sample is not None and count < _MAX_SAMPLES and file.tell() < _MAX_BYTES:
                for name, content in sample:
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
                count += 1
                sample = next(samples, None)
        number += 1
    return [
        f"field {field.name!r} is {field.dtype}, which numpy does not have: its members are float32"
        for field in dataset.fields
        if field.storage.name != field.dtype
    ]


def _samples(
    dataset: Dataset, classes: set[str], advance: Callable[[int], None]
) -> Iterator[list[tuple[str, bytes]]]:
    """Yields the names and contents of the members of each sample."""
    names = [quote(field.name, safe="") for field in dataset.fields]
    for rows, columns in blocks(dataset):
        for position, row in enumerate(rows.tolist()):
            made = []
            for field, name, column in zip(dataset.fields, names, columns, strict=True):
                suffix, content = _member(field, column, position, field.name in classes)
                made.append((f"{row:09d}.{name}.{suffix}", content))
            yield made
        advance(int(rows[-1]) + 1)


def _member(field: Field, column: AnyColumn, row: int, is_class: bool) -> tuple[str, bytes]:
    """Returns the suffix and the content of one field of a sample."""
    if isinstance(column, Ragged):
        values = column[row : row + 1].values
        if field.logical in BYTE_STRINGS:
            content = values.tobytes()
            return _suffix(field, content), content
    else:
        values = column[row]
        if is_class:
            return "cls", str(values).encode()
    return "npy", _npy(decoded(values, field), field)


def _suffix(field: Field, content: bytes) -> str:
    if field.logical == "utf8":
        return "txt"
    if field.logical != "bytes":
        for start, magic, suffix in _SUFFIXES:
            if content.startswith(magic, start):
                return suffix
    return "bin"


def _npy(array: Array, field: Field) -> bytes:
    if field.logical is not None and array.dtype == np.int64:
        array = array.view(field.logical)
    elif array.dtype == np.float64 and field.dtype == "float8_e8m0fnu":
        array = array.astype(np.float32)
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
