"""`fastload.pack` of CSV and TSV files, compared with Python's own reader."""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from packing import damaged, refused, samples_of

import fastload

ROWS = 300
csv_source = importlib.import_module("fastload.packing.kinds.csv")
csv_rows = importlib.import_module("fastload.packing.kinds.csv_rows")
csv_types = importlib.import_module("fastload.packing.kinds.csv_types")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", 700)
    monkeypatch.setattr(csv_source, "_INFERRED_BYTES", 1)


def rows() -> list[dict[str, Any]]:
    texts = ["plain", 'a "quoted"\nline,', "", "é", "1"]
    return [{"n": n, "x": n / 4, "t": texts[n % 5], "b": n % 2 == 0} for n in range(ROWS)]


def write(path: Path, delimiter: str = ",", header: bool = True) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        if header:
            writer.writerow(["n", "x", "t", "b"])
        for row in rows():
            writer.writerow([row["n"], row["x"], row["t"], str(row["b"]).lower()])


@pytest.mark.parametrize(
    ("name", "delimiter", "options"),
    [
        ("a.csv", ",", {}),
        ("a.tsv", "\t", {}),
        ("a.csv", ";", {"delimiter": ";"}),
        ("a.txt", "\t", {"delimiter": "tab", "kind": "csv"}),
        ("a.csv", ",", {"columns": ["n", "x", "t", "b"]}),
    ],
)
def test_rows_come_back_in_order(
    tmp_path: Path, name: str, delimiter: str, options: dict[str, Any]
) -> None:
    write(tmp_path / name, delimiter, header="columns" not in options)
    fastload.pack(tmp_path / name, tmp_path / "out", workers=1, shard_size=2000, **options)
    assert samples_of(tmp_path / "out") == rows()


def test_files_may_order_their_columns_differently(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.csv").write_text("a,b\n" + "1,x\n" * 300)
    (tmp_path / "in/2.csv").write_text("b,a\n" + "y,2\n" * 300)
    for workers in (1, 2):
        fastload.pack(tmp_path / "in", tmp_path / f"{workers}", workers=workers, shard_size=2000)
        want = [{"a": 1, "b": "x"}] * 300 + [{"a": 2, "b": "y"}] * 300
        assert samples_of(tmp_path / f"{workers}") == want
    (tmp_path / "in/3.csv").write_text("b,c,a\nz,3,bad\n")
    text = refused(tmp_path / "in", tmp_path / "out")
    assert text.endswith("3.csv has 'c'")
    text = refused(tmp_path / "in", tmp_path / "out", fields=["a"])
    assert "3.csv: line 2" in text
    assert "column 'a'" in text  # by the names of its own file
    fastload.pack(tmp_path / "in", tmp_path / "some", fields=["b"])
    assert [of["b"] for of in samples_of(tmp_path / "some")][-1] == "z"
    headless = {"columns": ["b", "a"], "fields": ["b"]}  # by position
    fastload.pack(tmp_path / "in/2.csv", tmp_path / "headless", **headless)
    assert samples_of(tmp_path / "headless")[0] == {"b": "b"}


def test_a_folder_and_odd_line_ends(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/2.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n1,x\r\n\r\n2,"y\r\n"\r\n')
    (tmp_path / "in/10.csv").write_bytes(b"a,b\n3,z")
    (tmp_path / "in/9.csv").write_bytes(b"a,b\n")
    (tmp_path / "in/11.csv").write_bytes(b"\r\n" * 400 + b"a,b\n\n4,w\n")
    (tmp_path / "in/12.csv").write_bytes(b"\n\n")
    fastload.pack(tmp_path / "in", tmp_path / "out")
    want = [{"a": 1, "b": "x"}, {"a": 2, "b": "y\r\n"}, {"a": 3, "b": "z"}, {"a": 4, "b": "w"}]
    assert samples_of(tmp_path / "out") == want


@pytest.mark.parametrize(
    ("early", "late", "want"),
    [
        ("1", "2.5", "float64 []"),
        ("0", "true", "bool []"),
        ("1", "n/a", "uint8 [-1] (utf8)"),
        ("2020-01-01", "2020-01-01 10:00:00", "int64 [] (datetime64[s])"),
        ("2020-01-01", "2.5", "uint8 [-1] (utf8)"),
    ],
)
def test_what_a_column_holds_follows_from_several_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: str, late: str, want: str
) -> None:
    monkeypatch.setattr(csv_source, "_INFERRED_BYTES", 20_000)
    (tmp_path / "a.csv").write_text("a,b\n" + f"{early},1\n" * 900 + f"{late},1\n" * 300)
    own, tried = csv_types._fits, []

    def noted(*arguments: Any) -> Any:
        tried.append(arguments[-1])
        return own(*arguments)

    monkeypatch.setattr(csv_types, "_fits", noted)
    fastload.pack(tmp_path / "a.csv", tmp_path / "out")
    assert len(tried) == 1  # not what a block has ruled out
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", 1 << 20)
    fastload.pack(tmp_path / "a.csv", tmp_path / "one")
    for out in ("out", "one"):
        assert str(fastload.open(tmp_path / out).fields[0]) == want
    assert samples_of(tmp_path / "out") == samples_of(tmp_path / "one")


def test_dtypes_are_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n" + "4,5,6\n" * 300 + "7,8.5,9\n")
    damaged(tmp_path / "a.csv", tmp_path / "out", "a.csv: line 303, at byte", "'b'", "8.5")
    dtypes = {"a": "int8", "b": "float32", "c": "text"}
    fastload.pack(tmp_path / "a.csv", tmp_path / "out", dtypes=dtypes)
    fields = fastload.open(tmp_path / "out").fields
    assert [str(field) for field in fields] == ["int8 []", "float32 []", "uint8 [-1] (utf8)"]
    assert samples_of(tmp_path / "out")[-1] == {"a": 7, "b": 8.5, "c": "9"}
    for bad in ({"d": "int8"}, {"a": "complex64"}, {"a": "nothing"}):
        assert refused(tmp_path / "a.csv", tmp_path / "no", dtypes=bad).startswith("ValueError")
    (tmp_path / "a.csv").write_text("a\n1\n300\n")
    damaged(tmp_path / "a.csv", tmp_path / "no", "line 3", "'a'", "300", dtypes={"a": "int8"})


@pytest.mark.parametrize(
    ("bad", "parts"),
    [
        ("1,2\n", ["Expected 3 columns, got 2"]),
        ("1,2,3,4\n", ["Expected 3 columns, got 4"]),
        ("x,2,3\n", ["'a'", "invalid value 'x'"]),
        (",2,3\n", ["'a'", "missing"]),
        ("99999999999999999999,2,3\n", ["'a'", "99999999999999999999"]),
    ],
)
@pytest.mark.parametrize("before", [0, 400])
def test_bad_lines_are_named(tmp_path: Path, bad: str, parts: list[str], before: int) -> None:
    if before == 0 and bad.startswith("x"):
        return  # a column of texts, as far as one can tell
    good = '1,2,"two\nlines"\n'
    (tmp_path / "a.csv").write_text("a,b,c\n" + good * (before + 1) + bad + good)
    line = f"a.csv: line {2 + 2 * (before + 1)}, at byte {6 + 16 * (before + 1)}"
    damaged(tmp_path / "a.csv", tmp_path / "out", line, *parts)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "out"
    path.write_bytes(b"")
    damaged(path, out, "a.csv: there is no line of column names")
    for start in (b"a,a\n", b"\xef\xbb\xbf\na,a\n", b"Unnamed: 1,\n"):
        path.write_bytes(start + b"1,2\n")
        damaged(path, out, "a.csv: line 1", "--columns")
    path.write_text('a,b\n1,"never\nclosed\n')
    damaged(path, out, "a.csv: line 2, at byte 4: a quote is never closed")
    path.write_bytes(b"a,b\r1,2\r3,4\r")
    damaged(path, out, "a.csv: its lines end in a carriage return alone")
    path.write_bytes(b"a" * 200_000)
    damaged(path, out, "a.csv: line 1: field larger than field limit")
    assert "one character" in refused(path, out, delimiter="ab")
    os.mkfifo(tmp_path / "pipe")
    damaged(tmp_path / "pipe", out, "pipe: a pipe where", kind="csv")


def test_a_stray_quote_does_not_hold_the_rest_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(csv_rows, "_MAX_ROW_BYTES", 1 << 20)
    own, looked_at = csv_rows.RowScanner.ends, []

    def counted(scanner: Any, content: bytes, **options: Any) -> Any:
        looked_at.append(len(content))
        return own(scanner, content, **options)

    monkeypatch.setattr(csv_rows.RowScanner, "ends", counted)
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,"5 disk\n' + "2,text\n" * 1_000_000)
    damaged(
        path, tmp_path / "out", "a.csv: line 2, at byte 4: a row of more than 1 MiB, or a quote"
    )
    assert sum(looked_at) <= (1 << 20) + (1 << 16)  # each byte once


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "cp037", "shift_jis"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_other_encodings(tmp_path: Path, encoding: str, ending: str) -> None:
    word = "\u65e5\u672c" if encoding == "shift_jis" else "caf\xe9"
    lines = [f'{n},"{word}\n{n}",{word}' for n in range(90)]
    text = "\n".join([f"n,{word},last", *lines]).encode(encoding)
    path, out = tmp_path / f"a.csv{ending}", tmp_path / "out"
    path.write_bytes(gzip.compress(text) if ending else text)
    if encoding != "cp037":
        damaged(path, out, "a.csv", "--encoding")
    want = [{"n": n, word: f"{word}\n{n}", "last": word} for n in range(90)]
    for options in ({}, {"shuffle": 3}):
        fastload.pack(path, out, overwrite=True, encoding=encoding, shard_size=500, **options)
        assert sorted(samples_of(out), key=lambda row: int(row["n"])) == want
    text += "\n1".encode(encoding).removeprefix(codecs.BOM_UTF16_LE)
    path.write_bytes(gzip.compress(text) if ending else text)
    damaged(path, tmp_path / "no", f"{path.name}: line 182, at byte", encoding=encoding)


def test_text_that_is_not_utf8_names_its_byte(tmp_path: Path) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "out"
    lines = "n,t,u\n" + "1,a,b\n" * 400
    path.write_bytes(lines.encode() + b"2,caf\xe9,b\n")
    damaged(path, out, "a.csv: line 402, at byte 2411: not UTF-8")
    damaged(path, out, "a.csv: line 402, at byte", "'t'", "not UTF-8", fields=["t"])
    fastload.pack(path, out, fields=["n", "u"])
    assert samples_of(out)[-1] == {"n": 2, "u": "b"}
    path.write_bytes(b"n,t\n1,caf\xe9\n")
    damaged(path, tmp_path / "no", "line 2, at byte", "not UTF-8", fields=["t"])
    damaged(path, tmp_path / "no", "not UTF-8", fields=["t"], dtypes={"t": "text"})


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("0.1", "float64"),
        ("5e-324", "float64"),
        ("12345678901234567890.5", "float64"),
        ("9007199254740992.0", "float64"),
        ("-0.0", "float64"),
        ("0.000e-400", "float64"),
        ("-9223372036854775808", "int64"),
        ("inf", "float64"),
        ("+5", "float64"),
    ],
)
def test_numbers_that_are_merely_rounded_are_as_python_reads_them(
    tmp_path: Path, text: str, dtype: str
) -> None:
    (tmp_path / "a.csv").write_text(f"a\n{text}\n{text}\n")
    fastload.pack(tmp_path / "a.csv", tmp_path / "out")
    dataset = fastload.open(tmp_path / "out")
    assert dataset.fields[0].dtype == dtype
    value = float(text) if dtype == "float64" else int(text)
    assert repr(dataset.column("a")[0].item()) == repr(value)


def test_numbers_that_text_does_not_become_are_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "out"
    late = "1.5,7\n" * 300  # the type is known from blocks before
    for bad in ("9007199254740993", "1e400", "-1e-400", "9007199254740993.0"):
        path.write_text(f"a,b\n{late}{bad},7\n")
        damaged(path, out, "a.csv: line 302, at byte", "'a'", bad)
        damaged(path, out, "a.csv: line 302", bad, dtypes={"a": "float64"})
    path.write_text(f"a,b\n{late}2,007\n")
    damaged(path, out, "a.csv: line 302", "'b'", "007 begins with a zero", "--dtypes b=text")
    fastload.pack(path, out, dtypes={"b": "int64"})
    assert samples_of(out)[-1] == {"a": 2, "b": 7}
    fastload.pack(path, out, overwrite=True, fields=["a"])


def test_columns_without_values_need_their_type(tmp_path: Path) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "out"
    path.write_text("a,b c\n1,\n2,\n")
    damaged(path, out, "a.csv: column 'b c' holds no value", "--dtypes 'b c=DTYPE'", "--fields")
    fastload.pack(path, out, dtypes={"b c": "text"})
    assert samples_of(out) == [{"a": 1, "b c": ""}, {"a": 2, "b c": ""}]
    fastload.pack(path, out, overwrite=True, fields=["a"])
    assert samples_of(out) == [{"a": 1}, {"a": 2}]


def test_names_of_columns_are_those_of_pandas(tmp_path: Path) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "out"
    path.write_text(',x,,"y ""z"""\n0,1,2,3\n')
    fastload.pack(path, out)
    names = ["Unnamed: 0", "x", "Unnamed: 2", 'y "z"']
    assert list(samples_of(out)[0]) == names
    pandas = pytest.importorskip("pandas")
    assert list(pandas.read_csv(path).columns) == names
    frame = pandas.DataFrame({"t": ["a", "b"], "n": [1, 2]}, index=[5, 7])
    frame.to_csv(path)
    fastload.pack(path, out, overwrite=True)
    assert samples_of(out) == pandas.read_csv(path).to_dict("records")


@pytest.mark.parametrize("value", ["02139", " 07", "-007", "0x1F", '"007"'])
def test_numbers_with_leading_zeros_are_text(tmp_path: Path, value: str) -> None:
    (tmp_path / "a.csv").write_text(f"a,b\n1,0\n{value},0.5\n")
    fastload.pack(tmp_path / "a.csv", tmp_path / "out")
    assert samples_of(tmp_path / "out")[1] == {"a": value.strip('"'), "b": 0.5}
