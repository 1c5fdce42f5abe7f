"""The one list of dtype names, and arrays of ml_dtypes from wherever they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload.formats.dtypes import dtype_name, parse_dtype
from fastload.formats.fields import DTYPES, STORED_AS

ml_dtypes = pytest.importorskip("ml_dtypes")
NUMPY_LACKS = sorted(STORED_AS)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("bf16", "bfloat16"),
        ("f16", "float16"),
        ("half", "float16"),
        ("double", "float64"),
        ("long", "int64"),
        ("i32", "int32"),
        ("u16", "uint16"),
        ("i8", "int64"),
        ("u1", "uint8"),
        ("<f4", "float32"),
        ("=i2", "int16"),
        ("|u1", "uint8"),
        (">u1", "uint8"),
        ("?", "bool"),
        ("c8", "complex64"),
        (float, "float64"),
        (bool, "bool"),
        (np.float32, "float32"),
        (torch.bfloat16, "bfloat16"),
        (torch.float8_e5m2, "float8_e5m2"),
        (np.dtype("f2"), "float16"),
        ("torch.uint8", "uint8"),
        *[(name, name) for name in sorted(DTYPES)],
        *[(getattr(ml_dtypes, name), name) for name in NUMPY_LACKS],
        *[(np.dtype(getattr(ml_dtypes, name)), name) for name in NUMPY_LACKS],
    ],
)
def test_names_of_dtypes(name: Any, want: str) -> None:
    assert dtype_name(name) == want
    assert parse_dtype(name) == (want, False)


@pytest.mark.parametrize(
    "name",
    ["nonsense", "", None, 3, "i3", "g", "f12", "c4", "O", "V2", "M8[s]", "S", str, ml_dtypes.int4],
)
def test_names_that_mean_no_dtype(name: Any) -> None:
    with pytest.raises(ValueError, match="is not supported; the dtypes are bfloat16, bool"):
        dtype_name(name)


@pytest.mark.parametrize("name", ["float", "int", "cfloat", "torch.float"])
def test_names_that_mean_two_things_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"in torch and .* in numpy: name one"):
        dtype_name(name)


@pytest.mark.parametrize("name", [">i4", ">bf16", np.dtype(">f8"), ">c8"])
def test_big_endian_numbers_are_for_raw_files_alone(name: Any) -> None:
    assert parse_dtype(name)[1]
    with pytest.raises(ValueError, match="is big-endian; that is possible only for raw files"):
        dtype_name(name)


# --- Where names are given ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nonsense", "float", ml_dtypes.int4])
def test_every_option_refuses_by_the_same_list(tmp_path: Path, name: Any) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(64))
    (tmp_path / "x.jsonl").write_text('{"x": 1}\n')
    (tmp_path / "x.csv").write_text("x\n1\n")
    out = tmp_path / "out"
    for option, call in {
        "raw": lambda: fastload.pack(tmp_path / "x.bin", out, dtype=name, shape=()),
        "open": lambda: fastload.open(tmp_path / "x.bin", dtype=name, shape=()),
        "tokens": lambda: fastload.TokenDataset(tmp_path / "x.bin", 4, dtype=name),
        "cast: field 'x'": lambda: fastload.pack({"x": np.arange(3)}, out, cast={"x": name}),
        "dtypes: field 'x'": lambda: fastload.pack(tmp_path / "x.jsonl", out, dtypes={"x": name}),
        "dtypes: column 'x'": lambda: fastload.pack(tmp_path / "x.csv", out, dtypes={"x": name}),
    }.items():
        with pytest.raises(ValueError, match=r"is not supported; the dtypes|name one") as raised:
            call()
        assert ":" not in option or option in str(raised.value)


def test_big_endian_raw_bfloat16_is_converted(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.25], ml_dtypes.bfloat16)
    values.view("u2").astype(">u2").tofile(tmp_path / "x.bin")
    fastload.pack(tmp_path / "x.bin", tmp_path / "out", dtype=">bf16", shape=())
    assert numbers(fastload.open(tmp_path / "out")) == [1.0, -2.5, 3.25]


# --- Arrays of ml_dtypes ----------------------------------------------------------------------


def numbers(dataset: Any, field: str | None = None) -> Any:
    """All samples of a dataset as float64, through the loader."""
    batch = next(iter(fastload.FastLoader(dataset, max(len(dataset), 1))))
    return (batch if field is None else batch[field]).double().tolist()


class Samples:
    """A map-style dataset of some arrays' rows."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.rows[index]}


@pytest.mark.parametrize("name", NUMPY_LACKS)
def test_values_survive_from_every_source(tmp_path: Path, name: str) -> None:
    flat = np.array([1.0, 2.0, 0.5, 4.0, 8.0, 0.25], getattr(ml_dtypes, name))
    table = flat.reshape(3, 2)
    want = [[1.0, 2.0], [0.5, 4.0], [8.0, 0.25]]
    ragged = np.empty(2, object)
    ragged[:] = [flat[:1], flat[1:]]
    out = tmp_path / "out"
    sources = {
        "array": {"x": table},
        "Fortran order": {"x": np.asfortranarray(table)},
        "strided": {"x": np.repeat(table, 2, axis=0)[::2]},
        "map-style": Samples(table),
    }
    for source in sources.values():
        fastload.pack(source, out, overwrite=True)
        dataset = fastload.open(out)
        assert dataset.fields[0].dtype == name
        assert numbers(dataset, "x") == want
    fastload.pack(Samples(flat), out, overwrite=True)
    assert numbers(fastload.open(out), "x") == flat.astype("f8").tolist()
    for rows in ({"x": ragged}, Samples(list(ragged)), Samples([list(flat[:1]), list(flat[1:])])):
        fastload.pack(rows, out, overwrite=True)
        dataset = fastload.open(out)
        got = [dataset[index]["x"].double().tolist() for index in range(2)]
        assert got == [flat[:1].astype("f8").tolist(), flat[1:].astype("f8").tolist()]
    assert numbers(fastload.ArrayDataset({"x": table}), "x") == want


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_values_survive_cast_append_and_add_column(tmp_path: Path, name: str) -> None:
    array = np.array([1.0, -2.5, 3.0], getattr(ml_dtypes, name))
    out = tmp_path / "out"
    fastload.pack({"x": array}, out, cast={"x": "float32"})
    fastload.append({"x": array}, out, cast={"x": np.float32})
    fastload.add_column(out, {"y": np.concatenate([array, array])})
    dataset = fastload.open(out)
    assert [str(field) for field in dataset.fields] == ["float32 []", f"{name} []"]
    assert numbers(dataset, "x") == [1.0, -2.5, 3.0] * 2
    assert numbers(dataset, "y") == [1.0, -2.5, 3.0] * 2
    fastload.pack({"x": np.array([1.0, -2.5, 3.0])}, out, overwrite=True, cast={"x": array.dtype})
    fastload.append({"x": array}, out)
    assert numbers(fastload.open(out), "x") == [1.0, -2.5, 3.0] * 2


@pytest.mark.parametrize("name", ["int4", "uint4", "float8_e4m3", "float4_e2m1fn", "float8_e3m4"])
def test_dtypes_that_cannot_be_stored_are_refused_by_name(tmp_path: Path, name: str) -> None:
    array = np.array([1, 0], getattr(ml_dtypes, name))
    for source in ({"x": array}, Samples(array), Samples(np.stack([array, array]))):
        with pytest.raises(TypeError, match=f"'x'.* dtype '{name}'"):
            fastload.pack(source, tmp_path / "out")
    with pytest.raises(TypeError, match=f"dtype '{name}'"):
        fastload.ArrayDataset(array)


# bfloat16 is written as '<V2', float8_e5m2 as '<f1', which numpy itself cannot read.
@pytest.mark.parametrize("name", NUMPY_LACKS)
def test_npy_and_npz_files_say_not_what_they_hold_and_dtype_does(tmp_path: Path, name: str) -> None:
    array = np.array([[1.0, 2.0], [0.5, 4.0]], getattr(ml_dtypes, name))
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", x=array, f=np.asfortranarray(array))
    for file in ("x.npy", "x.npz"):
        with pytest.raises(fastload.FormatError, match=rf"{file}.*--dtype bfloat16"):
            fastload.pack(tmp_path / file, tmp_path / "out")
    with pytest.raises(fastload.FormatError, match=r"x\.npy.*--dtype bfloat16"):
        fastload.open(tmp_path / "x.npy")
    fastload.pack(tmp_path / "x.npy", tmp_path / "out", dtype=name)
    assert numbers(fastload.open(tmp_path / "out")) == array.astype("f8").tolist()
    fastload.pack(tmp_path / "x.npz", tmp_path / "out", dtype=name, overwrite=True)
    for field in ("x", "f"):
        assert numbers(fastload.open(tmp_path / "out"), field) == array.astype("f8").tolist()


def test_a_dtype_does_not_reinterpret_what_a_file_says(tmp_path: Path) -> None:
    np.save(tmp_path / "f4.npy", np.zeros(2, "f4"))
    np.save(tmp_path / "bf16.npy", np.zeros(2, ml_dtypes.bfloat16))
    with pytest.raises(ValueError, match="holds float32, not dtype='bfloat16'"):
        fastload.pack(tmp_path / "f4.npy", tmp_path / "out", dtype="bfloat16")
    for wrong in ("float8_e5m2", "uint16", "float32"):
        with pytest.raises(fastload.FormatError, match=f"{wrong} has another number of bytes"):
            fastload.pack(tmp_path / "bf16.npy", tmp_path / "out", dtype=wrong)
