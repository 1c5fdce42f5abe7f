"""`fastload.pack` of JSON Lines, as values and as tokens."""

from __future__ import annotations

import gzip
import json
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import damaged, refused, same_bytes, samples_of

import fastload
from fastload.errors import FormatError
from fastload.formats import packed
from fastload.packing.inputs.source import probed
from fastload.packing.kinds import jsonl

ROWS = 120


def values() -> list[dict[str, Any]]:
    return [
        {
            "n": n,
            "x": n / 8,
            "ok": n % 3 == 0,
            "text": f"é\n{n}" * (n % 3),
            "ids": list(range(n % 5)),
            "pair": [n, -n],
            "matrix": [[0.5, n], [1, 2]],
            "boxes": [[n, n, 1, 2]] * (n % 3),
            "in": {"deep": {"er": n}, "s": str(n)},
            "turns": [{"who": "a", "n": n}, {"who": "b", "n": -n}],
        }
        for n in range(ROWS)
    ]


def write(path: Path, lines: list[Any], end: str = "\n") -> None:
    path.write_text(end.join(json.dumps(line, ensure_ascii=False) for line in lines))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n  \n"])
def test_values_come_back_in_order(tmp_path: Path, end: str) -> None:
    write(tmp_path / "a.jsonl", values(), end)
    fastload.pack(tmp_path / "a.jsonl", tmp_path / "1", workers=1, shard_size=4000)
    assert samples_of(tmp_path / "1") == values()
    if end == "\n":
        fastload.pack(tmp_path / "a.jsonl", tmp_path / "2", workers=2, shard_size=4000)
        assert same_bytes(tmp_path / "1", tmp_path / "2")


def test_numbers_of_two_dtypes_name_the_option_that_takes_both(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"x": n} for n in range(ROWS)] + [{"x": 2.5}])
    with pytest.raises(FormatError, match=r"line 121.* float64 .*int64 .*--dtypes x=DTYPE"):
        fastload.pack(tmp_path / "a.jsonl", tmp_path / "out")
    fastload.pack(tmp_path / "a.jsonl", tmp_path / "out", dtypes={"x": "float64"})
    assert samples_of(tmp_path / "out")[-2:] == [{"x": ROWS - 1.0}, {"x": 2.5}]


def test_bad_lines_are_listed_by_their_paths_below_the_folder(tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / "in" / part).mkdir(parents=True)
        (tmp_path / "in" / part / "x.jsonl").write_text('{"x": 1}\n{"x":\n')
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert [left.path.partition(":")[0] for left in report.skipped] == ["a/x.jsonl", "b/x.jsonl"]


def test_folders_bare_values_and_empty_lines(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/10.jsonl").write_bytes(b"3\n4\n")
    (tmp_path / "in/9.ndjson").write_bytes(b"\xef\xbb\xbf1\n\n \n2")
    (tmp_path / "in/11.jsonl").write_bytes(b"")
    fastload.pack(tmp_path / "in", tmp_path / "out")
    assert samples_of(tmp_path / "out") == [1, 2, 3, 4]


def test_lines_are_found_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 2)
    path = tmp_path / "a.jsonl"
    for text in map("".join, chain.from_iterable(product("1\r\n", repeat=n) for n in range(5))):
        path.write_bytes(text.encode())
        want, start = [], 0
        for number, line in enumerate(text.split("\n"), 1):
            if line not in ("", "\r"):
                want.append((start, len(line), number))
            start += len(line) + 1
        assert (
            list(zip(*(of.tolist() for of in jsonl._lines(str(path), None)), strict=True)) == want
        )


def test_dtypes_and_ragged_fields_are_what_is_said(tmp_path: Path) -> None:
    lines = [{"x": 1, "v": [1, 2]}] * 300 + [{"x": 1.5, "v": [3, 4]}]
    odd = next(row for row in range(300) if row not in probed(301))
    lines[odd] = {"x": 2, "v": [5]}
    write(tmp_path / "a.jsonl", lines)
    out = tmp_path / "out"
    path = tmp_path / "a.jsonl"
    damaged(path, out, "a.jsonl: line 301, at byte", "'x' is float64")
    parts = f"a.jsonl: line {odd + 1}, at byte", "'v' is int64 [1]"
    damaged(path, out, *parts, dtypes={"x": "float32"})
    options: dict[str, Any] = {"dtypes": {"x": "float32", "v": "uint8"}, "ragged": ["v"]}
    fastload.pack(path, out, overwrite=True, **options)
    fields = fastload.open(out).fields
    assert [str(field) for field in fields] == ["float32 []", "uint8 [-1]"]
    assert samples_of(out) == lines
    lines[200] = {"x": 1, "v": [256]}
    write(path, lines)
    damaged(path, tmp_path / "no", "line 201", "'v': 256 does not fit uint8", **options)
    assert "no field 'z'" in refused(path, tmp_path / "new", dtypes={"z": "uint8"})


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"x": null}', "'x': the value is missing"),
        ('{"x": 9223372036854775808}', "exceeds int64"),
        ('{"x": "text"}', "'x' is utf8"),
        ("{}", "'x': the value is missing"),
        ('{"x": 1, "y": 1}', "'y' is not in the probed samples"),
        ("[1]", "must be a dict"),
        ('{"x": [1, [2]]}', "differ in shape"),
        ('{"x": ["a"]}', "list of str"),
        ('{"x": [true, 2]}', "a list of bools and numbers"),
        ('{"x": [[true, 2]]}', "a list of bools and numbers"),
        ('{"x": [9007199254740993, 0.5]}', "float64 cannot represent"),
        ('{"x": [[9007199254740993, 0.5]]}', "float64 cannot represent"),
    ],
)
def test_values_that_differ_stop_with_their_line(tmp_path: Path, line: str, part: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' * 200 + line + "\n" + '{"x": 1}\n' * 99)
    damaged(tmp_path / "a.jsonl", tmp_path / "out", "a.jsonl: line 201, at byte 1800", part)


def test_lines_that_are_no_json_are_listed_or_stop(tmp_path: Path) -> None:
    lines = [json.dumps({"x": n}) for n in range(200)]
    for row, bad in ((0, "{"), (70, '{"x": 1, "x": 2}'), (71, '{"x": 1'), (199, "nonsense")):
        lines[row] = bad
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    report = fastload.pack(tmp_path / "a.jsonl", tmp_path / "out", shard_size=256)
    assert [skipped.path.partition(",")[0] for skipped in report.skipped] == [
        f"a.jsonl: line {n}" for n in (1, 71, 72, 200)
    ]
    assert "the key 'x' appears twice" in report.skipped[1].reason
    want = [{"x": n} for n in range(200) if n not in (0, 70, 71, 199)]
    assert samples_of(tmp_path / "out") == want
    damaged(
        tmp_path / "a.jsonl", tmp_path / "no", "line 1, at byte 0: not JSON: Expecting", strict=True
    )
    (tmp_path / "a.jsonl").write_text("x\ny\n")
    damaged(tmp_path / "a.jsonl", tmp_path / "no", "none of 2 probed jsonl records", "line 1")
    (tmp_path / "a.jsonl").write_text("\n\n")
    damaged(tmp_path / "a.jsonl", tmp_path / "no", "no jsonl records")


# --- Tokens -----------------------------------------------------------------------------------


def tokenizer_file(path: Path, vocabulary: dict[str, int]) -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="pip install tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(3)  # which packing does not do
    made.save(str(path))
    return made


def test_texts_become_tokens_of_the_narrowest_dtype(tmp_path: Path) -> None:
    words = {"?": 0, "a": 1, "b": 2, "<end>": 65535}
    tokenizer_file(tmp_path / "t.json", words)
    texts = ["a b a b b", "", "c a"]
    write(tmp_path / "a.jsonl", [{"body": text, "id": n} for n, text in enumerate(texts)])
    options: dict[str, Any] = {"tokenizer": tmp_path / "t.json", "text_field": "body"}
    fastload.pack(tmp_path / "a.jsonl", tmp_path / "out", eos="<end>", **options)
    (field,) = fastload.open(tmp_path / "out").fields
    assert str(field) == "uint16 [-1]"
    want = [[1, 2, 1, 2, 2, 65535], [65535], [0, 1, 65535]]
    assert [sample["tokens"] for sample in samples_of(tmp_path / "out")] == want
    source = packed.read_manifest(tmp_path / "out").source
    assert source["tokenizer"][1:] == [65535, "uint16"]
    assert str(tmp_path) not in json.dumps(source)

    tokenizer_file(tmp_path / "t.json", {**words, "more": 65536})
    fastload.pack(tmp_path / "a.jsonl", tmp_path / "wide", **options)
    assert str(fastload.open(tmp_path / "wide").fields[0]) == "uint32 [-1]"
    text = refused(tmp_path / "a.jsonl", tmp_path / "no", dtype="uint16", **options)
    assert "65537 tokens, too many for uint16" in text
    assert "no token 'x'" in refused(tmp_path / "a.jsonl", tmp_path / "no", eos="x", **options)
    fastload.pack(tmp_path / "a.jsonl", tmp_path / "long", dtype="int64", **options)
    assert str(fastload.open(tmp_path / "long").fields[0]) == "int64 [-1]"


def test_tokenizers_and_texts_that_are_none(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="pip install tokenizers")
    write(tmp_path / "a.jsonl", [{"text": "a"}, {"text": 1}, {"text": "b"}])
    (tmp_path / "t.json").write_text("{}")
    path = tmp_path / "t.json"
    damaged(tmp_path / "a.jsonl", tmp_path / "out", "t.json: not a tokenizer", tokenizer=path)
    assert "--tokenizer" in refused(tmp_path / "a.jsonl", tmp_path / "no", eos="x")
    tokenizer_file(tmp_path / "t.json", {"?": 0, "a": 1})
    report = fastload.pack(tmp_path / "a.jsonl", tmp_path / "some", tokenizer=tmp_path / "t.json")
    assert [(s.path.partition(",")[0], s.reason) for s in report.skipped] == [
        ("a.jsonl: line 2", "it has no text 'text'")
    ]
    write(tmp_path / "b.jsonl", [{"text": "a"}, {"x": 1}, {"text": None}])
    options = {"tokenizer": tmp_path / "t.json"}
    damaged(tmp_path / "b.jsonl", tmp_path / "no", "line 2", "'tokens': the value is", **options)
    report = fastload.pack(tmp_path / "b.jsonl", tmp_path / "two", missing="zero", **options)
    assert [len(sample["tokens"]) for sample in samples_of(tmp_path / "two")] == [1, 0, 0]
    assert report.filled == {"tokens": 2}


def test_tiktoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="pip install tiktoken")
    ranks = {bytes([n]): n for n in range(256)} | {b"ab": 256}
    made = tiktoken.Encoding(
        "small", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<end>": 300}
    )
    monkeypatch.setattr(tiktoken, "get_encoding", {"small": made}.__getitem__)
    texts = ["ab <end>", "é"]
    write(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    options: dict[str, Any] = {"tokenizer": "tiktoken:small", "eos": "<end>", "workers": 1}
    fastload.pack(tmp_path / "a.jsonl", tmp_path / "out", **options)
    want = [[*made.encode_ordinary(text), 300] for text in texts]
    assert [sample["tokens"] for sample in samples_of(tmp_path / "out")] == want
    assert want[0][0] == 256
    text = refused(tmp_path / "a.jsonl", tmp_path / "no", dtype="uint8", **options)
    assert "301 tokens, too many for uint8" in text
    assert np.dtype("uint16").name == fastload.open(tmp_path / "out").fields[0].dtype


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1e400", "1e400 is too large for float64"),
        ("-1e-400", "-1e-400 is too small for float64"),
        ("0." + "0" * 400 + "1", "is too small for float64"),
        ("1" + "0" * 400 + ".0", "is too large for float64"),
        ("9007199254740993.0", "is an integer that float64 cannot represent"),
        ("18446744073709551616", "exceeds int64"),
        ("[1.5, 1e400]", "1e400 is too large"),
        (
            "[9007199254740993, 0.5]",
            "an integer that float64 cannot represent",
        ),
        ("[18446744073709551615, -1]", "no dtype can represent all of its integers"),
        ("[1, true]", "a list of bools and numbers"),
    ],
)
def test_numbers_do_not_change(tmp_path: Path, value: str, message: str) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_text(f'{{"x": {value}, "y": 1}}\n')
    damaged(path, out, "a.jsonl: line 1, at byte 0", "'x'", message)
    fastload.pack(path, out, fields=["y"])
    assert samples_of(out) == [{"y": 1}]


def test_numbers_that_are_merely_rounded_are_as_python_reads_them(tmp_path: Path) -> None:
    values = [0.1, 1e308, 5e-324, -0.0, 1e23, 123456789.12345678912, 0.0, 9007199254740992.0]
    texts = ["0.1", "1e308", "5e-324", "-0.0", "1e+23", "123456789.12345678912", "0.000e-400"]
    texts.append("9007199254740992.0")
    (tmp_path / "a.jsonl").write_text("".join(f'{{"x": {text}}}\n' for text in texts))
    fastload.pack(tmp_path / "a.jsonl", tmp_path / "out")
    column = fastload.open(tmp_path / "out").column("x")
    assert column.tobytes() == np.array(values).tobytes()
    (tmp_path / "b.jsonl").write_text('{"x": 9007199254740993}\n')
    damaged(tmp_path / "b.jsonl", tmp_path / "no", "does not fit float64", dtypes={"x": "float64"})


def test_lists_that_are_empty_in_all_samples_looked_at(tmp_path: Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    lines: list[dict[str, Any]] = [{"x": []}] * 300
    odd = next(row for row in range(300) if row not in probed(300))
    lines[odd] = {"x": [7, 8]}
    write(path, lines)
    damaged(path, out, "dtype is unknown", "--dtypes x=DTYPE", "--ragged x", "--fields")
    fastload.pack(path, out, dtypes={"x": "int64"})
    assert samples_of(out)[odd]["x"] == [7, 8]
    damaged(path, tmp_path / "no", f"a.jsonl: line {odd + 1}", "int64 [2]", ragged=["x"])
    for empty in ("[]", '{"x": [[]]}', '{"x": {"y": []}}'):
        path.write_text(f"{empty}\n")
        damaged(path, tmp_path / "no", "dtype is unknown")


@pytest.mark.parametrize("line", ["{}", '{"a": {}}', '{"a": {"b": {}}}'])
def test_samples_that_hold_nothing(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f"\n{line}\n{line}\n")
    damaged(
        tmp_path / "a.jsonl", tmp_path / "out", "a.jsonl: line 2, at byte 1", "the sample is empty"
    )


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-be", "shift_jis", "cp037"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_other_encodings(tmp_path: Path, encoding: str, ending: str) -> None:
    word = "\u65e5\u672c" if encoding == "shift_jis" else "caf\xe9"
    text = "".join(f'{{"n": {n}, "t": "{word}"}}\n' for n in range(50)).encode(encoding)
    path, out = tmp_path / f"a.jsonl{ending}", tmp_path / "out"
    path.write_bytes(gzip.compress(text) if ending else text)
    if encoding in ("latin-1", "utf-16", "shift_jis"):
        damaged(path, out, "a.jsonl", "byte ", "not UTF-8", "--encoding")
    fastload.pack(path, out, encoding=encoding, shard_size=300)
    assert samples_of(out) == [{"n": n, "t": word} for n in range(50)]
    fastload.pack(path, out, overwrite=True, encoding=encoding, shuffle=1)
    assert sorted(row["n"] for row in samples_of(out)) == list(range(50))


def test_encodings_that_are_none_of_text_are_refused_by_name(tmp_path: Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(b'{"x": "\xe9"}\n')
    for name in ("base64", "rot13", "idna", "nothing", "unicode_escape"):
        assert name in refused(path, out, encoding=name)
    for name in ("utf8", "UTF-8", "utf-8-sig"):
        damaged(path, out, "byte 7: not UTF-8", encoding=name)
    damaged(path, out, "not ascii: byte 7", encoding="ascii")


def test_a_key_that_appears_twice_is_bad_unless_it_is_not_read(tmp_path: Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_text('{"a": 1, "a": 2, "m": {"b": 1, "b": 2}, "c": 3}\n')
    damaged(path, out, "a.jsonl: line 1", "the key 'a' appears twice")
    damaged(path, out, "the key 'b' appears twice", fields=["m"])
    fastload.pack(path, out, fields=["c"])
    assert samples_of(out) == [{"c": 3}]
