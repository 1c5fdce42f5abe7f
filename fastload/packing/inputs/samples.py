"""Samples that come one by one: what they have in common, and how they become columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.formats.fields import BYTE_STRINGS, Field
from fastload.formats.structure import (
    Structure,
    flatten,
    is_leaf,
    leaf_names,
    map_leaves,
    rebuild,
    with_members,
)
from fastload.packing.cast import CastError, cast
from fastload.packing.columns import AnyColumn, Array, Missing, Ragged, RaggedBuilder
from fastload.packing.inputs.leaves import (
    BEYOND_INT64,
    LEFT_OPEN,
    MISSING,
    Leaf,
    field_of_leaves,
    fit,
    is_missing,
    mean_bytes,
    read_leaf,
)
from fastload.packing.inputs.source import Rows

_EXACT = 2**53  # float64 holds all integers up to here


@dataclass(frozen=True)
class Schema:
    """What all samples have in common.

    Attributes:
        fields: Of a sample.
        structure: The containers around the numbers of the fields.
        ragged_bytes: The mean size of the ragged fields of a sample, estimated.
        dtypes: Names of fields, and the dtypes that their numbers are changed to.
        seen: The fields of which a value is missing, and the number of such a sample.
        unknown: The fields of which no value was seen, nor the dtype given.
    """

    fields: tuple[Field, ...]
    structure: Structure
    ragged_bytes: int
    dtypes: dict[str, str]
    seen: dict[str, int]
    unknown: frozenset[str]

    @classmethod
    def of(
        cls,
        samples: list[Any],
        indices: list[int],
        dtypes: Mapping[str, str],
        ragged: Sequence[str] = (),
    ) -> Schema:
        """The schema of some samples, with their numbers.

        Args:
            samples: Which decide.
            indices: Their numbers.
            dtypes: As the attribute.
            ragged: Names of fields that vary in length, whether or not these samples do.

        Raises:
            ValueError, TypeError, KeyError: they do not agree, or hold what cannot be packed.
        """
        template = template_of(samples)
        names = leaf_names(template)
        for name in (*dtypes, *ragged):
            if name not in names:
                raise ValueError(f"there is no field {name!r}; the fields are {', '.join(names)}")
        if not names:
            raise ValueError(f"sample {indices[0]}: it holds nothing: {samples[0]!r:.80}")
        columns: list[list[Leaf]] = [[] for _ in names]
        for sample, index in zip(samples, indices, strict=True):
            found = leaves_of(template, sample, f"sample {index}")
            for column, name, leaf in zip(columns, names, found, strict=True):
                column.append(read_leaf(leaf, name, index))
        fields, seen, unknown = [], {}, set()
        for name, column in zip(names, columns, strict=True):
            fields.append(_field(column, name, indices, dtypes.get(name), name in ragged))
            if any(map(is_incomplete, column)):
                seen[name] = indices[[is_incomplete(leaf) for leaf in column].index(True)]
            if name not in dtypes and all(leaf is MISSING for leaf in column):
                unknown.add(name)
        numbers = iter(range(len(names)))
        structure = map_leaves(lambda _: next(numbers), template)
        size = sum(map(mean_bytes, fields, columns))
        return cls(tuple(fields), structure, size, dict(dtypes), seen, frozenset(unknown))


def _field(
    leaves: list[Leaf], name: str, indices: list[int], dtype: str | None, is_ragged: bool
) -> Field:
    """The field of some leaves, which are converted to its dtype."""
    known = [leaf for leaf in leaves if leaf is not MISSING]
    if not known:
        return Field(name, dtype or "float64", (), is_ragged)
    if (dtype or is_ragged) and all(leaf.dtype == LEFT_OPEN for leaf in known):
        given = dtype or "float64"
        for number, leaf in enumerate(leaves):
            if leaf is not MISSING:
                content = np.zeros(leaf.shape, Field(name, given, ()).storage)
                leaves[number] = replace(leaf, content=content, dtype=given)
        return ragged_field(field_of_leaves(name, leaves, indices))
    leaves[:] = [_in_dtype(*pair, name, dtype) for pair in zip(leaves, indices, strict=True)]
    field = field_of_leaves(name, leaves, indices)
    return ragged_field(field) if is_ragged else field


def ragged_field(field: Field) -> Field:
    """The same field, of samples that vary in their first length.

    Raises:
        ValueError: they have no axis.
    """
    if field.ragged:
        return field
    if not field.shape:
        raise ValueError(f"ragged: field {field.name!r} holds numbers, which have no length")
    return Field(field.name, field.dtype, field.shape[1:], True, field.logical)


class SampleCollector:
    """Puts samples into columns, each checked against the schema.

    Args:
        fields: Of a sample.
        structure: Its containers.
        most: Samples for which memory is taken.
        dtypes: As in `Schema`.
        meanings: Numbers mean what their field says, which the samples do not show.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        structure: Structure,
        most: int,
        *,
        dtypes: Mapping[str, str] | None = None,
        meanings: bool = False,
    ) -> None:
        self._fields, self._structure = fields, structure
        self._dtypes, self._meanings = dtypes or {}, meanings
        self._columns = [
            RaggedBuilder(field) if field.ragged else np.empty((most, *field.shape), field.storage)
            for field in fields
        ]
        self._missing: dict[int, dict[int, Array | None]] = {}  # column, row, which of its numbers
        self._rows = 0

    def add(self, sample: Any, index: int) -> None:
        """Adds a sample; `index` is its number, for errors.

        Raises:
            ValueError, TypeError, KeyError: it is not what the others are.
        """
        leaves = leaves_of(self._structure, sample, f"sample {index}")
        for number, (field, leaf) in enumerate(zip(self._fields, leaves, strict=True)):
            found = read_leaf(leaf, field.name, index)
            if self._dtypes or found.dtype == BEYOND_INT64:
                found = _in_dtype(found, index, field.name, self._dtypes.get(field.name))
            if self._meanings and found.dtype == field.dtype:
                found = replace(found, logical=field.logical)
            content, column = fit(found, field, index), self._columns[number]
            if isinstance(column, RaggedBuilder):
                column.append(content)
            else:
                column[self._rows] = content
            if is_incomplete(found):
                self._missing.setdefault(number, {})[self._rows] = found.missing
        self._rows += 1

    def finish(self) -> Rows:
        """The samples; the collector must not be used any more."""
        columns = [
            column.finish() if isinstance(column, RaggedBuilder) else column[: self._rows]
            for column in self._columns
        ]
        missing = {n: _marked(columns[n], self._fields[n], of) for n, of in self._missing.items()}
        return Rows(columns, missing=missing)


def is_incomplete(leaf: Leaf) -> bool:
    """Whether a leaf is missing, or some of its numbers."""
    return leaf is MISSING or leaf.missing is not None


def _marked(column: AnyColumn, field: Field, marks: Mapping[int, Array | None]) -> Missing:
    """The missing values of a column, by sample: all of it, or bools like its numbers."""
    samples = np.zeros(len(column), bool)
    samples[list(marks)] = True
    if field.logical in BYTE_STRINGS:
        return Missing(samples, None)
    ragged = column.offsets if isinstance(column, Ragged) else None
    numbers = column.values if isinstance(column, Ragged) else column
    values = np.zeros(numbers.shape, bool)
    for row, mask in marks.items():
        own = slice(row, row + 1) if ragged is None else slice(*ragged[row : row + 2].tolist())
        values[own] = True if mask is None else mask
    return Missing(samples, values if ragged is None else Ragged(values, ragged))


def _in_dtype(leaf: Leaf, index: int, name: str, dtype: str | None) -> Leaf:
    if dtype is None and leaf.dtype == BEYOND_INT64:
        raise ValueError(
            f"sample {index}: field {name!r}: {np.max(leaf.content)} exceeds int64; --dtypes "
            f"{name}=uint64 (dtypes=) holds it"
        )
    if dtype is None or not leaf.dtype or leaf.dtype == dtype:
        return leaf
    if isinstance(leaf.content, bytes) or leaf.logical is not None:
        raise TypeError(f"sample {index}: field {name!r} is {leaf}, not numbers to be {dtype}")
    array = leaf.content
    if dtype == "float64" and leaf.dtype in ("int64", "uint64", BEYOND_INT64):
        large = array[(array > _EXACT) | (array < -_EXACT)].tolist()
        for number in large:
            if int(float(number)) != number:
                raise ValueError(f"sample {index}: field {name!r}: {number} does not fit float64")
    own = "uint64" if leaf.dtype == BEYOND_INT64 else leaf.dtype
    try:
        made = cast(array.reshape(-1), Field(name, own, ()), dtype)
    except CastError as error:
        raise ValueError(
            f"sample {index}: field {name!r}: {error.value} does not fit {dtype}"
        ) from None
    return replace(leaf, content=made.reshape(array.shape), dtype=dtype)


def template_of(samples: list[Any]) -> Structure:
    """The containers that samples have in common; lists of varying length are leaves.

    Dicts may lack keys, and what is missing may stand in the place of a container.
    """
    samples = [sample for sample in samples if not is_missing(sample)]
    if not samples or is_leaf(first := samples[0]):
        return None
    alike = [sample for sample in samples if type(sample) is type(first)]
    if type(first) is list and len({len(sample) for sample in alike}) > 1:
        return None
    if isinstance(first, dict):
        keys = dict.fromkeys(key for sample in alike for key in sample)
        members = {key: template_of([of[key] for of in alike if key in of]) for key in keys}
        return with_members(first, members)
    alike = [sample for sample in alike if len(sample) == len(first)]
    return rebuild(first, [template_of(list(members)) for members in zip(*alike, strict=True)])


def leaves_of(structure: Structure, sample: Any, where: str) -> list[Any]:
    """The leaves of a sample that must have the containers of `structure`, or lack some."""
    if is_leaf(structure):
        return [sample]
    if is_missing(sample):
        return [MISSING for _ in flatten(structure)]
    if isinstance(structure, dict):
        if not isinstance(sample, dict):
            raise TypeError(f"{where}: a dict is needed, not {type(sample).__name__}")
        for key in sample:
            if key not in structure:
                raise KeyError(
                    f"{where}: the key {key!r} is not in the samples that were looked at"
                )
        pairs = [(structure[key], sample.get(key, MISSING), key) for key in structure]
    else:
        if not isinstance(sample, type(structure)) or len(sample) != len(structure):
            expected = f"{type(structure).__name__} of {len(structure)}"
            raise TypeError(f"{where}: a {expected} is needed, not {sample!r:.80}")
        pairs = [(structure[n], sample[n], n) for n in range(len(structure))]
    if all(is_leaf(member) for member, _, _ in pairs):
        return [value for _, value, _ in pairs]
    return [leaf for m, v, key in pairs for leaf in leaves_of(m, v, f"{where}, {key!r}")]
