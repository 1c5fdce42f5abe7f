"""Files of known formats are never read as raw numbers or tokens; numbers always are."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image

import fastload
from fastload import FastLoader, FormatError, TokenDataset
from fastload.formats.files import file_source
from fastload.formats.signatures import signature

BYTES = np.random.default_rng(0).bytes(4096)


def image(kind: str) -> Callable[[Path], None]:
    return lambda path: Image.new("RGB", (40, 40)).save(path, kind)


def write(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.arange(9))


def npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.arange(9))


def tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("x"), io.BytesIO())


def sqlite(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x)")
    connection.close()


def hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["x"] = 1


def parquet(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"x": [1]}), path)


def arrow(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.feather").write_feather(pa.table({"x": [1]}), path)


def llmc(magic: int) -> Callable[[Path], None]:
    return write(np.array([magic, 1, *range(254)], "i4").tobytes())


MADE: list[tuple[str, Callable[[Path], None]]] = [
    (".npy", npy),
    ("zip", npz),
    ("zip", lambda path: torch.save({"x": 1}, path)),
    ("torch.save", lambda path: torch.save(1, path, _use_new_zipfile_serialization=False)),
    ("gzip", write(gzip.compress(BYTES))),
    ("bzip2", write(bz2.compress(BYTES))),
    ("xz", write(lzma.compress(BYTES))),
    ("Zstandard", write(b"\x28\xb5\x2f\xfd" + BYTES)),
    ("safetensors", lambda path: safetensors.numpy.save_file({"x": np.arange(3)}, path)),
    ("tar", tar),
    ("HDF5", hdf5),
    ("Parquet", parquet),
    ("Arrow", arrow),
    ("SQLite", sqlite),
    *[("pickle", write(pickle.dumps({"x": [1, 2]}, protocol))) for protocol in range(2, 6)],
    ("pickle", write(pickle.dumps(np.arange(99)))),
    ("PNG", image("png")),
    ("JPEG", image("jpeg")),
    ("GIF", image("gif")),
    ("TIFF", image("tiff")),
    ("BMP", image("bmp")),
    ("WEBP", image("webp")),
    ("Git LFS", write(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")),
    ("HTML", write(b"<!DOCTYPE html><html>404</html>")),
    ("llm.c model", llmc(20240326)),
    ("llm.c evaluation", llmc(20240522)),
]


@pytest.mark.parametrize(("what", "make"), MADE, ids=[f"{n}-{w}" for n, (w, _) in enumerate(MADE)])
def test_a_known_format_is_refused_by_name_wherever_numbers_are_read(
    tmp_path: Path, what: str, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "x.bin"
    make(path)
    size = path.stat().st_size
    said = rf"x\.bin: is an? .*{what}"
    with pytest.raises(FormatError if what != ".npy" else ValueError, match=f"{said}|is npy"):
        fastload.open(path, dtype="u1", shape=())
    with pytest.raises(FormatError, match=said):
        fastload.pack(path, tmp_path / "out", kind="raw", dtype="u1", shape=())
    assert not (tmp_path / "out").exists()
    if what != ".npy":
        path.write_bytes(path.read_bytes() + bytes(size % 2))  # a whole number of uint16
        if what != "pickle":  # whose last byte counts
            with pytest.raises(FormatError, match=rf"{said}.* not read as tokens"):
                TokenDataset(path, 8)
            with pytest.raises(FormatError, match=said):
                FastLoader(path, 8)


def test_token_files_of_llm_c_are_tokens_and_no_raw_numbers(tmp_path: Path) -> None:
    llmc(20240520)(tmp_path / "x.bin")
    with pytest.raises(FormatError, match=r"an llm\.c token file, which TokenDataset reads"):
        fastload.open(tmp_path / "x.bin", dtype="u2", shape=())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x1f\x8b",
        b"\x1f\x8b\x01\x00" + BYTES,
        b"BM" + BYTES,
        b"BZh" + BYTES,
        b"\xff\xd8\xff\x00" + BYTES,
        b"\x80",
        b"\x80\x04." + BYTES,
        b"RIFF" + BYTES,
        b"II" + BYTES,
        BYTES[:8] + b"{" + BYTES,
        b"\xff" * 4096,
        bytes(4096),
        json.dumps({"x": 1}).encode(),
    ],
)
def test_numbers_are_numbers(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    assert signature(file_source(tmp_path / "x.bin")) is None
    assert len(fastload.open(tmp_path / "x.bin", dtype="u1", shape=())) == len(content)


@pytest.mark.parametrize("path", ["/proc/self/status", "/proc/meminfo", "/sys/kernel/mm/ksm/run"])
def test_files_of_the_kernel_are_refused(path: str, tmp_path: Path) -> None:
    if not Path(path).exists():
        pytest.skip("not on this machine")
    for read in (
        lambda: fastload.open(path, dtype="u1", shape=()),
        lambda: TokenDataset(path, 8),
        lambda: fastload.pack(path, tmp_path / "out", kind="raw", dtype="u1", shape=()),
    ):
        with pytest.raises(FormatError, match=f"{path}: its size is reported as"):
            read()


# --- remote paths


@pytest.mark.parametrize(
    "path",
    [
        "s3://bucket/train.bin",
        "gs://bucket/train",
        "https://example.org/x.npy",
        "hf://datasets/a/b",
        b"S3://bucket/x",
        Path("s3://bucket/x"),
        "file:///tmp/x",
    ],
    ids=str,
)
def test_remote_paths_are_refused_in_words(tmp_path: Path, path: str | bytes | Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    reads: list[Callable[[], object]] = [
        lambda: fastload.open(path),
        lambda: fastload.open([path]),  # type: ignore[list-item]
        lambda: TokenDataset(path, 8),
        lambda: fastload.pack(path, tmp_path / "out"),
        lambda: fastload.pack(tmp_path / "x.npy", path),  # type: ignore[arg-type]
        lambda: fastload.merge(path, [tmp_path / "x"]),
        lambda: fastload.verify(path),
        lambda: fastload.ArrayDataset({"x": path}),
    ]
    if not isinstance(path, bytes):
        reads.append(lambda: FastLoader(path))
    for read in reads:
        with pytest.raises(ValueError, match=r"remote paths are not supported yet|is a URL"):
            read()


@pytest.mark.parametrize("command", ["info", "head", "verify", "bench", "doctor"])
def test_commands_refuse_remote_paths(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastload", command, "s3://bucket/x"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "s3://bucket/x: remote paths are not supported yet" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_local_folder_may_be_named_like_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s3:").mkdir()
    np.save("s3:/x.npy", np.arange(3))
    assert len(fastload.open("s3:/x.npy")) == 3
    assert len(fastload.open("s3://x.npy")) == 3
