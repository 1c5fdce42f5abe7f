"""Reports about values: dtypes, labels, and arrays of dtypes that numpy lacks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from prelude import packed, put

import fastload


def test_uint64_in_json_reaches_its_end_and_float16_is_read_from_csv() -> None:
    put("j.jsonl", b'{"n":18446744073709551615}\n')
    assert packed("j.jsonl", dtypes={"n": "uint64"}) == [{"n": 2**64 - 1}]
    put("l.jsonl", b'{"n":[18446744073709551615, 1]}\n')
    (sample,) = packed("l.jsonl", dtypes={"n": "uint64"})
    assert sample["n"].tolist() == [2**64 - 1, 1]
    put("c.csv", b"a\n18446744073709551615\n")
    assert packed("c.csv", dtypes={"a": "uint64"}) == [{"a": 2**64 - 1}]
    put("c.csv", b"a\n1\n")
    (sample,) = packed("c.csv", dtypes={"a": "float16"})
    assert (sample["a"].dtype, float(sample["a"])) == (np.float16, 1.0)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "i8", "f16", "bf16", "float8_e4m3fn", "float8_e5m2", "f4", "double"]
)
@pytest.mark.parametrize("name", ["v.csv", "v.jsonl"])
def test_every_dtype_is_read_from_text(name: str, dtype: str) -> None:
    put(name, b"a\n1\n0\n" if name == "v.csv" else b'{"a":1}\n{"a":0}\n')
    assert [float(sample["a"]) for sample in packed(name, dtypes={"a": dtype})] == [1.0, 0.0]


@pytest.mark.parametrize("name", ["v.csv", "v.jsonl"])
def test_integers_that_a_dtype_does_not_hold_are_refused_with_their_place(name: str) -> None:
    put(name, b"a\n1\n300\n" if name == "v.csv" else b'{"a":1}\n{"a":300}\n')
    line = "line 3" if name == "v.csv" else "line 2"
    with pytest.raises(fastload.FormatError, match=rf"{name}: {line}.*'a'"):
        packed(name, dtypes={"a": "uint8"})


def test_integers_beyond_int64_name_the_dtype_that_holds_them() -> None:
    for value in (b"18446744073709551615", b"[18446744073709551615]"):
        put("j.jsonl", b'{"n":' + value + b"}\n")
        with pytest.raises(fastload.FormatError, match=r"line 1.*exceeds int64; --dtypes n=uint64"):
            packed("j.jsonl")
    put("j.jsonl", b'{"n":18446744073709551616}\n')
    with pytest.raises(fastload.FormatError, match=r"line 1.*exceeds int64"):
        packed("j.jsonl", dtypes={"n": "uint64"})


def test_a_label_of_minus_1_passes_and_others_that_are_no_class_do_not() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    features = {"label": {"names": ["n", "p"], "_type": "ClassLabel"}}
    described = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    for label in (-1, -2, 2):
        table = pyarrow.table({"x": [1, 2], "label": [0, label]})
        parquet.write_table(table.replace_schema_metadata(described), "c.parquet")
        if label == -1:
            assert [int(sample["label"]) for sample in packed("c.parquet")] == [0, -1]
            assert fastload.open("out").manifest.class_fields["label"].counts == (1, 0)
        else:
            with pytest.raises(fastload.FormatError, match=f"{label} is not a class number"):
                packed("c.parquet")


def test_arrays_of_ml_dtypes_keep_their_values() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    samples = packed({"x": np.array([1.0, -2.5], ml_dtypes.float8_e4m3fn)})
    assert [float(sample["x"]) for sample in samples] == [1.0, -2.5]


def test_not_a_time_in_memory_is_a_missing_value() -> None:
    times = np.array(["2024-01-01", "NaT"], "M8[s]")
    with pytest.raises(ValueError, match="sample 1: field 't': the value is missing; --missing"):
        packed({"t": times})
    assert len(packed({"t": times}, missing="drop")) == 1
