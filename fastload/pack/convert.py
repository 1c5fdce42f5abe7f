"""`fastload.pack`: from any input to a packed folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from fastload import _core
from fastload.errors import FormatError
from fastload.formats.extents import Field
from fastload.formats.fields import schema
from fastload.formats.files import absolute
from fastload.formats.packed import Classes, Manifest, Shards, Skipped
from fastload.formats.shard import PROFILE, check_fields
from fastload.pack.folder import SHARD_FILE, OutputFolder
from fastload.pack.gaps import close_gaps
from fastload.pack.sources import open_source
from fastload.pack.sources.arrays import ColumnsSource
from fastload.pack.sources.base import Options, Source
from fastload.pack.workers import can_travel, run_jobs
from fastload.pack.writer import ShardJob, Written
from fastload.structure import to_json

SHARD_BYTES = 256 << 20
"""What a shard is meant to hold."""

_LARGEST_SHARD_ROWS = 1 << 30
_COPIED_BYTES_PER_WORKER = 4 << 30  # what makes up for the start of a process


@dataclass(frozen=True)
class PackReport:
    """What was written.

    Attributes:
        path: Of the folder.
        rows: Samples.
        shards: Files.
        bytes: Of all shards.
        skipped: Inputs that were left out, and why; also in the manifest.
        notices: What else was left out, in sentences.

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


@dataclass(frozen=True)
class Progress:
    """How far a pack is.

    Attributes:
        rows: Samples read.
        rows_total: Samples to read.
        row_bytes: Of a sample in the output, on average.
    """

    rows: int
    rows_total: int
    row_bytes: int


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
    overwrite: bool = False,
    shard_size: int = SHARD_BYTES,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Packs a dataset into a folder of shards that `FastLoader` reads at full speed.

    The bytes that are written depend on the input and the options alone, not on the number of
    workers, the machine or the time. Until the pack is complete, the folder says that it is not.

    Args:
        source: What to pack:

            - a folder of class folders of images: samples are tuples (image uint8
              (height, width, 3), label int64), classes and order as torchvision's ImageFolder has
              them; images are converted to RGB by Pillow, as its loader does (16-bit grey values
              above 255 become white), and EXIF orientation is ignored. With `encoded`, image is the
              bytes of the file;
            - a `.npy` file or a folder of them: bare arrays; an `.npz` file: dicts;
            - a raw file of numbers, with `dtype` and `shape`;
            - a map-style dataset, or its name as `module:object` (a class or function is called):
              numbers, arrays, CPU tensors, text and bytes in dicts, tuples, lists and
              namedtuples. Arrays and lists of numbers may vary in their first length from sample
              to sample; 64 samples are looked at to find out;
            - an array or CPU tensor, or a dict or tuple of them: samples along the first axes.
              Lists of texts, bytes or arrays of unequal length, object arrays and nested tensors
              are samples of varying length.
        out: The folder to write.
        kind: "imagefolder", "npy", "npz", "raw" or "dataset"; None finds out.
        dtype: Of a raw file, such as "uint16"; ">i4" is big-endian.
        shape: Of one sample of a raw file.
        resize: (height, width) of the images; one number is both. Bilinear, as torchvision does
            with PIL images; the aspect ratio is not kept.
        encoded: Keep the images as the bytes of their files, of any size, to be decoded when they
            are loaded.
        allow_empty: Keep classes without images.
        strict: Stop at the first bad image, instead of leaving it out.
        overwrite: Replace the packed dataset in `out`.
        shard_size: Bytes of a shard; rows per shard are the power of two that fits, at least one.
        workers: Processes; None takes one per CPU core and no more than there are shards, for files
            that are merely copied one per 4 GiB. A dataset that another process cannot make, and an
            `.npz` file, are read in this process.
        progress: Called now and then.

    Raises:
        FormatError: an input is not what it says; with `strict` also a bad image.
        FileExistsError: `out` is in the way; nothing was changed.
        OSError: a file cannot be read or written; `out` is incomplete.
        ValueError, TypeError, KeyError: arguments or samples that cannot be packed.

    Example:
        >>> fastload.pack({"x": images, "y": labels}, "data/train")  # doctest: +SKIP
    """
    _check_counts(shard_size=shard_size, workers=1 if workers is None else workers)
    options = Options(dtype, shape, _size(resize), allow_empty, strict, encoded)
    folder = OutputFolder(out, overwrite=overwrite)
    path = isinstance(source, (str, bytes, os.PathLike)) and os.path.exists(source)
    folder.check(absolute(source) if path else None)
    with closing(open_source(source, kind, options)) as opened, closing(folder):
        check_fields(opened.fields)
        plan = _Plan.of(opened, shard_size)
        folder.begin(plan.describe())
        return _write(opened, plan, folder, _worker_count(opened, plan, workers), progress)


@dataclass(frozen=True)
class _Plan:
    """How the samples are divided, and the id of the dataset that follows from it."""

    fields: tuple[Field, ...]
    structure: Any
    rows: int
    rows_each: int
    source: dict[str, Any]
    inputs: Any

    @classmethod
    def of(cls, source: Source, shard_bytes: int) -> _Plan:
        fitting = min(max(shard_bytes // max(source.sample_bytes, 1), 1), _LARGEST_SHARD_ROWS)
        rows_each = 1 << (fitting.bit_length() - 1)
        described = {"kind": source.kind, **source.options()}
        return cls(
            source.fields, source.structure, source.rows, rows_each, described, source.inputs()
        )

    @property
    def shards(self) -> int:
        return -(-self.rows // self.rows_each)

    def describe(self) -> dict[str, Any]:
        return {
            "profile": PROFILE,
            "fields": schema(self.fields),
            "structure": to_json(self.structure),
            "rows": self.rows,
            "rows_each": self.rows_each,
            "shards": self.shards,
            "file": SHARD_FILE,
            "source": self.source,
            "inputs": self.inputs,
        }

    def dataset(self) -> str:
        text = json.dumps(self.describe(), separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()


def _write(
    source: Source,
    plan: _Plan,
    folder: OutputFolder,
    workers: int,
    progress: Callable[[Progress], None] | None,
) -> PackReport:
    dataset = plan.dataset()
    row_bytes = source.sample_bytes
    read = 0

    def advance(rows: int) -> None:
        nonlocal read
        read += rows
        if progress is not None:
            progress(Progress(read, plan.rows, row_bytes))

    names = [field.name for field in plan.fields]
    classes = tuple((names.index(name), len(of)) for name, of in source.classes.items())

    def jobs() -> Iterator[ShardJob]:
        for shard in range(plan.shards):
            start = shard * plan.rows_each
            part = source.part(start, min(start + plan.rows_each, plan.rows))
            yield ShardJob(folder.shard(shard), plan.fields, dataset, shard, part, classes)

    try:
        written = list(run_jobs(jobs(), workers, advance, folder.lock))
        shards = _shards(written, plan, folder, dataset)
    finally:
        folder.clear_temporary()
    skipped = tuple(skipped for shard in written for skipped in shard.skipped)
    rows = sum(shards.rows)
    if rows == 0 and skipped:
        first = f"{skipped[0].path}: {skipped[0].reason}"
        raise FormatError(f"none of {len(skipped)} inputs can be read; the first is {first}")
    counts = [[shard.class_counts[n] for shard in written] for n in range(len(source.classes))]
    class_fields = {
        name: Classes(of, tuple(sum(column) for column in zip(*count, strict=True)))
        for (name, of), count in zip(source.classes.items(), counts, strict=True)
    }
    manifest = Manifest(
        rows, plan.structure, (shards,), dataset, class_fields, skipped, plan.source
    )
    folder.commit(manifest.encode(f"fastload {_core.__version__}"))
    return PackReport(
        folder.path, rows, len(shards.rows), sum(shards.file_bytes), skipped, source.notices
    )


def _shards(written: list[Written], plan: _Plan, folder: OutputFolder, dataset: str) -> Shards:
    """What the manifest says of the shards, after the gaps in them were closed."""
    rows = [shard.rows for shard in written]
    sizes = [shard.file_bytes for shard in written]
    crcs = [shard.crc32c for shard in written]
    totals = [shard.totals for shard in written]
    if any(count < plan.rows_each for count in rows[:-1]):
        paths = [folder.shard(shard) for shard in range(len(rows))]
        for new in close_gaps(paths, rows, totals, plan.rows_each, plan.fields, dataset):
            sizes[new.shard], crcs[new.shard] = new.file_bytes, new.crc32c
            totals[new.shard] = new.totals
    total = sum(rows)
    count = -(-total // plan.rows_each)
    folder.clear_shards(count)
    rows = [min(plan.rows_each, total - shard * plan.rows_each) for shard in range(count)]
    return Shards(
        name="main",
        fields=plan.fields,
        file_name=SHARD_FILE,
        rows=tuple(rows),
        file_bytes=tuple(sizes[:count]),
        crc32c=tuple(f"{crc:08x}" for crc in crcs[:count]),
        totals={
            name: tuple(shard[place] for shard in totals[:count])
            for place, name in enumerate(f.name for f in plan.fields if f.ragged)
        },
    )


def _worker_count(source: Source, plan: _Plan, wanted: int | None) -> int:
    if source.local or not can_travel(source.part(0, 1)):
        return 1
    if wanted is None:
        wanted = len(os.sched_getaffinity(0))
        if isinstance(source, ColumnsSource):  # one process can keep a disk busy
            wanted = min(wanted, 1 + plan.rows * source.sample_bytes // _COPIED_BYTES_PER_WORKER)
    return min(wanted, max(plan.shards, 1))


def _check_counts(**counts: object) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} must be a positive integer, not {count!r}")


def _size(resize: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if resize is None:
        return None
    height, width = (resize, resize) if isinstance(resize, int) else resize
    _check_counts(height=height, width=width)
    return height, width
