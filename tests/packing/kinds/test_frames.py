"""Tables in memory are packed as the tables that they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import refused, samples_of

import fastload

pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")


def packed(source: Any, out: Path, **options: Any) -> tuple[list[Any], list[str], tuple[str, ...]]:
    report = fastload.pack(source, out, overwrite=True, **options)
    return samples_of(out), [str(field) for field in report.fields], report.notices


def test_tables_of_pyarrow(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2, 3], "t": ["a", "b", "c"], "v": [[1.5], [], [2.5, 3.5]]})
    want = [{"n": n, "t": t, "v": v} for n, t, v in zip(*table.to_pydict().values(), strict=True)]
    for source in (table, pa.concat_tables([table[:1], table[1:]]), table.to_batches()[0]):
        rows, fields, _ = packed(source, tmp_path / "out", shard_size=16)
        assert rows == want
        assert fields == ["int64 []", "uint8 [-1] (utf8)", "float64 [-1]"]
    rows, _, _ = packed(table, tmp_path / "out", shuffle=1, fields=["n"], cast={"n": "int8"})
    assert sorted(row["n"] for row in rows) == [1, 2, 3]
    for column in (pa.array([1, 2]), pa.chunked_array([[1], [2]])):
        assert packed(column, tmp_path / "out")[0] == [1, 2]
    assert "sample 1: field 'x'" in refused(pa.table({"x": [1, None]}), tmp_path / "no")
    assert "two columns have the same name" in refused(
        pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), tmp_path / "no"
    )


def test_frames_of_pandas(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    out = tmp_path / "out"
    frame = pd.DataFrame(
        {
            "n": np.arange(3, dtype=np.int16),
            "f": np.array([1.0, np.nan, 2.0], np.float32),
            "t": ["a", "b", "c"],
            "c": pd.Categorical(["u", "v", "u"]),
            "v": [np.ones(2), np.ones(1), np.ones(3)],
            7: [True, False, True],
        }
    )
    rows, fields, notices = packed(frame, out)
    text = "uint8 [-1] (utf8)"
    assert fields == ["int16 []", "float32 []", text, text, "float64 [-1]", "bool []"]
    assert np.isnan(rows[1]["f"])
    assert [(row["t"], row["c"], row["7"]) for row in rows[:2]] == [("a", "u", 1), ("b", "v", 0)]
    assert notices == ()
    assert list(packed(frame[1:], out)[0][0]) == list(rows[0])  # the index still counts rows
    assert "index of the DataFrame is left out" in packed(frame[1:], out)[2][0]
    assert packed(frame[:2], out)[2] == ()
    assert "index of the Series is left out" in packed(frame["n"][::2], out)[2][0]
    rows, _, notices = packed(frame.set_index("t"), out)
    assert [row["t"] for row in rows] == ["a", "b", "c"]
    assert "'t'" in notices[0]
    shuffled = frame[["n"]].iloc[[2, 0, 1]]
    assert packed(shuffled, out)[0] == [{"index": n, "n": n} for n in (2, 0, 1)]
    assert packed(shuffled, out, fields=["n"])[0] == [{"n": n} for n in (2, 0, 1)]


def test_series_are_bare_values_or_columns(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    out, frame = tmp_path / "out", pd.DataFrame({"n": [3, 4], "t": ["a", "b"]})
    assert packed(frame["n"], out)[0] == [3, 4]
    assert packed(frame["t"], out)[0] == ["a", "b"]
    assert packed({"x": frame["n"], "y": frame["t"]}, out)[0] == [
        {"x": 3, "y": "a"},
        {"x": 4, "y": "b"},
    ]
    assert "is left out" in packed(frame.set_index("t")["n"], out)[2][0]


def test_what_a_frame_holds_is_refused_by_column(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    for values, message in (
        ([1, "a"], "column 'x' (object)"),
        ([1j, 2], "column 'x' (complex128)"),
        ([2**70, 1], "column 'x' (object)"),
        (pd.period_range("2024", periods=2, freq="D"), "column 'x' (period[D])"),
        (["a", None], "sample 1: field 'x'"),
        (pd.array([1, None], "Int64"), "sample 1: field 'x'"),
    ):
        frame = pd.DataFrame({"x": values, "y": [1, 2]})
        assert message in refused(frame, tmp_path / "no")
        assert packed(frame, tmp_path / "out", fields=["y"])[0] == [{"y": 1}, {"y": 2}]
    clash = pd.DataFrame({"x": [1]}, index=pd.Index([5], name="x"))
    assert "the index of the DataFrame: cannot insert x" in refused(clash, tmp_path / "no")
    assert "no columns" in refused(pd.DataFrame(), tmp_path / "no")
    assert "there is no field 'z'; the fields are x" in refused(
        pd.DataFrame({"x": [1]}), tmp_path / "no", fields=["z"]
    )


def test_frames_are_appended_and_added(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    out, frame = tmp_path / "out", pd.DataFrame({"n": [3, 4], "t": ["a", "b"]})
    fastload.pack(frame, out)
    fastload.append(frame, out)
    fastload.add_column(out, pd.DataFrame({"m": range(4)}))
    assert samples_of(out)[2:] == [{"n": 3, "t": "a", "m": 2}, {"n": 4, "t": "b", "m": 3}]


def test_an_index_in_parquet_files_has_the_name_of_reset_index(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    path, out = tmp_path / "a.parquet", tmp_path / "out"
    pq.write_table(pa.table({"x": [1, 2], "__index_level_0__": [5, 7]}), path)
    rows, _, notices = packed(path, out)
    assert rows == [{"x": 1, "index": 5}, {"x": 2, "index": 7}]
    assert "'__index_level_0__'" in notices[0]
    assert packed(path, out, fields=["x"])[0] == [{"x": 1}, {"x": 2}]
    assert packed(path, out, fields=["index"])[0] == [{"index": 5}, {"index": 7}]
    names = ["index", "__index_level_0__", "__index_level_1__"]
    pq.write_table(pa.table([pa.array([n]) for n in range(3)], names=names), path)
    assert packed(path, out)[0] == [{"index": 0, "level_0": 1, "level_1": 2}]


def test_names_that_the_format_keeps_are_refused_with_file_and_way_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"__key__": 1, "x": 2}\n')
    message = refused(path, tmp_path / "no")
    assert "a.jsonl: field '__key__'" in message
    assert "--fields" in message
    assert "rename" in message
    assert packed(path, tmp_path / "out", fields=["x"])[0] == [{"x": 2}]


def test_frames_of_polars(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"n": [1, 2], "t": ["a", "b"]})
    assert packed(frame, tmp_path / "out")[0] == [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}]
    assert packed(frame["n"], tmp_path / "out")[0] == [1, 2]
