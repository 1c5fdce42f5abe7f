"""Exports: what numpy, tarfile and pyarrow read is what was packed."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from packing import encoded, noise, put

import fastload
from fastload.packing import reading
from fastload.packing.export import tar as export_tar

ROWS = 25
NUMBERS = ["bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64"]


def everything() -> dict[str, Any]:
    random = np.random.default_rng(0)
    made: dict[str, Any] = {
        name: (random.normal(size=(ROWS, 2, 3)) * 9).astype(name) for name in NUMBERS
    }
    made["scalar"] = np.arange(ROWS)
    made["text"] = ["ä" * (n % 4) for n in range(ROWS)]
    made["bytes"] = [bytes([n]) * (n % 3) for n in range(ROWS)]
    made["ragged"] = [random.normal(size=n % 5).astype("f4") for n in range(ROWS)]
    made["boxes"] = [random.integers(0, 9, (n % 3, 4)) for n in range(ROWS)]
    made["time"] = np.arange(ROWS).astype("M8[ms]")
    made["day"] = np.arange(ROWS).astype("M8[D]")
    made["took"] = np.arange(ROWS * 2).reshape(ROWS, 2).astype("m8[us]")
    made["bf16"] = torch.arange(ROWS).to(torch.bfloat16)
    made["meta"] = {"a/b": np.arange(ROWS) * 2}
    return made


@pytest.fixture(params=[32 << 20, 4000])
def packed(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reading, "_BLOCK_BYTES", request.param)
    fastload.pack(everything(), tmp_path / "in", shard_size=4000, split={"a": 0.6, "b": 0.4})
    return tmp_path / "in"


def test_npy(packed: Path, tmp_path: Path) -> None:
    report = fastload.export(packed, tmp_path / "out", to="npy")
    want = everything()
    assert report.rows == ROWS
    assert sorted(report.files) == sorted(os.listdir(tmp_path / "out"))
    assert report.bytes == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    loaded = {file.stem: np.load(file) for file in (tmp_path / "out").iterdir()}
    for name in [*NUMBERS, "scalar", "time", "day", "took"]:
        assert loaded[name].dtype == want[name].dtype
        np.testing.assert_array_equal(loaded[name], want[name])
    for name in ("text", "bytes", "ragged", "boxes"):
        values, offsets = loaded[f"{name}.values"], loaded[f"{name}.offsets"]
        assert (offsets[0], offsets[-1], len(offsets)) == (0, len(values), ROWS + 1)
        for n in range(ROWS):
            sample = values[offsets[n] : offsets[n + 1]]
            if name == "text":
                assert sample.tobytes().decode() == want[name][n]
            elif name == "bytes":
                assert sample.tobytes() == want[name][n]
            else:
                np.testing.assert_array_equal(sample, want[name][n])
    assert report.notices == (
        "field 'bf16' is bfloat16, which numpy does not have: its file holds the bits as uint16",
    )
    assert loaded["bf16"].dtype == np.uint16
    np.testing.assert_array_equal(loaded["meta.a%2Fb"], want["meta"]["a/b"])


def test_splits_are_exported(packed: Path, tmp_path: Path) -> None:
    for to in ("npy", "tar", "parquet"):
        report = fastload.export(packed, tmp_path / to, to=to, split="b")
        assert report.rows == 10
    assert np.load(tmp_path / "npy/scalar.npy").tolist() == list(range(15, 25))
    text = np.load(tmp_path / "npy/text.offsets.npy")
    assert text[0] == 0
    assert pyarrow.parquet.read_table(tmp_path / "parquet")["scalar"].to_pylist() == list(
        range(15, 25)
    )
    with pytest.raises(ValueError, match="no split 'c'"):
        fastload.export(packed, tmp_path / "c", to="npy", split="c")


def test_parquet(packed: Path, tmp_path: Path) -> None:
    report = fastload.export(packed, tmp_path / "new/x.parquet", to="parquet")
    assert report.files == ("x.parquet",)
    assert "'bf16' is bfloat16, which Parquet does not have" in report.notices[0]
    want = everything()
    table = pyarrow.parquet.read_table(tmp_path / "new/x.parquet")
    for name in NUMBERS:
        assert table[name].to_pylist() == want[name].reshape(ROWS, 6).tolist()
        shape = table.schema.field(name).metadata[b"fastload.shape"]
        assert json.loads(shape) == [2, 3]
    for name in ("text", "bytes"):
        assert table[name].to_pylist() == want[name]
    assert table["ragged"].to_pylist() == [sample.tolist() for sample in want["ragged"]]
    assert table["boxes"].to_pylist() == [sample.tolist() for sample in want["boxes"]]
    assert table["scalar"].to_numpy().tolist() == list(range(ROWS))
    np.testing.assert_array_equal(table["time"].to_numpy(), want["time"])
    np.testing.assert_array_equal(table["day"].to_numpy().astype("M8[D]"), want["day"])
    assert pyarrow.types.is_duration(table.schema.field("took").type.value_type)
    assert table["bf16"].to_numpy().tolist() == list(range(ROWS))
    assert table["meta.a/b"].to_numpy().tolist() == list(range(0, 2 * ROWS, 2))


def test_parquet_has_no_complex_numbers_and_no_empty_shapes(tmp_path: Path) -> None:
    for source, message in (
        (np.zeros(3, "c8"), "Parquet has no complex64"),
        (np.zeros((3, 0)), "no lists of shape"),
        (np.zeros(3, "M8[Y]"), r"Parquet has no datetime64\[Y\]"),
    ):
        out = tmp_path / source.dtype.name
        fastload.pack(source, out)
        with pytest.raises(TypeError, match=message):
            fastload.export(out, tmp_path / "x.parquet", to="parquet")
    assert not (tmp_path / "x.parquet").exists()


def test_pyarrow_is_asked_for_when_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastload.pack(np.zeros(3), tmp_path / "in")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        fastload.export(tmp_path / "in", tmp_path / "x.parquet", to="parquet")


def members(path: Path) -> dict[str, bytes]:
    found = {}
    for file in sorted(path.iterdir()):
        with tarfile.open(file) as archive:
            for member in archive:
                content = archive.extractfile(member)
                assert content is not None
                found[member.name] = content.read()
    return found


def test_tar(packed: Path, tmp_path: Path) -> None:
    report = fastload.export(packed, tmp_path / "out", to="tar")
    assert report.files == ("shard-000000.tar",)
    found, want = members(tmp_path / "out"), everything()
    for n in range(ROWS):
        key = f"{n:09d}"
        for name in [*NUMBERS, "scalar", "ragged", "boxes", "time", "took"]:
            made = np.load(io.BytesIO(found[f"{key}.{name}.npy"]))
            np.testing.assert_array_equal(made, want[name][n])
            assert made.dtype == np.asarray(want[name][n]).dtype
        assert found[f"{key}.text.txt"].decode() == want["text"][n]
        assert found[f"{key}.bytes.bin"] == want["bytes"][n]
        bf16 = np.load(io.BytesIO(found[f"{key}.bf16.npy"]))
        assert (bf16.dtype, bf16) == (np.float32, n)
        assert f"{key}.meta%2Ea%2Fb.npy" in found or f"{key}.meta.a%2Fb.npy" in found


def test_tars_of_images_and_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_tar, "_MAX_SAMPLES", 4)
    images = [encoded(noise(4, 5, n), "PNG" if n % 2 else "JPEG") for n in range(10)]
    for number, image in enumerate(images):
        put(tmp_path / f"in/{number % 2}/{number}.png", image)
    fastload.pack(tmp_path / "in", tmp_path / "packed", encoded=True)
    for name in ("a", "b"):
        report = fastload.export(tmp_path / "packed", tmp_path / name, to="tar")
    assert report.files == tuple(f"shard-{n:06d}.tar" for n in range(3))
    for file in report.files:  # nothing in them depends on the time or the user
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    found = members(tmp_path / "a")
    assert len(found) == 20
    assert found["000000000.image.jpg"] == images[0]
    assert found["000000005.image.png"] == images[1]
    assert [found[f"{n:09d}.label.cls"] for n in (0, 9)] == [b"0", b"1"]


def test_anything_that_is_read_in_place_is_exported(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6).reshape(3, 2))
    fastload.export(tmp_path / "x.npy", tmp_path / "out", to="npy")
    assert np.load(tmp_path / "out/data.npy").tolist() == [[0, 1], [2, 3], [4, 5]]
    dataset = fastload.ArrayDataset({"a": np.arange(0)})
    for to in ("npy", "tar", "parquet"):
        assert fastload.export(dataset, tmp_path / f"empty-{to}", to=to).rows == 0
    assert np.load(tmp_path / "empty-npy/a.npy").shape == (0,)
    assert pyarrow.parquet.read_table(tmp_path / "empty-parquet").num_rows == 0


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    fastload.pack({"x": np.arange(3), "x.values": np.arange(3)}, tmp_path / "in")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/x").touch()
    for to in ("npy", "tar", "parquet"):
        with pytest.raises(FileExistsError, match="already exists"):
            fastload.export(tmp_path / "in", tmp_path / "mine", to=to)
    with pytest.raises(ValueError, match="to must be one of npy, tar, parquet"):
        fastload.export(tmp_path / "in", tmp_path / "out", to="zip")
    fastload.pack({"x": ["a", "b"], "x.values": np.arange(2)}, tmp_path / "twice")
    with pytest.raises(ValueError, match=r"two files would be named x\.values\.npy"):
        fastload.export(tmp_path / "twice", tmp_path / "out", to="npy")


def test_an_export_that_fails_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastload.pack({"x": np.arange(300), "y": np.arange(300.0)}, tmp_path / "in", shard_size=1600)
    with open(tmp_path / "in/shard-000001.safetensors", "r+b") as file:
        file.truncate(100)
    for to in ("npy", "tar", "parquet"):
        with pytest.raises((ValueError, OSError)):
            fastload.export(tmp_path / "in", tmp_path / to, to=to)
        assert not (tmp_path / to).exists() or not os.listdir(tmp_path / to)


def test_export_leaves_torch_alone(tmp_path: Path) -> None:
    fastload.pack({"x": torch.zeros(3, dtype=torch.bfloat16), "t": ["a", "", "b"]}, tmp_path / "in")
    code = (
        "import sys, fastload\n"
        "for to in ('npy', 'tar', 'parquet'): fastload.export('in', to, to=to)\n"
        "from fastload.cli import main\n"
        "assert main(['head', 'in']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("kind", ["M8[D]", "M8[s]", "M8[ms]", "M8[ns]", "m8[s]"])
def test_times_that_are_none_are_null_in_parquet(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions packed them as they are."""
    select = importlib.import_module("fastload.packing.select")
    monkeypatch.setattr(select, "fill_missing", lambda source, policy: source)
    times = np.array([1, np.iinfo("i8").min, 3]).astype(kind)
    ragged = [times[:2], times[:0], times]
    fastload.pack({"t": times, "r": ragged}, tmp_path / "in")
    fastload.export(tmp_path / "in", tmp_path / "out.parquet", to="parquet")
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table["t"].null_count == 1
    got = table["t"].to_numpy()
    assert (got == times)[[0, 2]].all()
    assert np.isnat(got[1])
    assert [len(row) for row in table["r"]] == [2, 0, 3]


def test_times_that_parquet_cannot_hold_are_named(tmp_path: Path) -> None:
    fastload.pack({"day": np.array([0, 213503982334602]).astype("M8[D]")}, tmp_path / "in")
    with pytest.raises(ValueError, match=r"'day': .* is out of the range of Parquet"):
        fastload.export(tmp_path / "in", tmp_path / "out.parquet", to="parquet")
