"""Inputs of tables in memory: DataFrames and Series of pandas and polars, tables of pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.formats.columns import Int64Array
from fastload.formats.structure import BARE_NAME
from fastload.packing.columns import Ragged
from fastload.packing.inputs.arrow_columns import ArrowField, ArrowSchema, ColumnError
from fastload.packing.inputs.kind import library
from fastload.packing.inputs.source import Advance, Part, Rows, RowsCollector, Source
from fastload.packing.inputs.wanted import ALL, Wanted

_TABLES = {("pandas", "DataFrame"), ("polars", "DataFrame")}
_TABLES |= {("pyarrow", "Table"), ("pyarrow", "RecordBatch")}
_SERIES = {("pandas", "Series"), ("polars", "Series")}
_SERIES |= {("pyarrow", "ChunkedArray"), ("pyarrow", "Array")}
_SAMPLED_RANGES, _SAMPLED_ROWS = 8, 8


@dataclass(frozen=True)
class TablePart(Part):
    """Rows of a pyarrow table; `rows` are their numbers."""

    table: Any
    columns: tuple[ArrowField, ...]
    rows: Sequence[int]

    def read(self, advance: Advance) -> Rows:
        """Copies the rows.

        Raises:
            ValueError: a value does not fit its field.
        """
        made = RowsCollector([of.field for of in self.columns], len(self.rows))
        first = 0
        for batch in self.table.combine_chunks().to_batches():
            made.add(_read(self.columns, batch, self.rows[first : first + batch.num_rows]))
            first += batch.num_rows
            advance(batch.num_rows)
        return made.finish()


@dataclass(frozen=True, kw_only=True)
class TableSource(Source):
    """Source of a pyarrow table; `means` are the mean bytes per sample of ragged columns."""

    table: Any
    columns: tuple[ArrowField, ...]
    means: tuple[int, ...]

    def part(self, start: int, stop: int) -> TablePart:
        """Returns the rows [start, stop)."""
        return TablePart(self.table.slice(start, stop - start), self.columns, range(start, stop))

    def take(self, indices: Int64Array) -> TablePart:
        """Returns the rows at `indices`."""
        pyarrow = library("pyarrow", "parquet")
        return TablePart(self.table.take(pyarrow.array(indices)), self.columns, indices.tolist())

    def pick(self, columns: Sequence[int]) -> TableSource:
        """Returns a source of these columns."""
        read = tuple(self.columns[number] for number in columns)
        means = tuple(self.means[number] for number in columns)
        fields = tuple(of.field for of in read)
        return replace(self, fields=fields, columns=read, means=means, ragged_bytes=sum(means))

    def inputs(self) -> Any:
        """Returns None: an input in memory has no name."""
        return None


def is_frame(source: Any) -> bool:
    """Returns whether this is a table or column of pandas, polars or pyarrow; imports none."""
    return bool(_names(source) & (_TABLES | _SERIES))


def is_series(source: Any) -> bool:
    """Returns whether this is a column of pandas, polars or pyarrow."""
    return bool(_names(source) & _SERIES)


def open_frame(source: Any, wanted: Wanted = ALL) -> TableSource:
    """Opens a table; samples are dicts of its columns, or the values of a Series.

    A pandas index becomes columns, unless it is an unnamed RangeIndex.

    Raises:
        TypeError, ValueError: a column cannot be packed.
        ImportError: pyarrow is not installed.
    """
    is_bare = is_series(source)
    notices: list[str] = []
    library_name = next(name for name, _ in _names(source) & (_TABLES | _SERIES))
    if library_name == "pandas":
        table, notices = _of_pandas(source, is_bare, wanted)
    else:
        table = _of_arrow(source, is_bare)
    if len(set(table.column_names)) < len(table.column_names):
        raise TypeError(f"two columns have the same name: {table.column_names}")
    step = -(-table.num_rows // _SAMPLED_RANGES) or 1
    batches = [
        (start, batch)
        for start in range(0, table.num_rows, step)
        for batch in table.slice(start, _SAMPLED_ROWS).combine_chunks().to_batches()
    ]
    found = ArrowSchema.of(table.schema, [batch for _, batch in batches], wanted=wanted)
    if not found.fields:
        raise ValueError("the table has no columns")
    rows = max(sum(batch.num_rows for _, batch in batches), 1)
    sizes = [0] * len(found.fields)
    seen: dict[str, str] = {}
    for start, batch in batches:
        read = _read(found.fields, batch, range(start, start + batch.num_rows))
        for number, column in enumerate(read.columns):
            sizes[number] += column.values.nbytes if isinstance(column, Ragged) else 0
        for number, missing in read.missing.items():
            row = start + int(np.argmax(missing.samples))
            seen.setdefault(found.fields[number].field.name, f"sample {row}")
    means = [size // rows for size in sizes]
    return TableSource(
        kind="table",
        fields=tuple(of.field for of in found.fields),
        structure=found.structure[BARE_NAME] if is_bare else found.structure,
        rows=table.num_rows,
        local=True,
        notices=tuple(notices),
        ragged_bytes=sum(means),
        nullable=True,
        seen=seen,
        unknown=found.unknown,
        table=table,
        columns=found.fields,
        means=tuple(means),
    )


def _names(source: Any) -> set[tuple[str, str]]:
    """Returns the package and the name of each class in the type's MRO."""
    return {(of.__module__.partition(".")[0], of.__name__) for of in type(source).__mro__}


def _read(columns: Sequence[ArrowField], batch: Any, rows: Sequence[int]) -> Rows:
    try:
        read = [of.read(batch) for of in columns]
    except ColumnError as error:
        raise ValueError(f"sample {rows[error.row]}: {error}") from None
    missing = {number: of for number, (_, of) in enumerate(read) if of is not None}
    return Rows([column for column, _ in read], missing=missing)


def _of_arrow(source: Any, is_bare: bool) -> Any:
    """Returns a table or column of polars or pyarrow as a pyarrow table."""
    pyarrow = library("pyarrow", "parquet")
    made = source.to_arrow() if hasattr(source, "to_arrow") else source
    if is_bare:
        return pyarrow.table({BARE_NAME: made})
    return pyarrow.Table.from_batches([made]) if isinstance(made, pyarrow.RecordBatch) else made


def _of_pandas(source: Any, is_bare: bool, wanted: Wanted) -> tuple[Any, list[str]]:
    """Returns the wanted columns as a pyarrow table, and notices about the index."""
    pyarrow = library("pyarrow", "parquet")
    index = source.index
    counts = type(index).__name__ == "RangeIndex" and index.name is None
    is_plain = counts and (index.start, index.step) == (0, 1)
    notices = []
    if not is_plain and (is_bare or counts):
        what = "Series" if is_bare else "DataFrame"
        notices.append(f"the index of the {what} is left out; reset_index() makes it a column")
    if is_bare:
        return pyarrow.table({BARE_NAME: _array(source, "Series")}), notices
    before = source.shape[1]
    if not counts:
        try:
            source = source.reset_index()
        except ValueError as error:
            raise ValueError(
                f"the index of the DataFrame: {error}; rename it (rename_axis), or "
                "reset_index(drop=True) leaves it out"
            ) from error
    names = [str(name) for name in source.columns]
    wanted.check(names, names)
    taken = [number for number, name in enumerate(names) if wanted.enters(name)]
    arrays = [_array(source.iloc[:, number], f"column {names[number]!r}") for number in taken]
    levels = ", ".join(repr(name) for name in names[: len(names) - before] if wanted.enters(name))
    if levels:
        notices.append(
            f"the index of the DataFrame is packed as {levels}; reset_index(drop=True) or --fields "
            "(fields=) leaves it out"
        )
    return pyarrow.Table.from_arrays(arrays, [names[number] for number in taken]), notices


def _array(series: Any, where: str) -> Any:
    """Converts a pandas column; NaN is a value in columns of floats and missing in others."""
    pyarrow = library("pyarrow", "parquet")
    if str(series.dtype).startswith(("period", "interval")):  # pyarrow would drop the unit
        raise TypeError(
            f"{where} ({series.dtype}) cannot be packed; convert it to numbers or times"
        )
    try:
        if isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiub":
            return pyarrow.array(np.ascontiguousarray(series.to_numpy()))
        return pyarrow.array(series, from_pandas=True)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{where} ({series.dtype}) cannot be packed: {error}") from error
