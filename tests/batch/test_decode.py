"""Images: the pixels of Pillow, and a stage that keeps order, bounds and its threads."""

from __future__ import annotations

import gc
import io
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from waiting import wait_for

from fastload import DecodeImage, StoppedError
from fastload.batch.decode import DecodeStage
from fastload.batch.images import Decoded, ImageField, decode_image


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    channels = {"RGB": (3,), "L": (), "RGBA": (4,), "CMYK": (4,)}[mode]
    return Image.fromarray(rng.integers(0, 256, (height, width, *channels), np.uint8), mode=None)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


# --- pixels


SIZES = [(8, 8), (5, 9), (9, 5), (1, 1), (3, 17), (40, 30)]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_pixels_are_those_of_pillow(kind: str, mode: str) -> None:
    for number, (width, height) in enumerate(SIZES):
        data = encoded(noise(width, height, "L" if number % 2 else "RGB"), kind)
        plain = Image.open(io.BytesIO(data)).convert(mode)
        got = decode_image(data, DecodeImage(mode=mode))
        assert got.tolist() == np.asarray(plain).reshape(height, width, -1).tolist()
        assert got.dtype == np.uint8
        scaled = plain.resize((6, 4), Image.Resampling.BILINEAR)
        got = decode_image(data, DecodeImage((4, 6), mode))
        assert got.tolist() == np.asarray(scaled).reshape(4, 6, -1).tolist()


def torchvisions(image: Image.Image, resize: int, size: tuple[int, int]) -> Image.Image:
    """`CenterCrop(size)(Resize(resize)(image))` as torchvision computes it for a PIL image."""
    width, height = image.size
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = resize, int(resize * long / short)
    new = (new_short, new_long) if width <= height else (new_long, new_short)
    image = image.resize(new, Image.Resampling.BILINEAR)
    crop_height, crop_width = size
    top = round((new[1] - crop_height) / 2.0)
    left = round((new[0] - crop_width) / 2.0)
    return image.crop((left, top, left + crop_width, top + crop_height))


def test_shorter_side_and_center_crop_are_torchvisions() -> None:
    for width, height in [*SIZES, (7, 11), (11, 7), (500, 333)]:
        image = noise(width, height)
        for resize, size in ((8, (8, 8)), (9, (4, 7)), (10, (7, 4)), (7, (1, 6))):
            got = decode_image(encoded(image), DecodeImage(size, resize=resize))
            assert got.tolist() == np.asarray(torchvisions(image, resize, size)).tolist()


def test_unusual_images_decode_as_torchvision_would() -> None:
    ink = Image.frombytes(
        "CMYK", (16, 8), bytes([0, 255, 255, 0]) * 64 + bytes([0, 0, 0, 255]) * 64
    )
    for image, kind in (
        (ink, "JPEG"),
        (noise(6, 5).quantize(7), "PNG"),
        (noise(6, 5, "RGBA"), "PNG"),
        (noise(6, 5, "L").convert("1"), "PNG"),
        (noise(6, 5).quantize(7), "GIF"),
    ):
        data = encoded(image, kind)
        want = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        assert decode_image(data, DecodeImage()).tolist() == want.tolist()


def test_orientation_is_followed_if_asked() -> None:
    image = noise(24, 16)
    for orientation in range(1, 9):
        tag = Image.Exif()
        tag[0x112] = orientation
        data = encoded(image, "JPEG", exif=tag.tobytes())
        opened = Image.open(io.BytesIO(data))
        assert decode_image(data, DecodeImage()).tolist() == np.asarray(opened).tolist()
        turned = np.asarray(ImageOps.exif_transpose(opened))
        assert decode_image(data, DecodeImage(exif=True)).tolist() == turned.tolist()
    broken = encoded(image, "JPEG", exif=b"Exif\0\0broken")
    assert decode_image(broken, DecodeImage(exif=True)).shape == (16, 24, 3)


# --- the stage


class Batches:
    """A source of batches of numbered images; counts what was asked of it.

    Waits before the first one until it `may_go`, or is stopped, if it `waits`.
    """

    def __init__(self, batches: Sequence[Any], *, waits: bool = False) -> None:
        self.batches = list(batches)
        self.waits = waits
        self.may_go = threading.Event()
        self.taken = 0
        self.inside = 0
        self.stopped = threading.Event()

    def next(self, timeout_s: float = 0.0) -> Any:
        self.inside += 1
        assert self.inside == 1, "two threads took a batch at once"
        try:
            if self.waits:
                self.may_go.wait()
                if self.stopped.is_set():
                    raise StoppedError("stopped")
            if self.taken == len(self.batches):
                return None
            self.taken += 1
            batch = self.batches[self.taken - 1]
            if isinstance(batch, Exception):
                raise batch
            return batch
        finally:
            self.inside -= 1

    def describe_due(self) -> str:
        return "reading"

    def stop(self) -> None:
        self.stopped.set()
        self.may_go.set()


def flat(grey: int, width: int = 3) -> bytes:
    return encoded(Image.new("RGB", (width, 2), (grey, grey, grey)))


def batch_of(*images: bytes, label: int = 0) -> list[Any]:
    offsets = np.cumsum([0, *map(len, images)])
    values = np.frombuffer(b"".join(images), np.uint8)
    return [np.array([label]), values, offsets, np.arange(2 * len(images)).reshape(2, -1)]


def greys(arrays: Any) -> list[int]:
    return [int(image[0, 0, 0]) for image in arrays[1].each()]


def staged(batches: Batches, threads: int, depth: int = 3, size: Any = (2, 3)) -> DecodeStage:
    return DecodeStage(batches, {1: ImageField("image", DecodeImage(size))}, threads, depth)


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("size", [None, (2, 3)])
def test_batches_come_decoded_and_in_order(threads: int, size: Any) -> None:
    sizes = [3, 1, 0, 4, 2] * 4
    source = Batches(
        [batch_of(*(flat(10 * k + i) for i in range(n)), label=k) for k, n in enumerate(sizes)]
    )
    stage = staged(source, threads, size=size)
    for k, n in enumerate(sizes):
        arrays = stage.next()
        assert len(arrays) == 3
        assert arrays[2].tolist() == [list(range(n)), list(range(n, 2 * n))]
        assert arrays[0].tolist() == [k]
        assert isinstance(arrays[1], Decoded)
        assert arrays[1].error is None
        assert greys(arrays) == [10 * k + i for i in range(n)]
    assert stage.next() is None
    assert stage.next() is None
    stage.stop()


def test_other_fields_pass_and_two_fields_decode() -> None:
    first, second = batch_of(flat(1), flat(2)), batch_of(flat(3), flat(4))
    source = Batches([[*first[1:3], np.array([9]), *second[1:]]])
    fields = {
        0: ImageField("image", DecodeImage()),
        3: ImageField("image", DecodeImage((1, 1), "L")),
    }
    stage = DecodeStage(source, fields, 2, 2)
    left, label, right, _samples = stage.next()
    assert [image[0, 0, 0] for image in left.each()] == [1, 2]
    assert label.tolist() == [9]
    assert right.images.tolist() == [[[[3]]], [[[4]]]]
    stage.stop()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_broken_image_is_its_batchs_and_the_first_is_named(threads: int) -> None:
    good = batch_of(*map(flat, range(5)))
    broken = batch_of(flat(0), b"", flat(1)[:40], flat(2), b"not an image")
    stage = staged(Batches([good, broken, good]), threads)
    assert greys(stage.next()) == [0, 1, 2, 3, 4]
    arrays = stage.next()
    assert arrays[1].error_row == 1
    assert isinstance(arrays[1].error, OSError)
    assert greys(stage.next()) == [0, 1, 2, 3, 4]
    assert stage.next() is None
    stage.stop()


@pytest.mark.parametrize("threads", [0, 2])
def test_errors_of_the_source_come_at_their_turn(threads: int) -> None:
    stage = staged(Batches([batch_of(flat(1)), KeyError("x"), batch_of(flat(2))]), threads)
    assert greys(stage.next()) == [1]
    with pytest.raises(KeyError):
        stage.next()
    assert greys(stage.next()) == [2]
    stage.stop()


def test_it_runs_ahead_and_no_further() -> None:
    source = Batches([batch_of(flat(k)) for k in range(20)])
    stage = staged(source, 2, depth=3)
    for k in range(20):
        wait_for(lambda k=k: source.taken >= min(20, k + 3))
        time.sleep(0.002)
        assert source.taken == min(20, k + 3)
        assert greys(stage.next()) == [k]
    stage.stop()


def test_a_consumer_waits_no_longer_than_it_said() -> None:
    source = Batches([batch_of(flat(1))], waits=True)
    stage = staged(source, 1)
    with pytest.raises(TimeoutError) as caught:
        stage.next(0.02)
    assert caught.value.errno is None
    assert str(caught.value) == stage.describe_due() == "reading"
    source.may_go.set()
    assert greys(stage.next(60)) == [1]
    stage.stop()


def test_stopping_ends_every_wait(live_threads: Callable[[], set[str]]) -> None:
    before = live_threads()
    stage = staged(Batches([batch_of(flat(1))], waits=True), 2)
    seen: list[Any] = []

    def wait() -> None:
        try:
            stage.next()
        except StoppedError as error:
            seen.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.02)
    stage.stop()
    waiting.join(60)
    assert len(seen) == 1
    assert live_threads() == before
    stage.stop()
    with pytest.raises(StoppedError):
        stage.next()


def test_the_threads_hold_no_batch_that_was_taken() -> None:
    source = Batches([batch_of(flat(1)), batch_of(flat(2))])
    stage = staged(source, 2)
    arrays = stage.next()
    watched = weakref.ref(arrays[1])
    source.batches.clear()
    assert stage.next() is not None
    del arrays
    gc.collect()
    wait_for(lambda: watched() is None)
    stage.stop()


def test_a_forked_child_is_told_by_the_source() -> None:
    stage = staged(Batches([batch_of(flat(k)) for k in range(9)]), 2, depth=1)
    stage.next()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        stage.stop()  # does nothing: the threads are the parent's
        os._exit(len(greys(stage.next())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    stage.stop()


def test_a_decode_that_runs_long_does_not_hold_up_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(data: bytes, transform: DecodeImage) -> Any:
        begun.set()
        may_end.wait()
        return decode_image(data, transform)

    monkeypatch.setattr("fastload.batch.decode.decode_image", slow)
    stage = staged(Batches([batch_of(flat(1), flat(2))]), 2)
    threads = list(stage._threads)
    begun.wait()
    stage.stop()  # would wait for ever
    stage.stop()
    assert any(thread.is_alive() for thread in threads)
    with pytest.raises(StoppedError):
        stage.next()
    may_end.set()
    for thread in threads:
        thread.join()
