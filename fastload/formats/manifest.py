"""The manifest of a packed folder: what it says, and its text."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fastload.formats.fields import Field, read_schema, schema
from fastload.formats.missing import MissingCounts
from fastload.formats.original_names import Names, read_names
from fastload.formats.shard import Places, check_fields, place_shards
from fastload.formats.structure import Structure, flatten, from_json, to_json

VERSION = 1

MAX_LEFTOVER_PATHS = 100

_GROUP_KEYS = frozenset(["fields", "file", "rows", "bytes", "crc32c", "totals"])
_HEX_DIGITS = frozenset("0123456789abcdef")
_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\{:06d\}\.safetensors")


@dataclass(frozen=True)
class Shards:
    """The files of one column group, in the order of their rows.

    Attributes:
        name: Name of the column set.
        fields: Fields of its columns.
        file_name: With `{:06d}` where the shard's number goes.
        rows: Number of rows of each shard.
        file_bytes: Size in bytes of each shard.
        crc32c: CRC-32C of each whole file, as 8 hexadecimal digits.
        totals: For each ragged field, by name, the elements in each shard.
    """

    name: str
    fields: tuple[Field, ...]
    file_name: str
    rows: tuple[int, ...]
    file_bytes: tuple[int, ...]
    crc32c: tuple[str, ...]
    totals: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @functools.cached_property
    def places(self) -> Places:
        """Location of the fields in the shards."""
        totals = [self.totals[field.name] for field in self.fields if field.ragged]
        return place_shards(self.fields, self.rows, totals)

    def file(self, shard: int) -> str:
        """The file name of a shard, in the folder of the manifest."""
        return shard_file(self.file_name, shard)


@dataclass(frozen=True)
class Classes:
    """The classes that an integer field numbers: their names, and the samples of each.

    A sample of the number -1 has no class and is counted for none.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]

    def name(self, number: int) -> str:
        """The name of a class; "no class" of the number -1."""
        return self.names[number] if number >= 0 else "no class"


@dataclass(frozen=True)
class Skipped:
    """An input that was left out: its path below the input folder, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Leftover:
    """Entries of an input that were not read, all for one reason.

    Attributes:
        reason: Why they were not read.
        count: Number of files.
        paths: Paths of the first `MAX_LEFTOVER_PATHS` files, relative to the input folder; members
            of an archive after its name.
    """

    reason: str
    count: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """Content of `fastload.json`.

    Attributes:
        rows: Samples of the dataset.
        structure: The containers of a sample around the numbers of its fields.
        groups: The column groups; the fields count through them.
        dataset: The id that the shards carry, 64 hexadecimal digits: a hash of the plan.
        class_fields: For each field that numbers classes, its classes.
        skipped: Inputs that were left out.
        source: Description of the input in JSON types; `kind` always exists.
        generation: Counts how often samples or fields were added.
        splits: Ranges [start, stop) of samples by name.
        leftovers: Files of the input that were not read, by reason.
        names: The files of the original names of the samples; none where no names are known.
        missing: Counts of dropped and filled samples with missing values.

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
    generation: int = 1
    splits: dict[str, tuple[int, int]] = field(default_factory=dict)
    leftovers: tuple[Leftover, ...] = ()
    names: tuple[Names, ...] = ()
    missing: MissingCounts = field(default_factory=MissingCounts)

    def files(self) -> list[str]:
        """The file names of all shards, and of the original names."""
        shards = [group.file(n) for group in self.groups for n in range(len(group.rows))]
        return [*shards, *(of.file for of in self.names if of.file)]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a sample, as the structure numbers them."""
        return tuple(field for group in self.groups for field in group.fields)

    @property
    def classes(self) -> list[str] | None:
        """The class names of the first field that has any."""
        return next((list(classes.names) for classes in self.class_fields.values()), None)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the content: of schema, structure, and rows, size and CRC of each shard."""
        groups = [
            [
                *(schema(group.fields), group.rows, group.file_bytes, group.crc32c),
                *([list(group.totals.values())] if group.totals else []),
            ]
            for group in self.groups
        ]
        text = json.dumps([to_json(self.structure), groups], separators=(",", ":"))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def split(self, name: str) -> tuple[int, int]:
        """The range of a split.

        Raises:
            ValueError: there is none of this name.
        """
        if name not in self.splits:
            known = ", ".join(self.splits) or "none"
            raise ValueError(f"there is no split {name!r}; this dataset has: {known}")
        return self.splits[name]

    def encode(self, writer: str) -> bytes:
        """The bytes of the manifest file; `writer` names the program."""
        groups = {
            group.name: {
                "fields": [field.name for field in group.fields],
                "file": group.file_name,
                "rows": group.rows,
                "bytes": group.file_bytes,
                "crc32c": group.crc32c,
                **({"totals": group.totals} if group.totals else {}),
            }
            for group in self.groups
        }
        entries = {
            "fastload": VERSION,
            "writer": writer,
            "fingerprint": self.fingerprint,
            "dataset": self.dataset,
            **({"generation": self.generation} if self.generation > 1 else {}),
            "rows": self.rows,
            "fields": schema(self.fields),
            "structure": to_json(self.structure),
            "groups": groups,
            **({"splits": self.splits} if self.splits else {}),
            "classes": {
                name: {"names": classes.names, "counts": classes.counts}
                for name, classes in self.class_fields.items()
            },
            "skipped": [[skipped.path, skipped.reason] for skipped in self.skipped],
            **({"leftovers": _described(self.leftovers)} if self.leftovers else {}),
            **({"names": self.names} if self.names else {}),
            **self.missing.to_json(),
            "source": self.source,
        }
        dumps = json.JSONEncoder(allow_nan=False).encode
        lines = [f"{dumps(key)}: {dumps(value)}" for key, value in entries.items()]
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def merged_leftovers(parts: Iterable[Leftover]) -> tuple[Leftover, ...]:
    """The leftovers of several inputs, one for each reason."""
    merged: dict[str, Leftover] = {}
    for of in parts:
        before = merged.get(of.reason, Leftover(of.reason, 0, ()))
        paths = (*before.paths, *of.paths)[:MAX_LEFTOVER_PATHS]
        merged[of.reason] = Leftover(of.reason, before.count + of.count, paths)
    return tuple(merged.values())


def _described(leftovers: Iterable[Leftover]) -> dict[str, Any]:
    return {of.reason: {"count": of.count, "paths": of.paths} for of in leftovers}


def _leftovers(entries: Any) -> tuple[Leftover, ...]:
    found = []
    for reason, entry in _typed({"leftovers": entries}, "leftovers", dict).items():
        paths = tuple(map(str, _typed(entry, "paths", list)))
        found.append(Leftover(reason, _typed(entry, "count", int), paths))
    return tuple(found)


def shard_file(file_name: str, shard: int) -> str:
    """The name of a shard's file, from the group's name for all of them."""
    return file_name.replace("{:06d}", f"{shard:06d}")


def decode(content: bytes) -> Manifest:
    """The manifest of these bytes, checked.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, RecursionError: it is damaged, or of a
            newer version.
    """
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
    fields = {f.name: f for f in read_schema(_typed(entries, "fields", list))}
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
        generation=_typed(
            entries | {"generation": entries.get("generation", 1)}, "generation", int
        ),
        splits=_splits(entries.get("splits", {}), entries["rows"]),
        leftovers=_leftovers(entries.get("leftovers", {})),
        names=read_names(entries.get("names"), entries["rows"]),
        missing=MissingCounts.from_json(entries),
    )
    _check_whole(manifest, list(fields))
    if manifest.fingerprint != entries["fingerprint"]:
        raise ValueError("its fingerprint does not fit its content")
    return manifest


def _check_whole(manifest: Manifest, names: list[str]) -> None:
    if not manifest.groups or [field.name for field in manifest.fields] != names:
        raise ValueError("the fields of the groups are not those of the dataset, in their order")
    check_fields(manifest.fields)
    if sorted(flatten(manifest.structure)) != list(range(len(names))):
        raise ValueError(f"its structure does not number {len(names)} fields")
    if manifest.generation < 1:
        raise ValueError(f"'generation' counts from 1, not from {manifest.generation}")
    if len({group.file_name for group in manifest.groups}) < len(manifest.groups):
        raise ValueError("two groups have the same files")
    for group in manifest.groups:
        if sum(group.rows) != manifest.rows:
            raise ValueError(
                f"{manifest.rows} rows, but the shards of group {group.name!r} have "
                f"{sum(group.rows)}"
            )
        expected = group.places.file_bytes.tolist()
        for number, (size, actual) in enumerate(zip(expected, group.file_bytes, strict=True)):
            if size != actual:
                raise ValueError(
                    f"{group.file(number)}: {group.rows[number]} rows are a file of {size} bytes, "
                    f"not of {actual}"
                )


def _typed(entries: dict[str, Any], key: str, kind: type) -> Any:
    value = entries[key]
    if type(value) is not kind:
        raise ValueError(f"{key!r} must be {kind.__name__}, not {value!r:.50}")
    return value


def _counts(entries: dict[str, Any], key: str) -> tuple[int, ...]:
    values = _typed(entries, key, list)
    if not set(map(type, values)) <= {int} or min(values, default=0) < 0:
        raise ValueError(f"{key!r} must hold counts only")
    return tuple(values)


def _splits(entries: Any, rows: int) -> dict[str, tuple[int, int]]:
    splits = {}
    for name in _typed({"splits": entries}, "splits", dict):
        start, stop = _counts(entries, name)
        if not start <= stop <= rows:
            raise ValueError(f"split {name!r} is [{start}, {stop}) of {rows} samples")
        splits[name] = start, stop
    return splits


def _shards(name: str, entry: dict[str, Any], fields: dict[str, Field]) -> Shards:
    if unknown := entry.keys() - _GROUP_KEYS:
        raise ValueError(f"group {name!r}: {sorted(unknown)[0]!r} needs a newer fastload")
    file_name = _typed(entry, "file", str)
    if not _SHARD_NAME.fullmatch(file_name):
        raise ValueError(f"group {name!r}: {file_name!r:.100} is no name for shards in this folder")
    crcs = tuple(_typed(entry, "crc32c", list))
    # At once, because there may be very many.
    strings = set(map(type, crcs)) <= {str}
    if not strings or not set(map(len, crcs)) <= {8} or not set("".join(crcs)) <= _HEX_DIGITS:
        raise ValueError(f"group {name!r}: 'crc32c' must hold 8 hexadecimal digits per shard")
    members = tuple(fields[member] for member in _typed(entry, "fields", list))
    ragged = [member.name for member in members if member.ragged]
    totals = _typed(entry, "totals", dict) if "totals" in entry else {}
    if list(totals) != ragged:
        raise ValueError(f"group {name!r}: 'totals' are not those of its ragged fields")
    shards = Shards(
        name=name,
        fields=members,
        file_name=file_name,
        rows=_counts(entry, "rows"),
        file_bytes=_counts(entry, "bytes"),
        crc32c=crcs,
        totals={name: _counts(totals, name) for name in ragged},
    )
    if (
        len(
            {len(shards.rows), len(shards.file_bytes), len(crcs), *map(len, shards.totals.values())}
        )
        > 1
    ):
        raise ValueError(f"group {name!r}: 'rows', 'bytes', 'crc32c' or 'totals' differ in length")
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
