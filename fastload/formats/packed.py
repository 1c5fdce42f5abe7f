"""Folders that `fastload pack` wrote: the manifest, and the shards it lists."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.extents import Column, Extents, Field, FileSource, Group
from fastload.formats.files import AnyPath, absolute
from fastload.formats.shard import Layout, check_fields, schema, shard_layout
from fastload.structure import Structure, from_json, to_json

MANIFEST = "fastload.json"
"""Written last: a folder is a complete dataset when it is there."""
WORK_FOLDER = ".fastload"
"""There while a pack is being written, or was broken off."""
PLAN = "plan.json"
VERSION = 1

_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\{:06d\}\.safetensors")


@dataclass(frozen=True)
class Shards:
    """The files of one column group, in the order of their rows.

    Attributes:
        name: Of the group.
        fields: Of its columns.
        file_name: With `{:06d}` where the shard's number goes.
        rows: Of each shard.
        file_bytes: Of each shard.
        crc32c: Of each whole file, as 8 hexadecimal digits.
    """

    name: str
    fields: tuple[Field, ...]
    file_name: str
    rows: tuple[int, ...]
    file_bytes: tuple[int, ...]
    crc32c: tuple[str, ...]

    def file(self, shard: int) -> str:
        """The file name of a shard, in the folder of the manifest."""
        return shard_file(self.file_name, shard)


@dataclass(frozen=True)
class Classes:
    """The classes that an integer field numbers: their names, and the samples of each."""

    names: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Skipped:
    """An input that was left out: its path below the input folder, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """What `fastload.json` says.

    Attributes:
        rows: Samples of the dataset.
        structure: The containers of a sample around the numbers of its fields.
        groups: The column groups; the fields count through them.
        dataset: The id that the shards carry, 64 hexadecimal digits: a hash of the plan.
        class_fields: For each field that numbers classes, its classes.
        skipped: Inputs that were left out.
        source: What was packed, in JSON's types; `kind` is always there.

    Example:
        >>> read_manifest("data/train").rows  # doctest: +SKIP
        1281167
    """

    rows: int
    structure: Structure
    groups: tuple[Shards, ...]
    dataset: str
    class_fields: dict[str, Classes] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a sample, as the structure numbers them."""
        return tuple(field for group in self.groups for field in group.fields)

    @property
    def classes(self) -> list[str] | None:
        """The class names of the first field that has any."""
        return next((list(classes.names) for classes in self.class_fields.values()), None)

    @property
    def fingerprint(self) -> str:
        """A hash of the content: of schema, structure, and rows, size and CRC of each shard."""
        content = [
            to_json(self.structure),
            [
                [schema(group.fields), group.rows, group.file_bytes, group.crc32c]
                for group in self.groups
            ],
        ]
        text = json.dumps(content, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def encode(self, writer: str) -> bytes:
        """The bytes of the manifest file; `writer` names the program."""
        groups = {
            group.name: {
                "fields": [field.name for field in group.fields],
                "file": group.file_name,
                "rows": group.rows,
                "bytes": group.file_bytes,
                "crc32c": group.crc32c,
            }
            for group in self.groups
        }
        entries = {
            "fastload": VERSION,
            "writer": writer,
            "fingerprint": self.fingerprint,
            "dataset": self.dataset,
            "rows": self.rows,
            "fields": schema(self.fields),
            "structure": to_json(self.structure),
            "groups": groups,
            "classes": {
                name: {"names": classes.names, "counts": classes.counts}
                for name, classes in self.class_fields.items()
            },
            "skipped": [[skipped.path, skipped.reason] for skipped in self.skipped],
            "source": self.source,
        }
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def shard_file(file_name: str, shard: int) -> str:
    """The name of a shard's file, from the group's name for all of them."""
    return file_name.replace("{:06d}", f"{shard:06d}")


def read_manifest(folder: AnyPath) -> Manifest:
    """Reads and checks the manifest of a packed folder; does not look at the shards.

    Raises:
        FormatError: there is none, the pack is incomplete, or the manifest is damaged or of a
            newer version.
        OSError: it cannot be read.
    """
    full = absolute(folder)
    path = os.path.join(full, MANIFEST)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise FormatError(_why_no_manifest(full)) from None
    try:
        return _decode(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise FormatError(f"{path}: damaged manifest: {reason}") from error


def read_extents(folder: AnyPath) -> Extents:
    """The samples of a packed folder, in the containers that were packed.

    Only the manifest is read; of the shards the sizes are checked. Other files are ignored.

    Raises:
        FormatError: as `read_manifest`; or a shard is missing or has another size than the
            manifest says.
        OSError: the folder cannot be read.
    """
    full = absolute(folder)
    manifest = read_manifest(full)
    with os.scandir(full) as entries:
        found = {entry.name: entry for entry in entries}
    groups = []
    for shards in manifest.groups:
        sources = []
        for number, size in enumerate(shards.file_bytes):
            name = shards.file(number)
            entry, where = found.get(name), f"{full}/{name}"
            if entry is None:
                raise FormatError(f"{where}: shard {number} of {len(shards.rows)} is missing")
            if (actual := entry.stat().st_size) != size:
                what = "truncated" if actual < size else "too long"
                raise FormatError(f"{where}: {what}: {size} bytes expected, the file has {actual}")
            sources.append(FileSource(where, size))
        groups.append(_group(shards, tuple(sources)))
    return Extents(tuple(groups), manifest.structure, manifest.fingerprint)


def _group(shards: Shards, sources: tuple[FileSource, ...]) -> Group:
    layouts = _layouts(shards.fields)
    starts = np.array([layouts(rows).columns for rows in shards.rows], np.int64)
    starts = starts.reshape(len(shards.rows), len(shards.fields))
    columns = tuple(
        Column(field, field.row_bytes, sources, np.ascontiguousarray(starts[:, number]))
        for number, field in enumerate(shards.fields)
    )
    return Group(np.array(shards.rows, np.int64), columns)


def _layouts(fields: tuple[Field, ...]) -> Any:
    """`shard_layout` for these fields; nearly all shards of a dataset have equally many rows."""

    @functools.cache
    def layout(rows: int) -> Layout:
        return shard_layout(fields, rows)

    return layout


def _why_no_manifest(folder: str) -> str:
    work = os.path.join(folder, WORK_FOLDER)
    if not os.path.isdir(work):
        return f"{folder}: no packed dataset: there is no {MANIFEST}"
    try:
        with open(os.path.join(work, PLAN), "rb") as file:
            plan = json.load(file)
        names = set(os.listdir(folder))
        written = sum(shard_file(plan["file"], shard) in names for shard in range(plan["shards"]))
        progress = f": {written} of {plan['shards']} shards are written"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        progress = ""
    return f"{folder}: incomplete pack{progress}; run the same `fastload pack` again"


def _decode(content: bytes) -> Manifest:
    if not content:
        raise ValueError("the file is empty")
    if content.startswith(b"\xef\xbb\xbf"):
        raise ValueError("it starts with a byte order mark")
    entries = json.loads(content)
    if not isinstance(entries, dict):
        raise ValueError(f"a JSON object is needed, not {type(entries).__name__}")
    version = entries.get("fastload")
    if type(version) is not int or version < 1:
        raise ValueError(f"no version: 'fastload' is {version!r:.50}")
    if version > VERSION:
        raise ValueError(
            f"version {version} is newer than {VERSION}, the newest that this fastload reads"
        )
    fields = {f["name"]: _field(f) for f in _typed(entries, "fields", list)}
    groups = tuple(
        _shards(name, group, fields) for name, group in _typed(entries, "groups", dict).items()
    )
    manifest = Manifest(
        rows=_typed(entries, "rows", int),
        structure=from_json(entries["structure"]),
        groups=groups,
        dataset=_typed(entries, "dataset", str),
        class_fields={
            name: _classes(name, classes, fields)
            for name, classes in _typed(entries, "classes", dict).items()
        },
        skipped=tuple(Skipped(str(p), str(r)) for p, r in _typed(entries, "skipped", list)),
        source=_typed(entries, "source", dict),
    )
    _check_whole(manifest, list(fields))
    if manifest.fingerprint != entries["fingerprint"]:
        raise ValueError("its fingerprint does not fit its content")
    return manifest


def _check_whole(manifest: Manifest, names: list[str]) -> None:
    if not manifest.groups or [field.name for field in manifest.fields] != names:
        raise ValueError("the fields of the groups are not those of the dataset, in their order")
    check_fields(manifest.fields)
    for group in manifest.groups:
        if sum(group.rows) != manifest.rows:
            raise ValueError(
                f"{manifest.rows} rows, but the shards of group {group.name!r} have "
                f"{sum(group.rows)}"
            )
        layouts = _layouts(group.fields)
        for number, (rows, size) in enumerate(zip(group.rows, group.file_bytes, strict=True)):
            if layouts(rows).file_bytes != size:
                raise ValueError(
                    f"{group.file(number)}: {rows} rows are a file of {layouts(rows).file_bytes} "
                    f"bytes, not of {size}"
                )


def _typed(entries: dict[str, Any], key: str, kind: type) -> Any:
    value = entries[key]
    if type(value) is not kind:
        raise ValueError(f"{key!r} must be {kind.__name__}, not {value!r:.50}")
    return value


def _counts(entries: dict[str, Any], key: str) -> tuple[int, ...]:
    values = _typed(entries, key, list)
    for value in values:
        if type(value) is not int or value < 0:
            raise ValueError(f"{key!r} must hold counts, not {value!r:.50}")
    return tuple(values)


def _field(entry: dict[str, Any]) -> Field:
    if entry["kind"] != "fixed":
        raise ValueError(f"field {entry['name']!r}: kind {entry['kind']!r} needs a newer fastload")
    name, dtype = _typed(entry, "name", str), _typed(entry, "dtype", str)
    return Field(name, dtype, _counts(entry, "shape"))


def _shards(name: str, entry: dict[str, Any], fields: dict[str, Field]) -> Shards:
    if unknown := entry.keys() - {"fields", "file", "rows", "bytes", "crc32c"}:
        raise ValueError(f"group {name!r}: {sorted(unknown)[0]!r} needs a newer fastload")
    file_name = _typed(entry, "file", str)
    if not _SHARD_NAME.fullmatch(file_name):
        raise ValueError(f"group {name!r}: {file_name!r:.100} is no name for shards in this folder")
    crcs = tuple(_typed(entry, "crc32c", list))
    if not all(isinstance(crc, str) and re.fullmatch("[0-9a-f]{8}", crc) for crc in crcs):
        raise ValueError(f"group {name!r}: 'crc32c' must hold 8 hexadecimal digits per shard")
    shards = Shards(
        name=name,
        fields=tuple(fields[member] for member in _typed(entry, "fields", list)),
        file_name=file_name,
        rows=_counts(entry, "rows"),
        file_bytes=_counts(entry, "bytes"),
        crc32c=crcs,
    )
    if not len(shards.rows) == len(shards.file_bytes) == len(crcs):
        raise ValueError(f"group {name!r}: 'rows', 'bytes' and 'crc32c' differ in length")
    return shards


def _classes(name: str, entry: dict[str, Any], fields: dict[str, Field]) -> Classes:
    names, counts = tuple(_typed(entry, "names", list)), _counts(entry, "counts")
    if (
        name not in fields
        or not all(isinstance(n, str) for n in names)
        or len(names) != len(counts)
    ):
        raise ValueError(f"the classes of {name!r} are not a name and a count each")
    return Classes(names, counts)
