"""Tables in memory: DataFrames and Series of pandas and polars, and tables of pyarrow."""

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
_SAMPLED_PLACES, _SAMPLED_ROWS = 8, 8


@dataclass(frozen=True)
class TablePart(Part):
    """Rows of a table of pyarrow; `rows` are their numbers."""

    table: Any
    columns: tuple[ArrowField, ...]
    rows: Sequence[int]

    def read(self, advance: Advance) -> Rows:
        """Copies the rows.

        Raises:
            ValueError: a value is not what the column's other values are.
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
    """A table of pyarrow in memory; what a ragged column takes in a sample is in `means`."""

    table: Any
    columns: tuple[ArrowField, ...]
    means: tuple[int, ...]

    def part(self, start: int, stop: int) -> TablePart:
        """The rows [start, stop)."""
        return TablePart(self.table.slice(start, stop - start), self.columns, range(start, stop))

    def take(self, indices: Int64Array) -> TablePart:
        """The rows at `indices`."""
        pyarrow = library("pyarrow", "parquet")
        return TablePart(self.table.take(pyarrow.array(indices)), self.columns, indices.tolist())

    def pick(self, columns: Sequence[int]) -> TableSource:
        """The same with these columns."""
        read = tuple(self.columns[number] for number in columns)
        means = tuple(self.means[number] for number in columns)
        fields = tuple(of.field for of in read)
        return replace(self, fields=fields, columns=read, means=means, ragged_bytes=sum(means))

    def inputs(self) -> Any:
        """Nothing: memory has no name."""
        return None


def is_frame(source: Any) -> bool:
    """Whether it is a table or a column of a library of tables, which need not be imported."""
    return bool(_names(source) & (_TABLES | _SERIES))


def is_series(source: Any) -> bool:
    """Whether it is a column of a library of tables."""
    return bool(_names(source) & _SERIES)


def open_frame(source: Any, wanted: Wanted = ALL) -> TableSource:
    """The rows of a table; samples are dicts of its columns, or bare values of a Series.

    An index of pandas becomes columns, unless it only counts the rows.

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
        raise TypeError(f"two columns have one name: {table.column_names}")
    step = -(-table.num_rows // _SAMPLED_PLACES) or 1
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
            place = start + int(np.argmax(missing.samples))
            seen.setdefault(found.fields[number].field.name, f"sample {place}")
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
    """The packages and names of the classes that it is of."""
    return {(of.__module__.partition(".")[0], of.__name__) for of in type(source).__mro__}


def _read(columns: Sequence[ArrowField], batch: Any, rows: Sequence[int]) -> Rows:
    try:
        read = [of.read(batch) for of in columns]
    except ColumnError as error:
        raise ValueError(f"sample {rows[error.row]}: {error}") from None
    missing = {number: of for number, (_, of) in enumerate(read) if of is not None}
    return Rows([column for column, _ in read], missing=missing)


def _of_arrow(source: Any, is_bare: bool) -> Any:
    """The table of pyarrow that a table or column of polars or pyarrow is."""
    pyarrow = library("pyarrow", "parquet")
    made = source.to_arrow() if hasattr(source, "to_arrow") else source
    if is_bare:
        return pyarrow.table({BARE_NAME: made})
    return pyarrow.Table.from_batches([made]) if isinstance(made, pyarrow.RecordBatch) else made


def _of_pandas(source: Any, is_bare: bool, wanted: Wanted) -> tuple[Any, list[str]]:
    """The wanted columns in a table of pyarrow, and notices about the index."""
    pyarrow = library("pyarrow", "parquet")
    index = source.index
    counts = type(index).__name__ == "RangeIndex" and index.name is None
    is_plain = counts and (index.start, index.step) == (0, 1)
    notices = []
    if not is_plain and (is_bare or counts):
        what = "Series" if is_bare else "DataFrame"
        notices.append(f"the index of the {what} is left out; reset_index() makes a column of it")
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
    """A column of pandas; NaN in a column of floats is a value, elsewhere it is missing."""
    pyarrow = library("pyarrow", "parquet")
    if str(series.dtype).startswith(("period", "interval")):  # pyarrow would give bare numbers
        raise TypeError(f"{where} ({series.dtype}) cannot be packed; make numbers or times of it")
    try:
        if isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiub":
            return pyarrow.array(np.ascontiguousarray(series.to_numpy()))
        return pyarrow.array(series, from_pandas=True)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{where} ({series.dtype}) cannot be packed: {error}") from error
