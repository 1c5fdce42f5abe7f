"""Schema of samples that are read one by one, and their conversion to columns."""

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
    MISSING,
    NO_DTYPE,
    Leaf,
    field_of_leaves,
    fit,
    is_missing,
    mean_bytes,
    read_leaf,
)
from fastload.packing.inputs.source import Rows

_EXACT = 2**53  # float64 represents all integers up to this one


@dataclass(frozen=True)
class Schema:
    """Common properties of all samples.

    Attributes:
        fields: Fields of a sample.
        structure: Containers of a sample around the numbers of its fields.
        ragged_bytes: Estimated mean size in bytes of the ragged fields of a sample.
        dtypes: Dtypes that numbers are converted to, by field name.
        seen: For each field with a missing value, the number of such a sample.
        unknown: Fields without a value and without a given dtype.
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
        """Returns the schema of some samples.

        Args:
            samples: Samples that define the schema.
            indices: Numbers of these samples.
            dtypes: As the attribute.
            ragged: Names of fields that are ragged even if these samples have equal lengths.

        Raises:
            ValueError, TypeError, KeyError: the samples do not agree, or cannot be packed.
        """
        template = template_of(samples)
        names = leaf_names(template)
        for name in (*dtypes, *ragged):
            if name not in names:
                raise ValueError(f"there is no field {name!r}; the fields are {', '.join(names)}")
        if not names:
            raise ValueError(f"sample {indices[0]}: the sample is empty: {samples[0]!r:.80}")
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
    """Returns the field of some leaves, which are converted to its dtype in place."""
    known = [leaf for leaf in leaves if leaf is not MISSING]
    if not known:
        return Field(name, dtype or "float64", (), is_ragged)
    if (dtype or is_ragged) and all(leaf.dtype == NO_DTYPE for leaf in known):
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
    """Returns the field with its first axis as the ragged one.

    Raises:
        ValueError: the field has no axis.
    """
    if field.ragged:
        return field
    if not field.shape:
        raise ValueError(f"ragged: field {field.name!r} holds numbers, which have no length")
    return Field(field.name, field.dtype, field.shape[1:], True, field.logical)


class SampleCollector:
    """Converts samples to columns and checks each against the schema.

    Args:
        fields: Fields of a sample.
        structure: Containers of a sample.
        max_samples: Maximum number of samples, for which memory is allocated.
        dtypes: As in `Schema`.
        meanings: The logical type of numbers is that of their field, because the samples do not
            have one.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        structure: Structure,
        max_samples: int,
        *,
        dtypes: Mapping[str, str] | None = None,
        meanings: bool = False,
    ) -> None:
        self._fields, self._structure = fields, structure
        self._dtypes, self._meanings = dtypes or {}, meanings
        self._columns = [
            RaggedBuilder(field)
            if field.ragged
            else np.empty((max_samples, *field.shape), field.storage)
            for field in fields
        ]
        self._missing: dict[int, dict[int, Array | None]] = {}  # column, row, mask of its numbers
        self._rows = 0

    def add(self, sample: Any, index: int) -> None:
        """Adds a sample; `index` is its number, for errors.

        Raises:
            ValueError, TypeError, KeyError: the sample does not fit the schema.
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
        """Returns the samples; the collector must not be used afterwards."""
        columns = [
            column.finish() if isinstance(column, RaggedBuilder) else column[: self._rows]
            for column in self._columns
        ]
        missing = {n: _marked(columns[n], self._fields[n], of) for n, of in self._missing.items()}
        return Rows(columns, missing=missing)


def is_incomplete(leaf: Leaf) -> bool:
    """Returns whether a leaf, or a number in it, is missing."""
    return leaf is MISSING or leaf.missing is not None


def _marked(column: AnyColumn, field: Field, marks: Mapping[int, Array | None]) -> Missing:
    """Returns the missing values of a column from masks by row; None marks the whole sample."""
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
            f"{name}=uint64 (dtypes=) stores it"
        )
    if dtype is None or not leaf.dtype or leaf.dtype == dtype:
        return leaf
    if isinstance(leaf.content, bytes) or leaf.logical is not None:
        raise TypeError(f"sample {index}: field {name!r} is {leaf} and cannot be read as {dtype}")
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
    """Returns the common containers of samples; lists of varying length are leaves.

    Dicts may lack keys, and a container may be a missing value.
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
    """Returns the leaves of a sample, whose containers must match `structure` or be missing."""
    if is_leaf(structure):
        return [sample]
    if is_missing(sample):
        return [MISSING for _ in flatten(structure)]
    if isinstance(structure, dict):
        if not isinstance(sample, dict):
            raise TypeError(f"{where} must be a dict, not {type(sample).__name__}")
        for key in sample:
            if key not in structure:
                raise KeyError(f"{where}: the key {key!r} is not in the probed samples")
        pairs = [(structure[key], sample.get(key, MISSING), key) for key in structure]
    else:
        if not isinstance(sample, type(structure)) or len(sample) != len(structure):
            expected = f"{type(structure).__name__} of {len(structure)}"
            raise TypeError(f"{where} must be a {expected}, not {sample!r:.80}")
        pairs = [(structure[n], sample[n], n) for n in range(len(structure))]
    if all(is_leaf(member) for member, _, _ in pairs):
        return [value for _, value, _ in pairs]
    return [leaf for m, v, key in pairs for leaf in leaves_of(m, v, f"{where}, {key!r}")]
