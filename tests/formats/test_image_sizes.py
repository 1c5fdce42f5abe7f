"""Height and width that packed images have beside them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_v1
import mds_files as mds
import numpy as np
import pytest
from packing import content as contents_of
from packing import encoded, noise, put, same_bytes
from paths import GOLDEN
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

import fastload
from fastload import DecodeImage, FastLoader, Normalize, RandomHorizontalFlip, ToChannelsFirst, cli
from fastload.batch.images import ImageField
from fastload.cli.info import describe
from fastload.datasets.native import native_extents
from fastload.formats.files import file_source
from fastload.formats.image_sizes import size_extents
from fastload.formats.safetensors import read_header
from fastload.packing import plan
from fastload.packing.image_headers import image_size_of, image_sizes
from fastload.packing.inputs import image_files
from fastload.packing.kinds import imagefolder
from fastload.packing.output import writer

ROWS = 12


def size(n: int) -> tuple[int, int]:
    """Of image n: height and width."""
    return 3 + n % 4, 5 + n % 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images 0 to 11 in this order: two classes, JPEG and PNG."""
    for n in range(ROWS):
        kind = ("JPEG", "PNG")[n % 2]
        put(tmp_path / f"in/{n // 6}/{n:02d}.{kind.lower()}", encoded(noise(*size(n), n), kind))
    return tmp_path / "in"


@pytest.fixture
def older(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same images, packed when sizes were not stored."""
    with monkeypatch.context() as patched:
        patched.setattr(plan, "as_written", tuple)
        fastload.pack(folder, tmp_path / "older", encoded=True)
    assert "sized" not in (tmp_path / "older/fastload.json").read_text()
    return tmp_path / "older"


def sizes(dataset: Any, name: str = "image") -> list[tuple[int, int]] | None:
    """What is stored."""
    if isinstance(dataset, Path):
        dataset = fastload.open(dataset)
    extents = native_extents(dataset)
    assert extents is not None
    held = size_extents(extents, name)
    if held is None:
        return None
    found = np.empty((held.rows, 2), np.uint32)
    held.build().gather(np.arange(held.rows), [found])
    return [tuple(pair) for pair in found.tolist()]


def all_sizes(rows: range = range(ROWS)) -> list[tuple[int, int]]:
    return [size(n) for n in rows]


# --- Headers -----------------------------------------------------------------------------------


def images() -> Iterator[tuple[str, bytes]]:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("JPEG", {}),
        ("JPEG", {"progressive": True, "exif": b"Exif\0\0" + bytes(3000)}),
        ("PNG", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0" + bytes(20)}),
        ("PPM", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw", "big_endian": True}),
        *(("TIFF", {"tiffinfo": {274: orientation}}) for orientation in range(1, 9)),
    ]
    for mode in ("RGB", "L", "RGBA", "P", "1"):
        for kind, options in kinds:
            for height, width in ((1, 300), (257, 2)):
                image = noise(height, width).convert(mode)
                buffer = io.BytesIO()
                try:
                    image.save(buffer, kind, **options)
                except OSError:  # this kind has no such mode
                    continue
                yield f"{kind} {mode} {options}", buffer.getvalue()


def test_sizes_are_those_that_pillow_reads() -> None:
    seen = set()
    for name, content in images():
        with Image.open(io.BytesIO(content)) as image:
            image.load()  # until then an older Pillow tells the size of a turned TIFF as stored
            assert image_size_of(content) == (image.height, image.width), name
        for end in range(min(len(content), 700)):  # never an error, and nothing but the truth
            assert image_size_of(content[:end]) in ((0, 0), (image.height, image.width)), name
        seen.add(name.split()[0])
    assert seen == {"JPEG", "PNG", "GIF", "BMP", "WEBP", "PPM", "TIFF"}


def test_a_header_that_is_damaged_has_no_size() -> None:
    png, jpeg, webp = (encoded(noise(3, 5), kind) for kind in ("PNG", "JPEG", "WEBP"))
    frame = jpeg.index(b"\xff\xc0")
    places = [(png, place) for place in range(33)]
    places += [(jpeg, frame + 3), (jpeg, frame + 9), (webp, 6), (webp, 7)]
    for image, place in places:
        for bit in range(8):
            content = bytearray(image)
            content[place] ^= 1 << bit
            assert image_size_of(content) == (0, 0)
    assert image_size_of(webp[:-1]) == (0, 0)


def test_a_png_with_a_damaged_header_is_a_bad_image(tmp_path: Path) -> None:
    damaged = bytearray(encoded(noise(3, 5), "PNG"))
    damaged[19] ^= 64  # its width
    for name, content in (("1", encoded(noise(4, 4), "PNG")), ("2", damaged)):
        put(tmp_path / f"in/c/{name}.png", bytes(content))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "in/c", "")
    for source in (tmp_path / "in", tmp_path / "a.tar"):
        report = fastload.pack(source, tmp_path / "out", encoded=True, overwrite=True)
        (skipped,) = report.skipped
        assert "not an image of a known kind" in skipped.reason
        assert report.rows == 1
        with pytest.raises(fastload.FormatError, match="not an image of a known kind"):
            fastload.pack(source, tmp_path / "no", encoded=True, strict=True, overwrite=True)


def test_other_bytes_have_no_size() -> None:
    top_down = bytearray(encoded(noise(3, 5), "BMP"))
    top_down[22:26] = (-3).to_bytes(4, "little", signed=True)
    assert image_size_of(top_down) == (3, 5)
    assert image_size_of(b"P3 # a comment\n 640\n#another\n480 255\n") == (480, 640)
    jpeg = encoded(noise(3, 5), "JPEG")
    assert image_size_of(jpeg[:2] + b"\xff" * 9 + jpeg[2:]) == (3, 5)  # fillers
    for content in (
        b"",
        b"P",
        b"RIFF\0\0\0\0WAVEVP8X" + bytes(30),
        b"RIFF\0\0\0\0WEBPVP8 " + bytes(30),
        b"GIF88a" + bytes(30),
        b"\x89PNG" + bytes(30),
        b"\xff\xd8\xff\xda" + bytes(30),
        b"\xff\xd8\0" + jpeg,
        b"BM" + bytes(40),
        b"BMW is no header, whatever the numbers behind it are",
        b"II*\0" + bytes(40),
        encoded(noise(16, 16), "ICO"),
    ):
        assert image_size_of(content) == (0, 0), content
    values = np.frombuffer(jpeg + b"?" + jpeg, np.uint8)
    offsets = np.array([0, len(jpeg), len(jpeg) + 1, len(values)])
    assert image_sizes(values, offsets).tolist() == [[3, 5], [0, 0], [3, 5]]


# --- Packed ------------------------------------------------------------------------------------


def test_encoded_images_have_their_sizes_beside_them(folder: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        out = tmp_path / f"{workers}"
        fastload.pack(folder, out, encoded=True, workers=workers, shard_size=3000)
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    dataset = fastload.open(out)
    assert len(dataset.manifest.groups[0].rows) > 1
    assert sizes(dataset) == all_sizes()
    assert sizes(dataset, "label") is None
    assert len(dataset[0]) == 2  # they are no member of the sample
    assert dataset.fields[0].logical == "image"
    assert not fastload.verify(out, full=True).problems
    shards = sorted(out.glob("*.safetensors"))
    assert sizes(fastload.open(shards)) == all_sizes()
    tensors = {t.name: t for t in read_header(file_source(shards[0])).tensors}
    assert tensors["image::sizes"].dtype == "uint32"


def test_other_kinds_have_them_too(folder: Path, tmp_path: Path) -> None:
    mds.write(tmp_path / "mds", [mds.sample(n) for n in range(mds.ROWS)])
    fastload.pack(tmp_path / "mds", tmp_path / "out")
    assert sizes(tmp_path / "out", "e") == [(3, 4 + n % 2) for n in range(mds.ROWS)]
    for path in folder.rglob("*.png"):
        path.unlink()
    fastload.pack(folder, tmp_path / "encoded", encoded=True)
    for to in ("tar", "parquet"):
        source = tmp_path / ("x.parquet" if to == "parquet" else to)
        report = fastload.export(tmp_path / "encoded", source, to=to)
        assert not any("sizes" in name for name in report.files)
    fastload.pack(tmp_path / "tar", tmp_path / "again", encoded=True)
    name = fastload.open(tmp_path / "again").fields[1].name
    assert sizes(tmp_path / "again", name) == all_sizes(range(0, ROWS, 2))


def test_subsets_and_concatenations_keep_them(folder: Path, older: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(folder, out, encoded=True, shard_size=3000, split={"a": 0.25, "b": 0.75})
    dataset = fastload.open(out)
    assert sizes(fastload.open(out, split="b")) == all_sizes(range(3, ROWS))
    assert sizes(Subset(dataset, [7, 2])) == [size(7), size(2)]
    assert sizes(ConcatDataset([dataset, dataset])) == 2 * all_sizes()
    both = ConcatDataset([dataset, fastload.open(older)])
    assert sizes(both) is None
    assert native_extents(both) is not None


def test_selections_keep_or_leave_them(folder: Path, tmp_path: Path) -> None:
    fastload.pack(folder, tmp_path / "labels", encoded=True, fields=["label"])
    assert "sized" not in (tmp_path / "labels/fastload.json").read_text()
    fastload.pack(folder, tmp_path / "some", encoded=True, fields=["image"], shuffle=3, limit=7)
    dataset = fastload.open(tmp_path / "some")
    opened = [Image.open(io.BytesIO(dataset[row][0])).size[::-1] for row in range(7)]
    assert sizes(dataset) == opened


def test_skipped_images_close_the_gaps(folder: Path, tmp_path: Path) -> None:
    (folder / "0/01.png").write_bytes(b"none")
    report = fastload.pack(folder, tmp_path / "out", encoded=True, shard_size=1200)
    assert (len(report.skipped), report.shards > 2) == (1, True)
    assert sizes(tmp_path / "out") == [size(n) for n in range(ROWS) if n != 1]
    assert not fastload.verify(tmp_path / "out").problems


def test_golden_images_are_packed_in_the_same_way_and_read_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, golden = golden_v1.images(), GOLDEN / "v1/images"
    for name, (image, _) in files.items():
        put(tmp_path / "in" / name, image)
    # Some end within their headers, which were not looked at that closely.
    known = dict(files.values())
    monkeypatch.setattr(image_files, "image_size_of", lambda content: known[bytes(content)])
    fastload.pack(tmp_path / "in", tmp_path / "out", encoded=True, shard_size=100, workers=1)
    made, kept = contents_of(tmp_path / "out"), contents_of(golden)
    manifests = [json.loads(each.pop("fastload.json")) | {"writer": ""} for each in (made, kept)]
    assert manifests[0].pop("names") == [[len(files), "names-000000.txt"]]  # the old ones have none
    assert len(made.pop("names-000000.txt").splitlines()) == len(files)
    assert manifests[0] == manifests[1]
    assert made == kept
    assert sizes(golden) == [of for _, of in files.values()]
    assert [sample[0] for sample in fastload.open(golden)] == [c for c, _ in files.values()]


# --- Decoded -----------------------------------------------------------------------------------

TRANSFORMS: list[list[Any]] = [
    [],
    [Normalize(0.5, 0.25)],
    [Normalize(0.5, 0.25), ToChannelsFirst()],
    [RandomHorizontalFlip()],
]


def batches(path: Path, *more: Any, threads: int = 2, **decode: Any) -> list[list[Any]]:
    transforms = {"image": [DecodeImage(**decode), *more]}
    loader = FastLoader(
        fastload.open(path), 5, seed=1, num_workers=threads, transforms=transforms, shuffle=True
    )
    return [[member.tolist() for member in batch] for batch in loader]


@pytest.fixture
def equal(tmp_path: Path) -> Path:
    """A folder of images of one size, packed."""
    for n in range(ROWS):
        put(tmp_path / f"eq/{n // 6}/{n:02d}.png", encoded(noise(4, 6, n), "PNG"))
    fastload.pack(tmp_path / "eq", tmp_path / "equal", encoded=True)
    return tmp_path / "equal"


@pytest.mark.parametrize("more", TRANSFORMS)
@pytest.mark.parametrize("wrong", [[], [7], range(ROWS)])
def test_sizes_never_change_a_batch(
    equal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Any, wrong: Any
) -> None:
    """Not even those that are wrong."""

    def mistaken(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        found = image_sizes(values, offsets)
        found[list(wrong)] = 5, 5
        return found

    with monkeypatch.context() as patched:
        patched.setattr(writer, "image_sizes", mistaken)
        patched.setattr(imagefolder.ImagesPart, "stream", lambda self, advance: None)
        fastload.pack(tmp_path / "eq", tmp_path / "wrong", encoded=True, workers=1)
        patched.setattr(plan, "as_written", tuple)
        fastload.pack(tmp_path / "eq", tmp_path / "older", encoded=True)
    assert sizes(tmp_path / "wrong") == [(5, 5) if n in wrong else (4, 6) for n in range(ROWS)]
    assert sizes(tmp_path / "older") is None
    for threads in (0, 2):
        expected = batches(tmp_path / "older", *more, threads=threads)
        assert batches(tmp_path / "wrong", *more, threads=threads) == expected


def test_images_of_one_size_are_decoded_where_they_stay(equal: Path, folder: Path) -> None:
    """And others are not, nor those that are turned."""
    held = size_extents(fastload.open(equal).extents, "image")
    assert held is not None
    table, indices = held.build(), np.array([3, 0, 8])
    room = ImageField("image", DecodeImage(mode="L"), sizes=table).empty(indices)
    assert room is not None
    assert (room.shape, room.dtype) == ((3, 4, 6, 1), np.uint8)
    assert ImageField("image", DecodeImage(), sizes=table).empty(indices[:0]) is None
    assert ImageField("image", DecodeImage(exif=True), sizes=table).empty(indices) is None
    assert ImageField("image", DecodeImage()).empty(indices) is None
    fastload.pack(folder, folder.parent / "out", encoded=True)
    held = size_extents(fastload.open(folder.parent / "out").extents, "image")
    assert held is not None
    assert ImageField("image", DecodeImage(), sizes=held.build()).empty(np.array([0, 1])) is None
    alike = ImageField("image", DecodeImage(), sizes=held.build()).empty(np.array([0, 0]))
    assert alike is not None
    assert alike.shape == (2, 3, 5, 3)


def test_images_of_two_sizes_are_still_an_error_with_both(folder: Path, tmp_path: Path) -> None:
    fastload.pack(folder, tmp_path / "out", encoded=True)
    with pytest.raises(RuntimeError, match=r"stack expects .* DecodeImage\(size=\(H, W\)\)"):
        batches(tmp_path / "out")


# --- Later -------------------------------------------------------------------------------------


def test_append_merge_and_add_column_keep_them(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(folder, out, encoded=True)
    fastload.append(folder, out, encoded=True)
    fastload.merge(tmp_path / "merged", [out, out])
    assert sizes(tmp_path / "merged") == 4 * all_sizes()
    fastload.pack({"n": np.arange(ROWS)}, tmp_path / "dict")
    fastload.pack(folder, tmp_path / "plain", encoded=True)
    fastload.add_column(tmp_path / "dict", folder, name="photo", encoded=True)
    assert sizes(tmp_path / "dict", "photo.image") == all_sizes()
    for path in (out, tmp_path / "merged", tmp_path / "dict"):
        assert not fastload.verify(path).problems


def test_datasets_without_them_live_on(folder: Path, older: Path, tmp_path: Path) -> None:
    assert sizes(older) is None
    first = fastload.open(older)[0]
    fastload.append(folder, older, encoded=True)
    assert len(fastload.open(older)) == 2 * ROWS
    assert fastload.open(older)[ROWS] == first
    assert sizes(older) is None
    assert not fastload.verify(older).problems
    fastload.merge(tmp_path / "two", [older, older])
    assert len(fastload.open(tmp_path / "two")) == 4 * ROWS
    fastload.export(older, tmp_path / "npy", to="npy")
    fastload.pack(folder, tmp_path / "new", encoded=True)
    with pytest.raises(ValueError, match=r"differ: images whose sizes are stored \(pack older"):
        fastload.merge(tmp_path / "no", [older, tmp_path / "new"])
    assert describe(str(older))["image sizes"] == {}


def test_damage_to_them_names_the_images(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(folder, out, encoded=True)
    (shard,) = out.glob("*.safetensors")
    place = {t.name: t.offset for t in read_header(file_source(shard)).tensors}
    content = bytearray(shard.read_bytes())
    content[place["image::sizes"]] ^= 1
    shard.write_bytes(content)
    (problem,) = fastload.verify(out, full=True).problems
    assert problem.rows["image"] == (0, ROWS - 1)
    with pytest.raises(fastload.FormatError, match="checksum"):
        sizes(fastload.open(out, verify="lazy"))


def test_info_shows_them(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "1/99.png").write_bytes(encoded(noise(16, 16), "ICO"))  # whatever its name says
    fastload.pack(folder, tmp_path / "out", encoded=True)
    assert cli.main(["info", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "image: height 3 to 6, median 4; width 5 to 7, median 6; 1 unknown" in shown
    assert cli.main(["info", "--json", str(tmp_path / "out")]) == 0
    facts = json.loads(capsys.readouterr().out)["image sizes"]["image"]
    assert facts["height"] == {"min": 3, "median": 4, "max": 6}
    assert (facts["looked at"], facts["unknown"]) == (ROWS + 1, 1)
