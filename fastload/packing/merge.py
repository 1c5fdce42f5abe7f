"""`fastload.merge`: concatenates packed datasets, by links to their shards."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace

from fastload import _core
from fastload.errors import FormatError
from fastload.formats.files import AnyPath, absolute
from fastload.formats.manifest import Manifest, merged_leftovers, shard_file
from fastload.formats.missing import MissingCounts
from fastload.formats.original_names import NAMES_FILE, Names, joined_names
from fastload.formats.packed import read_extents, read_manifest
from fastload.packing.convert import WRITER, PackReport, report_on
from fastload.packing.grow import comparable_schema, concatenate_shards, sum_classes
from fastload.packing.output.differences import differences
from fastload.packing.output.files import new_file, write_all
from fastload.packing.output.folder import OutputFolder, files_of
from fastload.packing.plan import digest

_CHUNK_BYTES = 4 << 20
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)


def merge(out: AnyPath, inputs: Sequence[AnyPath], *, overwrite: bool = False) -> PackReport:
    """Concatenates several packed datasets into one.

    The shards are hard links if inputs and output are on one file system, otherwise copies whose
    checksums are verified; only the manifest is new. The inputs are not changed and may be deleted
    afterwards.

    A split is kept if its rows are contiguous in the output. Other splits are left out, and the
    report names them.

    Args:
        out: Folder to write.
        inputs: Packed folders whose samples have the same fields, containers and classes.
        overwrite: Replace the packed dataset in `out`.

    Raises:
        FormatError: an input is not a complete packed dataset, or a copied shard is damaged.
        FileExistsError: `out` exists and may not be replaced; nothing was changed.
        ValueError: there is no input, or two inputs differ; nothing was written.
        OSError: a file cannot be read or written; `out` is incomplete.

    Example:
        >>> fastload.merge("data/all", ["data/2023", "data/2024"]).rows  # doctest: +SKIP
        2562334
    """
    if isinstance(inputs, (str, bytes, os.PathLike)) or not inputs:
        raise ValueError(f"inputs must be a list of packed folders, not {inputs!r}")
    folder = OutputFolder(out)
    paths = [absolute(path) for path in inputs]
    manifests = [read_manifest(path) for path in paths]
    for path, manifest in zip(paths, manifests, strict=True):
        read_extents(path, manifest=manifest)  # checks that all shards exist with the right size
        _check_alike(paths[0], manifests[0], path, manifest)
    for path in paths:
        folder.check_source(path)
    folder.check_new(overwrite=overwrite)
    splits, notices = _splits(manifests)
    first = manifests[0]
    merged = Manifest(
        sum(manifest.rows for manifest in manifests),
        first.structure,
        tuple(
            concatenate_shards(list(groups))
            for groups in zip(*(m.groups for m in manifests), strict=True)
        ),
        digest({"merge": [[m.dataset, m.fingerprint] for m in manifests]}),
        sum_classes([manifest.class_fields for manifest in manifests]),
        tuple(skipped for manifest in manifests for skipped in manifest.skipped),
        {"kind": "merge", "parts": [manifest.source for manifest in manifests]},
        splits=splits,
        names=_renumbered(manifests),
        leftovers=merged_leftovers(of for manifest in manifests for of in manifest.leftovers),
        missing=sum((manifest.missing for manifest in manifests), MissingCounts()),
    )
    with closing(folder):
        folder.take()
        folder.check_new(overwrite=overwrite)
        replaced = files_of([read_manifest(folder.path)]) if folder.has_manifest() else []
        noted = {
            "task": "merge",
            "file": first.groups[0].file_name,
            "shards": len(merged.groups[0].rows),
            "files": [*files_of([merged]), NAMES_FILE, *replaced],
        }
        folder.start(noted, None, resume=False)
        copied = _link_or_copy(paths, manifests, merged, folder)
        _copy_names(paths, manifests, folder)
        folder.commit(merged, WRITER)
    if copied:
        notices.append(f"{copied} shards were copied, because they could not be hard-linked")
    report = report_on(folder.path, merged, notices)
    # Skipped and missing samples were reported when the inputs were packed.
    return replace(report, skipped=(), **asdict(MissingCounts()))


def _check_alike(first_path: str, first: Manifest, path: str, other: Manifest) -> None:
    before, now = (
        {
            **comparable_schema(
                m.fields, m.structure, {name: of.names for name, of in m.class_fields.items()}
            ),
            "groups": [[field.name for field in group.fields] for group in m.groups],
            "images whose sizes are stored (pack older ones again)": [
                field.name for field in m.fields if field.sized
            ],
        }
        for m in (first, other)
    )
    if changed := list(differences(before, now)):
        raise ValueError(f"{first_path} and {path} differ: {'; '.join(changed)}")


def _splits(manifests: Sequence[Manifest]) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Returns the splits that are still contiguous, and a notice about the others."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for manifest in manifests:
        for name, (first, last) in manifest.splits.items():
            if first < last:
                ranges.setdefault(name, []).append((start + first, start + last))
        start += manifest.rows
    splits, lost = {}, []
    for name, parts in ranges.items():
        if all(a[1] == b[0] for a, b in itertools.pairwise(parts)):
            splits[name] = parts[0][0], parts[-1][1]
        else:
            lost.append(name)
    notices = [f"left out the splits that are no longer contiguous: {', '.join(lost)}"]
    return splits, notices if lost else []


def _link_or_copy(
    paths: Sequence[str], manifests: Sequence[Manifest], merged: Manifest, folder: OutputFolder
) -> int:
    """Links or copies all shards; returns the number of copies."""
    copied = 0
    for position, group in enumerate(merged.groups):
        number = 0
        for path, manifest in zip(paths, manifests, strict=True):
            own = manifest.groups[position]
            for shard, crc in enumerate(own.crc32c):
                source = os.path.realpath(os.path.join(path, own.file(shard)))
                target = folder.shard(group.file_name, number)
                number += 1
                try:
                    os.link(source, target)
                except OSError as error:
                    if error.errno not in _CANNOT_LINK:
                        raise
                    _copy(source, target, crc)
                    copied += 1
    return copied


def _renumbered(manifests: Sequence[Manifest]) -> tuple[Names, ...]:
    """Returns the names of all samples, with consecutively numbered files."""
    numbers = itertools.count()
    return joined_names(
        (
            manifest.rows,
            tuple(
                Names(of.rows, of.file and shard_file(NAMES_FILE, next(numbers)))
                for of in manifest.names
            ),
        )
        for manifest in manifests
    )


def _copy_names(paths: Sequence[str], manifests: Sequence[Manifest], folder: OutputFolder) -> None:
    """Copies the files of names, numbered as in `_renumbered`."""
    numbers = itertools.count()
    for path, manifest in zip(paths, manifests, strict=True):
        for file in [of.file for of in manifest.names if of.file]:
            target = folder.shard(NAMES_FILE, next(numbers))
            with open(os.path.join(path, file), "rb") as names, new_file(target) as descriptor:
                while chunk := names.read(_CHUNK_BYTES):
                    write_all(descriptor, memoryview(chunk))


def _copy(source: str, target: str, crc32c: str) -> None:
    crc = 0
    with open(source, "rb", buffering=0) as file, new_file(target) as descriptor:
        while chunk := file.read(_CHUNK_BYTES):
            crc = _core.crc32c(chunk, crc)
            write_all(descriptor, memoryview(chunk))
        if f"{crc:08x}" != crc32c:
            raise FormatError(
                f"{source}: damaged: its checksum is {crc:08x}, the manifest has {crc32c}"
            )
