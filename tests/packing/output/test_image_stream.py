"""Encoded images are written while they are read: the bytes are those of images read at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from packing import encoded, noise, put, same_bytes

import fastload
from fastload import _core
from fastload.formats.fields import Field
from fastload.formats.shard import CRC_BLOCK_BYTES, shard_layout
from fastload.packing.columns import Ragged
from fastload.packing.inputs import image_files
from fastload.packing.inputs.image_files import stream_images
from fastload.packing.inputs.source import StreamedRagged, UnstreamableError
from fastload.packing.kinds.imagefolder import ImagesPart
from fastload.packing.output.writer import write_shard
from fastload.packing.plan import as_written
from fastload.packing.shards import Progress

ROWS = 60
BAD = "c3/033.bmp"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of all lengths, the largest of them larger than a piece and a block."""
    for number in range(ROWS):
        side = 900 if number == 20 else 1 + 7 * number % 190
        content = encoded(noise(side, side, number), "BMP" if number % 2 else "PNG")
        suffix = "bmp" if number % 2 else "png"
        put(tmp_path / f"in/c{number // 10}/{number:03}.{suffix}", content)
    return tmp_path / "in"


def at_once(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch, shard_size: int) -> Path:
    with monkeypatch.context() as patched:
        patched.setattr(ImagesPart, "stream", lambda self, advance: None)
        fastload.pack(folder, out, encoded=True, shard_size=shard_size, workers=1)
    return out


@pytest.mark.parametrize("shard_size", [1 << 19, 3 << 20, 1 << 28])
def test_a_streamed_shard_is_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_size: int
) -> None:
    want = at_once(folder, tmp_path / "want", monkeypatch, shard_size)
    with monkeypatch.context() as patched:
        patched.setattr(ImagesPart, "read", None)
        fastload.pack(folder, tmp_path / "out", encoded=True, shard_size=shard_size, workers=1)
    assert same_bytes(want, tmp_path / "out")
    assert max(file.stat().st_size for file in (tmp_path / "out").iterdir()) > CRC_BLOCK_BYTES
    assert fastload.verify(tmp_path / "out").ok
    fastload.pack(folder, tmp_path / "two", encoded=True, shard_size=shard_size, workers=2)
    assert same_bytes(want, tmp_path / "two")


@pytest.mark.parametrize("rows", [1, 60_000, 2 * CRC_BLOCK_BYTES // 24])
def test_small_columns_of_any_size_are_written_behind_the_images(tmp_path: Path, rows: int) -> None:
    """Also if they fill a block, or more."""
    fields = as_written((Field("image", "uint8", (), True, "image"), Field("label", "int64", ())))
    assert fields[0].sized
    lengths = np.arange(rows) % 3
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values, labels = np.arange(offsets[-1]).astype(np.uint8), np.arange(rows)
    layout = shard_layout(fields, rows, [len(values)])
    stored = []
    for column in (
        Ragged(values, offsets),
        StreamedRagged(
            offsets, iter([values[:7].data, values[7:].data]), np.zeros((rows, 2), "u4")
        ),
    ):
        crc = write_shard(str(tmp_path / "shard"), layout, "0" * 64, 0, [column, labels])
        content = (tmp_path / "shard").read_bytes()
        assert crc == _core.crc32c(content)
        stored.append(content)
    assert stored[0] == stored[1]


def test_labels_alone_are_packed_without_opening_an_image(folder: Path, tmp_path: Path) -> None:
    (folder / BAD).write_bytes(b"nothing")
    report = fastload.pack(folder, tmp_path / "out", encoded=True, fields=["label"])
    assert (report.rows, report.skipped) == (ROWS, ())


@pytest.mark.parametrize("fields", [None, ["image"]])
def test_a_bad_image_is_left_out_all_the_same(
    folder: Path, tmp_path: Path, fields: list[str] | None
) -> None:
    (folder / BAD).write_bytes(b"nothing")
    told: list[Progress] = []
    report = fastload.pack(
        folder,
        tmp_path / "out",
        encoded=True,
        fields=fields,
        shard_size=3 << 20,
        workers=1,
        progress=told.append,
    )
    assert [skipped.path for skipped in report.skipped] == [BAD]
    assert report.rows == ROWS - 1
    assert told[-1].rows == ROWS
    assert max(progress.rows for progress in told) == ROWS


def drained(pieces: Iterator[memoryview]) -> bytes:
    return b"".join(map(bytes, pieces))


def test_files_that_are_not_what_they_seemed(tmp_path: Path) -> None:
    image = encoded(noise(3, 5), "PNG")
    paths = [str(tmp_path / name) for name in ("a.png", "b.png", "c.png")]
    for path in paths:
        put(Path(path), image)
    lengths = [len(image)] * 3
    sizes = np.zeros((3, 2), np.uint32)
    before = set(os.listdir("/proc/self/fd"))
    told: list[int] = []
    assert drained(stream_images(paths, lengths, sizes, told.append)) == 3 * image
    assert sizes.tolist() == [[3, 5]] * 3
    assert sum(told) == 3
    for name in ("pipe", "pipe with a writer"):
        os.mkfifo(tmp_path / name)
    writer = os.open(tmp_path / "pipe with a writer", os.O_RDWR)
    for odd, length in [
        (paths[0], len(image) - 1),
        (paths[0], len(image) + 1),
        (paths[0], 0),
        (str(tmp_path / "pipe"), 0),
        (str(tmp_path / "pipe with a writer"), 0),
        (str(tmp_path), 4096),
    ]:
        told.clear()
        with pytest.raises(UnstreamableError):
            drained(stream_images([*paths, odd], [*lengths, length], np.zeros((4, 2)), told.append))
        assert sum(told) == 0
    os.close(writer)
    with pytest.raises(FileNotFoundError, match="gone"):
        drained(stream_images([*paths, f"{tmp_path}/gone"], [*lengths, 1], sizes, told.append))
    assert set(os.listdir("/proc/self/fd")) == before


def test_files_are_opened_before_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not many, and each once."""
    events: list[str] = []

    def noted(name: str) -> None:
        own = getattr(os, name)

        def call(*arguments: object) -> object:
            events.append(name)
            return own(*arguments)

        monkeypatch.setattr(image_files.os, name, call)

    for name in ("open", "readv", "close"):
        noted(name)
    paths = sorted(str(path) for path in folder.glob("*/*"))
    lengths = [os.path.getsize(path) for path in paths]
    drained(stream_images(paths, lengths, np.zeros((ROWS, 2)), lambda _: None))
    events = [event for event in events if event in ("open", "readv", "close")]
    assert {name: events.count(name) for name in set(events)} == dict.fromkeys(
        ("open", "readv", "close"), ROWS
    )
    first = events.index("readv")
    assert 4 < first < 20
