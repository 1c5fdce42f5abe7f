"""`fastload.pack` of folders of images, compared with Pillow and with what ImageFolder does."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from packing import encoded, noise, put, refused, same_bytes
from PIL import Image, ImageOps, UnidentifiedImageError
from prelude import tar

import fastload
from fastload import FormatError
from fastload.formats import packed
from fastload.packing.kinds import imagefolder

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def image_folder(root: Path) -> Iterator[tuple[str, int]]:
    """The paths and labels of torchvision's ImageFolder, by its own steps."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(SUFFIXES):
                    yield os.path.join(folder, file), label


def loaded(path: str | Path) -> np.ndarray:
    """What ImageFolder's default loader gives; of 16-bit grey images the upper 8 bits."""
    with open(path, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = Image.open(file)
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return np.asarray(image.convert("RGB"))


def check_equals_image_folder(root: Path, out: Path) -> None:
    dataset = fastload.open(out)
    want = list(image_folder(root))
    assert len(dataset) == len(want)
    for row, (path, label) in enumerate(want):
        image, number = dataset[row]
        np.testing.assert_array_equal(image, loaded(path), err_msg=path)
        assert int(number) == label


# --- Order and classes ------------------------------------------------------------------------


def test_samples_are_those_of_image_folder(tmp_path: Path) -> None:
    names = "b/1.png b/10.png b/2.PNG b/x/3.png b/x-y/4.png b/x/z/5.png a/é.png"
    for seed, name in enumerate(names.split(" ") + ["a b/w  x.png", "-c/n\nl.png", "C/[a] *?.png"]):
        put(tmp_path / "in" / name, encoded(noise(4, 5, seed), "PNG"))
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert (report.rows, report.skipped, report.notices) == (10, (), ())
    check_equals_image_folder(tmp_path / "in", tmp_path / "out")
    dataset = fastload.open(tmp_path / "out")
    assert dataset.classes == ["-c", "C", "a", "a b", "b"]
    assert [str(field) for field in dataset.fields] == ["uint8 [4, 5, 3]", "int64 []"]
    assert type(dataset[0]) is tuple
    classes = packed.read_manifest(tmp_path / "out").class_fields["label"]
    assert dict(zip(classes.names, classes.counts, strict=True)) == {
        "-c": 1, "C": 1, "a": 1, "a b": 1, "b": 6,
    }  # fmt: skip


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere/1.png", encoded(noise(4, 4), "PNG"))
    put(tmp_path / "in/a/0.png", encoded(noise(4, 4), "PNG"))
    (tmp_path / "in/a/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/a/circle").symlink_to(tmp_path / "in/a")
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert report.rows == 3
    assert fastload.open(tmp_path / "out").classes == ["a", "b"]


def test_hidden_and_system_files_are_left_out(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "dog/2.jpg"):
        put(tmp_path / "in" / name, encoded(noise(4, 4), "JPEG"))
    for name in (
        ".DS_Store", "cat/.DS_Store", "cat/Thumbs.db", "cat/.nfs0001", "cat/._1.jpg",
        "cat/.hidden/3.jpg", ".ipynb_checkpoints/1-checkpoint.jpg",
    ):  # fmt: skip
        put(tmp_path / "in" / name, b"\0\1")
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert (report.rows, report.skipped) == (2, ())
    assert fastload.open(tmp_path / "out").classes == ["cat", "dog"]
    (hidden,) = report.leftovers
    assert (hidden.count, hidden.paths[0]) == (7, ".DS_Store")


def test_a_class_without_images(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "c/1.jpg"):
        put(tmp_path / "in" / name, encoded(noise(4, 4), "JPEG"))
    put(tmp_path / "in/b/readme.txt", b"x")
    text = refused(tmp_path / "in", tmp_path / "out")
    assert text.startswith("FileNotFoundError")
    assert str(tmp_path / "in/b") in text
    fastload.pack(tmp_path / "in", tmp_path / "out", allow_empty=True)
    dataset = fastload.open(tmp_path / "out")
    assert dataset.classes == ["a", "b", "c"]
    assert [int(label) for _, label in map(dataset.__getitem__, range(2))] == [0, 2]
    assert packed.read_manifest(tmp_path / "out").class_fields["label"].counts == (1, 0, 1)


def test_folders_without_any_image(tmp_path: Path) -> None:
    (tmp_path / "in/a").mkdir(parents=True)
    assert "class folder" in refused(tmp_path / "in", tmp_path / "out")
    put(tmp_path / "flat/1.png", encoded(noise(4, 4), "PNG"))
    assert "has no class folders" in refused(tmp_path / "flat", tmp_path / "out")
    put(tmp_path / "bad/a/1.png", b"x")
    assert "none of 1 images" in refused(tmp_path / "bad", tmp_path / "out")
    text = refused(tmp_path / "bad", tmp_path / "out", resize=4)
    assert "none of 1 inputs can be read; the first is a/1.png: not an image" in text


# --- Pixels -----------------------------------------------------------------------------------


def modes(root: Path) -> None:
    """An image of nearly every kind, 8 x 12."""
    height, width = 8, 12
    rgb = noise(height, width)
    grey = rgb.convert("L")
    deep = np.arange(height * width, dtype=np.uint16).reshape(height, width) * 600
    ink = Image.frombytes("CMYK", (width, height), bytes([0, 255, 255, 0]) * (height * width))
    cmyk = encoded(ink, "JPEG", quality=100)
    adobe = cmyk.find(b"\xff\xee")
    files = {
        "rgb.png": encoded(rgb, "PNG"),
        "rgb.jpg": encoded(rgb, "JPEG"),
        "progressive.jpeg": encoded(rgb, "JPEG", progressive=True),
        "rgb.webp": encoded(rgb, "WEBP"),
        "rgb.bmp": encoded(rgb, "BMP"),
        "rgb.tif": encoded(rgb, "TIFF"),
        "rgb.ppm": encoded(rgb, "PPM"),
        "grey.jpg": encoded(grey, "JPEG"),
        "grey.png": encoded(grey, "PNG"),
        "grey.pgm": encoded(grey, "PPM"),
        "bits.png": encoded(rgb.convert("1"), "PNG"),
        "palette.png": encoded(rgb.quantize(8), "PNG"),
        "clear.png": encoded(rgb.quantize(8), "PNG", transparency=b"\0\x80\xff"),
        "alpha.png": encoded(rgb.convert("RGBA"), "PNG"),
        "grey-alpha.png": encoded(rgb.convert("LA"), "PNG"),
        "deep.png": encoded(Image.fromarray(deep), "PNG"),
        "deep.tiff": encoded(Image.fromarray(deep), "TIFF"),
        "cmyk.jpg": cmyk,
        "no-adobe.jpg": cmyk[:adobe] + cmyk[adobe + 16 :],
        "a-png.jpg": encoded(rgb, "PNG"),
        "a-jpeg.png": encoded(rgb, "JPEG"),
        "a-gif.png": encoded(rgb, "GIF"),
        "moving.png": encoded(rgb, "PNG", save_all=True, append_images=[noise(height, width, 1)]),
    }
    for name, content in files.items():
        put(root / "c" / name, content)


def test_every_kind_of_image_is_what_the_default_loader_gives(tmp_path: Path) -> None:
    modes(tmp_path / "in")
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert report.skipped == ()
    check_equals_image_folder(tmp_path / "in", tmp_path / "out")
    names = [os.path.basename(path) for path, _ in image_folder(tmp_path / "in")]
    dataset = fastload.open(tmp_path / "out")
    cmyk, grey = dataset[names.index("cmyk.jpg")][0], dataset[names.index("grey.jpg")][0]
    assert (np.abs(cmyk[0, 0].astype(int) - [255, 0, 0]) <= 2).all()  # red ink, not inverted
    assert (grey[..., 0] == grey[..., 2]).all()


def test_orientation_is_ignored_as_image_folder_does(tmp_path: Path) -> None:
    image = noise(16, 24)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x112] = orientation
        path = tmp_path / f"in/c/o{orientation}.jpg"
        put(path, encoded(image, "JPEG", exif=exif.tobytes()))
        turned = ImageOps.exif_transpose(Image.open(path))
        assert turned.size == ((24, 16) if orientation < 5 else (16, 24))
    broken = encoded(image, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff")
    with contextlib.suppress(UnidentifiedImageError):  # Pillow 10.0 cannot open it
        Image.open(io.BytesIO(broken))
        put(tmp_path / "in/c/broken.jpg", broken)
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert report.skipped == ()
    check_equals_image_folder(tmp_path / "in", tmp_path / "out")


def test_resize_is_bilinear_after_the_conversion(tmp_path: Path) -> None:
    modes(tmp_path / "in")
    put(tmp_path / "in/d/other.png", encoded(noise(31, 7), "PNG"))
    for resize, (height, width) in (((5, 9), (5, 9)), (20, (20, 20))):
        fastload.pack(tmp_path / "in", tmp_path / "out", resize=resize, overwrite=True)
        dataset = fastload.open(tmp_path / "out")
        for row, (path, _) in enumerate(image_folder(tmp_path / "in")):
            image = Image.fromarray(loaded(path)).resize((width, height), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(dataset[row][0], np.asarray(image))
    assert dataset.manifest.source == {"kind": "imagefolder", "resize": [20, 20]}


def test_unequal_sizes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    put(tmp_path / "in/c/a.png", encoded(noise(4, 5), "PNG"))
    put(tmp_path / "in/c/b.png", encoded(noise(4, 6), "PNG"))
    text = refused(tmp_path / "in", tmp_path / "out")
    for part in ("c/a.png is 4x5", "c/b.png is 4x6", "--resize"):
        assert part in text
    assert not (tmp_path / "out").exists()


def test_an_unequal_size_that_is_found_late_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        put(tmp_path / f"in/c/{number}.png", encoded(noise(4, 5 + (number == 3)), "PNG"))
    monkeypatch.setattr(imagefolder, "_SIZES_LOOKED_AT", 1)
    text = refused(tmp_path / "in", tmp_path / "out")
    assert "c/0.png is 4x5" in text
    assert "c/3.png is 4x6" in text


# --- Bad images -------------------------------------------------------------------------------


def test_bad_images_are_skipped_listed_and_counted(tmp_path: Path) -> None:
    good = encoded(noise(64, 64), "JPEG")
    put(tmp_path / "in/c/ok.jpg", good)
    for number, end in enumerate((len(good) // 2, len(good) - 1, 300, 20, 2, 0)):
        put(tmp_path / f"in/c/t{number}.jpg", good[:end])
    put(tmp_path / "in/d/text.png", b"not an image")
    put(tmp_path / "in/d/ok.png", encoded(noise(64, 64), "PNG"))
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert report.rows == 2
    want = [f"c/t{number}.jpg" for number in range(6)] + ["d/text.png"]
    assert [skipped.path for skipped in report.skipped] == want
    assert report.skipped[5].reason == "empty file"
    manifest = packed.read_manifest(tmp_path / "out")
    assert manifest.skipped == report.skipped
    assert manifest.class_fields["label"].counts == (1, 1)
    assert b" at 0x" not in (tmp_path / "out/fastload.json").read_bytes()
    with pytest.raises(FormatError, match=r"c/t0\.jpg: image file is truncated"):
        fastload.pack(tmp_path / "in", tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict/fastload.json").exists()


@pytest.mark.parametrize(
    "bad", [set(), {0}, {39}, {5, 6}, set(range(8, 24)), set(range(3, 40, 4)), set(range(1, 40))]
)
def test_skipped_images_leave_no_gaps_for_any_number_of_workers(
    tmp_path: Path, bad: set[int]
) -> None:
    for number in range(40):
        content = encoded(noise(4, 4, number), "PNG")
        label = "ab"[number >= 20]
        put(tmp_path / f"in/{label}/{number:02d}.png", b"x" if number in bad else content)
    for workers in (1, 3):
        out = tmp_path / f"{workers}"
        report = fastload.pack(tmp_path / "in", out, workers=workers, shard_size=8 * 56)
        assert same_bytes(out, tmp_path / "1")
    assert report.rows == 40 - len(bad)
    rows = packed.read_manifest(out).groups[0].rows
    assert set(rows[:-1]) <= {8}
    assert 0 not in rows
    assert len(list(out.glob("shard-*"))) == len(rows)
    for number in bad:
        label = "ab"[number >= 20]
        (tmp_path / f"in/{label}/{number:02d}.png").unlink()
    check_equals_image_folder(tmp_path / "in", out)


def test_a_broken_link_and_a_forbidden_file_are_errors(tmp_path: Path) -> None:
    put(tmp_path / "in/c/a.png", encoded(noise(4, 4), "PNG"))
    (tmp_path / "in/c/b.png").symlink_to("nowhere")
    assert "b.png" in refused(tmp_path / "in", tmp_path / "out")
    if os.geteuid():  # root may read everything
        (tmp_path / "in/c/b.png").unlink()
        put(tmp_path / "in/c/b.png", b"")
        (tmp_path / "in/c/b.png").chmod(0)
        assert "Permission denied" in refused(tmp_path / "in", tmp_path / "out")


def test_pillow_is_asked_for_when_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    put(tmp_path / "in/c/a.png", b"x")
    assert "pip install pillow" in refused(tmp_path / "in", tmp_path / "out")


def test_a_pipe_with_the_name_of_an_image_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a" / "1.png", encoded(noise(4, 4), "PNG"))
    os.mkfifo(tmp_path / "in" / "a" / "0.png")
    assert "a/0.png: a pipe" in refused(tmp_path / "in", tmp_path / "out")


# --- Images of different sizes ------------------------------------------------------------------


def test_images_of_different_sizes_name_all_ways_out(tmp_path: Path) -> None:
    for number, size in enumerate([(4, 6), (5, 5)]):
        put(tmp_path / f"in/a/{number}.png", encoded(noise(*size), "PNG"))
    text = refused(tmp_path / "in", tmp_path / "out")
    assert all(option in text for option in ("--resize-shorter N", "--resize HxW", "--encoded"))


def resized_and_cropped(image: Image.Image, side: int) -> Image.Image:
    """What torchvision's Resize(side) and CenterCrop(side) give, by their own steps."""
    width, height = image.size
    shorter, longer = (width, height) if width <= height else (height, width)
    long = int(side * longer / shorter)
    size = (side, long) if width <= height else (long, side)
    image = image.resize(size, Image.Resampling.BILINEAR)
    top, left = round((image.height - side) / 2.0), round((image.width - side) / 2.0)
    return image.crop((left, top, left + side, top + side))


@pytest.mark.parametrize("kind", ["imagefolder", "imagelist", "tar"])
def test_the_shorter_side_is_resized_as_torchvision_does(tmp_path: Path, kind: str) -> None:
    pictures = [noise(*size, 1) for size in ((7, 9), (9, 7), (8, 8), (5, 31), (31, 5), (40, 60))]
    for number, picture in enumerate(pictures):
        put(tmp_path / f"in/a/{number}.png", encoded(picture, "PNG"))
    source, options = tmp_path / "in", {"resize_shorter": 5}
    if kind == "imagelist":
        source = tmp_path / "in/a"
        rows = [f"{number},1\n" for number in range(len(pictures))]
        put(tmp_path / "l.csv", "".join(["id,y\n", *rows]).encode())
        options["labels"] = tmp_path / "l.csv"
    if kind == "tar":
        source = tmp_path / "in.tar"
        tar(str(source), [(f"{n}.png", encoded(p, "PNG")) for n, p in enumerate(pictures)])
    fastload.pack(source, tmp_path / "out", **options)
    for number, picture in enumerate(pictures):
        sample = fastload.open(tmp_path / "out")[number]
        image = sample["png"] if kind == "tar" else sample[0]
        np.testing.assert_array_equal(image, np.asarray(resized_and_cropped(picture, 5)))
    for more in ({"resize": 4}, {"encoded": True}):
        text = refused(source, tmp_path / "no", **options, **more)
        assert "mutually exclusive; remove one" in text or "cannot be resized" in text
    manifest = packed.read_manifest(tmp_path / "out")
    assert manifest.source["resize_shorter"] == 5
