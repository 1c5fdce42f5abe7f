"""`missing=`: what is done about missing values, in lists, structs, times and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lacking_inputs import NAN, Samples, packed, plain
from packing import encoded, noise, put, refused, samples_of

import fastload
from fastload.formats.packed import read_manifest

pyarrow = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")

# --- Shapes of values -------------------------------------------------------------------------


def written(folder: Path, kind: str, values: list[Any], of: Any) -> Any:
    """A table, lines or dataset of the column v."""
    import pyarrow.parquet

    if kind == "parquet":
        column = pyarrow.array(values, of)
        pyarrow.parquet.write_table(pyarrow.table({"v": column}), folder / "v.parquet")
        return folder / "v.parquet"
    if kind == "jsonl":
        put(folder / "v.jsonl", b"".join(json.dumps({"v": v}).encode() + b"\n" for v in values))
        return folder / "v.jsonl"
    return Samples([{"v": value} for value in values])


def masked(values: list[Any]) -> Any:
    """A list in which None stands for missing numbers as a masked array."""
    array = np.array(values, object)
    mask = np.equal(array, None).astype(bool)
    present = [number for number in array.reshape(-1) if number is not None]
    numbers = np.zeros(array.shape, np.asarray(present or [0.0]).dtype)
    numbers[~mask] = present
    return np.ma.MaskedArray(numbers, mask)


def is_lacking(value: Any) -> bool:
    """Whether something in a value is missing."""
    return bool(np.ma.is_masked(value)) or "None" in repr(value)


INT, FLOAT, TEXT = pyarrow.int64(), pyarrow.float64(), pyarrow.string()


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "map-style"])
@pytest.mark.parametrize(
    ("values", "of", "zero", "nan"),
    [
        (["a", None, ""], TEXT, ["a", "", ""], "utf8 has no NaN"),
        ([True, None], pyarrow.bool_(), [True, False], "bool has no NaN"),
        ([[1, None], [3, 4]], pyarrow.list_(INT), [[1, 0], [3, 4]], "--dtypes v=float32"),
        ([[1.5, None], None], pyarrow.list_(FLOAT), [[1.5, 0], [0, 0]], [[1.5, NAN], [NAN, NAN]]),
        (
            [[1.5], [None, 2.0], []],
            pyarrow.list_(FLOAT),
            [[1.5], [0, 2], []],
            [[1.5], [NAN, 2], []],
        ),
        (
            [[1.5], None, [1.0, 2.0]],
            pyarrow.list_(FLOAT),
            [[1.5], [], [1, 2]],
            "list itself is missing",
        ),
        (
            [[[1.0, None]], [[3.0, 4.0]]],
            pyarrow.list_(pyarrow.list_(FLOAT)),
            [[[1, 0]], [[3, 4]]],
            [[[1, NAN]], [[3, 4]]],
        ),
        (
            [{"a": 1.5, "b": "t"}, None],
            pyarrow.struct({"a": FLOAT, "b": TEXT}),
            [{"a": 1.5, "b": "t"}, {"a": 0, "b": ""}],
            "utf8 has no NaN",
        ),
        (
            [{"a": {"b": 1.5}}, {"a": None}],
            pyarrow.struct({"a": pyarrow.struct({"b": FLOAT})}),
            [{"a": {"b": 1.5}}, {"a": {"b": 0}}],
            [{"a": {"b": 1.5}}, {"a": {"b": NAN}}],
        ),
    ],
    ids=repr,
)
def test_texts_lists_and_structs(
    tmp_path: Path, kind: str, values: list[Any], of: Any, zero: list[Any], nan: Any
) -> None:
    if kind == "map-style":  # lists of one length would be containers
        values = [masked(value) if type(value) is list else value for value in values]
    data, out = written(tmp_path, kind, values, of), tmp_path / "out"
    with pytest.raises(ValueError, match="the value is missing; --missing"):
        fastload.pack(data, out)
    assert packed(data, out, missing="zero") == [{"v": value} for value in zero]
    if isinstance(nan, str):
        with pytest.raises(ValueError, match=nan):
            fastload.pack(data, out, missing="nan", overwrite=True)
    else:
        np.testing.assert_equal(packed(data, out, missing="nan"), [{"v": value} for value in nan])
    whole = [plain(value) for value in values if not is_lacking(value)]
    if whole:
        assert packed(data, out, missing="drop") == [{"v": value} for value in whole]


@pytest.mark.parametrize(
    ("values", "of"),
    [
        ([[1, 2], None, [3, None]], pyarrow.list_(INT, 2)),
        ([b"ab", None], pyarrow.binary()),
        ([b"ab", None], pyarrow.binary(2)),
        (["a", None, "a"], pyarrow.dictionary(pyarrow.int32(), TEXT)),
        (["a", None], pyarrow.large_string()),
        ([1, None], pyarrow.timestamp("us", "UTC")),
        ([1, None], pyarrow.date32()),
        ([1, None], pyarrow.duration("s")),
        ([1, None], pyarrow.uint64()),
        ([1, None], pyarrow.float32()),
    ],
    ids=repr,
)
@pytest.mark.parametrize("start", [0, 1])
def test_types_of_arrow(tmp_path: Path, values: list[Any], of: Any, start: int) -> None:
    """As pyarrow fills and drops them, also where a batch does not start at its buffers' start."""
    import pyarrow.feather

    column = pyarrow.array([*values[:start], *values], of)[start:]
    pyarrow.feather.write_feather(pyarrow.table({"v": column}), tmp_path / "v.feather")
    out, file = tmp_path / "out", tmp_path / "v.feather"
    whole = pyarrow.array([v for v in values if "None" not in repr(v)], of)
    pyarrow.feather.write_feather(pyarrow.table({"v": whole}), tmp_path / "whole.feather")
    assert packed(file, out, missing="drop") == packed(tmp_path / "whole.feather", tmp_path / "w")
    zeros = [sample["v"] for sample in packed(file, out, missing="zero")]
    assert len(zeros) == len(values)
    assert zeros[1] in (0, [0, 0], "", b"")


def test_null_slots_that_hold_something(tmp_path: Path) -> None:
    """Arrow allows anything where a value is null."""
    import pyarrow.feather

    valid = pyarrow.py_buffer(b"\x05")  # 0 and 2
    values = pyarrow.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    offsets = pyarrow.py_buffer(np.array([0, 2, 4, 6], np.int32))
    lists = pyarrow.Array.from_buffers(pyarrow.list_(FLOAT), 3, [valid, offsets], children=[values])
    fixed = pyarrow.Array.from_buffers(pyarrow.list_(FLOAT, 2), 3, [valid], children=[values])
    letters = pyarrow.py_buffer(b"abcdef")
    text = pyarrow.Array.from_buffers(TEXT, 3, [valid, offsets, letters])
    table = pyarrow.table({"l": lists, "f": fixed, "t": text})
    pyarrow.feather.write_feather(table, tmp_path / "v.feather", compression="uncompressed")
    got = packed(tmp_path / "v.feather", tmp_path / "out", missing="zero", ragged=["l"])
    assert got == [
        {"l": [1, 2], "f": [1, 2], "t": "ab"},
        {"l": [], "f": [0, 0], "t": ""},
        {"l": [5, 6], "f": [5, 6], "t": "ef"},
    ]


def test_a_field_without_a_value_needs_a_dtype(tmp_path: Path) -> None:
    import pyarrow.parquet

    put(tmp_path / "v.jsonl", b'{"v":null,"y":1}\n{"v":null,"y":2}\n')
    table = pyarrow.table({"v": pyarrow.nulls(2), "y": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "v.parquet")
    map_style = Samples([{"v": None, "y": 1}, {"v": None, "y": 2}])
    for data in (tmp_path / "v.jsonl", tmp_path / "v.parquet", map_style):
        for policy in ("error", "nan", "zero", "drop"):
            with pytest.raises(ValueError, match="--dtypes v=float32"):
                fastload.pack(data, tmp_path / "out", missing=policy, overwrite=True)
        options: dict[str, Any] = {"missing": "zero", "dtypes": {"v": "float64"}}
        assert packed(data, tmp_path / "out", **options) == [{"v": 0, "y": 1}, {"v": 0, "y": 2}]
        assert packed(data, tmp_path / "out", fields=["y"]) == [{"y": 1}, {"y": 2}]


def test_not_a_time_without_a_unit_is_missing(tmp_path: Path) -> None:
    times = [{"t": np.datetime64("NaT")}, {"t": np.datetime64("2024-01-01")}]
    assert "the value is missing" in refused(times, tmp_path / "no")
    fastload.pack(times, tmp_path / "out", missing="drop")
    assert samples_of(tmp_path / "out") == [{"t": 19723}]


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
@pytest.mark.parametrize("code", ["M8", "m8", ">M8"])
def test_not_a_time_is_missing_in_every_kind(tmp_path: Path, unit: str, code: str) -> None:
    native = np.array([3, np.iinfo(np.int64).min, 5]).view(f"{code[-2:]}[{unit}]")
    times = native.astype(f"{code}[{unit}]")
    np.save(tmp_path / "t.npy", times)
    np.savez(tmp_path / "t.npz", t=times)
    ragged = [{"t": times[:2]}, {"t": times[2:]}, {"t": times[:0]}]
    out = tmp_path / "out"
    sources = {
        "array": {"t": times},
        "map-style": Samples([{"t": time} for time in times]),
        "npy": tmp_path / "t.npy",
        "npz": tmp_path / "t.npz",
    }
    for source in sources.values():
        with pytest.raises(ValueError, match=r"sample 1: field '(t|data)': the value is missing"):
            fastload.pack(source, out, overwrite=True)
        with pytest.raises(ValueError, match="has no NaN; use --missing zero or drop"):
            fastload.pack(source, out, missing="nan", overwrite=True)
        for policy, want in (("zero", [3, 0, 5]), ("drop", [3, 5])):
            got = packed(source, out, missing=policy)
            assert [of["t"] if isinstance(of, dict) else of for of in got] == want
    assert [of["t"] for of in packed(Samples(ragged), out, missing="zero")] == [[3, 0], [5], []]
    assert [of["t"] for of in packed(Samples(ragged), out, missing="drop")] == [[5], []]
    assert times[1] != times[1], "the array in memory was changed"


def test_masked_arrays_in_samples_and_datasets_that_return_none(tmp_path: Path) -> None:
    mask = np.ma.MaskedArray([[1.0, 2.0], [3.0, 4.0]], [[False, True], [False, False]])
    got = packed(Samples(list(mask)), tmp_path / "a", missing="zero")
    assert got == [[1, 0], [3, 4]]
    assert packed({"x": mask}, tmp_path / "b", missing="drop") == [{"x": [3, 4]}]
    nothing = Samples([{"a": 1, "b": "t"}, None, {"a": 2, "b": None}])
    assert packed(nothing, tmp_path / "c", missing="drop") == [{"a": 1, "b": "t"}]
    want = [{"a": 1, "b": "t"}, {"a": 0, "b": ""}, {"a": 2, "b": ""}]
    assert packed(nothing, tmp_path / "c", missing="zero") == want
    nan = packed(Samples([1.5, None]), tmp_path / "d", missing="nan")
    np.testing.assert_equal(nan, [1.5, NAN])


def test_empty_texts_of_csv_are_texts(tmp_path: Path) -> None:
    put(tmp_path / "t.csv", b"t,x\na,1\n,2\n")
    assert packed(tmp_path / "t.csv", tmp_path / "out") == [{"t": "a", "x": 1}, {"t": "", "x": 2}]


def test_labels_of_images(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / f"in/{number}.png", encoded(noise(2, 2), "PNG"))
    put(tmp_path / "l.csv", b"file,label\n0.png,cat\n1.png,\n2.png,dog\n")
    options: dict[str, Any] = {"labels": tmp_path / "l.csv", "fields": ["label"]}
    with pytest.raises(ValueError, match=r"l\.csv: line 3\): field 'label': the value is missing"):
        fastload.pack(tmp_path / "in", tmp_path / "out", **options)
    fastload.pack(tmp_path / "in", tmp_path / "out", missing="drop", **options)
    manifest = read_manifest(tmp_path / "out")
    assert manifest.class_fields["label"].counts == (1, 1)
    assert manifest.missing.dropped == {"label": 1}


def test_columns_of_pandas_and_pyarrow(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {
            "i": pandas.array([1, None, 3], "Int32"),
            "f": [1.0, NAN, 2.0],
            "F": pandas.array([1.0, None, 2.0], "Float32"),
            "s": ["a", None, "b"],
            "t": pandas.to_datetime(["1970-01-01", None, "1970-01-01"]),
            "b": pandas.array([True, None, False], "boolean"),
            "c": pandas.Categorical(["x", None, "y"]),
        }
    )
    zeros = {"i": 0, "F": 0, "s": "", "t": 0, "b": False, "c": ""}
    out = tmp_path / "out"
    for data in (frame, {name: frame[name] for name in frame}):
        with pytest.raises(ValueError, match="sample 1: field 'i': the value is missing"):
            fastload.pack(data, out, overwrite=True)
        second = packed(data, out, missing="zero")[1]
        assert np.isnan(second.pop("f"))
        assert second == zeros
        assert [sample["s"] for sample in packed(data, out, missing="drop")] == ["a", "b"]
        assert packed(data, out, fields=["f"])[0] == {"f": 1}
    fields = {field.name: field.dtype for field in fastload.open(out).fields}
    assert fields == {"f": "float64"}
    for column in (pyarrow.array([1, None]), pyarrow.chunked_array([[1], [None]]), frame["i"][:2]):
        for data in (column, {"x": column}):
            got = packed(data, out, missing="zero")
            assert [of["x"] if isinstance(of, dict) else of for of in got] == [1, 0]
