"""One module per layout that is read in place; each turns paths into `Extents`."""

from __future__ import annotations

import os
from typing import Any

from fastload.errors import FormatError
from fastload.formats import npy, packed, raw, safetensors
from fastload.formats.extents import Extents
from fastload.formats.files import AnyPath, Paths, absolute, absolute_paths, file_source, suffix
from fastload.formats.signatures import refuse_other_formats
from fastload.formats.walk import data_files

_PACK_ADVICE = (
    "`fastload pack` converts images, tables, .npz and others (docs/reference/packing.md)"
)


def open_extents(path: Paths, *, dtype: Any = None, shape: Any = None) -> Extents:
    """Opens a file, folder or sequence of files of any kind that is read in place.

    Args:
        path: A packed folder; a `.npy`, safetensors or raw file; a folder of `.npy` or
            `.safetensors` files, also in subfolders; or a sequence of files of one kind.
        dtype: Dtype of a raw file.
        shape: Shape of a sample in a raw file.

    Raises:
        FormatError: the kind is not known, kinds are mixed, or the files are damaged.
        ValueError: only one of dtype and shape is given, or they are given for other kinds.
        OSError: a file cannot be read.
    """
    where = absolute_paths(path)
    if not isinstance(where, str):
        kinds = {_kind_of_file(file): file for file in where}
    elif is_packed(where):
        if dtype is None and shape is None:
            return packed.read_extents(where)
        kinds = {"packed": where}
    elif os.path.isdir(where):
        kinds = _kinds_in_folder(where, raw_given=dtype is not None)
    else:
        kinds = {_kind_of_file(where): where}
    if len(kinds) > 1:
        names = " and ".join(f"{file} ({kind})" for kind, file in kinds.items())
        raise FormatError(f"files of different kinds: {names}; keep one kind per dataset")
    kind = next(iter(kinds), "npy")
    if kind != "raw" and (dtype is not None or shape is not None):
        raise ValueError(f"dtype and shape are for raw files, but {where!r} is {kind}")
    if kind == "raw":
        if dtype is None or shape is None:
            for file in [where] if isinstance(where, str) else where:
                refuse_other_formats(file_source(file), "raw numbers")
            raise ValueError(
                f"{where!r} is read as raw numbers, which needs dtype= and shape= (--dtype, "
                f"--shape); if it holds something else: {_PACK_ADVICE}, TokenDataset reads streams "
                "of tokens"
            )
        return raw.read_extents(where, dtype, shape)
    return npy.read_extents(where) if kind == "npy" else safetensors.read_extents(where)


def is_packed(path: AnyPath) -> bool:
    """True if `path` is a folder of `fastload pack`, finished or not."""
    folder = absolute(path)
    manifest, plan = os.path.join(folder, "fastload.json"), os.path.join(folder, ".fastload")
    return os.path.lexists(manifest) or os.path.isdir(plan)


def _kind_of_file(path: str) -> str:
    source = file_source(path)
    start, ending = source.read(0, 9), suffix(source.path)
    if start.startswith(npy.MAGIC) or ending == ".npy":
        return "npy"
    if ending == ".safetensors" or (ending not in (".bin", ".raw") and start[8:] == b"{"):
        return "safetensors"
    return "raw"


def _kinds_in_folder(folder: str, *, raw_given: bool) -> dict[str, str]:
    """Returns the kinds of files in a folder, each with its first file; ignores others."""
    kinds = {".npy": "npy", ".safetensors": "safetensors"} | ({".bin": "raw"} if raw_given else {})
    found: dict[str, str] = {}
    for file in data_files(folder, *kinds):
        found.setdefault(kinds[suffix(file)], file)
    if not found:
        raise FormatError(
            f"{folder}: no dataset in this folder: neither fastload.json nor .npy or "
            f".safetensors files; {_PACK_ADVICE}"
        )
    return found
