"""`fastload.pack` of folders whose names hold columns, compared with pyarrow.dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.parquet
import pytest
from packing import put, refused, samples_of

import fastload

WRITERS = {
    "parquet": pa.parquet.write_table,
    "feather": pa.feather.write_feather,
    "csv": pa.csv.write_csv,
}


def write(folder: Path, suffix: str, rows: int = 3) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = 10 * sum(folder.name.encode())
    table = pa.table({"v": range(first, first + rows), "w": ["é"] * rows})
    WRITERS[suffix](table, str(folder / f"part.{suffix}"))


def expected(folder: Path, suffix: str) -> list[dict[str, Any]]:
    found = ds.dataset(folder, format=suffix, partitioning="hive").to_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize(
    "names",
    [
        ["cls=0", "cls=1"],
        ["cls=-5", "cls=007"],
        ["cls=0", "cls=2147483648"],
        ["cls=a", "cls=b"],
        ["cls=1.5", "cls=2"],
        ["y=2024/m=1", "y=2024/m=2", "y=2025/m=12"],
        ["a%20b=x%3Dy", "a%20b=%C3%A9=z"],
        ["plain/cls=0", "cls=1/plain"],
    ],
)
def test_partition_columns_are_those_of_pyarrow(
    tmp_path: Path, suffix: str, names: list[str]
) -> None:
    for name in names:
        write(tmp_path / "in" / name, suffix)
    want = expected(tmp_path / "in", suffix)
    for options in ({}, {"shuffle": 2, "shard_size": 64}):
        fastload.pack(tmp_path / "in", tmp_path / "out", overwrite=True, workers=1, **options)
        found = samples_of(tmp_path / "out")
        assert sorted(found, key=lambda row: row["v"]) == sorted(want, key=lambda row: row["v"])
    types = {field.name: field.dtype for field in fastload.open(tmp_path / "out").fields}
    schema = ds.dataset(tmp_path / "in", format=suffix, partitioning="hive").schema
    assert list(types) == schema.names
    for of in schema:
        assert (types[of.name] == "int32") == (of.type == pa.int32())


@pytest.mark.parametrize("suffix", WRITERS)
def test_fields_choose_partition_columns_with_and_without_others(
    tmp_path: Path, suffix: str
) -> None:
    for name in ("cls=0", "cls=1"):
        write(tmp_path / "in" / name, suffix)
    for fields in (["cls"], ["v"], ["v", "cls"]):
        fastload.pack(tmp_path / "in", tmp_path / "out", fields=fields, overwrite=True)
        want = [{name: row[name] for name in fields} for row in expected(tmp_path / "in", suffix)]
        assert samples_of(tmp_path / "out") == want
    assert "no field 'x'" in refused(tmp_path / "in", tmp_path / "no", fields=["x"])


def test_a_column_in_the_files_and_in_the_names_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in/v=1", "parquet")
    text = refused(tmp_path / "in", tmp_path / "out")
    assert "the column 'v' is in the file and in the name of its folder" in text
    fastload.pack(tmp_path / "in", tmp_path / "out", fields=["w"])


def test_a_missing_value_is_no_value(tmp_path: Path) -> None:
    write(tmp_path / "in/cls=0", "parquet")
    write(tmp_path / "in/cls=__HIVE_DEFAULT_PARTITION__", "parquet")
    assert "cls" in refused(tmp_path / "in", tmp_path / "out")


def test_kinds_without_columns_say_that_they_do_not_read_the_names(tmp_path: Path) -> None:
    put(tmp_path / "in/cls=0/a.jsonl", b'{"x": 1}\n')
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert report.notices == (
        "the names of folders such as cls=... are not read as columns: jsonl has none",
    )


def test_a_column_has_one_value_and_the_dtype_that_is_given(tmp_path: Path) -> None:
    for suffix in WRITERS:
        write(tmp_path / f"{suffix}/y=1/y=2", suffix)
        assert "two values of 'y'" in refused(tmp_path / suffix, tmp_path / "no")
        write(tmp_path / f"ok.{suffix}/y=1", suffix)
        out = tmp_path / f"out.{suffix}"
        fastload.pack(tmp_path / f"ok.{suffix}", out, dtypes={"y": "float32", "v": "int32"})
        fields = {field.name: field.dtype for field in fastload.open(out).fields}
        assert (fields["y"], fields["v"]) == ("float32", "int32")
        assert "'z'" in refused(tmp_path / f"ok.{suffix}", tmp_path / "no", dtypes={"z": "int8"})
