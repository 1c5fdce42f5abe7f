"""`fastload.pack`: packs any input into a folder of shards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from fastload import _core
from fastload.formats.fields import TEXT, Field
from fastload.formats.manifest import Leftover, Manifest, Skipped
from fastload.formats.original_names import NAMES_FILE
from fastload.formats.packed import MANIFEST, read_manifest
from fastload.packing.inputs.checks import check_counts
from fastload.packing.inputs.source import Source
from fastload.packing.names import write_names
from fastload.packing.opening import open_input
from fastload.packing.output.folder import SHARD_FILE, OutputFolder, files_of
from fastload.packing.plan import (
    SHARD_BYTES,
    Plan,
    changed_since,
    digest,
    parse_splits,
    split_rows,
    stamp_of,
)
from fastload.packing.shards import (
    Group,
    Progress,
    Workers,
    check_travels,
    check_workers,
    write_shards,
)

WRITER = f"fastload {_core.__version__}"
COMPLETE = "the dataset was already complete"
_MAX_GUESSED = 20  # names in a notice


@dataclass(frozen=True)
class PackReport:
    """Summary of a packed dataset.

    Attributes:
        path: Absolute path of the folder.
        rows: Number of samples.
        shards: Number of shard files.
        bytes: Total size of the shards in bytes.
        skipped: Bad records that were left out, each with the reason; also in the manifest.
        leftovers: Files of the input that were not read, grouped by reason, each with a count and
            up to 100 paths; also in the manifest.
        notices: Sentences for the user, such as guessed dtypes.
        fields: Fields of a sample.
        splits: Rows [start, stop) of each split, by name.
        kind: Input kind.
        reason: Why this kind was detected; empty for an input in memory.
        dropped: Number of samples left out because a value was missing, by field. A sample that
            lacks two fields counts for both.
        dropped_rows: Number of samples left out because a value was missing, each counted once.
        filled: Number of samples with replaced missing values, by field.

    Example:
        >>> report = fastload.pack("photos", "data/photos", resize=224)  # doctest: +SKIP
        >>> report.rows, [skipped.path for skipped in report.skipped]  # doctest: +SKIP
        (1281165, ['n01/broken.jpg'])
    """

    path: str
    rows: int
    shards: int
    bytes: int
    skipped: tuple[Skipped, ...]
    notices: tuple[str, ...]
    fields: tuple[Field, ...] = ()
    splits: dict[str, tuple[int, int]] = field(default_factory=dict)
    leftovers: tuple[Leftover, ...] = ()
    kind: str = ""
    reason: str = ""
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_rows: int = 0
    filled: dict[str, int] = field(default_factory=dict)


def pack(
    source: Any,
    out: str | os.PathLike[str],
    *,
    kind: str | None = None,
    dtype: Any = None,
    shape: int | Sequence[int] | None = None,
    resize: int | tuple[int, int] | None = None,
    encoded: bool = False,
    allow_empty: bool = False,
    strict: bool = False,
    ignore: str | Sequence[str] = (),
    fields: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    missing: str = "error",
    cast: Mapping[str, Any] | None = None,
    shuffle: int | None = None,
    limit: int | None = None,
    split: Mapping[str, float] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    shard_size: int = SHARD_BYTES,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> PackReport:
    """Packs a dataset into a folder of shards that `FastLoader` reads at full speed.

    The written bytes depend only on the input and the options, not on the number of workers, the
    machine or the time. Until the pack is complete, the folder is marked as incomplete, and
    `fastload.open` refuses it.

    Args:
        source: The input:

            - a folder of class folders of images: samples are tuples (image uint8
              (height, width, 3), label int64). Classes and order are those of torchvision's
              ImageFolder. Pillow converts the images to RGB, as ImageFolder does; 16-bit images
              keep their upper 8 bits; EXIF orientation is ignored. With `encoded`, image is the
              bytes of the file;
            - a `.npy` file or a folder of them: bare arrays; an `.npz` file: dicts;
            - a raw file of numbers, with `dtype` and `shape`;
            - a map-style dataset, or its name as `module:object` (a class or function is called):
              numbers, arrays, CPU tensors, text and bytes in dicts, tuples, lists and
              namedtuples. Arrays and lists of numbers may vary in their first length from sample
              to sample; 64 samples are read to find these fields;
            - an array or CPU tensor, or a dict or tuple of them: samples along the first axes.
              Lists of text, bytes or arrays of unequal length, object arrays and nested tensors
              are samples of varying length;
            - a DataFrame of pandas or polars, or a table of pyarrow: dicts of the columns; a
              Series: its values without a container. A pandas index other than a RangeIndex that
              numbers the rows becomes a column, as in `reset_index`.
        out: The folder to write.
        kind: Name of an input kind, such as "imagefolder" (listed in `docs/reference/packing.md`);
            None detects the kind.
        dtype: Dtype of a raw file, such as "uint16"; ">i4" is big-endian.
        shape: Shape of one sample of a raw file.
        resize: (height, width) of the images in pixels, or one number for both. The filter is
            bilinear, as in torchvision for PIL images; the aspect ratio is not kept.
        encoded: Store the bytes of the image files, of any size; images are decoded when they are
            loaded.
        allow_empty: Keep classes without images.
        strict: Raise at the first bad image or record instead of leaving it out, and if a file of
            the input is not read. Hidden files and files that match `ignore` are exempt.
        ignore: `fnmatch` patterns of files to leave out of a folder or archive. A pattern matches
            paths below the input, names, or folders.
        fields: Names of the fields to keep, or of containers for all fields in them; the other
            fields are not opened, decoded or checked.
        dtypes: Dtypes that fields are read as, by name, such as {"x": "float32"}. Numbers in text
            are parsed to this dtype; other values are cast before missing values are filled in.
        missing: How missing values (null, None, NaT, absent keys) of the kept fields are handled;
            a NaN is a value. "error" raises, "nan" stores NaN in fields of floats, "zero" stores
            0, False, empty text or an empty list, "drop" leaves the sample out.
        cast: New dtypes by field name, such as {"x": "bf16"}. Floats are rounded to the nearest
            value, ties to even; integers and bools must hold each value exactly.
        shuffle: Seed of a permutation; the samples are written in its order.
        limit: Number of samples to write, from the start, after shuffling.
        split: Fractions of the rows by name, such as {"train": 0.9, "val": 0.1}, which sum to 1.
            A split ends at the cumulative sum of the fractions, rounded to the nearest row.
        overwrite: Replace the packed dataset in `out`. A complete dataset stays until the new one
            is complete; an incomplete one is removed first.
        resume: Continue an incomplete pack: its finished shards are kept. A complete dataset of
            the same input and options is left unchanged; for an input in memory, only names,
            types and lengths are compared in that case.
        dry_run: Write nothing; report what would be written.
        shard_size: Target size of a shard in bytes, an integer. The number of rows per shard is the
            largest power of two that fits, at least one.
        workers: Number of processes. None uses one per CPU core, at most one per shard; for files
            that are copied without conversion, one per 4 GiB. A dataset that another process cannot
            recreate, and an `.npz` file, are read in this process.
        executor: Writes the shards instead, on threads, processes or other hosts: a pool of
            `concurrent.futures`, Dask's `client.get_executor()`, or `fastload.packing.connected`.
            Its workers need the same input, output folder and fastload version as this process
            (see docs/reference/packing.md). Worker threads call a dataset concurrently.
        progress: Called with a `Progress` while samples are read, and for each notice.
        **options: Options of the kind, as listed in docs/reference/packing.md.

    Raises:
        FormatError: an input file is malformed; with `strict` also a bad image or record.
        ImportError: the package that reads the kind is not installed.
        FileExistsError: `out` exists and may not be replaced; nothing was changed.
        OSError: a file cannot be read or written; `out` is incomplete and can be resumed.
        ValueError: with `resume`, input or options differ from those of the incomplete pack.
        RuntimeError: workers died, or cannot read the input or write the output.
        ValueError, TypeError, KeyError: arguments or samples cannot be packed.

    Example:
        >>> fastload.pack({"x": images, "y": labels}, "data/train")  # doctest: +SKIP
    """
    check_counts(shard_size=shard_size)
    by = check_workers(workers, executor)
    if resume and overwrite:
        raise ValueError("resume and overwrite are mutually exclusive; remove one")
    splits, folder = parse_splits(split), OutputFolder(out)
    folder.check_source(source)
    folder.check_new(overwrite=overwrite, resume=resume)
    chosen = open_input(
        source,
        kind=kind,
        dtype=dtype,
        shape=shape,
        resize=resize,
        encoded=encoded,
        allow_empty=allow_empty,
        strict=strict,
        ignore=ignore,
        fields=fields,
        dtypes=dtypes,
        missing=missing,
        cast=cast,
        shuffle=shuffle,
        limit=limit,
        **options,
    )
    with closing(folder), closing(chosen):
        if overwrite:
            folder.check_inputs(chosen.paths())
        check_travels(chosen, by)
        plan = Plan.of(chosen, shard_size, SHARD_FILE, splits)
        notices = [*notices_of(chosen), *_about_splits(chosen, plan, shuffle)]
        if dry_run:
            ranges = split_rows(splits, plan.rows)
            size = plan.file_bytes
            return PackReport(
                folder.path,
                plan.rows,
                plan.shards,
                size,
                (),
                tuple(notices),
                plan.fields,
                ranges,
                chosen.leftovers,
                chosen.kind,
                chosen.reason,
            )
        folder.take()
        if resume and folder.has_manifest():
            completed = _completed(folder, plan, chosen)
            return report_on(folder.path, completed, [COMPLETE], chosen)
        folder.check_new(overwrite=overwrite, resume=resume)
        if folder.has_manifest():  # the old dataset stays until the new one is complete
            replaced = _replaced(folder)
            fresh = folder.replacement()
            with fresh.undone_if_refused(resume=False):
                manifest, changes = _write(chosen, plan, fresh, False, by, progress)
            folder.adopt(replaced)
        else:
            with folder.undone_if_refused(resume=resume):
                manifest, changes = _write(chosen, plan, folder, resume, by, progress)
        return report_on(folder.path, manifest, [*notices, *changes], chosen)


def _write(
    source: Source,
    plan: Plan,
    folder: OutputFolder,
    resume: bool,
    workers: Workers,
    progress: Callable[[Progress], None] | None,
) -> tuple[Manifest, list[str]]:
    """Writes shards and manifest; returns the manifest and notices."""
    guessed = [field.name for field in plan.fields if field.name in source.guessed]
    described, stamp = plan.describe(), stamp_of(source)
    noted = {"task": "pack", **described, "stamp": stamp, "files": [SHARD_FILE, NAMES_FILE]}
    folder.start(noted, None, resume=resume)
    group = Group("main", digest(described))
    outcome = write_shards(source, plan, group, folder, workers, progress)
    manifest = Manifest(
        outcome.rows,
        plan.structure,
        (outcome.shards,),
        group.dataset,
        outcome.classes,
        outcome.skipped,
        {**plan.source, **({"guessed": guessed} if guessed else {})},
        splits=split_rows(plan.splits, outcome.rows),
        leftovers=source.leftovers,
        names=write_names(source, outcome, folder, 0),
        missing=outcome.missing,
    )
    folder.commit(manifest, WRITER)
    return manifest, changed_since(stamp, source.paths())


def notices_of(source: Source) -> list[str]:
    """Returns the notices about an input, including the guessed dtypes."""
    guessed = [
        f"{field.name} {'text' if field.logical == TEXT else field.logical or field.dtype}"
        for field in source.fields
        if field.name in source.guessed
    ]
    if not guessed:
        return list(source.notices)
    more = f" and {len(guessed) - _MAX_GUESSED} more" if len(guessed) > _MAX_GUESSED else ""
    listed = ", ".join(guessed[:_MAX_GUESSED])
    return [
        *source.notices,
        f"dtypes guessed from the text: {listed}{more}; --dtypes NAME=DTYPE (dtypes=) sets others",
    ]


def _replaced(folder: OutputFolder) -> list[str]:
    """Returns the shard file names of the dataset that is replaced."""
    try:
        return files_of([read_manifest(folder.path)])
    except (OSError, ValueError):  # none, or a damaged one
        return []


def _completed(folder: OutputFolder, plan: Plan, source: Source) -> Manifest:
    """Returns the manifest in the folder if its dataset is the one that the plan would write.

    Raises:
        FileExistsError: the folder holds another dataset, or the input changed after it was packed.
    """
    manifest = read_manifest(folder.path)
    written = os.stat(os.path.join(folder.path, MANIFEST)).st_mtime_ns
    changed = next((p for p in source.paths() if os.stat(p).st_mtime_ns > written), None)
    if changed is not None:
        what = f"{changed} changed after it was packed; --overwrite (overwrite=True) packs it again"
        raise FileExistsError(errno.EEXIST, what, folder.path)
    if manifest.dataset != digest(plan.describe()) or manifest.generation > 1:
        what = "the folder holds another packed dataset; --overwrite (overwrite=True) replaces it"
        raise FileExistsError(errno.EEXIST, what, folder.path)
    folder.finish()
    return manifest


def report_on(
    path: str, manifest: Manifest, notices: Sequence[str], source: Source | None = None
) -> PackReport:
    """Returns the report on a complete dataset and the input that was read."""
    sizes = [size for group in manifest.groups for size in group.file_bytes]
    return PackReport(
        path,
        manifest.rows,
        len(sizes),
        sum(sizes),
        manifest.skipped,
        tuple(notices),
        manifest.fields,
        manifest.splits,
        () if source is None else source.leftovers,
        "" if source is None else source.kind,
        "" if source is None else source.reason,
        **asdict(manifest.missing),
    )


def _about_splits(source: Source, plan: Plan, shuffle: int | None) -> list[str]:
    """Returns notices about the splits.

    Raises:
        ValueError: a split would be empty.
    """
    for name, (start, stop) in split_rows(plan.splits, plan.rows).items():
        if start == stop:
            raise ValueError(f"split: {plan.rows} rows leave none for {name!r}")
    if plan.splits and source.kind == "imagefolder" and shuffle is None:
        return [
            "the splits follow the order of the class folders, so that they hold different "
            "classes; --shuffle SEED (shuffle=SEED) mixes the samples first"
        ]
    return []
