"""Samples that come one by one: what they have in common, and how they become columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.formats.extents import Field
from fastload.pack.cast import CastError, cast
from fastload.pack.sources.base import AnyColumn, RaggedBuilder
from fastload.pack.sources.leaves import (
    LEFT_OPEN,
    Leaf,
    field_of_leaves,
    fit,
    mean_bytes,
    read_leaf,
)
from fastload.structure import Structure, is_leaf, leaf_names, map_leaves, rebuild

_EXACT = 2**53  # float64 holds all integers up to here


@dataclass(frozen=True)
class Schema:
    """What all samples have in common.

    Attributes:
        fields: Of a sample.
        structure: The containers around the numbers of the fields.
        ragged_bytes: The mean size of the ragged fields of a sample, estimated.
        dtypes: Names of fields, and the dtypes that their numbers are changed to.
    """

    fields: tuple[Field, ...]
    structure: Structure
    ragged_bytes: int
    dtypes: dict[str, str]

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
        given = {**dict.fromkeys(ragged, "float64"), **dtypes}  # of lists that are all empty
        empty = {
            name
            for name, column in zip(names, columns, strict=True)
            if name in given and all(leaf.dtype == LEFT_OPEN for leaf in column)
        }
        for name, column in zip(names, columns, strict=True):
            dtype = given[name] if name in empty else dtypes.get(name)
            pairs = zip(column, indices, strict=True)
            column[:] = [_in_dtype(leaf, name, dtype, index) for leaf, index in pairs]
        fields = tuple(
            field_of_leaves(name, column, indices)
            for name, column in zip(names, columns, strict=True)
        )
        fields = tuple(
            ragged_field(of) if of.name in ragged or of.name in empty else of for of in fields
        )
        numbers = iter(range(len(names)))
        structure = map_leaves(lambda _: next(numbers), template)
        return cls(fields, structure, sum(map(mean_bytes, fields, columns)), dict(dtypes))


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
        self._rows = 0

    def add(self, sample: Any, index: int) -> None:
        """Adds a sample; `index` is its number, for errors.

        Raises:
            ValueError, TypeError, KeyError: it is not what the others are.
        """
        leaves = leaves_of(self._structure, sample, f"sample {index}")
        for column, field, leaf in zip(self._columns, self._fields, leaves, strict=True):
            found = read_leaf(leaf, field.name, index)
            if self._dtypes:
                found = _in_dtype(found, field.name, self._dtypes.get(field.name), index)
            if self._meanings and found.dtype == field.dtype:
                found = replace(found, logical=field.logical)
            content = fit(found, field, index)
            if isinstance(column, RaggedBuilder):
                column.append(content)
            else:
                column[self._rows] = content
        self._rows += 1

    def finish(self) -> list[AnyColumn]:
        """The columns; the collector must not be used any more."""
        return [
            column.finish() if isinstance(column, RaggedBuilder) else column[: self._rows]
            for column in self._columns
        ]


def _in_dtype(leaf: Leaf, name: str, dtype: str | None, index: int) -> Leaf:
    if dtype is None or leaf.dtype == dtype:
        return leaf
    if isinstance(leaf.content, bytes) or leaf.logical is not None:
        raise TypeError(f"sample {index}: field {name!r} is {leaf}, not numbers to be {dtype}")
    array = leaf.content
    if dtype == "float64" and leaf.dtype in ("int64", "uint64"):
        large = array[(array > _EXACT) | (array < -_EXACT)].tolist()
        for number in large:
            if int(float(number)) != number:
                raise ValueError(f"sample {index}: field {name!r}: {number} does not fit float64")
    try:
        made = cast(array.reshape(-1), Field(name, leaf.dtype or "float64", ()), dtype)
    except CastError as error:
        raise ValueError(
            f"sample {index}: field {name!r}: {error.value} does not fit {dtype}"
        ) from None
    return Leaf(made.reshape(array.shape), dtype)


def template_of(samples: list[Any]) -> Structure:
    """The containers that samples have in common; lists of varying length are leaves."""
    first = samples[0]
    if is_leaf(first):
        return None
    alike = [sample for sample in samples if type(sample) is type(first)]
    if type(first) is list and len({len(sample) for sample in alike}) > 1:
        return None
    if isinstance(first, dict):
        alike = [sample for sample in alike if sample.keys() == first.keys()]
        return rebuild(first, [template_of([sample[key] for sample in alike]) for key in first])
    alike = [sample for sample in alike if len(sample) == len(first)]
    return rebuild(first, [template_of(list(members)) for members in zip(*alike, strict=True)])


def leaves_of(structure: Structure, sample: Any, where: str) -> list[Any]:
    """The leaves of a sample that must have the containers of `structure`."""
    if is_leaf(structure):
        return [sample]
    if isinstance(structure, dict):
        if not isinstance(sample, dict):
            raise TypeError(f"{where}: a dict is needed, not {type(sample).__name__}")
        for key in structure:
            if key not in sample:
                raise KeyError(f"{where}: the key {key!r} is missing")
        for key in sample:
            if key not in structure:
                raise KeyError(f"{where}: the key {key!r} is not in sample 0")
        pairs = [(structure[key], sample[key], key) for key in structure]
    else:
        if not isinstance(sample, type(structure)) or len(sample) != len(structure):
            expected = f"{type(structure).__name__} of {len(structure)}"
            raise TypeError(f"{where}: a {expected} is needed, not {sample!r:.80}")
        pairs = [(structure[n], sample[n], n) for n in range(len(structure))]
    if all(is_leaf(member) for member, _, _ in pairs):
        return [value for _, value, _ in pairs]
    return [leaf for m, v, key in pairs for leaf in leaves_of(m, v, f"{where}, {key!r}")]
