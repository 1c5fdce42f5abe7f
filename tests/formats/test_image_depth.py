"""16-bit images keep their upper 8 bits; pixels without a known range are refused."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload import DecodeImage, FastLoader, FormatError
from fastload.formats.image_depth import in_8_bits

GREY = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)


def saved(array: np.ndarray[Any, Any], kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def pgm(array: np.ndarray[Any, Any], largest: int = 65535) -> bytes:
    height, width = array.shape
    return b"P5 %d %d %d\n" % (width, height, largest) + array.astype(">u2").tobytes()


def colour_png(array: np.ndarray[Any, Any]) -> bytes:
    """A PNG file of 16-bit colours, which Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    height, width, _ = array.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    ends = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(ends)


FILES: dict[str, bytes] = {
    "a.png": saved(GREY, "PNG"),
    "b.tif": saved(GREY, "TIFF"),
    "c.pgm": pgm(GREY),
    "d.png": colour_png(np.stack([GREY] * 3, 2)),
}
WANT = np.stack([(GREY >> 8).astype(np.uint8)] * 3, 2)


def folder(path: Path) -> Path:
    for name, content in FILES.items():
        (path / "in/k").mkdir(parents=True, exist_ok=True)
        (path / "in/k" / name).write_bytes(content)
    return path / "in"


def image_list(path: Path) -> Path:
    where = folder(path) / "k"
    lines = "".join(f"{name},0\n" for name in FILES)
    (where / "labels.csv").write_text(f"file,label\n{lines}")
    return where


def tar(path: Path) -> Path:
    with tarfile.open(path / "x.tar", "w") as archive:
        for name, content in FILES.items():
            stem, suffix = name.split(".")
            member = tarfile.TarInfo(f"{stem}.{'png' if suffix == 'png' else suffix}")
            member.size = len(content)
            if suffix == "png":
                archive.addfile(member, io.BytesIO(content))
    return path / "x.tar"


@pytest.mark.parametrize("made", [folder, image_list, tar])
@pytest.mark.parametrize("resize", [None, 4])
def test_packed_pixels_are_the_upper_8_bits(
    tmp_path: Path, made: Callable[[Path], Path], resize: int | None
) -> None:
    options: dict[str, Any] = {} if resize is None else {"resize": resize}
    if made is image_list:
        options["labels"] = tmp_path / "in/k/labels.csv"
    fastload.pack(made(tmp_path), tmp_path / "out", workers=1, **options)
    dataset = fastload.open(tmp_path / "out")
    name = next(field.name for field in dataset.fields if field.shape)
    want = WANT
    if resize:
        want = np.asarray(Image.fromarray(WANT).resize((4, 4), Image.Resampling.BILINEAR))
    assert len(dataset) == (2 if made is tar else 4)
    for image in dataset.column(name):
        np.testing.assert_array_equal(image, want)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_images_that_are_decoded_while_they_are_loaded_have_the_same_pixels(
    tmp_path: Path, mode: str
) -> None:
    fastload.pack(folder(tmp_path), tmp_path / "out", encoded=True, workers=1)
    (images, _), *_ = FastLoader(tmp_path / "out", 4, transforms={"image": DecodeImage(mode=mode)})
    for image in images.numpy():
        np.testing.assert_array_equal(image[..., 0], WANT[..., 0])


@pytest.mark.parametrize(
    ("array", "what"), [(GREY.astype("i4"), "32-bit or signed"), (GREY.astype("f4"), "floats")]
)
def test_pixels_without_a_known_range_are_refused(
    tmp_path: Path, array: np.ndarray[Any, Any], what: str
) -> None:
    where = folder(tmp_path)
    (where / "k/z.tif").write_bytes(saved(array, "TIFF"))
    report = fastload.pack(where, tmp_path / "out", workers=1)
    assert [(skipped.path, what in skipped.reason) for skipped in report.skipped] == [
        ("k/z.tif", True)
    ]
    fastload.pack(where, tmp_path / "coded", encoded=True, workers=1)
    loader = FastLoader(tmp_path / "coded", 5, transforms={"image": DecodeImage()})
    with pytest.raises(
        FormatError, match=f"sample 4 .*k/z.tif.*: the image cannot be decoded: .*{what}"
    ):
        next(iter(loader))


def test_other_depths_use_their_whole_range() -> None:
    twelve = Image.open(io.BytesIO(pgm(GREY >> 4, 4095)))
    np.testing.assert_allclose(np.asarray(in_8_bits(twelve)), GREY >> 8, atol=1)
    signed = Image.open(io.BytesIO(saved(GREY, "TIFF", tiffinfo={339: 2})))
    with pytest.raises(ValueError, match="32-bit or signed"):
        in_8_bits(signed)
    for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK", "LA", "YCbCr"):
        image = Image.new(mode, (2, 2))
        assert in_8_bits(image) is image
