"""Opens an input with all that is said about how to read it and what to take of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastload.formats.shard import check_fields
from fastload.pack.select import Selection
from fastload.pack.sources import open_source
from fastload.pack.sources.base import Options, Source


def open_input(
    source: Any,
    *,
    kind: str | None = None,
    dtype: Any = None,
    shape: int | Sequence[int] | None = None,
    resize: int | tuple[int, int] | None = None,
    encoded: bool = False,
    allow_empty: bool = False,
    strict: bool = False,
    fields: Sequence[str] | None = None,
    cast: Mapping[str, Any] | None = None,
    shuffle: int | None = None,
    limit: int | None = None,
) -> Source:
    """The selected part of an input; arguments and errors are those of `pack`."""
    check_counts(limit=1 if limit is None else limit)
    options = Options(dtype, shape, _size(resize), allow_empty, strict, encoded)
    opened = open_source(source, kind, options)
    try:
        chosen = Selection(fields, cast, shuffle, limit).of(opened)
        check_fields(chosen.fields)
    except BaseException:
        opened.close()
        raise
    return chosen


def check_counts(**counts: object) -> None:
    """Raises ValueError unless all are positive integers."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} must be a positive integer, not {count!r}")


def _size(resize: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if resize is None:
        return None
    height, width = (resize, resize) if isinstance(resize, int) else resize
    check_counts(height=height, width=width)
    return height, width
