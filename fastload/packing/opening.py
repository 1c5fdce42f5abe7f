"""Opens an input with the options of `pack` for reading and selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastload.formats.shard import check_fields
from fastload.packing.inputs.checks import check_counts
from fastload.packing.inputs.inventory import check_strict
from fastload.packing.inputs.source import Source
from fastload.packing.inputs.wanted import Wanted
from fastload.packing.missing import check_policy
from fastload.packing.select import Selection


def open_input(
    source: Any,
    *,
    kind: str | None = None,
    fields: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    missing: str = "error",
    cast: Mapping[str, Any] | None = None,
    shuffle: int | None = None,
    limit: int | None = None,
    strict: bool = False,
    ignore: str | Sequence[str] = (),
    all_records: bool = False,
    **options: Any,
) -> Source:
    """Returns the selected part of an input; arguments and errors are those of `pack`.

    With `all_records`, bad records raise, as with `strict`, but files that are not read do not.
    """
    from fastload.packing.kinds.registry import open_source  # imports all kinds

    check_policy(missing)
    check_counts(limit=1 if limit is None else limit)
    patterns = [ignore] if isinstance(ignore, str) else list(ignore)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"ignore must be patterns of names, not {ignore!r}")
    given = {**options, "dtypes": dtypes, "strict": strict or all_records}
    opened = open_source(source, kind, given, Wanted.of(fields), patterns)
    try:
        if strict:
            check_strict(opened.leftovers)
        selected = Selection(fields, dtypes, missing, cast, shuffle, limit).of(opened)
        _check_names(selected)
    except BaseException:
        opened.close()
        raise
    return selected


def _check_names(source: Source) -> None:
    """Raises ValueError, with the file, for a field name that a dataset cannot have."""
    try:
        check_fields(source.fields)
    except ValueError as error:
        where = next((f"{path}: " for path in source.paths()), "")
        raise ValueError(
            f"{where}{error}; rename it, or select the other fields with --fields (fields=)"
        ) from None
