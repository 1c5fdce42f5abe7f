"""`fastload.export`: writes any dataset as files of other formats."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from fastload.datasets.file_datasets import Dataset
from fastload.datasets.file_datasets import open as open_dataset
from fastload.formats.files import AnyPath, absolute
from fastload.packing.columns import Array, Ragged
from fastload.packing.export.parquet import write_parquet
from fastload.packing.export.tar import write_tars
from fastload.packing.output.files import new_file, sync_folder, write_all
from fastload.packing.reading import blocks

TARGETS = ("npy", "tar", "parquet")
"""Formats that can be written."""


@dataclass(frozen=True)
class ExportReport:
    """Summary of exported files.

    Attributes:
        path: Absolute path of the folder or of the Parquet file.
        rows: Number of samples.
        files: File names relative to `path`, or the name of the Parquet file.
        bytes: Total size of the files in bytes.
        notices: Sentences about properties that the files cannot store.

    Example:
        >>> fastload.export("data/val", "val-npy", to="npy").files  # doctest: +SKIP
        ('image.npy', 'label.npy')
    """

    path: str
    rows: int
    files: tuple[str, ...]
    bytes: int
    notices: tuple[str, ...] = ()


def export(
    dataset: AnyPath | Dataset,
    out: AnyPath,
    *,
    to: str,
    split: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Writes a dataset as files that other programs read.

    - "npy": a folder with an array file for each field. A ragged field is `NAME.values.npy` and
      `NAME.offsets.npy`; sample i is `values[offsets[i]:offsets[i + 1]]`. numpy has no bfloat16
      and float8; the bits of their values are written as integers.
    - "tar": a folder of tar files for WebDataset, each with at most 10,000 samples or about 1 GiB:
      `000000017.label.cls`, `.txt`, `.jpg`, `.npy`, ...
    - "parquet": one file, written by pyarrow, which must be installed. Arrays are lists;
      bfloat16 and float8 become float32, exactly.

    Args:
        dataset: A dataset, or a path that `fastload.open` reads.
        out: Folder or file to write, which must not exist; an empty folder may.
        to: "npy", "tar" or "parquet".
        split: Split of a packed dataset; None for all samples.
        progress: Called with the number of written samples and the number of all samples.

    Raises:
        FileExistsError: `out` exists.
        ImportError: pyarrow is not installed.
        TypeError, ValueError: the kind of file cannot hold a field.
        OSError: a file cannot be read or written.

    Example:
        >>> fastload.export("data/val", "val.parquet", to="parquet")  # doctest: +SKIP
    """
    if to not in TARGETS:
        raise ValueError(f"to must be one of {', '.join(TARGETS)}, not {to!r}")
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset, split=split)
    path = absolute(out)
    if os.path.lexists(path) and (to == "parquet" or not os.path.isdir(path) or os.listdir(path)):
        raise FileExistsError(errno.EEXIST, "the output already exists; choose another name", path)

    def advance(rows: int) -> None:
        if progress is not None:
            progress(rows, len(opened))

    if to == "parquet":
        notices = write_parquet(opened, path, advance)
        names, folder = [os.path.basename(path)], os.path.dirname(path)
    else:
        os.makedirs(path, exist_ok=True)
        if to == "npy":
            notices = _write_npy(opened, path, advance)
        else:
            notices = write_tars(opened, path, advance)
        names, folder = sorted(os.listdir(path)), path
    sync_folder(folder)
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    return ExportReport(path, len(opened), tuple(names), size, tuple(notices))


# --- npy --------------------------------------------------------------------------------------


def _write_npy(dataset: Dataset, folder: str, advance: Callable[[int], None]) -> list[str]:
    names: list[str] = []
    for field in dataset.fields:
        name = file_name(field.name)
        names += [f"{name}.values", f"{name}.offsets"] if field.ragged else [name]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two files would be named {twice[0]}.npy; rename a field")
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(new_file(os.path.join(folder, f"{name}.npy")))
            for name in names
        }
        ends = _write_headers(dataset, files)
        for rows, columns in blocks(dataset):
            for field, column in zip(dataset.fields, columns, strict=True):
                name = file_name(field.name)
                if isinstance(column, Ragged):
                    _write(files[f"{name}.values"], column.values)
                    _write(files[f"{name}.offsets"], column.offsets[1:] + ends[name])
                    ends[name] += int(column.offsets[-1])
                else:
                    _write(files[name], column)
            advance(int(rows[-1]) + 1)
    return [
        f"field {field.name!r} is {field.dtype}, which numpy does not have: its file holds the "
        f"bits as {field.storage.name}"
        for field in dataset.fields
        if field.storage.name != field.dtype
    ]


def _write_headers(dataset: Dataset, files: dict[str, int]) -> dict[str, int]:
    """Writes the headers of all files; returns the initial end offset of each ragged field."""
    rows, each, ends = len(dataset), 1 << 20, {}
    for number, field in enumerate(dataset.fields):
        name, count = file_name(field.name), rows
        dtype = field.storage
        if field.logical is not None and field.dtype == "int64":
            dtype = np.dtype(field.logical)
        if field.ragged:
            count = sum(
                int(dataset.table.lengths(number, np.arange(start, min(start + each, rows))).sum())
                for start in range(0, rows, each)
            )
            ends[name] = 0
            _write_header(files[f"{name}.offsets"], np.dtype(np.int64), (rows + 1,))
            _write(files[f"{name}.offsets"], np.zeros(1, np.int64))
            name = f"{name}.values"
        _write_header(files[name], dtype, (count, *field.shape))
    return ends


def _write_header(descriptor: int, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    header = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(header, described)
    write_all(descriptor, memoryview(header.getvalue()))


def _write(descriptor: int, array: Array) -> None:
    write_all(descriptor, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def file_name(field: str) -> str:
    """Returns the file name for a field, with special characters percent-encoded."""
    return quote(field, safe=" +,=@[](){}")
