"""`fastload.pack` of FFCV's files, whose bytes are put together here.

A file is a header (u16 version 2, u16 fields, u32 bytes of a page, u64 samples, u64 start of the
table); for each field u8 type, 16 bytes of its name and 1024 of arguments; for each sample a record
of its fields, aligned as C does it; pages; and the table: u64 sample, start and size of all that is
in the pages. Floats and integers lie in the records, an image as u8 mode (0 JPEG, 1 pixels), u16
width, u16 height, u64 start without any padding, bytes and JSON as u64 start and size, arrays as
u64 start. The arguments of an array are u64 shape[32], u64 length and a text with its dtype.

`golden/others/ffcv-1.0.2.beton.xz` was written by FFCV 1.0.2 itself, from `real(0)` to `real(5)`.
"""

from __future__ import annotations

import io
import json
import lzma
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import damaged, encoded, noise, refused, same_bytes, samples_of
from paths import GOLDEN
from PIL import Image

import fastload

BETON = GOLDEN / "others/ffcv-1.0.2.beton.xz"
ROWS = 20
PAGE = 1 << 21
DESCRIPTOR = 1041
FLOAT, INT, IMAGE, BYTES, ARRAY, JSON, TENSOR = range(7)
FIELDS = {
    "f": FLOAT,
    "image": IMAGE,
    "i": INT,
    "b": BYTES,
    "a": ARRAY,
    "meta": JSON,
    "t": TENSOR,
}
RECORD = struct.Struct("<d BHHQ 3x q QQ Q QQ Q")


def pixels(n: int) -> np.ndarray:
    return np.asarray(noise(4, 6, n))


def values(n: int) -> dict[str, Any]:
    return {
        "f": n / 4,
        "image": pixels(n).tolist(),
        "i": n - 3,
        "b": bytes(range(n % 3)),
        "a": [[n, -n, 1], [2, 3, 4]],
        "meta": {"n": n, "s": "é" * (n % 2)},
        "t": [n / 2, 1.0],
    }


def jpeg(n: int) -> bytes:
    return encoded(noise(4, 6, n), "JPEG")


def arguments(dtype: str, *shape: int) -> bytes:
    text = json.dumps([["", dtype]]).encode()
    return struct.pack("<32QQ", *shape, *[0] * (32 - len(shape)), len(text)) + text


def beton(jpegs: frozenset[int] = frozenset()) -> bytearray:
    """A file of the samples 0 to 19; the images of some are JPEG."""
    described = b"".join(
        struct.pack(
            "<B16s1024s",
            kind,
            name.encode(),
            {"a": arguments("<i2", 2, 3), "t": arguments("<f4", 2)}.get(name, b""),
        )
        for name, kind in FIELDS.items()
    )
    pages, table, records = bytearray(), [], b""
    for n in range(ROWS):
        v, starts = values(n), []
        meta = json.dumps(v["meta"]).encode() + b"\0"
        a, t = np.array(v["a"], "<i2").tobytes(), np.array(v["t"], "<f4").tobytes()
        image = jpeg(n) if n in jpegs else pixels(n).tobytes()
        for content in (image, v["b"], a, meta, t):
            starts.append(PAGE + len(pages))
            table.append((n, starts[-1], len(content)))
            pages += content
        mode = n not in jpegs
        records += RECORD.pack(
            *(v["f"], mode, 6, 4, starts[0], v["i"], starts[1], len(v["b"])),
            *(starts[2], starts[3], len(meta), starts[4]),
        )
    pages += bytes(PAGE - len(pages))
    header = struct.pack("<HHIQQ", 2, len(FIELDS), PAGE, ROWS, 2 * PAGE)
    content = (header + described + records).ljust(PAGE, b"\0") + pages
    return bytearray(content + b"".join(struct.pack("<3Q", *row) for row in table))


def test_every_type_of_field_comes_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "in.beton"
    path.write_bytes(beton())
    for workers in (1, 2):
        fastload.pack(path, tmp_path / f"{workers}", workers=workers, shard_size=2000)
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    assert samples_of(tmp_path / "1") == [values(n) for n in range(ROWS)]
    fields = {field.name: str(field) for field in fastload.open(tmp_path / "1").fields}
    assert fields["image"] == "uint8 [4, 6, 3]"
    assert fields["a"] == "int16 [2, 3]"
    assert fields["b"] == "uint8 [-1] (bytes)"


def test_images_of_both_modes_are_decoded_resized_or_kept(tmp_path: Path) -> None:
    path = tmp_path / "renamed"  # known by its first bytes
    path.write_bytes(beton(jpegs=frozenset(range(0, ROWS, 2))))

    def oracle(n: int) -> Image.Image:
        return noise(4, 6, n) if n % 2 else Image.open(io.BytesIO(jpeg(n)))

    fastload.pack(path, tmp_path / "decoded")
    fastload.pack(path, tmp_path / "resized", resize=(3, 5), shuffle=1)
    fastload.pack(path, tmp_path / "kept", encoded=True, fields=["image"])
    decoded, kept = fastload.open(tmp_path / "decoded"), fastload.open(tmp_path / "kept")
    for n in range(ROWS):
        np.testing.assert_array_equal(decoded[n]["image"], np.asarray(oracle(n)))
        content = kept[n]["image"]
        assert content == jpeg(n) if n % 2 == 0 else content.startswith(b"P6 6 4 255\n")
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), oracle(n))
    fastload.export(kept, tmp_path / "tar", to="tar")
    with tarfile.open(tmp_path / "tar/shard-000000.tar") as archive:
        assert archive.getnames()[:2] == ["000000000.image.jpg", "000000001.image.ppm"]
    found = sorted((s["i"] + 3, s["image"]) for s in samples_of(tmp_path / "resized"))
    for n, image in found:
        expected = oracle(n).resize((5, 3), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(image, np.asarray(expected))


def test_a_file_of_ffcv_is_read(tmp_path: Path) -> None:
    path = tmp_path / "golden.beton"
    path.write_bytes(lzma.decompress(BETON.read_bytes()))
    fastload.pack(path, tmp_path / "kept", encoded=True)
    fastload.pack(path, tmp_path / "resized", resize=(6, 8))
    kept, resized = fastload.open(tmp_path / "kept"), fastload.open(tmp_path / "resized")
    assert [field.name for field in kept.fields][-3:] == ["a_name_cut_at_16", "meta.n", "meta.s"]
    for n in range(6):
        raw, smooth, expected = real(n)
        sample = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in kept[n].items()}
        modes = [sample.pop(name)[:2] for name in ("raw", "jpg", "mixed")]
        assert modes == [b"P6", b"\xff\xd8", b"\xff\xd8" if n == 2 else b"P6"]
        assert sample == expected
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(kept[n]["raw"]))), raw)
        for name in ("jpg", "mixed"):
            np.testing.assert_allclose(resized[n][name].astype(int), smooth, atol=3)


def real(n: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Two images, and the other fields."""
    raw = ((np.arange(240) * 7 + n) % 256).astype(np.uint8).reshape(8, 10, 3)
    smooth = np.repeat(np.arange(48) * 4 + n, 3).reshape(6, 8, 3)
    rest = {
        "label": n - 3,
        "weight": n / 4,
        "array": [[0, n, 2 * n], [3 * n, 4 * n, 5 * n]],
        "tensor": [n / 2] * 3,
        "a_name_cut_at_16": bytes(range(n % 5)),
        "meta": {"n": n, "s": "x" * (n % 3)},
    }
    return raw, smooth, rest


def test_numbers_alone_need_no_pages(tmp_path: Path) -> None:
    described = struct.pack("<B16s1024s", INT, b"label", b"")
    end = 24 + len(described) + 8 * 3
    content = struct.pack("<HHIQQ", 2, 1, PAGE, 3, end) + described + struct.pack("<3q", 5, -1, 7)
    path = tmp_path / "in.beton"
    path.write_bytes(content)
    fastload.pack(path, tmp_path / "out")
    assert samples_of(tmp_path / "out") == [{"label": n} for n in (5, -1, 7)]


def record(n: int) -> int:
    """Where the record of a sample is."""
    return 24 + len(FIELDS) * DESCRIPTOR + n * RECORD.size


@pytest.mark.parametrize(
    ("place", "content", "parts"),
    [
        (0, struct.pack("<H", 3), ["version 3"]),
        (4, struct.pack("<I", 5000), ["pages of 5000 bytes"]),
        (8, struct.pack("<Q", ROWS + 1), ["table of contents has 2400 bytes", "need 2520"]),
        (8, struct.pack("<Q", 1 << 60), ["samples of 80 bytes do not fit"]),
        (16, struct.pack("<Q", 0), ["incomplete"]),
        (16, struct.pack("<Q", 1 << 63), ["truncated"]),
        (2, struct.pack("<H", 0), ["it has no fields"]),
        (24, b"\xff", ["field 'f' is of type 255, which is not known"]),
        (25, b"\xff", ["the name of field 0 is"]),
        (25, b"image", ["two fields are named 'image'"]),
        (24 + 4 * DESCRIPTOR + 17 + 264, b"!", ["field 'a'", "dtype", "is not read"]),
        (24 + 4 * DESCRIPTOR + 17, b"\xff" * 8, ["field 'a'", "shape"]),
        (24 + 4 * DESCRIPTOR + 17, struct.pack("<3Q", 0, 1 << 63, 1), ["field 'a'", "shape"]),
        (record(7) + 8, b"\x02", ["field 'image': sample 7 has the mode 2"]),
        (record(7) + 9, b"\x07", ["field 'image': sample 7 has 84 bytes", "something of 72"]),
        (record(7) + 13, struct.pack("<Q", 99), ["'image': sample 7", "byte 99, outside of"]),
        (record(7) + 13, struct.pack("<Q", 1 << 63), ["'image': sample 7", f"byte {1 << 63}, out"]),
        (record(7) + 13, struct.pack("<Q", PAGE + 1), ["'image': sample 7", "has nothing"]),
        (record(7) + 48, struct.pack("<Q", 1 << 62), ["field 'a': sample 7", "outside"]),
        (record(8) + 40, struct.pack("<Q", 3), ["field 'b': sample 8 has 3 bytes", "of 2 bytes"]),
        (2 * PAGE + 16, struct.pack("<Q", 9), ["'image': sample 0 has 72 bytes", "of 9 bytes"]),
        (2 * PAGE + 8, struct.pack("<Q", 9), ["'image': sample 0", "has nothing"]),
    ],
)
def test_damage_is_one_error(tmp_path: Path, place: int, content: bytes, parts: list[str]) -> None:
    made = beton()
    made[place : place + len(content)] = content
    (tmp_path / "in.beton").write_bytes(made)
    damaged(tmp_path / "in.beton", tmp_path / "out", "in.beton: ", *parts)


def test_a_file_that_ends_early_is_one_error(tmp_path: Path) -> None:
    made, path = beton(), tmp_path / "in.beton"
    for size in (0, 23, 24, 1000, record(0), record(3) + 5, PAGE, 2 * PAGE, len(made) - 1):
        path.write_bytes(made[:size])
        damaged(path, tmp_path / "out", "in.beton: truncated")
    path.write_bytes(made[:-24])
    damaged(path, tmp_path / "out", "in.beton: truncated")


def test_what_cannot_be_decoded_is_left_out(tmp_path: Path) -> None:
    made, path = beton(jpegs=frozenset([4])), tmp_path / "in.beton"
    (start,) = struct.unpack_from("<Q", made, record(4) + 13)
    made[start : start + 20] = bytes(20)
    (meta,) = struct.unpack_from("<Q", made, record(6) + 56)
    made[meta] = ord("!")
    path.write_bytes(made)
    for options in ({}, {"encoded": True}):
        report = fastload.pack(path, tmp_path / "out", overwrite=True, **options)
        assert [skipped.path for skipped in report.skipped] == [
            "in.beton: sample 4",
            "in.beton: sample 6",
        ]
        assert report.skipped[0].reason.startswith(f"field 'image' at byte {start}: not an image")
        assert report.skipped[1].reason.startswith(f"field 'meta' at byte {meta}: not JSON")
    damaged(path, tmp_path / "no", "in.beton: sample 4: field 'image'", strict=True)


def test_images_of_two_sizes_need_resize_or_encoded(tmp_path: Path) -> None:
    made, path = beton(), tmp_path / "in.beton"
    for width, height in ((6, 4), (3, 8), (4, 6)):  # as many pixels
        struct.pack_into("<HH", made, record(5) + 9, width, height)
        path.write_bytes(made)
        if height > 4:
            damaged(path, tmp_path / "out", "'image'", "differ in size; --resize")
    text = refused(path, tmp_path / "out", encoded=True, resize=3)
    assert text.startswith("ValueError: encoded and resize are")
    fastload.pack(path, tmp_path / "out", encoded=True)
    with Image.open(io.BytesIO(fastload.open(tmp_path / "out")[5]["image"])) as image:
        assert image.size == (4, 6)
