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


def test_data_behind_the_end_mark_is_not_left_out_silently(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [("0.txt", b"a")])
    content = (tmp_path / "a.tar").read_bytes()
    for behind in (content, b"x", bytes(3 << 20) + b"x"):
        (tmp_path / "b.tar").write_bytes(content + behind)
        assert "data behind its end mark" in refused(tmp_path / "b.tar", tmp_path / "no")
    (tmp_path / "b.tar").write_bytes(content + bytes(1000))
    fastload.pack(tmp_path / "b.tar", tmp_path / "out")
    assert samples_of(tmp_path / "out") == [{"key": "0", "txt": "a"}]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_a_second_array_in_a_member_is_a_bad_record(tmp_path: Path) -> None:
    good = npy(np.arange(2))
    write(tmp_path / "a.tar", [("0.npy", good), ("1.npy", good + good)])
    report = fastload.pack(tmp_path / "a.tar", tmp_path / "out")
    assert (report.rows, len(report.skipped)) == (1, 1)
    assert "1.npy: .npy: there is a second array" in report.skipped[0].reason


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
        damaged(source, out, "b.TAR.gz: is compressed; decompress it first")


def test_what_export_wrote_comes_back(tmp_path: Path) -> None:
    samples = [{"x": np.arange(n % 4), "t": f"text{n}", "y": n} for n in range(50)]
    fastload.pack(samples, tmp_path / "a")
    fastload.export(tmp_path / "a", tmp_path / "tars", to="tar")
    fastload.pack(tmp_path / "tars", tmp_path / "b")
    want = [{"x.npy": list(range(n % 4)), "t.txt": f"text{n}", "y.npy": n} for n in range(50)]
    got = samples_of(tmp_path / "b")
    assert [{k: v for k, v in sample.items() if k != "key"} for sample in got] == want


# --- Members that are no plain files ------------------------------------------------------------


def linked(path: Path, entries: list[tuple[str, bytes, str]]) -> None:
    """Writes members of any type: a name, the type, and the content or the target of a link."""
    with tarfile.open(path, "w") as archive:
        for name, kind, text in entries:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = text if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE) else ""
            data = text.encode() if kind == tarfile.REGTYPE else b""
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


REG, HARD, SYM = tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE


def test_links_hold_the_content_of_their_targets(tmp_path: Path) -> None:
    entries = [
        ("a/0.txt", REG, "zero"), ("a/0.cls", REG, "7"), ("a/1.txt", HARD, "a/0.txt"),
        ("a/1.cls", REG, "8"), ("a/2.txt", HARD, "./a/1.txt"), ("a/2.cls", SYM, "../a/1.cls"),
        ("b/3.txt", SYM, "../a/4.txt"), ("b/3.cls", HARD, "a/0.cls"),
        ("a/4.txt", REG, "four"), ("a/4.cls", SYM, "./0.cls"),
    ]  # fmt: skip
    linked(tmp_path / "a.tar", entries)
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path / "files", filter="fully_trusted")  # the oracle
    for options in ({}, {"shuffle": 3}, {"shard_size": 1}, {"workers": 2, "shard_size": 1}):
        fastload.pack(tmp_path / "a.tar", tmp_path / "out", overwrite=True, **options)
        found = samples_of(tmp_path / "out")
        assert len(found) == 5
        for sample in found:
            for name, kind in (("txt", str), ("cls", int)):
                text = (tmp_path / f"files/{sample['key']}.{name}").read_text()
                assert sample[name] == kind(text)
    fastload.pack(tmp_path / "a.tar", tmp_path / "out", overwrite=True, fields=["cls"])
    assert samples_of(tmp_path / "out") == [{"cls": n} for n in (7, 8, 8, 7, 7)]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (("1.txt", SYM, "2.txt"), "1.txt: a link to '2.txt', whose content is not in the archive"),
        (("1.txt", SYM, "/etc/hostname"), "a link to '/etc/hostname'"),
        (("1.txt", SYM, "1.txt"), "1.txt: a link to '1.txt'"),
        (("1.txt", HARD, "9.txt"), "1.txt: a link to '9.txt'"),
        (("1.txt", tarfile.FIFOTYPE, ""), "1.txt: is no file"),
        (("1.txt", tarfile.CHRTYPE, ""), "1.txt: is no file"),
        (("1.key", REG, "k"), "1.key: a field 'key'"),
        (("1.KEY", REG, "k"), "1.KEY: a field 'key'"),
        (("0.TXT", REG, "k"), "the sample '0' has two members .txt"),
    ],
)
def test_members_that_cannot_be_read_or_have_the_name_of_another_are_refused(
    tmp_path: Path, entry: tuple[str, bytes, str], text: str
) -> None:
    linked(tmp_path / "a.tar", [("0.txt", REG, "zero"), entry])
    damaged(tmp_path / "a.tar", tmp_path / "out", "a.tar", text)


def test_members_that_are_not_read_are_reported(tmp_path: Path) -> None:
    folder = ("d", tarfile.DIRTYPE, "")
    entries = [
        folder, ("README", REG, "x"), ("d/0.txt", REG, "zero"), ("d/._0.txt", REG, "x"),
        ("d/LICENSE", HARD, "README"), ("pipe", tarfile.FIFOTYPE, ""), ("x.d", SYM, "d"),
        ("d/0.cls", REG, "1"),
    ]  # fmt: skip
    (tmp_path / "in/sub").mkdir(parents=True)
    linked(tmp_path / "in/sub/a.tar", entries)
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert {left.reason: left.paths for left in report.leftovers} == {
        "tar does not read members of this name": (
            "sub/a.tar: README", "sub/a.tar: d/LICENSE", "sub/a.tar: pipe",
        ),
        "hidden, or a file of the operating system": ("sub/a.tar: d/._0.txt",),
        "a link to a folder": ("sub/a.tar: x.d",),
    }  # fmt: skip
    there = sum(entry is not folder for entry in entries)
    assert sum(left.count for left in report.leftovers) + 2 == there
    text = refused(tmp_path / "in", tmp_path / "no", strict=True, ignore=["README", "x.d"])
    assert "2 entries" in text
    ignore = ["README", "x.d", "d/LICENSE", "pipe"]
    report = fastload.pack(tmp_path / "in", tmp_path / "yes", strict=True, ignore=ignore)
    assert samples_of(tmp_path / "yes") == [{"key": "d/0", "txt": "zero", "cls": 1}]
