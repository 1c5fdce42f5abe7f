"""`fastload.verify`: whether a dataset still is what was written."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastload.errors import FormatError
from fastload.formats import is_packed, open_extents, packed
from fastload.formats.columns import FileSource
from fastload.formats.damage import Problem, ShardCheck
from fastload.formats.fields import read_schema
from fastload.formats.files import Paths, absolute_paths, suffix
from fastload.formats.manifest import Manifest, Shards
from fastload.formats.safetensors import read_header
from fastload.formats.shard import shard_layout
from fastload.formats.walk import data_files

_MAX_THREADS = 8


@dataclass(frozen=True)
class VerifyReport:
    """Result of a verification.

    Attributes:
        path: The absolute path.
        level: "full": every byte was compared; "quick": sizes, headers, bounds and what the
            checksums say of each other; "sizes": the files have no checksums.
        files: Their number.
        bytes: Total size in bytes of all files.
        problems: All that is damaged, file by file.

    Example:
        >>> report = fastload.verify("data/train", full=True)  # doctest: +SKIP
        >>> report.ok, [str(problem) for problem in report.problems]  # doctest: +SKIP
        (True, [])
    """

    path: str | list[str]
    level: str
    files: int
    bytes: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems


Progress = Callable[[int, int], None]


def verify(
    path: Paths,
    *,
    full: bool = False,
    dtype: Any = None,
    shape: Any = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Looks for damage in a dataset; every problem is listed, not only the first.

    Of packed data the manifest, each shard's size, header and bounds are checked, and that its
    checksums are those of the file that the manifest means; with `full` every byte of the shards.
    Files without checksums can only be opened: their sizes and headers must fit.

    Args:
        path: As for `fastload.open`; also a shard of packed data by itself.
        full: Compare every byte with its checksum.
        dtype: Dtype of a raw file.
        shape: Shape of one sample of a raw file.
        threads: How many read; None takes one per CPU core, at most 8.
        progress: With `full` called now and then with the bytes that were read and all bytes.

    Raises:
        OSError: there is nothing at `path`, or it may not be read.
        ValueError: dtype and shape are missing for a raw file or given for another.

    Example:
        >>> fastload.verify("data/train").ok  # doctest: +SKIP
        True
    """
    where = absolute_paths(path)
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if isinstance(where, str):
        os.stat(where)
    try:
        checks = _shards(where) if dtype is None and shape is None else None
    except FormatError as error:
        return VerifyReport(where, "quick", 0, 0, (_as_problem(error, where),))
    if checks is None:
        return _verify_plain(where, dtype, shape)
    problems = _check(checks, full, threads or _thread_count(), progress)
    size = sum(check.layout.file_bytes for check in checks)
    return VerifyReport(where, "full" if full else "quick", len(checks), size, tuple(problems))


def _shards(where: str | list[str]) -> list[ShardCheck] | None:
    """The checks of a packed folder or of shards by themselves; None for other files."""
    if isinstance(where, str) and is_packed(where):
        manifest = packed.read_manifest(where)
        return [check for group in manifest.groups for check in _of_group(where, manifest, group)]
    files = [where] if isinstance(where, str) else where
    if isinstance(where, str) and os.path.isdir(where):
        files = data_files(where, ".safetensors")
    checks = [_alone(file) for file in files]
    found = [check for check in checks if check is not None]
    return found if found and len(found) == len(checks) else None


def _of_group(folder: str, manifest: Manifest, group: Shards) -> Iterator[ShardCheck]:
    layout = cache(lambda rows, totals: shard_layout(group.fields, rows, totals))
    first_row = 0
    for number, (rows, crc) in enumerate(zip(group.rows, group.crc32c, strict=True)):
        totals = tuple(each[number] for each in group.totals.values())
        yield ShardCheck(
            os.path.join(folder, group.file(number)),
            layout(rows, totals),
            first_row=first_row,
            dataset=manifest.dataset,
            number=number,
            crc32c=int(crc, 16),
        )
        first_row += rows


def _alone(path: str) -> ShardCheck | None:
    """The check of a shard whose header tells what it holds; None for other files."""
    if suffix(path) != ".safetensors":
        return None
    try:
        header = read_header(FileSource(path, os.stat(path).st_size))
        rows = int(header.metadata["fastload.rows"])
        fields = read_schema(json.loads(header.metadata["fastload.schema"]))
        tensors = {tensor.name: tensor for tensor in header.tensors}
        totals = [tensors[f"{f.name}::values"].shape[0] for f in fields if f.ragged]
        return ShardCheck(path, shard_layout(fields, rows, totals))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None  # opening it says what is wrong


def _as_problem(error: Exception, where: str | list[str]) -> Problem:
    text = str(error)
    files = [where, os.path.join(where, packed.MANIFEST)] if isinstance(where, str) else where
    for file in sorted(files, key=len, reverse=True):
        if text.startswith(f"{file}: "):
            return Problem(file, text[len(file) + 2 :])
    return Problem(where if isinstance(where, str) else where[0], text)


def _verify_plain(where: str | list[str], dtype: Any, shape: Any) -> VerifyReport:
    """Opens files without checksums, each by itself and then all together."""
    files = [where] if isinstance(where, str) else where
    if isinstance(where, str) and os.path.isdir(where):
        kinds = (".npy", ".safetensors", ".bin") if dtype is not None else (".npy", ".safetensors")
        files = data_files(where, *kinds)
    problems = []
    for file in files:
        try:
            open_extents(file, dtype=dtype, shape=shape)
        except FormatError as error:
            problems.append(_as_problem(error, file))
        except OSError as error:
            problems.append(Problem(file, f"cannot be read: {error.strerror or error}"))
    if not problems:
        try:
            open_extents(where, dtype=dtype, shape=shape)
        except FormatError as error:
            problems.append(_as_problem(error, where))
    size = 0
    for file in files:
        with contextlib.suppress(OSError):
            size += os.stat(file).st_size
    return VerifyReport(where, "sizes", len(files), size, tuple(problems))


# --- Threads ------------------------------------------------------------------------------------


def _thread_count() -> int:
    return min(_MAX_THREADS, len(os.sched_getaffinity(0)))


def _check(
    checks: Sequence[ShardCheck], full: bool, threads: int, progress: Progress | None
) -> list[Problem]:
    with ThreadPoolExecutor(threads, "fastload-verify") as pool:
        found = list(pool.map(ShardCheck.outline, checks))
        if full:
            crcs = _checksums(pool, [c for c in checks if c.readable], threads, progress)
            for check, problems in zip(checks, found, strict=True):
                if check.readable:
                    problems += check.damage(crcs[check])
    return [problem for problems in found for problem in problems]


def _checksums(
    pool: ThreadPoolExecutor,
    checks: Sequence[ShardCheck],
    threads: int,
    progress: Progress | None,
) -> dict[ShardCheck, list[int | None]]:
    """The checksums that the blocks have now; None for those that cannot be read."""
    crcs: dict[ShardCheck, list[int | None]] = {c: [None] * len(c.blocks()) for c in checks}
    jobs: Iterator[tuple[ShardCheck, int]]
    jobs = ((check, block) for check in checks for block in check.blocks())
    total = sum(end - begin for c in checks for begin, end in map(c.block_span, c.blocks()))
    lock, done = threading.Lock(), 0

    def work(_: int) -> None:
        nonlocal done
        while True:
            with lock:
                job = next(jobs, None)
            if job is None:
                return
            check, block = job
            with contextlib.suppress(OSError):
                crcs[check][block] = check.checksum(block)
            begin, end = check.block_span(block)
            with lock:
                done += end - begin

    workers = [pool.submit(work, number) for number in range(threads)]
    try:
        while progress is not None and not all(worker.done() for worker in workers):
            progress(done, total)
            time.sleep(0.05)
        for worker in workers:
            worker.result()
    finally:
        with lock:
            jobs = iter(())  # after Ctrl-C the threads end with the block at hand
    if progress is not None:
        progress(done, total)
    return crcs
