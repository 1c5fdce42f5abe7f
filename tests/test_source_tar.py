"""`fastload.pack` of tar files, as WebDataset has them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import damaged, encoded, noise, put, refused, same_bytes, samples_of

import fastload

Members = Sequence[tuple[str, bytes]]


def write(path: Path, members: Members, kind: int = tarfile.PAX_FORMAT) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w", format=kind) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def members(rows: int) -> list[tuple[str, bytes]]:
    made = []
    for n in range(rows):
        stem = f"some/folder/{'long' * 60 if n == 2 else ''}é{n:03d}"
        made += [
            (f"{stem}.txt", f"text {n}\n".encode()),
            (f"{stem}.cls", f"{n % 7}".encode()),
            (f"{stem}.meta.json", json.dumps({"n": n, "box": [n, 1.5]}).encode()),
            (f"{stem}.X.npy", npy(np.full((n % 3, 2), n, "f4"))),
            (f"{stem}.bin", bytes([n % 256]) * (n % 4)),
        ]
    return made


def wanted(rows: int) -> list[dict[str, Any]]:
    return [
        {
            "key": f"some/folder/{'long' * 60 if n == 2 else ''}é{n:03d}",
            "txt": f"text {n}\n",
            "cls": n % 7,
            "meta.json": {"n": n, "box": [n, 1.5]},
            "x.npy": np.full((n % 3, 2), n, "f4").tolist(),
            "bin": bytes([n % 256]) * (n % 4),
        }
        for n in range(rows)
    ]


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_samples_come_back_in_order(tmp_path: Path, kind: int) -> None:
    every = members(40)
    write(tmp_path / "in/x_10.tar", every[125:], kind)
    write(tmp_path / "in/x_9.tar", [("__meta__.json", b"{}"), ("folder", b""), *every[:125]], kind)
    fastload.pack(tmp_path / "in", tmp_path / "1", workers=1, shard_size=1000)
    assert samples_of(tmp_path / "1") == wanted(40)
    if kind == tarfile.PAX_FORMAT:
        fastload.pack(tmp_path / "in", tmp_path / "2", workers=2, shard_size=1000)
        assert same_bytes(tmp_path / "1", tmp_path / "2")
        assert [str(field) for field in fastload.open(tmp_path / "1").fields[4:]] == [
            "float64 [2]", "float32 [-1, 2]", "uint8 [-1] (bytes)",
        ]  # fmt: skip


def test_images_are_decoded_resized_or_kept(tmp_path: Path) -> None:
    from PIL import Image

    pictures = [noise(6, 8, n) for n in range(3)]
    files = [(f"{n}.png", encoded(picture, "PNG")) for n, picture in enumerate(pictures)]
    write(tmp_path / "a.tar", files)
    path = tmp_path / "a.tar"
    fastload.pack(path, tmp_path / "plain")
    fastload.pack(path, tmp_path / "small", resize=4)
    fastload.pack(path, tmp_path / "kept", encoded=True)
    for n, picture in enumerate(pictures):
        small = picture.resize((4, 4), Image.Resampling.BILINEAR)
        images = [fastload.open(tmp_path / of)[n]["png"] for of in ("plain", "small", "kept")]
        np.testing.assert_array_equal(images[0], np.asarray(picture))
        np.testing.assert_array_equal(images[1], np.asarray(small))
        assert images[2] == files[n][1]
    assert fastload.open(tmp_path / "kept").fields[1].logical == "image"
    assert "cannot be resized" in refused(path, tmp_path / "no", resize=3, encoded=True)
    write(path, [*files, ("3.png", encoded(noise(7, 8), "PNG"))])
    damaged(path, tmp_path / "no", "a.tar", "'png'", "--resize")


def test_incomplete_and_bad_samples_are_listed_or_stop(tmp_path: Path) -> None:
    every = members(30)
    del every[5 * 4 + 1]  # cls of 004
    for place, content in ((5 * 7, b"seven"), (5 * 8 + 2, b"\x93NUMPY")):  # cls and npy, one off
        every[place] = every[place][0], content
    write(tmp_path / "a.tar", every)
    report = fastload.pack(tmp_path / "a.tar", tmp_path / "out")
    texts = [f"{skipped.path} {skipped.reason}" for skipped in report.skipped]
    assert len(texts) == 3
    assert "é007.cls: .cls: invalid literal" in texts[1]
    assert "é008.x.npy: .npy: " in texts[2]
    assert "a.tar: sample 4, at byte" in texts[0]
    assert "é004' is incomplete: there is no .cls" in texts[0]
    assert len(samples_of(tmp_path / "out")) == 30 - len(texts)
    damaged(tmp_path / "a.tar", tmp_path / "no", "a.tar: sample 4", "é004", strict=True)


def test_damage_ends_in_one_error(tmp_path: Path) -> None:
    path, out = tmp_path / "a.tar", tmp_path / "out"
    write(path, [("a.txt", b"x" * 600), ("b.txt", b"y" * 600)])
    content = path.read_bytes()
    for size in range(0, 3072, 256):  # also between two members
        path.write_bytes(content[:size])
        damaged(path, out, "a.tar")
    bad = bytearray(content)
    bad[1536 + 150] ^= 1  # the checksum of the second header
    path.write_bytes(bad)
    damaged(path, out, "a.tar: a damaged header at byte 1536")
    path.write_bytes(b"\x1f\x8b" + content)
    damaged(path, out, "a.tar: no tar file, compressed")
    write(path, [])
    damaged(path, out, "no tar records")
    put(tmp_path / "in/b.TAR.gz", gzip.compress(content))
    for source in (tmp_path / "in/b.TAR.gz", tmp_path / "in"):
        damaged(source, out, "b.TAR.gz: is compressed: unpack it first")


def test_what_export_wrote_comes_back(tmp_path: Path) -> None:
    samples = [{"x": np.arange(n % 4), "t": f"text{n}", "y": n} for n in range(50)]
    fastload.pack(samples, tmp_path / "a")
    fastload.export(tmp_path / "a", tmp_path / "tars", to="tar")
    fastload.pack(tmp_path / "tars", tmp_path / "b")
    want = [{"x.npy": list(range(n % 4)), "t.txt": f"text{n}", "y.npy": n} for n in range(50)]
    got = samples_of(tmp_path / "b")
    assert [{k: v for k, v in sample.items() if k != "key"} for sample in got] == want
