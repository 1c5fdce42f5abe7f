"""`fastload.pack` of arrays and files of numbers; what it does with its workers."""

from __future__ import annotations

import collections
import errno
import gzip
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packing import column, content, refused, same_bytes

import fastload
from fastload import FormatError
from fastload.formats import packed

Run = Callable[..., subprocess.CompletedProcess[str]]


# --- Arrays -----------------------------------------------------------------------------------


def test_containers_of_arrays_come_back(tmp_path: Path) -> None:
    pair = collections.namedtuple("pair", "a b")
    source = {"x": np.arange(6).reshape(3, 2), "p": pair(np.arange(3), (np.ones(3),))}
    report = fastload.pack(source, tmp_path / "out")
    assert (report.rows, report.shards) == (3, 1)
    sample = fastload.open(tmp_path / "out")[2]
    assert list(sample) == ["x", "p"]
    assert sample["x"].tolist() == [4, 5]
    assert (type(sample["p"]).__name__, sample["p"].a, sample["p"].b) == ("pair", 2, (1.0,))


def test_bare_arrays_tensors_and_views_come_back(tmp_path: Path) -> None:
    base = np.arange(60, dtype="i4").reshape(10, 6)
    for number, view in enumerate((base, base[::-1], base[:, ::2], base.T.copy().T, base[:0])):
        fastload.pack(view, tmp_path / f"{number}")
        np.testing.assert_array_equal(column(tmp_path / f"{number}"), view)
    fastload.pack(torch.arange(5, requires_grad=False).float(), tmp_path / "tensor")
    assert column(tmp_path / "tensor").tolist() == [0, 1, 2, 3, 4]


def test_bools_are_stored_as_zero_and_one(tmp_path: Path) -> None:
    odd = np.array([0, 1, 2, 255], np.uint8).view(bool)
    np.save(tmp_path / "b.npy", odd)
    for number, source in enumerate((odd, tmp_path / "b.npy")):
        out = tmp_path / f"{number}"
        fastload.pack(source, out)
        (start,) = fastload.open(out).extents.columns[0].offsets
        content = (out / "shard-000000.safetensors").read_bytes()
        assert list(content[start : start + 4]) == [0, 1, 1, 1]


def test_shards_hold_a_power_of_two_rows(tmp_path: Path) -> None:
    rows = np.zeros((100, 10), np.uint8)
    for size, each in ((1, 1), (10, 1), (29, 2), (100, 8), (10**9, 128)):
        out = tmp_path / f"{size}"
        report = fastload.pack(rows, out, shard_size=size)
        shard_rows = packed.read_manifest(out).groups[0].rows
        assert report.shards == len(shard_rows) == -(-100 // each)
        assert set(shard_rows[:-1]) <= {each}
        assert report.bytes == sum(file.stat().st_size for file in out.glob("shard*"))


def test_no_samples_make_a_complete_dataset(tmp_path: Path) -> None:
    fastload.pack(np.zeros((0, 4), "f4"), tmp_path / "out")
    dataset = fastload.open(tmp_path / "out")
    assert (len(dataset), dataset.fields[0].shape) == (0, (4,))


def test_arrays_that_cannot_be_packed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    lengths = {"a": np.zeros(3), "b": np.zeros(4)}
    assert "'a' has 3 samples, 'b' has 4" in refused(lengths, out)
    assert "no sample axis" in refused({"a": np.array(1)}, out)
    assert "NoneType" in refused({"a": None}, out)
    assert "no arrays" in refused({}, out)
    assert "two fields" in refused({"a": {"b": np.zeros(2)}, "a.b": np.zeros(2)}, out)
    assert "kept for the format" in refused({"__crc__": np.zeros(2)}, out)
    for dtype in ("O", "M8", "g", "i4,f8"):
        assert "field 'a': dtype" in refused({"a": np.zeros(2, dtype)}, out)
    assert not out.exists()


def test_arguments_are_checked(tmp_path: Path) -> None:
    array = np.zeros(2)
    for options in (
        {"workers": 0},
        {"shard_size": 0},
        {"workers": True},
        {"kind": "paper"},
        {"resize": 8},
        {"shape": (2,)},
    ):
        assert refused(array, tmp_path / "out", **options).startswith("ValueError")
    assert not (tmp_path / "out").exists()


# --- Files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(50,), (50, 7), (50, 3, 4), (50, 0), (1, 5), (50, 1, 1)])
@pytest.mark.parametrize("dtype", ["<i4", ">i4", ">f8", ">c8", "?", "u1", ">u2"])
def test_npy_in_any_byte_and_axis_order(tmp_path: Path, dtype: str, shape: Any) -> None:
    want = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    for order, array in (("c", want), ("f", np.asfortranarray(want))):
        np.save(tmp_path / f"{order}.npy", array)
        fastload.pack(tmp_path / f"{order}.npy", tmp_path / order, shard_size=300)
        got = column(tmp_path / order)
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype.newbyteorder("=")


def test_a_folder_of_npy_in_natural_order(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, rows in ((1, 5), (2, 0), (10, 3), (9, 8)):
        np.save(tmp_path / f"in/x_{number}.npy", np.full(rows, number, ">i2"))
    (tmp_path / "in/notes.txt").write_text("a stranger")
    fastload.pack(tmp_path / "in", tmp_path / "out", shard_size=8)
    assert column(tmp_path / "out").tolist() == [1] * 5 + [9] * 8 + [10] * 3
    np.save(tmp_path / "in/x_11.npy", np.zeros(3, "f4"))
    text = refused(tmp_path / "in", tmp_path / "out2")
    assert "x_1.npy" in text
    assert "x_11.npy" in text


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, save: Any) -> None:
    random = np.random.default_rng(0)
    x, y = random.random((300, 11)), random.integers(0, 9, 300)
    save(tmp_path / "a.npz", x=x.astype(">f4"), y=y, f=np.asfortranarray(x))
    fastload.pack(tmp_path / "a.npz", tmp_path / "out", shard_size=5000, workers=4)
    assert list(fastload.open(tmp_path / "out")[0]) == ["x", "y", "f"]
    for name, want in (("x", x.astype("f4")), ("y", y), ("f", x)):
        np.testing.assert_array_equal(column(tmp_path / "out", name), want)


def test_damaged_npz(tmp_path: Path) -> None:
    out, path = tmp_path / "out", tmp_path / "a.npz"
    np.savez(path, x=np.zeros(10), y=np.zeros(11))
    assert "'x' has 10 samples, 'y' has 11" in refused(path, out)
    np.savez(path, x=np.array([{}], object))
    assert f"{path}: array 'x'" in refused(path, out)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no arrays")
    assert "no arrays" in refused(path, out)
    np.savez_compressed(path, x=np.random.default_rng(0).random(50_000))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "damaged .npz" in refused(path, out)
    path.write_bytes(content[:150_000] + bytes([content[150_000] ^ 255]) + content[150_001:])
    assert "array 'x'" in refused(path, out)


def test_odd_and_damaged_npy(tmp_path: Path) -> None:
    out = tmp_path / "out"

    class Boom:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "OWNED"), "w")

    np.save(tmp_path / "o.npy", np.array([Boom(), 1], object), allow_pickle=True)
    np.save(tmp_path / "s.npy", np.array(["ab"]))
    np.save(tmp_path / "t.npy", np.zeros(3, "M8"))
    np.save(tmp_path / "r.npy", np.zeros(2, "i4,f8"))
    np.save(tmp_path / "scalar.npy", np.float32(3))
    np.save(tmp_path / "a.npy", np.arange(100.0))
    content = (tmp_path / "a.npy").read_bytes()
    for name, cut in (("cut", content[:-8]), ("head", content[:20]), ("zero", b"")):
        (tmp_path / f"{name}.npy").write_bytes(cut)
    for name in ("o", "s", "t", "r", "scalar", "cut", "head", "zero"):
        assert f"{name}.npy" in refused(tmp_path / f"{name}.npy", out)
    assert not (tmp_path / "OWNED").exists()
    assert not out.exists()


def test_a_file_that_shrinks_while_it_is_packed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))

    def shrink(_: Any) -> None:
        os.truncate(tmp_path / "x.npy", 4096)

    with pytest.raises(FormatError, match=r"x\.npy: truncated while it was read"):
        fastload.pack(tmp_path / "x.npy", tmp_path / "out", shard_size=2000, progress=shrink)
    assert not (tmp_path / "out").exists()


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match=r"Input/output error: '.*/x\.npy'"):
        fastload.pack(tmp_path / "x.npy", tmp_path / "out", workers=1)
    assert not list((tmp_path / "out").glob("*shard*"))


def test_raw_files(tmp_path: Path) -> None:
    want = np.random.default_rng(0).integers(0, 1 << 16, (20, 3, 2))
    path = tmp_path / "x.bin"
    for dtype in ("<u2", ">u2", "uint16"):
        want.astype(dtype).tofile(path)
        for shape in ((3, 2), [-1, 3, 2]):
            fastload.pack(path, tmp_path / "out", dtype=dtype, shape=shape, overwrite=True)
            assert column(tmp_path / "out").tolist() == want.tolist()
    path.write_bytes(bytes(43))
    text = refused(path, tmp_path / "new", dtype="f4", shape=4)
    assert "43 bytes is not a multiple of 16" in text
    assert "needs --dtype" in refused(path, tmp_path / "new")
    assert "--dtype" in refused(path, tmp_path / "new", dtype="f4")


def test_awkward_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("with space", "[a]{b}*?", "naïve-日本", "-d", "a\\b", "n\nl"):
        os.makedirs(name)
        np.save(f"{name}/x.npy", np.arange(3))
        for source in (name, Path(name), os.fsencode(name), f"{name}/x.npy"):
            fastload.pack(source, f"out {name}", overwrite=True)
            assert column(tmp_path / f"out {name}").tolist() == [0, 1, 2]
    bad = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.makedirs(bad)
    np.save(os.fsdecode(bad) + "/x.npy", np.arange(3))
    fastload.pack(bad, bad + b"-out")
    assert len(fastload.open(bad + b"-out")) == 3


def test_what_is_no_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "No such file" in refused(tmp_path / "nothing", out)
    (tmp_path / "x.txt").write_text("text")
    assert "neither its name nor its first bytes" in refused(tmp_path / "x.txt", out)
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"{}"))
    assert "x.gz: is compressed; decompress it first" in refused(tmp_path / "x.gz", out)
    (tmp_path / "empty").mkdir()
    assert "empty: there are no files in this folder" in refused(tmp_path / "empty", out)
    fastload.pack(np.arange(3), tmp_path / "packed")
    assert "is packed already" in refused(tmp_path / "packed", out)
    assert not out.exists()
    if os.geteuid():  # root may read everything
        np.save(tmp_path / "x.npy", np.arange(3))
        (tmp_path / "x.npy").chmod(0)
        assert "Permission denied" in refused(tmp_path / "x.npy", out)


# --- Workers ----------------------------------------------------------------------------------


def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((1000, 20)))
    for workers in (1, 2, 5):
        out = tmp_path / f"{workers}"
        fastload.pack(tmp_path / "x.npy", out, workers=workers, shard_size=20_000)
        assert same_bytes(out, tmp_path / "1")
    assert len(list((tmp_path / "1").glob("shard*"))) == 16


def test_bytes_do_not_depend_on_folder_or_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.arange(100))
        os.utime(tmp_path / name / "x.npy", (1, 1) if name == "a" else None)
    fastload.pack(tmp_path / "a", tmp_path / "a-out")
    monkeypatch.chdir(tmp_path / "b")
    fastload.pack(".", "../b-out")
    assert same_bytes(tmp_path / "a-out", tmp_path / "b-out")


def test_a_script_needs_no_guard(run_python: Run, tmp_path: Path) -> None:
    script = (
        "import fastload, numpy as np\n"
        "np.save('x.npy', np.arange(1000))\n"
        "fastload.pack('x.npy', 'files', workers=2, shard_size=2000)\n"
        "class Squares:\n"
        "    def __len__(self): return 100\n"
        "    def __getitem__(self, i): return i * i\n"
        "fastload.pack(Squares(), 'object', workers=2, shard_size=64)\n"
        "assert fastload.open('object')[9] == 81\n"
        "assert callable(fastload.pack)\n"
    )
    (tmp_path / "script.py").write_text(script)
    run_python("import runpy; runpy.run_path('script.py', run_name='__main__')")
    (tmp_path / "object/fastload.json").unlink()
    for name in ("files", "object"):
        subprocess.run(["rm", "-r", name], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-"], input=script, text=True, cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_a_refused_input_leaves_nothing_behind(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text('{"x": 1}\n' * 300)
    bad.write_text('{"x": 1}\n' * 200 + '{"x": "text"}\n' + '{"x": 1}\n' * 800)
    out, options = tmp_path / "out", {"shard_size": 500, "workers": 1}
    with pytest.raises(FormatError, match="line 201"):
        fastload.pack(bad, out, **options)
    assert not out.exists()
    out.mkdir()
    with pytest.raises(FormatError, match="line 201"):
        fastload.pack(bad, out, **options)
    assert os.listdir(out) == []
    fastload.pack(good, out, **options)
    before = content(out)
    for call in (
        lambda: fastload.pack(bad, out, overwrite=True, **options),
        lambda: fastload.append(bad, out, **options),
        lambda: fastload.add_column(out, bad, name="y", limit=300, **options),
    ):
        with pytest.raises(FormatError, match="line 201"):
            call()
        assert content(out) == before
        assert sorted(os.listdir(out)) == sorted(before)
    fastload.append(good, out, **options)
    assert len(fastload.open(out)) == 600


def test_what_was_there_to_be_resumed_stays(tmp_path: Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_text('{"x": 1}\n' * 1000)

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastload.pack(path, out, shard_size=500, workers=1, progress=interrupt)
    path.write_text('{"x": 1}\n' * 900)
    with pytest.raises(ValueError, match="cannot be resumed"):
        fastload.pack(path, out, shard_size=500, workers=1, resume=True)
    assert out.exists()
