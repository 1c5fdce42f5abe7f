"""All kinds of inputs, and which of them an input is."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats import is_packed
from fastload.formats.arrays import is_tensor
from fastload.formats.files import absolute
from fastload.pack.sources import (
    arrow,
    beton,
    csv,
    hdf5,
    imagefolder,
    imagelist,
    jsonl,
    lmdb,
    mapstyle,
    mds,
    megatron,
    npy,
    npz,
    parquet,
    raw,
    safetensors,
    tar,
    tfrecord,
)
from fastload.pack.sources.arrays import open_arrays
from fastload.pack.sources.base import Source
from fastload.pack.sources.kind import DTYPES, Candidate, Kind, Option
from fastload.pack.sources.mapstyle import Held, open_samples
from fastload.pack.sources.wanted import ALL, Wanted

KINDS: tuple[Kind, ...] = (
    npy.KIND,
    npz.KIND,
    safetensors.KIND,
    hdf5.KIND,
    megatron.KIND,
    mds.KIND,
    beton.KIND,
    lmdb.KIND,
    parquet.KIND,
    arrow.KIND,
    csv.KIND,
    jsonl.KIND,
    tar.KIND,
    tfrecord.KIND,
    imagelist.KIND,
    imagefolder.KIND,  # any folder
    raw.KIND,  # any file of which dtype or shape are given
    mapstyle.KIND,
)
"""Kinds of paths and names, in the order in which they are tried."""

_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0")  # gzip, zstd, bzip2, xz

OPTIONS: dict[str, Option] = {option.name: option for kind in KINDS for option in kind.options}
"""All options of kinds; those of several kinds mean the same for each."""

_DATASET_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def open_source(
    source: Any, kind: str | None, options: dict[str, Any], wanted: Wanted = ALL
) -> Source:
    """Opens an input.

    Args:
        source: A path; the name of a map-style dataset, `module:object`; such a dataset; or an
            array or CPU tensor, or a dict or tuple of them.
        kind: The name of one of `KINDS`, or None to find out.
        options: `strict`, `dtypes` and those of kinds; None and False are as if not given. Kinds of
            text read by the dtypes, of the others they are for the caller to apply.
        wanted: The fields that are read; the source may have others, too.

    Raises:
        FormatError: the kind cannot be found out, or the input is damaged.
        ValueError: an option is missing, or was given for a kind that has no use for it.
        TypeError: there is no such option.
        ImportError: a package that reads this kind is not installed.
        OSError: a file cannot be read.
    """
    for name in options:
        if name not in OPTIONS and name != "strict":
            raise TypeError(f"there is no option {name!r}")
    names = [known.name for known in KINDS]
    if kind is not None and kind not in names:
        raise ValueError(f"kind must be one of {', '.join(names)}, not {kind!r}")
    given = {name: value for name, value in options.items() if value not in (None, False)}
    if not isinstance(source, (str, bytes, os.PathLike)):
        _check_options("an object in memory", given, ())
        if isinstance(source, (np.ndarray, dict, tuple)) or is_tensor(source):
            return open_arrays(source, wanted)
        return open_samples(Held(source), wanted)
    chosen = _kind(source, given) if kind is None else KINDS[names.index(kind)]
    _check_options(chosen.name, given, chosen.options)
    path = os.fsdecode(source) if chosen is mapstyle.KIND else absolute(source)
    return chosen.open(path, wanted=wanted, **given)


def _check_options(kind: str, given: dict[str, Any], used: tuple[Option, ...]) -> None:
    if DTYPES not in used:
        given.pop("dtypes", None)
    for name in given:
        if name != "strict" and name not in [option.name for option in used]:
            raise ValueError(f"{name} has no meaning for {kind}")


def _kind(path: Any, given: dict[str, Any]) -> Kind:
    if not os.path.exists(path) and _DATASET_NAME.fullmatch(os.fsdecode(path)):
        return mapstyle.KIND
    full = absolute(path)
    if os.path.isdir(full) and is_packed(full):
        raise FormatError(f"{full}: is packed already")
    candidate = Candidate(full, given)
    for kind in KINDS:
        if kind.detects(candidate):
            return kind
    if candidate.start.startswith(_COMPRESSED):
        raise FormatError(f"{full}: is compressed: unpack it first")
    raise FormatError(
        f"{full}: neither its name nor its first bytes tell what it is: --from KIND (kind=) says "
        "it; a raw file needs --dtype and --shape (dtype=, shape=)"
    )
