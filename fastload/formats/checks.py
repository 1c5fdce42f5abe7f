"""Compares packed data with their checksums for `verify=`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fastload import _core
from fastload.errors import FormatError, warn
from fastload.formats.columns import Column, FileSource, Int64Array, Source
from fastload.formats.extents import Extents

VERIFY_KINDS = (None, "open", "lazy")


def checked(extents: Extents, verify: str | None) -> Extents:
    """The extents after, or with, the checks that `verify` asks for.

    Args:
        extents: Where the samples lie.
        verify: None; "open": compares the headers and bounds of all shards now; "lazy": the core
            compares each block when it is read first.

    Raises:
        ValueError: `verify` is none of these.
        FormatError: a header does not fit its checksum, or bounds do not rise from 0 to the total.
        OSError: a file cannot be read.
    """
    if verify not in VERIFY_KINDS:
        raise ValueError(f"verify must be None, 'open' or 'lazy', not {verify!r}")
    if verify is None:
        return extents
    if extents.rows and not has_checksums(extents):
        warn(
            f"verify={verify!r}: {next(_sources(extents))} has no checksums, so only its size and "
            "header were checked; `fastload pack` writes checksums",
        )
    if verify == "lazy":
        return lazily(extents)
    for source in dict.fromkeys(_sources(extents)):
        if isinstance(source, FileSource) and source.blocks is not None:
            check_header(source)
    for group in extents.groups:
        for column in group.columns:
            _check_bounds(column, group.shard_rows)
    return extents


def has_checksums(extents: Extents, *, lazy: bool = False) -> bool:
    """Returns True if a file has checksums; with `lazy`, if they are checked before reading."""
    blocks = (getattr(source, "blocks", None) for source in _sources(extents))
    return any(b is not None and (b.lazy or not lazy) for b in blocks)


def _sources(extents: Extents) -> Iterator[Source]:
    for column in extents.columns:
        yield from column.sources
        if column.bounds is not None:
            yield from column.bounds.sources


def lazily(extents: Extents) -> Extents:
    """The extents with every block to be checked when it is read first."""
    blocks = (getattr(source, "blocks", None) for source in _sources(extents))
    if all(b is None or b.lazy for b in blocks):
        return extents
    made: dict[int, tuple[Source, ...]] = {}

    def mark(source: Source) -> Source:
        if not isinstance(source, FileSource) or source.blocks is None:
            return source
        return source._replace(blocks=source.blocks._replace(lazy=True))

    def marked(sources: tuple[Source, ...]) -> tuple[Source, ...]:
        if id(sources) not in made:  # most columns have the very same sources
            made[id(sources)] = tuple(map(mark, sources))
        return made[id(sources)]

    def column(of: Column) -> Column:
        bounds = of.bounds and replace(of.bounds, sources=marked(of.bounds.sources))
        return replace(of, sources=marked(of.sources), bounds=bounds)

    groups = [replace(g, columns=tuple(map(column, g.columns))) for g in extents.groups]
    return replace(extents, groups=tuple(groups))


def check_header(source: FileSource) -> None:
    """Compares the header of a shard with its checksum.

    Raises:
        FormatError: it does not fit.
        OSError: the file cannot be read.
    """
    assert source.blocks is not None
    header = source.read(0, source.blocks.begin)
    expected = source.read(source.blocks.crcs - 4, 4)
    if _core.crc32c(header).to_bytes(4, "little") != expected:
        raise FormatError(
            f"{source}: the header (bytes 0 to {source.blocks.begin - 1}) does not fit its "
            "checksum; `fastload verify --full` says what else is damaged"
        )


def _check_bounds(column: Column, shard_rows: Int64Array) -> None:
    bounds = column.bounds
    if bounds is None:
        return
    for shard in np.flatnonzero(shard_rows):
        source, rows = bounds.sources[shard], int(shard_rows[shard])
        total = int(bounds.totals[shard])
        data = source.read(int(bounds.offsets[shard]), 8 * (rows + 1))
        fault = bounds_fault(np.frombuffer(data, "<i8"), rows, total)
        if fault is None and bounds.ends is not None and bounds.ends[shard, 0] >= 0:
            first, last = (
                int.from_bytes(source.read(int(at), 8), "little", signed=True)
                for at in bounds.ends[shard]
            )
            fault = ends_fault(first, last, total)
        if fault is not None:
            raise FormatError(f"{source}: field {column.field.name!r}: {fault}")


def ends_fault(first: int, last: int, total: int) -> str | None:
    """Returns the fault in the first or the last bound of a whole shard, or None.

    Args:
        first: Bound at the start of the first sample; must be 0.
        last: Bound at the end of the last sample.
        total: The elements of the shard's values, which `last` must equal.
    """
    if (first, last) == (0, total):
        return None
    return f"the first and the last bound are {first} and {last}, not 0 and {total}"


def bounds_fault(bounds: Int64Array, rows: int, total: int) -> str | None:
    """Returns the fault in the bounds of a ragged field in a shard, or None.

    Args:
        bounds: int64, (rows + 1,).
        rows: Number of rows of the shard.
        total: The elements of its values.
    """
    if len(bounds) != rows + 1:
        return f"{len(bounds)} bounds instead of {rows + 1}"
    bad = (bounds[:-1] > bounds[1:]) | (bounds[:-1] < 0) | (bounds[1:] > total)
    if not bad.any():
        return None
    row = int(bad.argmax())
    return (
        f"row {row} lies between the bounds {bounds[row]} and {bounds[row + 1]} of {total} elements"
    )
