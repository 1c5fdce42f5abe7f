"""Reports about tables and texts: their values, their names, and what is read of them."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import numpy as np
import pytest
from prelude import packed, put, tar

import fastload
from fastload.cli import main

pytest.importorskip("pyarrow")


def fields() -> list[str]:
    return [str(field) for field in fastload.open("out").fields]


def refused(source: Any, **options: Any) -> str:
    """The message of a refusal that leaves no folder behind."""
    with pytest.raises((ValueError, TypeError)) as raised:
        fastload.pack(source, "out", **options)
    assert not os.path.exists("out")
    return str(raised.value)


def test_samples_that_hold_nothing_are_refused_with_their_line() -> None:
    put("e.jsonl", b"{}\n{}\n")
    assert "e.jsonl: line 1, at byte 0: sample 0: the sample is empty" in refused("e.jsonl")


def test_times_of_csv_files_keep_their_unit() -> None:  # pandas#56631, arrow#45814
    put("c.csv", b"t,u\n2024-01-02T03:04:05Z,2024-01-02T05:04:05+02:00\n")
    assert packed("c.csv")[0] == {"t": 1704164645, "u": 1704164645}
    assert fields() == ["int64 [] (datetime64[s])"] * 2
    put("c.csv", b"t\n12:30\n13:45\n")
    assert [row["t"] for row in packed("c.csv")] == [45000, 49500]
    assert fields() == ["int64 [] (timedelta64[s])"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\n9007199254740993\n2.5\n", "9007199254740993 is an integer that float64 cannot"),
        (b"a\n1e400\n", "1e400 is too large for float64"),
        (b"a\n1\n1e-400\n", "line 3, at byte 4: column 'a': 1e-400 is too small"),
        (b"a\n1\n9223372036854775808\n", "9223372036854775808 is an integer that int64 does not"),
    ],
)
def test_numbers_of_csv_files_do_not_change(content: bytes, message: str) -> None:
    put("c.csv", content)
    assert message in refused("c.csv")


def test_fields_are_read_though_others_cannot_be() -> None:  # h5netcdf#204
    h5py = pytest.importorskip("h5py")
    with h5py.File("s.h5", "w") as file:
        file["x"], file["version"] = np.arange(3), 1
    assert [row["x"] for row in packed("s.h5", fields=["x"])] == [0, 1, 2]


def test_text_that_is_not_utf8_is_refused_and_read_with_its_encoding() -> None:
    put("c.csv", "caf\xe9,x\n1,2\n".encode("latin-1"))
    assert "c.csv: line 1, at byte 3: not UTF-8" in refused("c.csv")
    assert "--encoding" in refused("c.csv")
    assert packed("c.csv", encoding="latin-1") == [{"caf\xe9": 1, "x": 2}]


def test_lists_that_are_always_empty_need_their_type() -> None:
    put("j.jsonl", b'{"x":[],"y":1}\n{"x":[],"y":2}\n')
    message = refused("j.jsonl")
    assert "dtype is unknown" in message
    assert "--dtypes x=DTYPE" in message
    assert "--ragged x" in message
    assert [len(row["x"]) for row in packed("j.jsonl", dtypes={"x": "int16"})] == [0, 0]
    assert fields() == ["int16 [-1]", "int64 []"]
    assert [len(row["x"]) for row in packed("j.jsonl", ragged=["x"])] == [0, 0]


def test_a_quote_amid_a_field_is_a_character() -> None:
    put("c.csv", b'id,t\n1,12" vinyl\n2,x\n')
    assert packed("c.csv") == [{"id": 1, "t": '12" vinyl'}, {"id": 2, "t": "x"}]
    put("c.csv", b'id,t\n1,12" vinyl\n2,"a\nb"\n3\n')
    with pytest.raises(fastload.FormatError, match=r"c.csv: line 5, at byte 25"):
        fastload.pack("c.csv", "two")


def test_the_index_that_pandas_writes_has_the_name_that_pandas_reads() -> None:
    put("c.csv", b",x\n0,1\n1,2\n")
    assert packed("c.csv") == [{"Unnamed: 0": 0, "x": 1}, {"Unnamed: 0": 1, "x": 2}]
    assert packed("c.csv", fields=["x"]) == [{"x": 1}, {"x": 2}]


def test_zip_codes_keep_their_zeros() -> None:
    put("c.csv", b"zip,x\n02139,1\n10001,2\n")
    assert [row["zip"] for row in packed("c.csv")] == ["02139", "10001"]
    assert [row["zip"] for row in packed("c.csv", dtypes={"zip": "int64"})] == [2139, 10001]


def test_members_that_are_not_asked_for_are_not_decoded() -> None:
    tar("t.tar", [("0.cls", b"1"), ("0.png", b"no image")])
    assert packed("t.tar", fields=["cls"]) == [{"cls": 1}]


@pytest.mark.parametrize("command", ["info", "head", "pack"])
def test_commands_print_in_an_ascii_locale(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put("c.csv", "caf\xe9\nna\xefve\n".encode())
    packed("c.csv")
    printed = io.BytesIO()
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(printed, "ascii", write_through=True)
        monkeypatch.setattr(sys, name, stream)
    words = ["c.csv", "new"] if command == "pack" else ["out"]
    assert main([command, *words]) == 0
    assert rb"caf\xe9" in printed.getvalue()


def test_guessed_dtypes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    put("c.csv", b"zip,n,x\n02139,1,2.5\n")
    report = fastload.pack("c.csv", "out", dtypes={"n": "int16"})
    assert "dtypes guessed from the text: zip text, x float64; --dtypes" in report.notices[-1]
    assert main(["info", "out"]) == 0
    shown = capsys.readouterr().out
    assert "utf8 (guessed)" in shown
    assert "float64 (guessed)" in shown
    assert "int16 (guessed)" not in shown


def test_files_and_appends_may_differ_in_the_order_of_columns_and_their_layouts() -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    os.mkdir("in")
    inner = pa.struct([("p", pa.int64()), ("q", pa.int64())])
    pq.write_table(
        pa.table({"a": [1], "b": ["x"], "s": pa.array([{"p": 1, "q": 2}], inner)}), "in/0.parquet"
    )
    schema = pa.schema(
        [
            ("s", pa.struct([("q", pa.int64()), ("p", pa.int64())])),
            pa.field("b", pa.dictionary(pa.int8(), pa.large_string())),
            pa.field("a", pa.int64(), nullable=False),
        ]
    )
    rows = [{"s": {"q": 4, "p": 3}, "b": "y", "a": 2}]
    pq.write_table(pa.Table.from_pylist(rows, schema), "in/1.parquet")
    want = [{"a": 1, "b": "x", "s": {"p": 1, "q": 2}}, {"a": 2, "b": "y", "s": {"p": 3, "q": 4}}]
    assert packed("in") == want
    fastload.pack("in/0.parquet", "grown")
    fastload.append("in/1.parquet", "grown")
    assert [fastload.open("grown")[row] for row in range(2)] == want
    put("new.csv", b"b,a\nz,9\n")
    fastload.pack({"a": np.arange(2), "b": ["u", "v"]}, "plain")
    fastload.append("new.csv", "plain")
    assert fastload.open("plain")[2] == {"a": 9, "b": "z"}
    pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}), "in/2.parquet")
    assert "'a' is int64 in the first and int32 in the second" in refused_in("in", fields=["a"])
    assert "0.parquet has 's'" in refused_in("in", fields=["b", "s"])


def refused_in(source: str, **options: Any) -> str:
    with pytest.raises(ValueError, match="differ in their columns") as raised:
        fastload.pack(source, "no", **options)
    return str(raised.value)


def test_a_frame_is_packed_as_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    assert packed(pandas.DataFrame({"x": [1, 2], "t": ["a", "b"]}))[1] == {"x": 2, "t": "b"}


def test_commands_that_install_packages_name_these(monkeypatch: pytest.MonkeyPatch) -> None:
    put("x.jsonl", b'{"text": "a"}\n')
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match="pip install tokenizers"):
        fastload.pack("x.jsonl", "out", tokenizer="x.jsonl")
