"""Checks that Arrow tables have the same columns."""

from __future__ import annotations

from typing import Any

from fastload.errors import FormatError
from fastload.packing.inputs.arrow_columns import field_names, is_bytes, is_list, is_text
from fastload.packing.inputs.kind import library
from fastload.packing.inputs.wanted import Wanted


def check_same(path: str, schema: Any, first_path: str, first: Any, wanted: Wanted) -> None:
    """Raises FormatError if the wanted columns of two files differ in their names or types.

    Their order, and whether nulls are allowed, makes no difference; nor does it which of Arrow's
    layouts the same values have: large strings, dictionaries, views.
    """
    here, there = (
        {of.name: plain_type(of.type) for of in s if wanted.enters(field_names(s)[of.name])}
        for s in (schema, first)
    )
    for name in dict.fromkeys((*there, *here)):
        if name not in here or name not in there:
            odd = path if name in here else first_path
            raise FormatError(
                f"{first_path} and {path} differ in their columns: only {odd} has {name!r}"
            )
        if here[name] != there[name]:
            raise FormatError(
                f"{first_path} and {path} differ in their columns: {name!r} is {there[name]} in "
                f"the first and {here[name]} in the second"
            )


def plain_type(kind: Any) -> str:
    """Returns a description that is equal for Arrow types whose values are packed alike."""
    types = library("pyarrow.types", "parquet", "pyarrow")
    while hasattr(kind, "storage_type"):
        kind = kind.storage_type
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_struct(kind):
        members = (kind.field(n) for n in range(kind.num_fields))
        described = sorted(f"{of.name}: {plain_type(of.type)}" for of in members)
        return f"struct<{', '.join(described)}>"
    if is_list(types, kind) or types.is_fixed_size_list(kind):
        return f"list<{plain_type(kind.value_type)}>"
    return "string" if is_text(types, kind) else "binary" if is_bytes(types, kind) else str(kind)
