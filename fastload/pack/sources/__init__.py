"""One module per kind of input."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats import is_packed
from fastload.formats.arrays import is_tensor
from fastload.formats.files import absolute, list_files, suffix
from fastload.formats.npy import MAGIC
from fastload.pack.sources.arrays import open_arrays
from fastload.pack.sources.base import Options, Source
from fastload.pack.sources.imagefolder import open_images
from fastload.pack.sources.mapstyle import Held, Named, open_samples
from fastload.pack.sources.npy import open_npy, open_npz
from fastload.pack.sources.raw import open_raw

KINDS = ("imagefolder", "npy", "npz", "raw", "dataset")
"""What a path or name can be."""

_DATASET_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def open_source(source: Any, kind: str | None, options: Options) -> Source:
    """Opens an input.

    Args:
        source: A path; the name of a map-style dataset, `module:object`; such a dataset; or an
            array or CPU tensor, or a dict or tuple of them.
        kind: One of `KINDS`, or None to find out.
        options: For kinds that need them.

    Raises:
        FormatError: the kind cannot be found out, or the input is damaged.
        ValueError: an option is missing, or was given for a kind that has no use for it.
        OSError: a file cannot be read.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if not isinstance(source, (str, bytes, os.PathLike)):
        _check_options("an object in memory", options, ())
        if isinstance(source, (np.ndarray, dict, tuple)) or is_tensor(source):
            return open_arrays(source)
        return open_samples(Held(source))
    kind = kind or _kind(source, options)
    if kind == "imagefolder":
        _check_options(kind, options, ("resize", "encoded", "allow_empty", "strict"))
        return open_images(source, options)
    if kind == "raw":
        _check_options(kind, options, ("dtype", "shape", "strict"))
        return open_raw(source, options)
    _check_options(kind, options, ("strict",))
    if kind == "dataset":
        return open_samples(Named(os.fsdecode(source)))
    return open_npy(source) if kind == "npy" else open_npz(source)


def _check_options(kind: str, options: Options, used: tuple[str, ...]) -> None:
    for name in ("dtype", "shape", "resize", "encoded", "allow_empty"):
        if getattr(options, name) not in (None, False) and name not in used:
            raise ValueError(f"{name} has no meaning for {kind}")


def _kind(path: Any, options: Options) -> str:
    if not os.path.exists(path) and _DATASET_NAME.fullmatch(os.fsdecode(path)):
        return "dataset"
    full = absolute(path)
    if os.path.isdir(full):
        if is_packed(full):
            raise FormatError(f"{full}: is packed already")
        return "npy" if any(suffix(file) == ".npy" for file in list_files(full)) else "imagefolder"
    with open(full, "rb") as file:
        start = file.read(len(MAGIC))
    if start == MAGIC or suffix(full) == ".npy":
        return "npy"
    if start.startswith(b"PK") or suffix(full) == ".npz":
        return "npz"
    if options.dtype is None and options.shape is None:
        raise FormatError(
            f"{full}: neither .npy nor .npz; a raw file needs --dtype and --shape (dtype=, shape=)"
        )
    return "raw"
