"""Folders that `fastload pack` wrote: the manifest, and the shards it lists."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np

from fastload.errors import FormatError, refuse_pipe
from fastload.formats.columns import Bounds, Column, FileSource, Group, Source
from fastload.formats.extents import Extents
from fastload.formats.files import AnyPath, absolute, identity_of
from fastload.formats.manifest import Manifest, Shards, decode, shard_file

MANIFEST = "fastload.json"
"""Written last: a folder is a complete dataset when it is there."""
WORK_FOLDER = ".fastload"
"""Folder that exists while a pack is being written, or after it was interrupted."""
PLAN = "plan.json"


def old_manifest(generation: int) -> str:
    """The file name of the manifest of an earlier generation."""
    return f"fastload.{generation}.json"


def read_manifest(folder: AnyPath) -> Manifest:
    """Reads and checks the manifest of a packed folder; does not look at the shards.

    Raises:
        FormatError: there is none, the pack is incomplete, or the manifest is damaged or of a
            newer version.
        OSError: it cannot be read.
    """
    full = absolute(folder)
    path = os.path.join(full, MANIFEST)
    refuse_pipe(path)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.isdir(os.path.join(full, WORK_FOLDER)):
            raise FormatError(f"{full}: {incomplete(full)}") from None
        raise FormatError(f"{full}: no packed dataset: there is no {MANIFEST}") from None
    try:
        return decode(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise FormatError(f"{path}: damaged manifest: {reason}") from error


def read_extents(
    folder: AnyPath, *, split: str | None = None, manifest: Manifest | None = None
) -> Extents:
    """The samples of a packed folder, in the containers that were packed.

    Only the manifest is read; of the shards the sizes are checked. Other files are ignored.

    Args:
        folder: The folder.
        split: The name of a split; None for all samples.
        manifest: Result of `read_manifest` for this folder, or None.

    Raises:
        FormatError: as `read_manifest`; or a shard is missing or has another size than the
            manifest says.
        ValueError: there is no such split.
        OSError: the folder cannot be read.
    """
    full = absolute(folder)
    manifest = manifest or read_manifest(full)
    extents = Extents(
        tuple(_group(full, shards) for shards in manifest.groups),
        manifest.structure,
        manifest.fingerprint,
    )
    return extents if split is None else extents.slice(*manifest.split(split))


def _group(folder: str, shards: Shards) -> Group:
    before, after = shards.file_name.split("{:06d}")
    paths = [f"{folder}/{before}{number:06d}{after}" for number in range(len(shards.rows))]
    identities = []
    for number, (path, size) in enumerate(zip(paths, shards.file_bytes, strict=True)):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise FormatError(f"{path}: shard {number} of {len(paths)} is missing") from None
        identities.append(identity_of(status))
        if (actual := status.st_size) != size:
            what = "truncated" if actual < size else "too long"
            raise FormatError(f"{path}: {what}: {size} bytes expected, the file has {actual}")
    places = shards.places
    blocks = places.blocks()
    sources: tuple[Source, ...] = tuple(
        map(FileSource, paths, shards.file_bytes, blocks, identities)
    )
    columns = []
    for of in shards.fields:
        bounds, sizes = None, places.sizes(of) if of.sized else None
        if of.ragged:
            totals = np.array(shards.totals[of.name], np.int64)
            first = places.bounds(of)
            ends = np.stack([first, first + 8 * np.array(shards.rows, np.int64)], 1)
            bounds = Bounds(sources, first, totals, ends)
        starts = places.column(of)
        read = replace(of, sized=False)  # the column knows
        columns.append(Column(read, of.row_bytes, sources, starts, bounds, sizes=sizes))
    return Group(np.array(shards.rows, np.int64), tuple(columns))


def incomplete(folder: str) -> str:
    """Describes a folder of an unfinished task, which has no manifest yet."""
    task, progress, resume = "pack", "", "--resume (resume=True) continues it, "
    try:
        refuse_pipe(os.path.join(folder, WORK_FOLDER, PLAN))
        with open(os.path.join(folder, WORK_FOLDER, PLAN), "rb") as file:
            plan = json.load(file)
        names = set(os.listdir(folder))
        if (task := str(plan.get("task", "pack"))) != "pack":
            resume = ""
        written = sum(shard_file(plan["file"], shard) in names for shard in range(plan["shards"]))
        progress = f": {written} of {plan['shards']} shards are written"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    begin = "--overwrite (overwrite=True) begins again"
    return f"incomplete {task}{progress}; `fastload {task}` with {resume}{begin}"
