"""`fastload.pack` of Parquet files, compared with what pyarrow reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_tables import ROWS, plain_rows, table
from packing import damaged, refused, same_bytes, samples_of

import fastload
from fastload import FormatError, _core
from fastload.formats import packed


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    pq.write_table(table(), path, row_group_size=65, write_page_checksum=True, data_page_size=512)
    return path


@pytest.mark.parametrize("options", [{}, {"shard_size": 9000, "workers": 1}])
def test_every_type_comes_back_in_order(
    file: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    report = fastload.pack(file, tmp_path / "out", **options)
    assert report.rows == ROWS
    assert samples_of(tmp_path / "out") == plain_rows(pq.read_table(file))
    fields = {field.name: field for field in fastload.open(tmp_path / "out").fields}
    assert {name: str(fields[name]) for name in ("f2", "?", "pair", "matrix", "pairs")} == {
        "f2": "float16 []",
        "?": "bool []",
        "pair": "int16 [2]",
        "matrix": "int64 [3, 2]",
        "pairs": "int64 [-1, 2]",
    }
    assert fields["struct.b.c"].logical == "utf8"


def test_shards_do_not_depend_on_row_groups_or_workers(file: Path, tmp_path: Path) -> None:
    pq.write_table(pq.read_table(file), tmp_path / "a.parquet", row_group_size=ROWS)
    fastload.pack(file, tmp_path / "1", workers=1, shard_size=9000)
    fastload.pack(file, tmp_path / "2", workers=2, shard_size=9000)
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    fastload.pack(tmp_path / "a.parquet", tmp_path / "3", workers=1, shard_size=9000)
    for shard in (tmp_path / "1").glob("shard-*"):  # all but the id, which is of the input, too
        other = tmp_path / "3" / shard.name
        assert samples_of(shard) == samples_of(other)


def test_shuffled_rows_are_permuted(file: Path, tmp_path: Path) -> None:
    fastload.pack(file, tmp_path / "out", shuffle=3, shard_size=9000, workers=1)
    want = plain_rows(pq.read_table(file))
    order = _core.Permutation(ROWS, 3, 0).indices(0, ROWS)
    assert samples_of(tmp_path / "out") == [want[row] for row in order]


def test_times_and_folders(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    units = {"ms": pa.timestamp("ms"), "us": pa.timestamp("us", "UTC"), "d": pa.date32()}
    columns = {name: pa.array([0, 1, -5], kind) for name, kind in units.items()}
    columns["took"] = pa.array([1, 2, 3], pa.duration("ns"))
    for name in ("x10", "x9"):
        pq.write_table(pa.table({**columns, "of": [name] * 3}), tmp_path / f"in/{name}.parquet")
    (tmp_path / "in/notes.txt").write_text("a stranger")
    fastload.pack(tmp_path / "in", tmp_path / "out")
    dataset = fastload.open(tmp_path / "out")
    assert [field.logical for field in dataset.fields] == [
        "datetime64[ms]", "datetime64[us]", "datetime64[D]", "timedelta64[ns]", "utf8",
    ]  # fmt: skip
    assert [dataset[row]["of"] for row in range(6)] == ["x9"] * 3 + ["x10"] * 3
    assert [int(dataset[row]["d"]) for row in range(3)] == [0, 1, -5]


def test_lists_of_one_length_by_chance(tmp_path: Path) -> None:
    lists = [[1, 2]] * 2000 + [[3]]
    pq.write_table(pa.table({"x": lists}), tmp_path / "a.parquet")
    damaged(tmp_path / "a.parquet", tmp_path / "out", "a.parquet: row 2000", "'x'", "--ragged")
    fastload.pack(tmp_path / "a.parquet", tmp_path / "out", ragged=["x"], overwrite=True)
    assert [sample["x"] for sample in samples_of(tmp_path / "out")] == lists
    assert "no field 'y'" in refused(tmp_path / "a.parquet", tmp_path / "no", ragged=["y"])


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "a.parquet", tmp_path / "out"
    pq.write_table(pa.table({"x": pa.array([1, None, 3])}), path)
    damaged(path, out, "a.parquet: row 1", "'x'", "missing")
    pq.write_table(pa.table({"x": pa.array([[1], [2, None]])}), path)
    damaged(path, out, "a.parquet: row 1", "'x'", "missing")
    pq.write_table(pa.table({"x": pa.array([[[1], [2, 3]]])}), path)
    assert "lists in lists of 1 to 2" in refused(path, out, overwrite=True)
    for odd in (pa.array([1], pa.decimal128(5, 2)), pa.nulls(1), pa.array([["a"]])):
        pq.write_table(pa.table({"x": odd}), path)
        assert "field 'x'" in refused(path, out, overwrite=True)


def test_damage_ends_in_one_error(file: Path, tmp_path: Path) -> None:
    content, path, out = bytearray(file.read_bytes()), tmp_path / "a.parquet", tmp_path / "out"
    for size in (0, 3, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        damaged(path, out, "a.parquet: no Parquet file, or a damaged one")
    fastload.pack(file, tmp_path / "good")
    found = []
    for place in range(4, pq.read_metadata(file).row_group(0).column(0).total_compressed_size, 9):
        content[place] ^= 0x40
        path.write_bytes(content)
        content[place] ^= 0x40
        try:  # what describes a page has no checksum, and may be nothing that is needed
            fastload.pack(path, out, overwrite=True, workers=1)
        except FormatError as error:
            found.append(str(error))
        else:
            assert samples_of(out) == samples_of(tmp_path / "good")
    assert len(found) > 5
    assert all("a.parquet: row group 0 (rows 0 to 64) is damaged" in text for text in found)
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    damaged(path, tmp_path / "new", "a.parquet")


def test_files_must_agree(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "in/1.parquet")
    pq.write_table(pa.table({"x": [1], "y": [2.5]}), tmp_path / "in/2.parquet")
    damaged(tmp_path / "in", tmp_path / "out", "1.parquet", "2.parquet", "differ", "y")


def test_no_rows_make_a_complete_dataset(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.int32())}), tmp_path / "a.parquet")
    fastload.pack(tmp_path / "a.parquet", tmp_path / "out")
    assert len(fastload.open(tmp_path / "out")) == 0
    assert packed.read_manifest(tmp_path / "out").source == {"kind": "parquet"}
