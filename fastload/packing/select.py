"""Selects samples and fields of an input, their order and their dtypes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload import _core
from fastload.formats.columns import Int64Array
from fastload.formats.dtypes import TEXT_NAMES
from fastload.formats.fields import TEXT, Field
from fastload.formats.structure import Structure, is_leaf, map_leaves, pruned
from fastload.packing.cast import CastError, cast, parse_casts
from fastload.packing.columns import AnyColumn, Ragged
from fastload.packing.inputs.source import (
    Advance,
    AnyStreamed,
    Part,
    Rows,
    RowsCollector,
    Source,
    StreamedRagged,
    TakenPart,
)
from fastload.packing.inputs.wanted import Wanted
from fastload.packing.inputs.wrapper import PIECE_BYTES, Wrapper, attributes_of
from fastload.packing.missing import fill_missing


@dataclass(frozen=True)
class Selection:
    """Options that select a part of an input; None selects everything.

    Attributes:
        fields: Names of fields, or of containers for all fields in them.
        dtypes: Dtypes that fields are read as, by name, if the source has not applied them.
        missing: Policy for missing values, one of `missing.POLICIES`.
        cast: New dtypes by field name.
        shuffle: Seed of a permutation of the samples.
        limit: Number of samples to take from the start, after shuffling.
    """

    fields: Sequence[str] | None = None
    dtypes: Mapping[str, Any] | None = None
    missing: str = "error"
    cast: Mapping[str, Any] | None = None
    shuffle: int | None = None
    limit: int | None = None

    def of(self, source: Source) -> Source:
        """Returns the selected part of a source.

        Raises:
            ValueError: a field does not exist, a dtype is unknown, or a number is out of range.
            TypeError: a field cannot be cast to the dtype.
        """
        if self.fields is not None:
            source = _picked(source, Wanted.of(self.fields))
        if casts := _read_as(source, self.dtypes or {}, self.fields is not None):
            source = _cast(source, casts, "dtypes")
        source = fill_missing(source, self.missing)
        if casts := parse_casts("cast", self.cast):
            source = _cast(source, casts, "cast")
        if self.shuffle is not None:
            if type(self.shuffle) is not int or not 0 <= self.shuffle < 2**64:
                raise ValueError(f"shuffle must be a seed of 64 bits, not {self.shuffle!r}")
            source = _Shuffled(
                **attributes_of(source), inner=source.random_access(), seed=self.shuffle
            )
        if self.limit is not None and self.limit < source.rows:
            source = _Limited(**attributes_of(source), inner=source, limit=self.limit)
            source = dataclasses.replace(source, rows=self.limit)
        return source


# --- Order ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Limited(Wrapper):
    limit: int

    def choice(self) -> dict[str, Any]:
        return {"limit": self.limit}


@dataclass(frozen=True, kw_only=True)
class _Shuffled(Wrapper):
    """Row i is row `Permutation(rows, seed, 0).at(i)` of the input."""

    seed: int

    def part(self, start: int, stop: int) -> Part:
        return self.inner.take(self._permutation.indices(start, stop - start))

    def take(self, indices: Int64Array) -> Part:
        return self.inner.take(self._permuted(indices))

    def names(self, indices: Int64Array) -> Sequence[str] | None:
        return self.inner.names(self._permuted(indices))

    def _permuted(self, indices: Int64Array) -> Int64Array:
        return np.array([self._permutation.at(index) for index in indices.tolist()], np.int64)

    def is_copied(self) -> bool:
        return False

    def choice(self) -> dict[str, Any]:
        return {"shuffle": self.seed}

    @functools.cached_property
    def _permutation(self) -> _core.Permutation:
        return _core.Permutation(self.inner.rows, self.seed, 0)


# --- Fields -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Picked(Wrapper):
    """Some fields of an input.

    Attributes:
        columns: Positions of the fields in the input.
        each: Maximum number of samples read at a time, since the input may read unused fields, too.
    """

    columns: tuple[int, ...]
    each: int

    def part(self, start: int, stop: int) -> Part:
        bounds = [*range(start, stop, self.each), stop]
        return self._part([self.inner.part(*pair) for pair in itertools.pairwise(bounds)])

    def take(self, indices: Int64Array) -> Part:
        pieces = range(0, len(indices), self.each)
        return self._part([self.inner.take(indices[n : n + self.each]) for n in pieces])

    def _part(self, parts: list[Part]) -> Part:
        picked = [_PickedPart(part, self.columns) for part in parts]
        return picked[0] if len(picked) == 1 else TakenPart(self.fields, tuple(picked), self.each)

    def choice(self) -> dict[str, Any]:
        return {"fields": [field.name for field in self.fields]}


@dataclass(frozen=True)
class _PickedPart(Part):
    inner: Part
    columns: tuple[int, ...]

    def read(self, advance: Advance) -> Rows:
        rows = self.inner.read(advance)
        missing = {position: rows.missing.get(n) for position, n in enumerate(self.columns)}
        return dataclasses.replace(
            rows,
            columns=[rows.columns[n] for n in self.columns],
            missing={position: of for position, of in missing.items() if of is not None},
        )

    def stream(self, advance: Advance) -> Sequence[AnyStreamed] | None:
        columns = self.inner.stream(advance)
        if columns is None:
            return None
        left = [columns[n] for n in range(len(columns)) if n not in self.columns]
        if any(isinstance(column, StreamedRagged) for column in left):  # reports skipped samples
            return None
        return [columns[n] for n in self.columns]


def _picked(source: Source, wanted: Wanted) -> Source:
    own = [field.name for field in source.fields]
    wanted.check(own)
    columns = [n for n, field in enumerate(own) if wanted.takes(field)]
    fields = tuple(source.fields[n] for n in columns)
    changed = {
        "fields": fields,
        "structure": _kept(source.structure, columns),
        "classes": {n: of for n, of in source.classes.items() if own.index(n) in columns},
        "seen": {n: where for n, where in source.seen.items() if own.index(n) in columns},
        "unknown": source.unknown & {field.name for field in fields},
    }
    picked = source.pick(columns)
    if picked is not None:
        changed["ragged_bytes"] = picked.ragged_bytes
        positions, each = list(range(len(columns))), max(source.rows, 1)
    else:
        changed["ragged_bytes"] = source.ragged_bytes if any(of.ragged for of in fields) else 0
        positions, each = columns, max(PIECE_BYTES // max(source.sample_bytes, 1), 1)
        if len(columns) == len(own):
            each = max(source.rows, 1)  # no unused field is read
    of = picked or source
    return _Picked(**attributes_of(source) | changed, inner=of, columns=tuple(positions), each=each)


def in_order_of(source: Source, fields: Sequence[Field], structure: Structure) -> Source:
    """Returns the source with reordered fields if only the order of dict keys differs."""
    own, names = ([field.name for field in of] for of in (source.fields, fields))
    same = map_leaves(own.__getitem__, source.structure) == map_leaves(names.__getitem__, structure)
    if own == names or not same:
        return source
    columns = tuple(own.index(name) for name in names)
    changed = {"fields": tuple(source.fields[n] for n in columns), "structure": structure}
    each = max(source.rows, 1)
    return _Picked(**attributes_of(source) | changed, inner=source, columns=columns, each=each)


def _kept(structure: Structure, columns: Sequence[int]) -> Structure:
    return map_leaves(columns.index, pruned(structure, lambda leaf: leaf in columns))


@dataclass(frozen=True, kw_only=True)
class Renamed(Wrapper):
    """Source whose fields are named as members of a larger sample."""

    name: str

    @classmethod
    def of(cls, source: Source, name: str) -> Renamed:
        """Renames the fields to `name.field`; the field of a bare array becomes `name`."""
        bare = is_leaf(source.structure)

        def renamed(field: str) -> str:
            return name if bare else f"{name}.{field}"

        changed = {
            "fields": tuple(dataclasses.replace(f, name=renamed(f.name)) for f in source.fields),
            "classes": {renamed(field): of for field, of in source.classes.items()},
            "guessed": tuple(map(renamed, source.guessed)),
        }
        return cls(**attributes_of(source) | changed, inner=source, name=name)

    def choice(self) -> dict[str, Any]:
        """Returns the name."""
        return {"name": self.name}


# --- Dtypes -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Cast(Wrapper):
    casts: dict[str, str]
    option: str

    def part(self, start: int, stop: int) -> Part:
        ranges = [range(n, min(n + self._each, stop)) for n in range(start, stop, self._each)]
        return self._part([(self.inner.part(of.start, of.stop), of) for of in ranges])

    def take(self, indices: Int64Array) -> Part:
        pieces = [indices[n : n + self._each] for n in range(0, len(indices), self._each)]
        return self._part([(self.inner.take(piece), piece) for piece in pieces])

    def _part(self, pieces: list[tuple[Part, Any]]) -> Part:
        return _CastPart(tuple(pieces), self.inner.fields, self.fields, self.casts)

    @property
    def _each(self) -> int:
        """Number of samples read at a time, which limits the memory before the cast."""
        return max(PIECE_BYTES // max(self.inner.sample_bytes, 1), 1)

    def is_copied(self) -> bool:
        return False

    def choice(self) -> dict[str, Any]:
        return {self.option: {**self.inner.options().get(self.option, {}), **self.casts}}


@dataclass(frozen=True)
class _CastPart(Part):
    """Pieces of an input, each with the numbers of its samples."""

    pieces: tuple[tuple[Part, Any], ...]
    fields: tuple[Field, ...]
    made: tuple[Field, ...]
    casts: dict[str, str]

    def read(self, advance: Advance) -> Rows:
        made = RowsCollector(self.made, sum(len(indices) for _, indices in self.pieces))
        first = 0
        for part, indices in self.pieces:
            rows = part.read(advance)
            left = np.delete(np.asarray(indices), np.array(rows.left_out, np.int64))
            columns = [
                self._cast(column, field, rows, left)
                for column, field in zip(rows.columns, self.fields, strict=True)
            ]
            made.add(dataclasses.replace(rows, columns=columns), first)
            first += len(indices)
        return made.finish()

    def _cast(self, column: AnyColumn, field: Field, rows: Rows, left: Int64Array) -> AnyColumn:
        if field.name not in self.casts:
            return column
        dtype = self.casts[field.name]
        try:
            if isinstance(column, Ragged):
                return Ragged(cast(column.values, field, dtype), column.offsets)
            return cast(column, field, dtype)
        except CastError as error:
            row = error.row
            if isinstance(column, Ragged):
                row = int(np.searchsorted(column.offsets, row, "right")) - 1
            where = f"sample {left[row]}" if rows.where is None else rows.where(row)
            raise ValueError(
                f"{where}: field {field.name!r}: {error.value} does not fit {dtype}"
            ) from None


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def _read_as(source: Source, dtypes: Mapping[str, Any], picked: bool) -> dict[str, str]:
    """Returns the casts from the dtypes of a source to the requested ones.

    Raises:
        ValueError: a field does not exist and no fields were selected, or a dtype is unknown.
    """
    own = {field.name: field for field in source.fields}
    left = {}
    for name, dtype in dtypes.items():
        if name not in own and not picked:
            raise ValueError(f"dtypes: there is no field {name!r}; the fields are {', '.join(own)}")
        text = TEXT if str(dtype) in TEXT_NAMES else str(dtype)
        if name in own and text != own[name].logical:
            left[name] = dtype
    casts = parse_casts("dtypes", left)
    return {n: of for n, of in casts.items() if own[n].dtype != of or n in source.unknown}


def _cast(source: Source, casts: dict[str, str], option: str) -> Source:
    own = {field.name: field for field in source.fields}
    for name, dtype in casts.items():
        if name not in own:
            known = ", ".join(own)
            raise ValueError(f"{option}: there is no field {name!r}; the fields are {known}")
        if own[name].logical is not None:
            what = own[name].logical
            raise TypeError(f"{option}: field {name!r} holds {what}, not plain numbers")
        cast(np.empty((0,), own[name].storage), Field(name, own[name].dtype, ()), dtype)
    fields = tuple(
        dataclasses.replace(field, dtype=casts.get(field.name, field.dtype))
        for field in source.fields
    )
    before, after = (sum(f.row_bytes for f in of if f.ragged) for of in (source.fields, fields))
    floats = [name for name in source.classes if not _is_integer(casts.get(name, "int64"))]
    changed = {
        "fields": fields,
        "ragged_bytes": source.ragged_bytes * after // max(before, 1),
        "classes": {name: of for name, of in source.classes.items() if name not in floats},
        "guessed": tuple(name for name in source.guessed if name not in casts),
        "unknown": source.unknown - casts.keys(),
        "notices": (
            *source.notices,
            *(
                f"field {n!r}: left out the class names, because {casts[n]} cannot number classes"
                for n in floats
            ),
        ),
    }
    return _Cast(**attributes_of(source) | changed, inner=source, casts=casts, option=option)
