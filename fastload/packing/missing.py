"""Policies for missing values: raise, fill with NaN or zeros, or drop the sample.

Sources report which values are missing; this module alone applies the policy. NaT (not a time) is
missing in every input kind. A NaN is a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.formats.fields import BYTE_STRINGS, DTYPES, Field
from fastload.formats.missing import MissingCounts
from fastload.packing.cast import nan_code
from fastload.packing.columns import AnyColumn, Array, Missing, Ragged, taken
from fastload.packing.inputs.source import Advance, Part, Rows, Source
from fastload.packing.inputs.wrapper import Wrapper, attributes_of

POLICIES = ("error", "nan", "zero", "drop")
_ADVICE = (
    "--missing nan or zero (missing=) fills missing values in, --missing drop leaves such samples "
    "out (not for add-column)"
)
_FLOATS = frozenset(name for name in DTYPES if "float" in name)
_NAT = np.iinfo(np.int64).min


def check_policy(missing: object) -> None:
    """Raises ValueError unless the policy is one of `POLICIES`."""
    if missing not in POLICIES:
        raise ValueError(f"missing must be one of {', '.join(POLICIES)}, not {missing!r}")


def fill_missing(source: Source, policy: str) -> Source:
    """Returns a source whose samples have no missing values.

    Args:
        source: Source of the samples.
        policy: "error" raises; "nan" stores NaN in fields of floats; "zero" stores 0, False, empty
            text or an empty list; "drop" leaves out samples with a missing value.

    Raises:
        FormatError: the source has seen a missing value that the policy refuses; or the dtype of a
            field is unknown because no value of it was seen.
    """
    for field in source.fields:
        if field.name in source.unknown:
            raise FormatError(
                f"{source.seen.get(field.name, '')}: field {field.name!r}: no value was seen, so "
                f"its dtype is unknown: --dtypes {field.name}=float32 (dtypes=) sets it, --fields "
                "(fields=) leaves the field out"
            )
        if (where := source.seen.get(field.name)) is not None:
            _check(policy, field, where)
    times = tuple(n for n, field in enumerate(source.fields) if _is_time(field))
    if not source.nullable and not times:
        return source
    paths = source.paths()
    path = paths[0] if len(paths) == 1 else ""
    made = _Filled(**attributes_of(source), inner=source, policy=policy, times=times, path=path)
    return dataclasses.replace(made, nullable=False, seen={})


@dataclass(frozen=True, kw_only=True)
class _Filled(Wrapper):
    policy: str
    times: tuple[int, ...]
    path: str

    def part(self, start: int, stop: int) -> Part:
        return self._part(self.inner.part(start, stop), range(start, stop))

    def take(self, indices: Int64Array) -> Part:
        return self._part(self.inner.take(indices), indices)

    def _part(self, part: Part, indices: range | Int64Array) -> Part:
        return _FilledPart(part, indices, self.fields, self.policy, self.times, self.path)

    def choice(self) -> dict[str, Any]:
        return {} if self.policy == "error" else {"missing": self.policy}


@dataclass(frozen=True)
class _FilledPart(Part):
    """A part without missing values.

    Attributes:
        inner: The part with its missing values.
        indices: Numbers of its samples.
        fields: Fields of the columns.
        policy: As for `fill_missing`.
        times: Positions of the columns of dates and times.
        path: Path of the input, for errors; empty if there are several.
    """

    inner: Part
    indices: range | Int64Array
    fields: tuple[Field, ...]
    policy: str
    times: tuple[int, ...]
    path: str

    def read(self, advance: Advance) -> Rows:
        """Reads the part and applies the policy.

        Raises:
            FormatError: a value is missing that the policy refuses.
        """
        rows = self.inner.read(advance)
        missing = {n: of for n, of in rows.missing.items() if of.samples.any()}
        missing |= {n: of for n in self.times if (of := _nats(rows, n)) is not None}
        if not missing:
            return rows
        if self.policy == "drop":
            return self._dropped(rows, missing)
        for number, of in sorted(missing.items(), key=lambda pair: int(np.argmax(pair[1].samples))):
            row = int(np.argmax(of.samples))
            _check(self.policy, self.fields[number], self._where(rows, row))
        columns, counts = list(rows.columns), rows.counts
        for number, of in missing.items():
            field = self.fields[number]
            if self.policy == "nan":
                self._check_lists(rows, number, of)
            columns[number] = _with(columns[number], of, self._fill(field))
            counts += MissingCounts(filled={field.name: int(of.samples.sum())})
        return dataclasses.replace(rows, columns=columns, missing={}, counts=counts)

    def _fill(self, field: Field) -> Any:
        return nan_code(field.dtype) if self.policy == "nan" else np.zeros((), field.storage)[()]

    def _dropped(self, rows: Rows, missing: Mapping[int, Missing]) -> Rows:
        """Returns the samples without missing values."""
        gone = np.logical_or.reduce([of.samples for of in missing.values()])
        kept = np.flatnonzero(~gone)
        left = np.delete(np.arange(len(self.indices)), np.array(rows.left_out, np.int64))
        where = rows.where
        fields = {self.fields[n].name: int(of.samples.sum()) for n, of in missing.items()}
        return Rows(
            [taken(column, kept) for column in rows.columns],
            rows.skipped,
            tuple(sorted([*rows.left_out, *left[gone].tolist()])),
            where=None if where is None else lambda row: where(int(kept[row])),
            counts=rows.counts + MissingCounts(int(gone.sum()), fields),
        )

    def _check_lists(self, rows: Rows, number: int, missing: Missing) -> None:
        """Raises FormatError if a whole list is missing, because NaN is a number, not a list."""
        column = rows.columns[number]
        if not isinstance(column, Ragged) or not isinstance(missing.values, Ragged):
            return
        empty = missing.samples & (np.diff(column.offsets) == 0)
        if empty.any():
            raise FormatError(
                f"{self._where(rows, int(np.argmax(empty)))}: field {self.fields[number].name!r}: "
                "the list itself is missing, and NaN is a number: --missing zero (missing=) stores "
                "an empty list, drop leaves the sample out"
            )

    def _where(self, rows: Rows, row: int) -> str:
        if rows.where is not None:
            return rows.where(row)
        left = np.delete(np.asarray(self.indices), np.array(rows.left_out, np.int64))
        return f"{self.path}: sample {left[row]}" if self.path else f"sample {left[row]}"


def _check(policy: str, field: Field, where: str) -> None:
    """Raises FormatError if a policy refuses missing values of a field."""
    start = f"{where}: field {field.name!r}: the value is missing"
    if policy == "error":
        raise FormatError(f"{start}; {_ADVICE}")
    if policy != "nan" or (field.dtype in _FLOATS and field.logical is None):
        return
    advice = "use --missing zero or drop (missing=)"
    if field.logical is None and not field.dtype.startswith("complex"):
        advice = f"use --dtypes {field.name}=float32 (dtypes=) to read floats, or {advice}"
    raise FormatError(f"{start}, and {field.logical or field.dtype} has no NaN; {advice}")


def _is_time(field: Field) -> bool:
    return field.logical is not None and field.logical not in BYTE_STRINGS


def _nats(rows: Rows, number: int) -> Missing | None:
    """Returns the missing values of a column, NaT included; None if there are none."""
    column, known = rows.columns[number], rows.missing.get(number)
    values = column.values if isinstance(column, Ragged) else column
    mask = values == _NAT
    if not mask.any():
        return known
    if isinstance(column, Ragged):
        found = Missing.of_lists(mask, column.offsets)
    else:
        found = Missing.of_numbers(mask)
    return found if known is None else _both(found, known)


def _both(one: Missing, two: Missing) -> Missing:
    """Returns the values that are missing in either."""
    samples = one.samples | two.samples
    if isinstance(one.values, Ragged) and isinstance(two.values, Ragged):
        values = one.values.values | two.values.values
        return Missing(samples, Ragged(values, one.values.offsets))
    assert isinstance(one.values, np.ndarray)
    assert isinstance(two.values, np.ndarray)
    return Missing(samples, one.values | two.values)


def _with(column: AnyColumn, missing: Missing, value: Any) -> AnyColumn:
    """Returns a copy of a column with missing values replaced."""
    if missing.values is None:  # text and bytes: the missing ones are already empty
        return column
    mask: Array = missing.values.values if isinstance(missing.values, Ragged) else missing.values
    if isinstance(column, Ragged):
        return Ragged(np.where(mask, value, column.values), column.offsets)
    return np.where(mask, value, column)
