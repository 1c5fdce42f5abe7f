"""Writes the samples of a source as the shards of one column set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from fastload.errors import FormatError, warn
from fastload.formats.manifest import Classes, Shards, Skipped
from fastload.formats.missing import MissingCounts
from fastload.formats.shard import shard_layout
from fastload.packing.inputs.checks import check_counts
from fastload.packing.inputs.source import Source
from fastload.packing.jobs.executors import Run, run_on
from fastload.packing.jobs.workers import can_travel, run_jobs
from fastload.packing.output.folder import OutputFolder
from fastload.packing.output.holes import close_holes
from fastload.packing.output.writer import ShardJob, Written
from fastload.packing.plan import Plan

_COPIED_BYTES_PER_WORKER = 4 << 30  # work that is worth the start of a process

Workers = int | Executor | None
"""Number of processes, None for as many as are useful; or an executor with its own workers."""


@dataclass(frozen=True)
class Progress:
    """Progress of a pack, passed to the `progress` callback.

    Attributes:
        rows: Number of samples read, including those of an earlier run.
        rows_total: Number of samples to read.
        row_bytes: Mean size of a sample in the output, in bytes.
        rows_kept: Number of samples in shards that an earlier run finished.
        notice: A sentence for the user; empty if there is none.
    """

    rows: int
    rows_total: int
    row_bytes: int
    rows_kept: int = 0
    notice: str = ""


@dataclass(frozen=True)
class Group:
    """Column set that shards are written for.

    Attributes:
        name: Name of the column set.
        dataset: Id of the dataset, stored in each shard.
        first: Number of the first new shard.
    """

    name: str
    dataset: str
    first: int = 0


@dataclass(frozen=True)
class Outcome:
    """Written shards and statistics of their samples."""

    shards: Shards
    skipped: tuple[Skipped, ...]
    classes: dict[str, Classes]
    missing: MissingCounts
    left_out: frozenset[int]

    @property
    def rows(self) -> int:
        """Number of samples."""
        return sum(self.shards.rows)


def check_workers(workers: int | None, executor: object) -> Workers:
    """Returns the executor or the number of processes that writes the shards.

    Raises:
        TypeError: `executor` is not an Executor.
        ValueError: both are given, or `workers` is not a positive integer.
    """
    check_counts(workers=1 if workers is None else workers)
    if executor is None:
        return workers
    if not isinstance(executor, Executor):
        kind = type(executor).__name__
        raise TypeError(f"executor must be a concurrent.futures.Executor, not a {kind}")
    if workers is not None:
        raise ValueError(
            "workers (--workers) and executor (--engine) are mutually exclusive, because an "
            "executor has its own workers; remove one"
        )
    return executor


def check_travels(source: Source, workers: Workers) -> None:
    """Raises ValueError if the workers of an executor cannot read the input."""
    if not isinstance(workers, Executor):
        return
    if source.local:
        what = (
            "one process must read it from start to end; pack it without executor= (--engine), or "
            "save it as .npy files first"
        )
    elif isinstance(workers, ThreadPoolExecutor) or can_travel(source.part(0, 1)):
        return
    else:
        what = (
            "another process cannot recreate it, because it is in memory, too large, or defined "
            "in the main module; pass a dataset of a module by name, as module:object"
        )
    raise ValueError(f"an executor cannot read this input ({source.kind}): {what}")


def write_shards(
    source: Source,
    plan: Plan,
    group: Group,
    folder: OutputFolder,
    workers: Workers,
    progress: Callable[[Progress], None] | None,
) -> Outcome:
    """Writes the shards that the journal of the folder does not have yet.

    Raises:
        FormatError: no sample of the input can be read.
        OSError: a file cannot be read or written; finished shards stay in the journal.
    """
    names = [field.name for field in plan.fields]
    classes = tuple((names.index(name), len(of)) for name, of in source.classes.items())
    written = _kept(plan, group, folder)

    def rows_of(number: int) -> int:
        return min(plan.rows_each, plan.rows - number * plan.rows_each)

    kept = read = sum(rows_of(n) for n in written)
    row_bytes = source.sample_bytes

    def advance(rows: int) -> None:
        nonlocal read
        read += rows
        if progress is not None:
            progress(Progress(read, plan.rows, row_bytes, kept))

    def jobs() -> Iterator[tuple[int, ShardJob]]:
        for number in range(plan.shards):
            if number not in written:
                start, shard = number * plan.rows_each, group.first + number
                part = source.part(start, start + rows_of(number))
                path = folder.shard(plan.file_name, shard)
                yield number, ShardJob(path, plan.fields, group.dataset, shard, part, classes)

    def notify(notice: str) -> None:
        if progress is not None:
            progress(Progress(read, plan.rows, row_bytes, kept, notice))
        else:
            warn(notice, RuntimeWarning)

    advance(0)
    try:
        if isinstance(workers, Executor):
            results = run_on(workers, jobs(), Run.start(folder.path, source.paths()), notify)
        else:
            max_workers = max(plan.shards - len(written), 1)
            count = _worker_count(source, max_workers, workers)
            results = run_jobs(jobs(), count, advance, folder.lock)
        with closing(results):
            for number, shard in results:
                folder.journal.add(group.name, group.first + number, shard)
                written[number] = shard
                if isinstance(workers, Executor):
                    advance(rows_of(number))
        done = [written[number] for number in range(plan.shards)]
        shards = _without_holes(done, plan, group, folder)
    finally:
        folder.clear_temporary()
    skipped = tuple(skipped for shard in done for skipped in shard.skipped)
    missing = sum((shard.missing for shard in done), MissingCounts())
    if missing.dropped_rows and sum(shards.rows) == 0:
        fields = ", ".join(f"{name!r} in {count}" for name, count in missing.dropped.items())
        raise FormatError(
            f"no sample is left: {missing.dropped_rows} samples have missing values, field "
            f"{fields}; --fields (fields=) leaves fields out, --missing zero (missing=) fills them "
            "in"
        )
    if skipped and sum(shards.rows) == 0:
        first = f"{skipped[0].path}: {skipped[0].reason}"
        raise FormatError(f"none of {len(skipped)} inputs can be read; the first is {first}")
    counts = [[shard.class_counts[n] for shard in done] for n in range(len(source.classes))]
    class_fields = {
        name: Classes(of, tuple(sum(column) for column in zip(*count, strict=True)))
        for (name, of), count in zip(source.classes.items(), counts, strict=True)
    }
    left_out = frozenset(
        number * plan.rows_each + row for number, of in enumerate(done) for row in of.places
    )
    return Outcome(shards, skipped, class_fields, missing, left_out)


def _kept(plan: Plan, group: Group, folder: OutputFolder) -> dict[int, Written]:
    """Returns the finished shards of an earlier run that still exist unchanged."""
    kept = {}
    for number in range(plan.shards):
        shard = group.first + number
        written = folder.journal.written.get((group.name, shard))
        if written is not None and _is_there(written, plan, group, folder, shard):
            kept[number] = written
    return kept


def _is_there(written: Written, plan: Plan, group: Group, folder: OutputFolder, shard: int) -> bool:
    if written.rows == 0:
        return True
    header = shard_layout(plan.fields, written.rows, written.totals).header(group.dataset, shard)
    try:
        with open(folder.shard(plan.file_name, shard), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return size == written.file_bytes and file.read(len(header)) == header
    except FileNotFoundError:
        return False


def _without_holes(
    written: Sequence[Written], plan: Plan, group: Group, folder: OutputFolder
) -> Shards:
    """Closes the holes of skipped samples and returns the shards."""
    rows = [shard.rows for shard in written]
    sizes = [shard.file_bytes for shard in written]
    crcs = [shard.crc32c for shard in written]
    totals = [shard.totals for shard in written]
    hole = next((n for n, count in enumerate(rows[:-1]) if count < plan.rows_each), None)
    if hole is not None:
        # Dropped before the first file changes: a run that resumes after a kill reads them again.
        folder.journal.drop(group.name, group.first + hole)
        paths = [folder.shard(plan.file_name, group.first + n) for n in range(len(rows))]
        for new in close_holes(
            paths, rows, totals, plan.rows_each, plan.fields, group.dataset, group.first
        ):
            sizes[new.shard], crcs[new.shard] = new.file_bytes, new.crc32c
            totals[new.shard] = new.totals
    total = sum(rows)
    count = -(-total // plan.rows_each)
    rows = [min(plan.rows_each, total - shard * plan.rows_each) for shard in range(count)]
    return Shards(
        name=group.name,
        fields=plan.fields,
        file_name=plan.file_name,
        rows=tuple(rows),
        file_bytes=tuple(sizes[:count]),
        crc32c=tuple(f"{crc:08x}" for crc in crcs[:count]),
        totals={
            name: tuple(shard[position] for shard in totals[:count])
            for position, name in enumerate(f.name for f in plan.fields if f.ragged)
        },
    )


def _worker_count(source: Source, max_workers: int, wanted: int | None) -> int:
    if source.local or not can_travel(source.part(0, 1)):
        return 1
    if wanted is None:
        wanted = len(os.sched_getaffinity(0))
        if source.is_copied():
            wanted = min(wanted, 1 + source.rows * source.sample_bytes // _COPIED_BYTES_PER_WORKER)
    return min(wanted, max_workers)
