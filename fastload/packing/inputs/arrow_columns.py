"""Converts Arrow columns to columns of fastload's fields without changing a value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.fields import BYTE_STRINGS, TEXT, Field
from fastload.formats.structure import Structure
from fastload.packing.columns import AnyColumn, Array, Missing, Ragged
from fastload.packing.inputs.kind import library
from fastload.packing.inputs.source import stored
from fastload.packing.inputs.wanted import ALL, Wanted

_INDEX = re.compile(r"__index_level_([0-9]+)__")  # an unnamed pandas index
_ENCODED = {"Image": "image", "Audio": "audio"}  # features of Hugging Face datasets
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's type names


NO_CLASS = -1
"""Class number of a sample without a label in Hugging Face datasets."""


class ColumnError(ValueError):
    """Raised for a value that cannot be stored; `row` is its row in the batch."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


@dataclass(frozen=True)
class ArrowField:
    """A field and the keys of its values: a column and members of structs.

    Attributes:
        keys: Name of the column, then the names of struct members.
        field: The field as it is stored.
        classes: Number of classes, if the numbers are classes; otherwise 0.
    """

    keys: tuple[str, ...]
    field: Field
    classes: int = 0

    def read(self, batch: Any) -> tuple[AnyColumn, Missing | None]:
        """Returns the column of a record batch and its missing values.

        Raises:
            ColumnError: a list has another length, or a number is no class.
        """
        compute = library("pyarrow.compute", "parquet", "pyarrow")
        array = batch.column(self.keys[0])
        for key in self.keys[1:]:
            array = compute.struct_field(array, key)
        column, missing = _column(array, self.field)
        if self.classes and isinstance(column, np.ndarray) and len(column):
            bad = np.flatnonzero((column < NO_CLASS) | (column >= self.classes))
            if len(bad):
                what = f"field {self.field.name!r}: {column[bad[0]]} is not a class number"
                end = f"0 to {self.classes - 1}, or -1 for no class"
                raise ColumnError(int(bad[0]), f"{what} ({end})")
        return column, missing


@dataclass(frozen=True)
class ArrowSchema:
    """Fields of a table, their structure, names of classes, and columns of null type."""

    fields: tuple[ArrowField, ...]
    structure: Structure
    classes: dict[str, tuple[str, ...]]
    unknown: frozenset[str]

    @classmethod
    def of(
        cls,
        schema: Any,
        batches: Sequence[Any],
        ragged: Sequence[str] = (),
        wanted: Wanted = ALL,
    ) -> ArrowSchema:
        """Returns the fields of a pyarrow schema.

        Args:
            schema: Schema of the table.
            batches: Some rows, which show whether lists vary in length.
            ragged: Names of fields that are ragged even if these rows have equal lengths.
            wanted: Fields to read.

        Raises:
            TypeError: a column has a type that cannot be stored.
            ValueError: lists vary in an axis other than the first, or a field name does not exist.
        """
        features = _features(schema.metadata)
        fields: list[ArrowField] = []
        classes: dict[str, tuple[str, ...]] = {}
        unknown: set[str] = set()

        def visit(of: Any, keys: tuple[str, ...], arrays: list[Any]) -> Structure:
            types = library("pyarrow.types", "parquet", "pyarrow")
            compute = library("pyarrow.compute", "parquet", "pyarrow")
            feature = features.get(keys[0], {}) if len(keys) == 1 else {}
            meaning = _ENCODED.get(feature.get("_type", ""))
            kind = of.type
            if types.is_struct(kind) and meaning is None:
                names = [kind.field(n).name for n in range(kind.num_fields)]
                if len(set(names)) < len(names) or not names:
                    raise TypeError(
                        f"field {'.'.join(keys)!r}: a struct with members {names} cannot be packed"
                    )
                return {
                    name: visit(
                        kind.field(name),
                        (*keys, name),
                        [compute.struct_field(array, name) for array in arrays],
                    )
                    for name in names
                    if wanted.enters(".".join((own[keys[0]], *keys[1:], name)))
                }
            name = ".".join((own[keys[0]], *keys[1:]))
            if meaning is not None and types.is_struct(kind):
                keys = (*keys, "bytes")
                field = Field(name, "uint8", (), True, meaning)
            else:
                field = _field(name, kind, arrays, name in ragged)
                if _is_untyped(types, kind):
                    unknown.add(name)
            if feature.get("_type") == "ClassLabel" and feature.get("names"):
                classes[name] = tuple(map(str, feature["names"]))
            fields.append(ArrowField(keys, field, len(classes.get(name, ()))))
            return len(fields) - 1

        own = field_names(schema)
        taken = {column: name for column, name in own.items() if wanted.enters(name)}
        structure = {
            name: visit(schema.field(column), (column,), [of.column(column) for of in batches])
            for column, name in taken.items()
        }
        known = [of.field.name for of in fields]
        wanted.check([*known, *(name for name in own.values() if name not in structure)])
        for name in ragged:
            if name not in known:
                raise ValueError(f"there is no field {name!r}; the fields are {', '.join(known)}")
        return cls(tuple(fields), structure, classes, frozenset(unknown))


def _features(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """Returns the features of the columns from the metadata of Hugging Face datasets."""
    try:
        found = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    columns = found if isinstance(found, dict) else {}
    return {name: of for name, of in columns.items() if isinstance(of, dict)}


def _plain(array: Any) -> Any:
    """Returns the array with extension types and dictionaries replaced by their values."""
    while hasattr(array.type, "storage_type"):
        array = array.storage
    return array.dictionary_decode() if hasattr(array, "dictionary_decode") else array


def field_names(schema: Any) -> dict[str, str]:
    """Returns field names by column name; unnamed pandas indices are named as by reset_index.

    Example:
        >>> field_names(parquet.read_schema("a.parquet"))  # doctest: +SKIP
        {'x': 'x', '__index_level_0__': 'index'}
    """
    indices = [name for name in schema.names if _INDEX.fullmatch(name)]
    names = {name: name for name in schema.names}
    for name in indices:
        alone = len(indices) == 1 and "index" not in names
        new = "index" if alone else _INDEX.sub(r"level_\1", name)
        names[name] = name if new in names else new
    return names


def _field(name: str, kind: Any, arrays: Sequence[Any], is_ragged: bool) -> Field:
    pyarrow = library("pyarrow", "parquet")
    types = pyarrow.types
    while hasattr(kind, "storage_type"):
        kind = kind.storage_type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(types, kind):
        return Field(name, "uint8", (), True, TEXT)
    if is_bytes(types, kind):
        return Field(name, "uint8", (), True, "bytes")
    arrays = [_plain(array) for array in arrays]
    shape: list[int] = []
    ragged = False
    while is_list(types, kind) or types.is_fixed_size_list(kind):
        lengths: set[int] = set()
        arrays = [array.drop_null() for array in arrays]
        for array in arrays:
            lengths |= set(np.unique(_lengths(array)).tolist())
        if types.is_fixed_size_list(kind):
            lengths = {kind.list_size}
        first = not shape and not ragged
        if first and (is_ragged or len(lengths) != 1):
            ragged = True
        elif len(lengths) == 1:
            shape.append(lengths.pop())
        elif lengths:
            raise ValueError(
                f"field {name!r}: lists in lists of {min(lengths)} to {max(lengths)} members; "
                "samples can vary in their first length only"
            )
        else:
            shape.append(0)
        arrays = [array.flatten() for array in arrays]
        kind = kind.value_type
    if is_ragged and not ragged:
        raise ValueError(f"ragged: field {name!r} holds {kind}, which has no length")
    dtype, logical = _number(name, kind)
    return Field(name, dtype, tuple(shape), ragged, logical)


def _is_untyped(types: Any, kind: Any) -> bool:
    while is_list(types, kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(types.is_null(kind))


def _number(name: str, kind: Any) -> tuple[str, str | None]:
    """Returns dtype and logical type of a numeric Arrow type; float64 for the null type."""
    types = library("pyarrow.types", "parquet", "pyarrow")
    if types.is_null(kind):
        return "float64", None
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return dtype_of(kind).name, None
    if types.is_timestamp(kind):
        return "int64", f"datetime64[{kind.unit}]"
    if types.is_time(kind):
        return "int64", f"timedelta64[{kind.unit}]"
    if types.is_duration(kind):
        return "int64", f"timedelta64[{kind.unit}]"
    if types.is_date(kind):
        return "int64", "datetime64[D]" if types.is_date32(kind) else "datetime64[ms]"
    raise TypeError(
        f"field {name!r}: {kind} cannot be packed; numbers, dates, text, bytes, structs and lists "
        "of numbers can"
    )


def is_text(types: Any, kind: Any) -> bool:
    """Returns whether an Arrow type is text, in any layout; `types` is pyarrow.types."""
    view = getattr(types, "is_string_view", lambda _: False)
    return bool(types.is_string(kind) or types.is_large_string(kind) or view(kind))


def is_bytes(types: Any, kind: Any) -> bool:
    """Returns whether an Arrow type is bytes, in any layout; `types` is pyarrow.types."""
    view = getattr(types, "is_binary_view", lambda _: False)
    plain = types.is_binary(kind) or types.is_large_binary(kind)
    return bool(plain or types.is_fixed_size_binary(kind) or view(kind))


def is_list(types: Any, kind: Any) -> bool:
    """Returns whether an Arrow type is lists of any length; `types` is pyarrow.types."""
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _nulls(array: Any) -> Array | None:
    """Returns the mask of missing values; None if there are none."""
    if not array.null_count:
        return None
    return np.asarray(numbers(array.is_null()) != 0)


def _lengths(array: Any) -> Array:
    """Returns the lengths of lists; 0 for missing lists."""
    if hasattr(array.type, "list_size"):
        lengths = np.full(len(array), array.type.list_size)
    else:
        lengths = np.diff(numbers(array.offsets))
    nulls = _nulls(array)
    return lengths if nulls is None else np.where(nulls, 0, lengths)


def _column(array: Any, field: Field) -> tuple[AnyColumn, Missing | None]:
    array = _plain(array)
    nulls = _nulls(array)
    if field.logical in BYTE_STRINGS:
        column = _byte_strings(array, nulls, field)
        return column, None if nulls is None else Missing(nulls, None)
    if not field.ragged:
        values, mask = _values(array, field, field.shape)
        return values, None if mask is None else Missing.of_numbers(mask)
    offsets = np.concatenate([[0], np.cumsum(_lengths(array))]).astype(np.int64)
    try:
        values, mask = _values(array.flatten(), field, field.shape)
    except ColumnError as error:
        row = int(np.searchsorted(offsets, error.row, "right")) - 1
        raise ColumnError(row, str(error)) from None
    if nulls is None and mask is None:
        return Ragged(values, offsets), None
    mask = np.zeros(values.shape, bool) if mask is None else mask
    return Ragged(values, offsets), Missing.of_lists(mask, offsets, nulls)


def _byte_strings(array: Any, nulls: Array | None, field: Field) -> Ragged:
    """Returns text or bytes; missing values are empty."""
    pyarrow = library("pyarrow", "parquet")
    if pyarrow.types.is_null(array.type):
        return Ragged(np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64))
    if pyarrow.types.is_fixed_size_binary(array.type):
        return _of_fixed_size(array, nulls)
    if not pyarrow.types.is_large_binary(array.type):
        if is_text(pyarrow.types, array.type):
            try:
                array.validate(full=True)
            except pyarrow.ArrowInvalid as error:  # pyarrow reads Parquet text without validation
                raise ColumnError(
                    0, f"field {field.name!r}: invalid text in this row or a later one: {error}"
                ) from error
            array = array.cast(pyarrow.large_string())
        array = array.cast(pyarrow.large_binary())
    if nulls is not None:
        array = array.fill_null(b"")
    buffers = array.buffers()
    offsets = np.zeros(1, np.int64)
    if len(array):
        offsets = np.frombuffer(buffers[1], np.int64)[array.offset :][: len(array) + 1]
    values = np.frombuffer(buffers[2], np.uint8) if buffers[2] else np.zeros(0, np.uint8)
    return Ragged(values[offsets[0] : offsets[-1]], offsets - offsets[0])


def _of_fixed_size(array: Any, nulls: Array | None) -> Ragged:
    """Returns fixed_size_binary values; pyarrow 15 crashes when it casts a slice of these."""
    width, buffer = array.type.byte_width, array.buffers()[1]
    values = np.zeros(0, np.uint8)
    if len(array) and width:
        values = np.frombuffer(buffer, np.uint8, len(array) * width, array.offset * width)
    if nulls is None:
        return Ragged(values, np.arange(len(array) + 1, dtype=np.int64) * width)
    offsets = np.concatenate([[0], np.cumsum(np.where(nulls, 0, width))]).astype(np.int64)
    return Ragged(values.reshape(len(array), width)[~nulls].reshape(-1), offsets)


def _values(array: Any, field: Field, shape: tuple[int, ...]) -> tuple[Array, Array | None]:
    """Returns the numbers of nested lists of fixed lengths, and the mask of missing numbers.

    Args:
        array: Arrow array of the lists; errors name its rows.
        field: The field as it is stored.
        shape: Shape of a list.
    """
    nulls = _nulls(array)
    if not shape:
        return _numbers(array, nulls, field), nulls
    lengths = _lengths(array)
    wrong = lengths != shape[0] if nulls is None else (lengths != shape[0]) & ~nulls
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ColumnError(
            row,
            f"field {field.name!r}: a list of {lengths[row]} members, but the probed rows have "
            f"{shape[0]}; --ragged (ragged=) lets the first length vary",
        )
    there = np.arange(len(array)) if nulls is None else np.flatnonzero(~nulls)
    try:
        values, mask = _values(array.flatten(), field, shape[1:])
    except ColumnError as error:
        raise ColumnError(int(there[error.row // shape[0]]), str(error)) from None
    values = values.reshape(len(there), *shape)
    mask = mask if mask is None else mask.reshape(len(there), *shape)
    if nulls is None:
        return values, mask
    spread, marks = (
        np.zeros((len(array), *shape), values.dtype),
        np.ones((len(array), *shape), bool),
    )
    spread[there], marks[there] = values, False if mask is None else mask
    return spread, marks


def _numbers(array: Any, nulls: Array | None, field: Field) -> Array:
    """Returns numbers, dates and times as they are stored; missing values are zero."""
    pyarrow = library("pyarrow", "parquet")
    if pyarrow.types.is_null(array.type):
        return np.zeros(len(array), field.storage)
    if field.logical is not None:
        if pyarrow.types.is_date32(array.type) or pyarrow.types.is_time32(array.type):
            array = array.cast(pyarrow.int32())
        array = array.cast(pyarrow.int64())
    values = stored(numbers(array), field)
    return values if nulls is None else np.where(nulls, np.zeros((), values.dtype), values)


def numbers(array: Any) -> Array:
    """Returns the numbers of an Arrow array (nulls: any value); `to_numpy` would import pandas."""
    pyarrow = library("pyarrow", "parquet")
    dtype = dtype_of(array.type)
    if pyarrow.types.is_boolean(array.type):  # stored as bits
        array = array.cast(pyarrow.uint8())
    _, buffer = array.buffers()
    if buffer is None:
        return np.zeros(0, dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def dtype_of(kind: Any) -> np.dtype[Any]:
    """Returns the dtype of a numeric Arrow type; `to_pandas_dtype` would import pandas."""
    return np.dtype(_FLOATS.get(str(kind), str(kind)))


def failure(path: str, what: str, error: Exception) -> FormatError:
    """Returns the error about a file that pyarrow cannot read."""
    return FormatError(f"{path}: {what}: {error}")
