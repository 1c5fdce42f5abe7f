"""Makes the next generation of a dataset: by more samples, or by more fields."""

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
    chosen_workers,
    write_shards,
)

_LONGEST_NAME = 100  # of a column group
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
    """Adds the samples of an input to a packed dataset, behind those that are there.

    They go to new shards; the manifest is replaced at the end, and the old one stays readable as
    `fastload.<generation>.json`. The numbers of the old samples stay, and who has the dataset open
    goes on reading what was there. Killed at any moment, it leaves the old dataset as it was.

    Args:
        source: As for `pack`. Its fields, containers and classes must be those of the dataset.
        dataset: The packed folder.
        split: The split that the new samples are: a new one, or one that ends with the old
            samples, which then grows. None leaves them outside of all splits.
        resume: Continue an append that was broken off, instead of beginning again.
        shard_size: Bytes of a shard, as for `pack`.
        workers: Processes, as for `pack`.
        executor: Writes the shards, as for `pack`.
        progress: Called now and then.
        **reading: kind, dtype, shape, resize, encoded, allow_empty, strict, ignore, fields, dtypes,
            missing, cast, shuffle and limit, as for `pack`.

    Returns:
        What the dataset is now.

    Raises:
        FormatError: `dataset` is no complete packed dataset; or as `pack`.
        ValueError: schema, containers or classes differ; `split` lies elsewhere.
        OSError: a file cannot be read or written; the old dataset is whole.

    Example:
        >>> fastload.append("new.npy", "data/train").rows  # doctest: +SKIP
        1281267
    """
    check_counts(shard_size=shard_size)
    by = chosen_workers(workers, executor)
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
                joined([group, outcome.shards])
                for group, outcome in zip(manifest.groups, outcomes, strict=True)
            ),
            class_fields=added_up([manifest.class_fields, *(o.classes for o in outcomes)]),
            skipped=(*manifest.skipped, *skipped),
            leftovers=merged_leftovers([*manifest.leftovers, *opened.leftovers]),
            splits=splits,
            missing=manifest.missing + outcomes[0].missing,
        )
        notices = notices_of(opened)
        if splits and split is None:
            notices.append("the new samples are in no split; --split NAME (split=) names theirs")
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
    """Adds fields to the samples of a packed dataset; the files that are there stay untouched.

    The new fields are a column group with shards of its own. Sample i gets sample i of the input:
    a dict gets a key, a list or tuple one more member. As with `append`, the old manifest stays
    readable, and an addition that is broken off leaves the dataset as it was.

    Args:
        dataset: The packed folder; its samples are dicts, lists, tuples or namedtuples.
        source: As for `pack`, of as many samples.
        name: Of the new member. None takes the name of the file. Not needed for dicts that are
            added to dicts, whose keys are taken over.
        resume: Continue an addition that was broken off, instead of beginning again.
        shard_size: Bytes of a shard, as for `pack`.
        workers: Processes, as for `pack`.
        executor: Writes the shards, as for `pack`.
        progress: Called now and then.
        **reading: As for `append`; bad records are errors in any case, and samples cannot be
            dropped.

    Returns:
        What the dataset is now.

    Raises:
        FormatError: `dataset` is no complete packed dataset; or as `pack`.
        ValueError: the lengths differ, a name is taken or missing, or samples are bare arrays.
        OSError: a file cannot be read or written; the old dataset is whole.

    Example:
        >>> fastload.add_column("data/train", "masks.npy", name="mask")  # doctest: +SKIP
    """
    check_counts(shard_size=shard_size)
    by = chosen_workers(workers, executor)
    folder = OutputFolder(dataset)
    folder.check_source(source)
    read_manifest(folder.path)
    if reading.get("missing") == "drop":
        raise ValueError(
            "missing: 'drop' leaves samples out and shifts the rest: nan and zero do not"
        )
    # A record that is left out would shift the rest.
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
        own = {"skipped": (), **asdict(outcomes[0].missing)}  # the manifest's are of earlier runs
        return replace(run.commit(grown, opened.rows), notices=tuple(notices_of(opened)), **own)


@dataclass(frozen=True)
class _Run:
    """One change of a dataset, from its plan to the next manifest."""

    task: str
    folder: OutputFolder
    manifest: Manifest
    resume: bool
    options: dict[str, Any]
    opened: Source
    shard_bytes: int

    @property
    def id(self) -> str:
        """A hash of what is added."""
        plan = Plan.of(self.opened, self.shard_bytes, "")
        return digest([self.task, self.options, plan.describe()])

    def is_done(self) -> bool:
        """Whether the run that is to be continued had come to its end before it was killed.

        Raises:
            ValueError: nothing was broken off, and the last change was one like this.
        """
        history = self.manifest.source.get("history", [])
        if not history or history[-1].get("plan") != self.id:
            return False
        before = self.folder.plan() or {}
        if before.get("generation") == self.manifest.generation - 1:
            return True
        if self.resume:
            raise ValueError(
                f"{self.folder.path}: there is nothing to resume, and the last change was this one "
                "or one alike; without --resume (resume=True) it is made once more"
            )
        return False

    def write(
        self,
        growths: Sequence[tuple[Source, Shards]],
        workers: Workers,
        progress: Callable[[Progress], None] | None,
    ) -> list[Outcome]:
        """Writes the shards of each group, behind those that it has."""
        plans = [
            Plan.of(part, self.shard_bytes, shards.file_name, fields=shards.fields)
            for part, shards in growths
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
            self.folder.begin(noted, self.manifest, resume=self.resume)
            for (part, shards), plan in zip(growths, plans, strict=True):
                group = Group(shards.name, self.manifest.dataset, len(shards.rows))
                outcomes.append(write_shards(part, plan, group, self.folder, workers, progress))
        if len({outcome.rows for outcome in outcomes}) > 1:
            raise RuntimeError("the input has changed while it was read")
        return outcomes

    def commit(self, grown: Manifest, rows: int) -> PackReport:
        """Replaces the manifest."""
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
    """Raises ValueError unless the samples and classes are those of the dataset."""
    before = described(
        manifest.fields,
        manifest.structure,
        {name: classes.names for name, classes in manifest.class_fields.items()},
    )
    now = described(opened.fields, opened.structure, opened.classes)
    if changed := list(differences(before, now)):
        raise ValueError(f"{path}: the new samples differ from those there: {'; '.join(changed)}")
    if opened.rows == 0:
        raise ValueError("there are no samples to append")


def described(
    fields: Sequence[Field], structure: Structure, classes: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """What datasets must share whose samples follow each other, in JSON's types."""
    fields = [replace(field, sized=False) for field in fields]  # a matter of files
    return {
        "fields": {field.name: entry for field, entry in zip(fields, schema(fields), strict=True)},
        "order of fields": [field.name for field in fields],
        "structure": to_json(structure),
        "classes": {name: list(of) for name, of in classes.items()},
    }


def _by_group(opened: Source, manifest: Manifest) -> list[tuple[Source, Shards]]:
    """The part of the input for each column group."""
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


def joined(parts: Sequence[Shards]) -> Shards:
    """The shards of all parts, one after the other, with the names of the first."""
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


def added_up(parts: Sequence[dict[str, Classes]]) -> dict[str, Classes]:
    """The classes of several parts, with the sums of their counts."""
    total: dict[str, Classes] = {}
    for part in parts:
        for name, classes in part.items():
            before = total[name].counts if name in total else (0,) * len(classes.counts)
            counts = tuple(a + b for a, b in zip(before, classes.counts, strict=True))
            total[name] = Classes(classes.names, counts)
    return total


# --- More fields ------------------------------------------------------------------------------


def _name_of(source: Any) -> str | None:
    """The name of a file or folder, without its suffix."""
    if not isinstance(source, (str, bytes, os.PathLike)) or not os.path.exists(source):
        return None
    return os.path.splitext(os.path.basename(os.path.normpath(os.fsdecode(source))))[0]


def _with_members(
    manifest: Manifest, opened: Source, name: str | None, source: Any, path: str
) -> tuple[Source, Structure]:
    """The input with its fields named as members of the samples, and the samples' containers."""
    old, new = manifest.structure, renumber(opened.structure, len(manifest.fields))
    if is_leaf(old):
        raise ValueError(
            f"{path}: its samples are bare arrays, which have no room for a field; pack it again "
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
            raise ValueError(f"{path}: the samples have a field {key!r} already")
        structure = with_member(structure, key, member)
    return Renamed.of(opened, prefix) if prefix else opened, structure


def _group_name(field: str, manifest: Manifest, folder: OutputFolder) -> str:
    """A name for a column group that can begin the names of its files, and of no others."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", field).lstrip("_.-")[:_LONGEST_NAME] or "column"
    taken = {group.name for group in manifest.groups} | {
        group.file_name.partition("-{")[0] for group in manifest.groups
    }
    own = {file.partition("-{")[0] for file in (folder.plan() or {}).get("files", [])}
    found = (_SHARD_OF.fullmatch(name) for name in os.listdir(folder.path))
    taken |= {match[1] for match in found if match} - own
    free = (f"{name}-{number}" for number in itertools.count(2))
    return name if name not in taken else next(made for made in free if made not in taken)
