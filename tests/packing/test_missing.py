"""`missing=`: what is done about missing values, in every kind of input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lacking_inputs import SOURCES, Samples, packed
from packing import put

import fastload
from fastload.formats.packed import read_manifest

pyarrow = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")


def xs(folder: Path) -> list[Any]:
    """The floats of a packed dataset; None for NaN."""
    found = []
    for sample in fastload.open(folder):
        sample = sample.get("json", sample)
        found.append((float(sample["x"]), int(sample["y"])))
    return [(None if np.isnan(x) else x, y) for x, y in found]


@pytest.mark.parametrize("kind", SOURCES)
def test_every_policy_in_every_kind(tmp_path: Path, kind: str) -> None:
    data, options = SOURCES[kind](tmp_path)
    out, name = tmp_path / "out", "json.x" if kind == "tar" else "x"
    with pytest.raises(ValueError, match=r"missing; --missing nan or zero") as raised:
        fastload.pack(data, out, **options)
    text = str(raised.value)
    assert f"field {name!r}: the value is missing" in text
    assert not isinstance(data, Path) or str(data) in text
    places = ("line 2", "line 3", "row 1", "record 1", "sample 1", "key b'1'")
    assert any(place in text for place in places)
    assert not (out / "fastload.json").exists()
    report = fastload.pack(data, out, missing="nan", **options)
    assert xs(out) == [(1.5, 0), (None, 1), (None, 2), (2.5, 3)]
    assert (report.filled, report.dropped, report.dropped_rows) == ({name: 1}, {}, 0)
    report = fastload.pack(data, out, missing="zero", overwrite=True, **options)
    assert xs(out) == [(1.5, 0), (0.0, 1), (None, 2), (2.5, 3)]
    assert report.filled == read_manifest(out).missing.filled == {name: 1}
    report = fastload.pack(data, out, missing="drop", overwrite=True, **options)
    assert xs(out) == [(1.5, 0), (None, 2), (2.5, 3)]
    assert (report.rows, report.dropped, report.dropped_rows) == (3, {name: 1}, 1)
    assert read_manifest(out).missing.dropped == {name: 1}


@pytest.mark.parametrize("kind", [kind for kind in SOURCES if kind != "tar"])
def test_fields_come_first_and_casts_last(tmp_path: Path, kind: str) -> None:
    data, options = SOURCES[kind](tmp_path)
    report = fastload.pack(data, tmp_path / "y", fields=["y"], **options)
    assert [int(sample["y"]) for sample in fastload.open(tmp_path / "y")] == [0, 1, 2, 3]
    assert report.dropped == report.filled == {}
    fastload.pack(data, tmp_path / "x", missing="nan", cast={"x": "bf16"}, **options)
    values = [float(sample["x"]) for sample in fastload.open(tmp_path / "x")]
    np.testing.assert_array_equal(values, [1.5, np.nan, np.nan, 2.5])


def test_nan_that_was_filled_in_is_no_integer_and_zero_is(tmp_path: Path) -> None:
    data = Samples([{"x": 1.0}, {"x": None}])
    with pytest.raises(ValueError, match="sample 1: field 'x': nan does not fit int8"):
        fastload.pack(data, tmp_path / "out", missing="nan", cast={"x": "int8"})
    options: dict[str, Any] = {"missing": "zero", "cast": {"x": "int8"}}
    assert packed(data, tmp_path / "out", **options) == [{"x": 1}, {"x": 0}]


@pytest.mark.parametrize(
    "kind", ["map_style", "object_array", "masked_array", "jsonl", "csv", "parquet"]
)
def test_nan_is_for_floats_and_dtypes_makes_floats(tmp_path: Path, kind: str) -> None:
    import pyarrow.parquet

    integers = {
        "map_style": Samples([{"x": 1}, {"x": None}, {"x": 3}]),
        "object_array": {"x": np.array([1, None, 3], object)},
        "masked_array": {"x": np.ma.MaskedArray([1, 2, 3], [False, True, False])},
        "jsonl": tmp_path / "i.jsonl",
        "csv": tmp_path / "i.csv",
        "parquet": tmp_path / "i.parquet",
    }
    put(tmp_path / "i.jsonl", b'{"x":1}\n{"x":null}\n{"x":3}\n')
    put(tmp_path / "i.csv", b'x\n1\n""\n3\n')
    pyarrow.parquet.write_table(pyarrow.table({"x": [1, None, 3]}), tmp_path / "i.parquet")
    with pytest.raises(ValueError, match=r"int64 has no NaN; use --dtypes x=float32 \(dtypes=\)"):
        fastload.pack(integers[kind], tmp_path / "out", missing="nan")
    for dtype in ("float32", "bf16", "float8_e5m2", "f8"):
        fastload.pack(
            integers[kind], tmp_path / "out", missing="nan", dtypes={"x": dtype}, overwrite=True
        )
        values = [float(sample["x"]) for sample in fastload.open(tmp_path / "out")]
        np.testing.assert_array_equal(values, [1, np.nan, 3])
    for policy, want in (("zero", [1, 0, 3]), ("drop", [1, 3])):
        fastload.pack(integers[kind], tmp_path / "out", missing=policy, overwrite=True)
        assert [int(sample["x"]) for sample in fastload.open(tmp_path / "out")] == want
