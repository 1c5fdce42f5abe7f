"""Opens an input with all that is said about how to read it and what to take of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastload.formats.shard import check_fields
from fastload.pack.select import Selection
from fastload.pack.sources.base import Source
from fastload.pack.sources.checks import check_counts
from fastload.pack.sources.wanted import Wanted


def open_input(
    source: Any,
    *,
    kind: str | None = None,
    fields: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    cast: Mapping[str, Any] | None = None,
    shuffle: int | None = None,
    limit: int | None = None,
    **options: Any,
) -> Source:
    """The selected part of an input; arguments and errors are those of `pack`."""
    from fastload.pack.sources.kinds import open_source  # all kinds: not before one is opened

    check_counts(limit=1 if limit is None else limit)
    opened = open_source(source, kind, {**options, "dtypes": dtypes}, Wanted.of(fields))
    try:
        chosen = Selection(fields, dtypes, cast, shuffle, limit).of(opened)
        check_fields(chosen.fields)
    except BaseException:
        opened.close()
        raise
    return chosen
