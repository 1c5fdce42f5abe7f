"""Appends samples or adds fields to a packed dataset, as its next generation."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from fastload.formats.fields import Field, as_written, schema
from fastload.formats.manifest import Classes, Manifest, Shards, merged_leftovers
from fastload.formats.original_names import NAMES_FILE, joined_names, next_number
from fastload.formats.packed import read_manifest
from fastload.formats.shard import check_fields
from fastload.formats.structure import Structure, is_leaf, renumber, to_json, with_member
from fastload.packing.convert import COMPLETE, WRITER, PackReport, notices_of, report_on
from fastload.packing.inputs.checks import check_counts
from fastload.packing.inputs.source import Source
from fastload.packing.names import write_names
from fastload.packing.opening import open_input
from fastload.packing.output.differences import differences
from fastload.packing.output.folder import OutputFolder
from fastload.packing.plan import SHARD_BYTES, Plan, digest, stamp_of
from fastload.packing.select import Renamed, Selection, in_order_of
from fastload.packing.shards import (
    Group,
    Outcome,
    Progress,
    Workers,
    check_travels,
    check_workers,
    write_shards,
)

_MAX_NAME_LENGTH = 100  # of a column set
_SHARD_OF = re.compile(r"(.+)-\d{6,}\.safetensors")


def append(
    source: Any,
    dataset: str | os.PathLike[str],
    *,
    split: str | None = None,
    resume: bool = False,
    shard_size: int = SHARD_BYTES,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    **reading: Any,
) -> PackReport:
    """Appends the samples of an input to a packed dataset.

    The samples are written to new shards; the old samples keep their indices. The manifest is
    replaced at the end, and the old one stays readable as `fastload.<generation>.json`. A process
    that has the dataset open continues to read it. A killed append leaves the dataset unchanged.

    Args:
        source: Input, as for `pack`. Its fields, containers and classes must be those of the
            dataset.
        dataset: Packed folder.
        split: Split of the new samples: a new one, or one that ends with the old samples, which is
            then extended. None adds them to no split.
        resume: Continue an interrupted append instead of starting again.
        shard_size: Target size of a shard in bytes, as for `pack`.
        workers: Number of processes, as for `pack`.
        executor: Writes the shards, as for `pack`.
        progress: Called as for `pack`.
        **reading: kind, dtype, shape, resize, encoded, allow_empty, strict, ignore, fields, dtypes,
            missing, cast, shuffle and limit, as for `pack`.

    Returns:
        Summary of the dataset after the change.

    Raises:
        FormatError: `dataset` is not a complete packed dataset; or as for `pack`.
        ValueError: fields, containers or classes differ, or `split` ends before the last sample.
        OSError: a file cannot be read or written; the old dataset is unchanged.

    Example:
        >>> fastload.append("new.npy", "data/train").rows  # doctest: +SKIP
        1281267
    """
    check_counts(shard_size=shard_size)
    by = check_workers(workers, executor)
    folder = OutputFolder(dataset)
    folder.check_source(source)
    read_manifest(folder.path)
    with closing(folder), closing(open_input(source, **reading)) as opened:
        check_travels(opened, by)
        folder.take()
        manifest = read_manifest(folder.path)
        run = _Run("append", folder, manifest, resume, {"split": split}, opened, shard_size)
        if run.is_done():
            folder.finish()
            return report_on(folder.path, manifest, [COMPLETE], opened)
        opened = in_order_of(opened, manifest.fields, manifest.structure)
        _check_alike(opened, manifest, folder.path)
        splits = _grown_splits(manifest, opened.rows, split)
        outcomes = run.write(_by_group(opened, manifest), by, progress)
        rows = outcomes[0].rows
        if split is not None:
            splits[split] = splits[split][0], manifest.rows + rows
        skipped = outcomes[0].skipped
        names = write_names(opened, outcomes[0], folder, next_number(manifest.names))
        grown = replace(
            manifest,
            names=joined_names([(manifest.rows, manifest.names), (rows, names)]),
            rows=manifest.rows + rows,
            groups=tuple(
                concatenate_shards([group, outcome.shards])
                for group, outcome in zip(manifest.groups, outcomes, strict=True)
            ),
            class_fields=sum_classes([manifest.class_fields, *(o.classes for o in outcomes)]),
            skipped=(*manifest.skipped, *skipped),
            leftovers=merged_leftovers([*manifest.leftovers, *opened.leftovers]),
            splits=splits,
            missing=manifest.missing + outcomes[0].missing,
        )
        notices = notices_of(opened)
        if splits and split is None:
            notices.append("the new samples are in no split; --split NAME (split=) sets one")
        own = {"skipped": skipped, **asdict(outcomes[0].missing)}
        return replace(run.commit(grown, rows), notices=tuple(notices), **own)


def add_column(
    dataset: str | os.PathLike[str],
    source: Any,
    *,
    name: str | None = None,
    resume: bool = False,
    shard_size: int = SHARD_BYTES,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    **reading: Any,
) -> PackReport:
    """Adds fields to the samples of a packed dataset; existing shards are not changed.

    The new fields form a column set with separate shards. Sample i of the input is added to sample
    i of the dataset: as a key of a dict, or as one more member of a list or tuple. As with
    `append`, the old manifest stays readable, and an interrupted addition leaves the dataset
    unchanged.

    Args:
        dataset: Packed folder; its samples are dicts, lists, tuples or namedtuples.
        source: Input, as for `pack`, with the same number of samples.
        name: Name of the new member. None uses the name of the file. Not needed if both samples are
            dicts; the keys of the input are then added.
        resume: Continue an interrupted addition instead of starting again.
        shard_size: Target size of a shard in bytes, as for `pack`.
        workers: Number of processes, as for `pack`.
        executor: Writes the shards, as for `pack`.
        progress: Called as for `pack`.
        **reading: As for `append`, but bad records always raise, and missing="drop" is refused.

    Returns:
        Summary of the dataset after the change.

    Raises:
        FormatError: `dataset` is not a complete packed dataset; or as for `pack`.
        ValueError: the lengths differ, a name is taken or missing, or samples are bare arrays.
        OSError: a file cannot be read or written; the old dataset is unchanged.

    Example:
        >>> fastload.add_column("data/train", "masks.npy", name="mask")  # doctest: +SKIP
    """
    check_counts(shard_size=shard_size)
    by = check_workers(workers, executor)
    folder = OutputFolder(dataset)
    folder.check_source(source)
    read_manifest(folder.path)
    if reading.get("missing") == "drop":
        raise ValueError("missing: 'drop' leaves samples out and shifts the rest; use nan or zero")
    # Leaving out a bad record would shift the samples behind it.
    with closing(folder), closing(open_input(source, all_records=True, **reading)) as opened:
        check_travels(opened, by)
        folder.take()
        manifest = read_manifest(folder.path)
        if opened.rows != manifest.rows:
            raise ValueError(
                f"the input has {opened.rows} samples, but {folder.path} has {manifest.rows}"
            )
        run = _Run("add-column", folder, manifest, resume, {"name": name}, opened, shard_size)
        if run.is_done():
            folder.finish()
            report = report_on(folder.path, manifest, [COMPLETE], opened)
            return replace(report, skipped=())
        renamed, structure = _with_members(manifest, opened, name, source, folder.path)
        check_fields([*manifest.fields, *renamed.fields])
        group = _group_name(renamed.fields[0].name, manifest, folder)
        fields = as_written(renamed.fields)
        empty = Shards(group, fields, f"{group}-{{:06d}}.safetensors", (), (), ())
        outcomes = run.write([(renamed, empty)], by, progress)
        grown = replace(
            manifest,
            names=manifest.names or write_names(renamed, outcomes[0], folder, 0),
            structure=structure,
            groups=(*manifest.groups, outcomes[0].shards),
            class_fields={**manifest.class_fields, **outcomes[0].classes},
            leftovers=merged_leftovers([*manifest.leftovers, *opened.leftovers]),
            missing=manifest.missing + outcomes[0].missing,
        )
        own = {"skipped": (), **asdict(outcomes[0].missing)}  # without those of earlier runs
        return replace(run.commit(grown, opened.rows), notices=tuple(notices_of(opened)), **own)


@dataclass(frozen=True)
class _Run:
    """One append or addition, from its plan to the next manifest."""

    task: str
    folder: OutputFolder
    manifest: Manifest
    resume: bool
    options: dict[str, Any]
    opened: Source
    shard_bytes: int

    @property
    def id(self) -> str:
        """Hash of the added samples or fields."""
        plan = Plan.of(self.opened, self.shard_bytes, "")
        return digest([self.task, self.options, plan.describe()])

    def is_done(self) -> bool:
        """True if the run to resume had committed its manifest before it was killed.

        Raises:
            ValueError: no run was interrupted, and the last change had the same plan.
        """
        history = self.manifest.source.get("history", [])
        if not history or history[-1].get("plan") != self.id:
            return False
        before = self.folder.plan() or {}
        if before.get("generation") == self.manifest.generation - 1:
            return True
        if self.resume:
            raise ValueError(
                f"{self.folder.path}: there is nothing to resume, and the last change was the "
                "same; remove --resume (resume=True) to make it again"
            )
        return False

    def write(
        self,
        additions: Sequence[tuple[Source, Shards]],
        workers: Workers,
        progress: Callable[[Progress], None] | None,
    ) -> list[Outcome]:
        """Writes the new shards of each column set, numbered after its existing ones."""
        plans = [
            Plan.of(part, self.shard_bytes, shards.file_name, fields=shards.fields)
            for part, shards in additions
        ]
        noted = {
            "task": self.task,
            "generation": self.manifest.generation,
            "fingerprint": self.manifest.fingerprint,
            **self.options,
            "groups": [plan.describe() for plan in plans],
            "shards": sum(plan.shards for plan in plans),
            "stamp": stamp_of(self.opened),
            "files": [*(plan.file_name for plan in plans), NAMES_FILE],
        }
        outcomes = []
        with self.folder.undone_if_refused(self.manifest, resume=self.resume):
            self.folder.start(noted, self.manifest, resume=self.resume)
            for (part, shards), plan in zip(additions, plans, strict=True):
                group = Group(shards.name, self.manifest.dataset, len(shards.rows))
                outcomes.append(write_shards(part, plan, group, self.folder, workers, progress))
        if len({outcome.rows for outcome in outcomes}) > 1:
            raise RuntimeError("the input changed while it was read")
        return outcomes

    def commit(self, grown: Manifest, rows: int) -> PackReport:
        """Writes the next manifest and returns the report."""
        made = {"task": self.task, "plan": self.id, "rows": rows, "kind": self.opened.kind}
        history = [*grown.source.get("history", []), {**made, **self.opened.options()}]
        grown = replace(
            grown,
            generation=self.manifest.generation + 1,
            source={**grown.source, "history": history},
        )
        self.folder.commit(grown, WRITER, replaces=self.manifest)
        return report_on(self.folder.path, grown, [], self.opened)


# --- More samples -----------------------------------------------------------------------------


def _check_alike(opened: Source, manifest: Manifest, path: str) -> None:
    """Raises ValueError unless the samples have the fields and classes of the dataset."""
    before = comparable_schema(
        manifest.fields,
        manifest.structure,
        {name: classes.names for name, classes in manifest.class_fields.items()},
    )
    now = comparable_schema(opened.fields, opened.structure, opened.classes)
    absent = [f"field {n!r} is missing" for n in before["fields"] if n not in now["fields"]]
    if changed := [*absent, *differences(before, now)]:
        raise ValueError(f"{path}: the new samples differ from the old ones: {'; '.join(changed)}")
    if opened.rows == 0:
        raise ValueError("there are no samples to append")


def comparable_schema(
    fields: Sequence[Field], structure: Structure, classes: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Returns, in JSON types, the properties that must be equal to concatenate datasets."""
    fields = [replace(field, sized=False) for field in fields]  # may differ between shards
    return {
        "fields": {field.name: entry for field, entry in zip(fields, schema(fields), strict=True)},
        "order of fields": [field.name for field in fields],
        "structure": to_json(structure),
        "classes": {name: list(of) for name, of in classes.items()},
    }


def _by_group(opened: Source, manifest: Manifest) -> list[tuple[Source, Shards]]:
    """Returns the part of the input for each column set."""
    if len(manifest.groups) == 1:
        return [(opened, manifest.groups[0])]
    return [
        (Selection(fields=[field.name for field in group.fields]).of(opened), group)
        for group in manifest.groups
    ]


def _grown_splits(manifest: Manifest, rows: int, split: str | None) -> dict[str, tuple[int, int]]:
    splits = dict(manifest.splits)
    if split is None:
        return splits
    start, stop = splits.get(split, (manifest.rows, manifest.rows))
    if stop != manifest.rows:
        raise ValueError(
            f"split {split!r} ends at row {stop} and cannot grow: the new samples follow row "
            f"{manifest.rows}; choose another name"
        )
    return {**splits, split: (start, stop + rows)}


def concatenate_shards(parts: Sequence[Shards]) -> Shards:
    """Returns the shards of all parts in one column set, with the name of the first part."""
    return replace(
        parts[0],
        rows=tuple(rows for part in parts for rows in part.rows),
        file_bytes=tuple(size for part in parts for size in part.file_bytes),
        crc32c=tuple(crc for part in parts for crc in part.crc32c),
        totals={
            name: tuple(total for part in parts for total in part.totals[name])
            for name in parts[0].totals
        },
    )


def sum_classes(parts: Sequence[dict[str, Classes]]) -> dict[str, Classes]:
    """Returns the classes of several parts with the sums of their counts."""
    total: dict[str, Classes] = {}
    for part in parts:
        for name, classes in part.items():
            before = total[name].counts if name in total else (0,) * len(classes.counts)
            counts = tuple(a + b for a, b in zip(before, classes.counts, strict=True))
            total[name] = Classes(classes.names, counts)
    return total


# --- More fields ------------------------------------------------------------------------------


def _name_of(source: Any) -> str | None:
    """Returns the name of a file or folder without its suffix; None for other inputs."""
    if not isinstance(source, (str, bytes, os.PathLike)) or not os.path.exists(source):
        return None
    return os.path.splitext(os.path.basename(os.path.normpath(os.fsdecode(source))))[0]


def _with_members(
    manifest: Manifest, opened: Source, name: str | None, source: Any, path: str
) -> tuple[Source, Structure]:
    """Returns the input with its fields renamed to members, and the new sample structure."""
    old, new = manifest.structure, renumber(opened.structure, len(manifest.fields))
    if is_leaf(old):
        raise ValueError(
            f"{path}: its samples are bare arrays, to which no field can be added; pack it again "
            'as a dict, such as {"x": array}'
        )
    if name is None and isinstance(old, dict) and isinstance(new, dict):
        members, prefix = new, ""
    else:
        name = name or _name_of(source)
        keyed = isinstance(old, dict) or hasattr(old, "_fields")
        if name is None and keyed:
            raise ValueError("the new field needs a name: --name (name=)")
        prefix = name or str(len(old))
        members = {prefix: new}
    structure = old
    for key, member in members.items():
        taken = old if isinstance(old, dict) else getattr(old, "_fields", ())
        if key in taken:
            raise ValueError(f"{path}: the samples already have a field {key!r}")
        structure = with_member(structure, key, member)
    return Renamed.of(opened, prefix) if prefix else opened, structure


def _group_name(field: str, manifest: Manifest, folder: OutputFolder) -> str:
    """Returns a name for a column set that is no prefix of other shard names."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", field).lstrip("_.-")[:_MAX_NAME_LENGTH] or "column"
    taken = {group.name for group in manifest.groups} | {
        group.file_name.partition("-{")[0] for group in manifest.groups
    }
    own = {file.partition("-{")[0] for file in (folder.plan() or {}).get("files", [])}
    found = (_SHARD_OF.fullmatch(name) for name in os.listdir(folder.path))
    taken |= {match[1] for match in found if match} - own
    free = (f"{name}-{number}" for number in itertools.count(2))
    return name if name not in taken else next(made for made in free if made not in taken)
