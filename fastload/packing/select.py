"""Which samples and fields of an input are written, in which order and dtypes."""

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
from fastload.packing.inputs.wrapper import PIECE_BYTES, Wrapper, like
from fastload.packing.missing import filled


@dataclass(frozen=True)
class Selection:
    """What is taken of an input; what is not given stays as it is.

    Attributes:
        fields: Names of fields, or of containers for all fields in them.
        dtypes: What fields are read as, by name, where the source has not done it.
        missing: What is done about missing values, one of `missing.POLICIES`.
        cast: New dtypes by the names of fields.
        shuffle: The seed of a permutation of the samples.
        limit: So many samples from the start, after shuffling.
    """

    fields: Sequence[str] | None = None
    dtypes: Mapping[str, Any] | None = None
    missing: str = "error"
    cast: Mapping[str, Any] | None = None
    shuffle: int | None = None
    limit: int | None = None

    def of(self, source: Source) -> Source:
        """The selected part of a source.

        Raises:
            ValueError: a field is not there, a dtype not known, or a number out of range.
            TypeError: a field cannot be cast so.
        """
        if self.fields is not None:
            source = _picked(source, Wanted.of(self.fields))
        if casts := _read_as(source, self.dtypes or {}, self.fields is not None):
            source = _cast(source, casts, "dtypes")
        source = filled(source, self.missing)
        if casts := parse_casts("cast", self.cast):
            source = _cast(source, casts, "cast")
        if self.shuffle is not None:
            if type(self.shuffle) is not int or not 0 <= self.shuffle < 2**64:
                raise ValueError(f"shuffle: a seed of 64 bits is needed, not {self.shuffle!r}")
            source = _Shuffled(**like(source), inner=source.random_access(), seed=self.shuffle)
        if self.limit is not None and self.limit < source.rows:
            source = _Limited(**like(source), inner=source, limit=self.limit)
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
        return self.inner.take(self._places(indices))

    def names(self, indices: Int64Array) -> Sequence[str] | None:
        return self.inner.names(self._places(indices))

    def _places(self, indices: Int64Array) -> Int64Array:
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
    """Some fields of an input, which may read the others, too: not more samples than `each`."""

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
        missing = {place: rows.missing.get(n) for place, n in enumerate(self.columns)}
        return dataclasses.replace(
            rows,
            columns=[rows.columns[n] for n in self.columns],
            missing={place: of for place, of in missing.items() if of is not None},
        )

    def stream(self, advance: Advance) -> Sequence[AnyStreamed] | None:
        columns = self.inner.stream(advance)
        if columns is None:
            return None
        left = [columns[n] for n in range(len(columns)) if n not in self.columns]
        if any(isinstance(column, StreamedRagged) for column in left):  # tells what is skipped
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
        places, each = list(range(len(columns))), max(source.rows, 1)
    else:
        changed["ragged_bytes"] = source.ragged_bytes if any(of.ragged for of in fields) else 0
        places, each = columns, max(PIECE_BYTES // max(source.sample_bytes, 1), 1)
        if len(columns) == len(own):
            each = max(source.rows, 1)  # nothing is read for nothing
    of = picked or source
    return _Picked(**like(source) | changed, inner=of, columns=tuple(places), each=each)


def in_order_of(source: Source, fields: Sequence[Field], structure: Structure) -> Source:
    """The source with its fields in the order of others, if its dicts differ in nothing else."""
    own, names = ([field.name for field in of] for of in (source.fields, fields))
    same = map_leaves(own.__getitem__, source.structure) == map_leaves(names.__getitem__, structure)
    if own == names or not same:
        return source
    columns = tuple(own.index(name) for name in names)
    changed = {"fields": tuple(source.fields[n] for n in columns), "structure": structure}
    each = max(source.rows, 1)
    return _Picked(**like(source) | changed, inner=source, columns=columns, each=each)


def _kept(structure: Structure, columns: Sequence[int]) -> Structure:
    return map_leaves(columns.index, pruned(structure, lambda leaf: leaf in columns))


@dataclass(frozen=True, kw_only=True)
class Renamed(Wrapper):
    """A source whose fields are those of a member of a larger sample."""

    name: str

    @classmethod
    def of(cls, source: Source, name: str) -> Renamed:
        """The fields below `name`; a bare array becomes `name` itself."""
        bare = is_leaf(source.structure)

        def renamed(field: str) -> str:
            return name if bare else f"{name}.{field}"

        changed = {
            "fields": tuple(dataclasses.replace(f, name=renamed(f.name)) for f in source.fields),
            "classes": {renamed(field): of for field, of in source.classes.items()},
            "guessed": tuple(map(renamed, source.guessed)),
        }
        return cls(**like(source) | changed, inner=source, name=name)

    def choice(self) -> dict[str, Any]:
        """The name."""
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
        """Samples that are read at once, because they may be larger than they will be."""
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
            left = np.delete(np.asarray(indices), np.array(rows.places, np.int64))
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
    """The casts that make of the fields of a source what they shall be read as.

    Raises:
        ValueError: there is no such field, though all are kept, or the dtype is not known.
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
            *(f"field {n!r}: left out the class names, as {casts[n]} numbers none" for n in floats),
        ),
    }
    return _Cast(**like(source) | changed, inner=source, casts=casts, option=option)
