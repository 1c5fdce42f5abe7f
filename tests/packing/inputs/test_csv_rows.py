"""Rows of CSV files are where pyarrow, pandas and Python's csv see them, whatever the pieces."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload.errors import FormatError
from fastload.packing.kinds import csv_rows
from fastload.packing.kinds.csv_rows import CsvText, RowScanner

pytest.importorskip("pyarrow")

TEXTS = st.text('"",\n\r;xé', max_size=24)


def rows_of(text: str, delimiter: str = ",") -> list[list[str]]:
    """The rows that are not blank, as Python's csv reads them."""
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]


def cut(content: bytes, ends: list[int]) -> list[str]:
    """The pieces that end behind the newlines."""
    places = [0, *(end + 1 for end in ends), len(content)]
    return [content[a:b].decode() for a, b in itertools.pairwise(places)]


@settings(max_examples=400, derandomize=True, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 30), max_size=4), st.sampled_from(",;"))
def test_rows_end_where_csv_ends_them(text: str, cuts: list[int], delimiter: str) -> None:
    content = text.encode()
    scanner, ends, start = RowScanner(delimiter), [], 0
    for stop in [*sorted(min(place, len(content)) for place in cuts), len(content)]:
        ends += [start + end for end in scanner.ends(content[start:stop]).tolist()]
        start = stop
    whole = RowScanner(delimiter)
    assert whole.ends(content).tolist() == ends
    assert whole.is_open == scanner.is_open
    parts = cut(content, ends)
    found = [row for part in parts for row in rows_of(part, delimiter)]
    assert found == rows_of(text, delimiter)
    returned = cut(content, RowScanner(delimiter).ends(content, returns=True).tolist())
    assert all(len(rows_of(part, delimiter)) <= 1 for part in returned)
    assert [row for part in returned for row in rows_of(part, delimiter)] == found
    assert all("\n" not in part[:-1] or '"' in part for part in parts)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_quotes_amid_fields_in_long_texts(piece: int) -> None:
    lines = ['12" vinyl,"a ""b"" c\nd",5" disk', 'x"y","",""', '"""",",\n",\'"\'']
    text = "\n".join(lines * 40) + "\n"
    content = text.encode()
    scanner, ends = RowScanner(","), []
    for start in range(0, len(content), piece):
        ends += [start + end for end in scanner.ends(content[start : start + piece]).tolist()]
    assert [row for part in cut(content, ends) for row in rows_of(part)] == rows_of(text)
    assert len(ends) == 3 * 40


def test_blocks_hold_whole_rows_and_name_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", 5)
    text = CsvText(",", None, is_checked=True)
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeff\r\n\na,b\r\n1,"x\r\ny"\r\n\r\n2,z"z\r\n3,"é"'.encode())
    blocks = list(text.blocks(str(path), has_names=True))
    assert blocks[0][0].rows == -1
    joined = b"".join(content for _, content in blocks[1:]).decode()
    assert rows_of(joined) == [["1", "x\r\ny"], ["2", 'z"z'], ["3", "é"]]
    lines = [
        text.where(unit, content, row).partition(", at")[0].rpartition(" ")[2]
        for unit, content in blocks[1:]
        for row in range(len(rows_of(content.decode())))
    ]
    assert lines == ["4", "7", "8"]
    path.write_bytes(b"a\n" + "é\n".encode() * 9 + b"\xe9\n")
    with pytest.raises(FormatError, match=r"line 11, at byte 29: not UTF-8"):
        list(text.blocks(str(path), has_names=True))
