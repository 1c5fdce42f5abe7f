"""All kinds of inputs, and the detection of an input's kind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats import is_packed
from fastload.formats.arrays import is_tensor
from fastload.formats.files import AnyPath, absolute
from fastload.packing.inputs.arrays import open_arrays
from fastload.packing.inputs.frames import is_frame, open_frame
from fastload.packing.inputs.hive import Partitions
from fastload.packing.inputs.inventory import NO_NAMES, Inventory
from fastload.packing.inputs.kind import DTYPES, Kind, Option
from fastload.packing.inputs.source import Source
from fastload.packing.inputs.wanted import ALL, Wanted
from fastload.packing.kinds import (
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
from fastload.packing.kinds.mapstyle import Held, open_samples
from fastload.packing.plan import MAX_STAMPED_FILES, changed_since, stamp

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

_BY_NAME = {kind.name: kind for kind in KINDS}
_TABLES = (parquet.KIND, arrow.KIND, csv.KIND)  # that have columns in the names of folders
_MAX_ENDINGS = 10
_PREDOMINANT = 10  # times as many files as of the next kind: the others are strays
_DATASET_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def open_source(
    source: Any,
    kind: str | None,
    options: dict[str, Any],
    wanted: Wanted = ALL,
    ignore: Iterable[str] = (),
) -> Source:
    """Opens an input.

    Args:
        source: A path; the name of a map-style dataset, `module:object`; such a dataset; or an
            array or CPU tensor, or a dict or tuple of them; or a DataFrame, Series or table.
        kind: The name of one of `KINDS`, or None to find out.
        options: `strict`, `dtypes` and those of kinds; None and False are as if not given. Kinds of
            text read by the dtypes, of the others they are for the caller to apply.
        wanted: The fields that are read; the source may have others, too.
        ignore: Patterns of entries of a folder, or of members of an archive, that are left out.

    Raises:
        FormatError: the kind cannot be found out, or may be one of several; the input is damaged,
            or has entries that the kind should read and cannot.
        ValueError: an option is missing, or was given for a kind that has no use for it.
        TypeError: there is no such option.
        ImportError: a package that reads this kind is not installed.
        OSError: a file cannot be read.
    """
    for name in options:
        if name not in OPTIONS and name != "strict":
            raise TypeError(f"there is no option {name!r}")
    if kind is not None and kind not in _BY_NAME:
        raise ValueError(f"kind must be one of {', '.join(_BY_NAME)}, not {kind!r}")
    given = {name: value for name, value in options.items() if value not in (None, False)}
    if not isinstance(source, (str, bytes, os.PathLike)):
        dtypes = given.get("dtypes")
        _check_options("an object in memory", given, ())
        if is_frame(source):
            return open_frame(source, wanted)
        if isinstance(source, (np.ndarray, dict, tuple)) or is_tensor(source):
            return open_arrays(source, wanted)
        return open_samples(Held(source), wanted, dtypes)
    if kind == mapstyle.KIND.name or (kind is None and _is_dataset_name(source)):
        _check_options(mapstyle.KIND.name, given, mapstyle.KIND.options)
        return mapstyle.open_named(os.fsdecode(source), wanted=wanted, **given)
    inventory = Inventory(_path(source, kind), given, ignore)
    if kind is None:
        chosen, reason = _kind(inventory)
    else:
        chosen, reason = _BY_NAME[kind], "set by --from"
    _check_options(chosen.name, given, chosen.options)
    if inventory.is_folder and chosen.names == NO_NAMES:
        raise FormatError(f"{inventory.path}: {chosen.name} is read from a single file, no folder")
    inventory.choose(chosen.name, chosen.names)
    if inventory.is_folder and chosen is not imagefolder.KIND:
        inventory.check_splits()
    files = inventory.files if len(inventory.chosen) <= MAX_STAMPED_FILES else []
    before = stamp(files)  # to open a text is to read it
    opened: Source = chosen.open(inventory, wanted=wanted, **given)
    notices = (*opened.notices, *changed_since(before, files))
    if chosen not in _TABLES and (names := Partitions.of(inventory).names):
        what = f"the names of folders such as {names[0]}=... are not read as columns"
        notices = (*notices, f"{what}: {chosen.name} has none")
    leftovers = inventory.leftovers()
    notices = (*notices, *inventory.notices())
    return replace(opened, reason=reason, notices=notices, leftovers=leftovers)


def _check_options(kind: str, given: dict[str, Any], used: tuple[Option, ...]) -> None:
    if DTYPES not in used:
        given.pop("dtypes", None)
    for name in given:
        if name != "strict" and name not in [option.name for option in used]:
            users = [of.name for of in KINDS if name in [option.name for option in of.options]]
            hint = f"; it is an option of {', '.join(users)}" if users else ""
            raise ValueError(f"{name} has no meaning for {kind}{hint}")


def _is_dataset_name(source: AnyPath) -> bool:
    return not os.path.lexists(source) and bool(_DATASET_NAME.fullmatch(os.fsdecode(source)))


def _path(source: AnyPath, kind: str | None) -> str:
    """Returns the absolute path; Megatron's files may be given without their suffixes."""
    full = absolute(source)
    if kind is None and os.path.isdir(full) and is_packed(full):
        raise FormatError(
            f"{full}: is packed already; `fastload append` and `fastload merge` add to it, "
            "`fastload export` writes other files"
        )
    if kind == megatron.KIND.name and not os.path.lexists(full) and os.path.exists(f"{full}.idx"):
        return f"{full}.idx"
    return full


def _kind(inventory: Inventory) -> tuple[Kind, str]:
    """Returns the kind of an input, and the reason for the choice."""
    if inventory.is_folder:
        return _kind_of_folder(inventory)
    path = inventory.path
    for kind in KINDS:
        if kind.detects(inventory):
            by_name = kind.names.match(path) or path.lower().endswith(f".{kind.name}")
            if kind is raw.KIND:
                return kind, "--dtype and --shape are given"
            return kind, "detected from its name" if by_name else "detected from its first bytes"
    if inventory.start.startswith(_COMPRESSED):
        raise FormatError(f"{path}: is compressed; decompress it first")
    raise FormatError(
        f"{path}: neither its name nor its first bytes match a kind of input; set --from KIND "
        "(kind=); a raw file needs --dtype and --shape (dtype=, shape=)"
    )


def _kind_of_folder(inventory: Inventory) -> tuple[Kind, str]:
    """Returns the kind that reads most files of a folder; no other kind may read many of them.

    Raises:
        FormatError: there are two such kinds.
    """
    if imagelist.KIND.detects(inventory):
        return imagelist.KIND, "--labels is given"
    counts = inventory.count({kind.name: kind.names for kind in KINDS})
    found = [kind for kind in KINDS if kind.name in counts and kind.detects(inventory)]
    given = inventory.given.keys() - {"strict", DTYPES.name}
    taking = [kind for kind in found if given <= {option.name for option in kind.options}]
    found = sorted(taking or found, key=lambda kind: -counts[kind.name][0])
    if not found:
        inventory.refuse_packed()
    if not found and inventory.paths:
        endings = sorted({os.path.splitext(path)[1].lower() or path for path in inventory.paths})
        raise FileNotFoundError(
            f"{inventory.path}: no kind of input is a folder of files of such names "
            f"({', '.join(endings[:_MAX_ENDINGS])}), and there are no class folders of images in "
            "it; docs/reference/packing.md lists what can be packed"
        )
    if not found and not inventory.folders:
        left = ", ".join(f"{of.count} {of.reason}" for of in inventory.leftovers())
        what = f"no files but {left}" if left else "no files"
        raise FileNotFoundError(f"{inventory.path}: there are {what} in this folder")
    if not found:
        return imagefolder.KIND, "no other kind reads files of such names in a folder"
    shown = []
    for kind in found:
        count, first = counts[kind.name]
        files = "1 file" if count == 1 else f"{count} files"
        shown.append(f"{kind.name} ({files}, such as {first})")
    if len(found) > 1 and counts[found[0].name][0] < _PREDOMINANT * counts[found[1].name][0]:
        raise FormatError(
            f"{inventory.path}: may be packed as {' or '.join(shown)}; --from KIND (kind=) chooses"
        )
    count, first = counts[found[0].name]
    return found[0], f"it reads {count} of {inventory.total} files, such as {first}"
