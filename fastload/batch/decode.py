"""Decodes images in threads, between the engine and the consumer."""

from __future__ import annotations

import bisect
import collections
import contextlib
import io
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastload import _core
from fastload.batch.pixels import Pixels
from fastload.batch.transforms import MODES, DecodeImage
from fastload.errors import StoppedError
from fastload.formats.image_depth import in_8_bits

Array = npt.NDArray[Any]
Arrays = list[Any]

_NOT_OF_THE_IMAGE = (MemoryError, ImportError)  # errors that other images would have, too
_MOST_PIXELS = 1 << 28  # of an image; Pillow opens none that has more
_STOP_PATIENCE_S = 0.4  # for threads that decode


class Source(Protocol):
    """Gives the batches of an epoch in order, as the engine does."""

    def next(self, timeout_s: float = 0.0) -> Any:
        """The arrays of the next batch; None after the last one."""

    def is_ready(self) -> bool:
        """Whether `next` has nothing to wait for: a batch, its error or the end are there."""

    def describe_due(self) -> str:
        """What the batch that is due is waiting for, for a message."""

    def stop(self) -> None:
        """Ends every wait in `next`."""


@dataclass
class Decoded:
    """The images of a field of a batch.

    Attributes:
        images: uint8 (B, H, W, C), or what the field's other transforms make of it; None if it was
            not known beforehand that all have one size.
        others: By their place, images that are not in `images`.
        place: Of the first image in the batch that could not be decoded.
        error: What was wrong with it.
        failed: Where samples are to be left out, by their place: what is wrong with images that
            cannot be decoded.
    """

    images: Array | None
    others: dict[int, Array] = field(default_factory=dict)
    place: int = 0
    error: Exception | None = None
    failed: dict[int, Exception] = field(default_factory=dict)

    def each(self) -> list[Array]:
        """The images one by one."""
        if self.images is None:
            return [self.others[place] for place in range(len(self.others))]
        return [self.others.get(place, image) for place, image in enumerate(self.images)]

    def without(self, places: Sequence[int]) -> Decoded:
        """The images of the batch's other samples; all of them could be decoded."""
        images = None if self.images is None else np.delete(self.images, places, 0)
        gone = set(places)
        others = {
            place - bisect.bisect(places, place): image
            for place, image in self.others.items()
            if place not in gone
        }
        return Decoded(images, others, self.place, self.error)


@dataclass
class _Job:
    """A batch on its way: its arrays, or what was raised for them."""

    arrays: Arrays | None
    error: BaseException | None = None
    tasks: Iterator[Callable[[], None]] = field(default_factory=lambda: iter(()))
    total: int = 0
    left: int = 0


@dataclass(frozen=True)
class ImageField:
    """A field of encoded images, and the settings for decoding it in one epoch.

    Attributes:
        name: Name of the field.
        transform: How images are decoded.
        pixels: Compiled transforms that follow the decoding; None: there are none.
        seed: Seed of the random transforms.
        epoch: Epoch of the random transforms.
        pool: Memory for images that are copied to a device; None: numpy allocates it.
        sizes: Stored height and width of each image, uint32 (2,) per sample; None: not stored, or
            not needed. A hint for the allocation only: an image may have another size.
        skips: True if samples with images that cannot be decoded are left out of the batch.
    """

    name: str
    transform: DecodeImage
    pixels: Pixels | None = None
    seed: int = 0
    epoch: int = 0
    pool: _core.SlotPool | None = None
    sizes: _core.Table | None = None
    skips: bool = False

    @property
    def needs_sizes(self) -> bool:
        """True if stored sizes of images help to allocate the memory of a batch."""
        fixed = self.transform.size is not None or (self.pixels and self.pixels.out_bytes)
        return not (fixed or self.transform.exif)

    def empty(self, indices: Array) -> Array | None:
        """Room for the images of these samples, if it is known that all have one size."""
        if self.pixels is not None and self.pixels.out_bytes:
            return self._room((len(indices), *self.pixels.field.shape), self.pixels.field.storage)
        size = self.transform.size or self._common_size(indices)
        if size is None:
            return None
        shape = self._shape((*size, MODES[self.transform.mode]))
        return self._room((len(indices), *shape), self._dtype)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8) if self.pixels is None else self.pixels.field.storage

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What becomes of an image of a shape (height, width, channels)."""
        if self.pixels is None:
            return shape
        height, width = self.pixels.plan.out_size(*shape[:2])
        return (shape[2], height, width) if self.pixels.planar else (height, width, shape[2])

    def _common_size(self, indices: Array) -> tuple[int, int] | None:
        """Height and width of all these samples' images, as far as is stored."""
        if self.sizes is None or self.transform.exif or len(indices) == 0:
            return None
        sizes = np.empty((len(indices), 2), np.uint32)
        self.sizes.gather(indices, [sizes])
        height, width = sizes[0].tolist()
        if not 0 < height * width <= _MOST_PIXELS or (sizes != sizes[0]).any():
            return None
        return height, width

    def _room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if self.pool is None:
            return np.empty(shape, dtype)
        return self.pool.empty(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def deliver(self, data: bytes, room: Array | None, draw: int) -> Array | None:
        """Decodes a sample into `room`; what is drawn for it follows from `draw`.

        Returns:
            The image, if there is no room or it has another size.

        Raises:
            Exception: what Pillow raises for data that it cannot decode; ValueError: the image is
                smaller than the window that is cut out of it.
        """
        return self.place(decode_image(data, self.transform), room, draw)

    def place(self, image: Array, room: Array | None, draw: int) -> Array | None:
        """Applies what follows the decoding; see `deliver`."""
        shape = self._shape(image.shape)
        fits = room is not None and room.shape == shape
        if self.pixels is None:
            if room is None or not fits:
                return image
            room[...] = image
            return None
        made = room if room is not None and fits else np.empty(shape, self._dtype)
        self.pixels.plan.deliver(image, made, self.seed, self.epoch, draw)
        return None if fits else made


class _Images:
    """A field of images of one batch while it is decoded."""

    def __init__(self, field: ImageField, values: Array, offsets: Array, samples: Array) -> None:
        indices, draws = samples
        self._field = field
        self._draws = draws.tolist()
        self._values = values
        self._bounds = offsets.tolist()
        self._lock = threading.Lock()
        self.decoded = Decoded(field.empty(indices))
        self.tasks = [partial(self._decode, place) for place in range(len(indices))]

    def _decode(self, place: int) -> None:
        decoded = self.decoded
        if decoded.error is not None and decoded.place < place:
            return  # the batch is lost
        try:
            data = self._values[self._bounds[place] : self._bounds[place + 1]].tobytes()
            try:
                image = decode_image(data, self._field.transform)
            except Exception as error:
                if not self._field.skips or isinstance(error, _NOT_OF_THE_IMAGE):
                    raise
                with self._lock:
                    decoded.failed[place] = error
                return
            room = None if decoded.images is None else decoded.images[place]
            other = self._field.place(image, room, self._draws[place])
            if other is not None:
                decoded.others[place] = other
        except Exception as error:  # Pillow's plugins raise many kinds
            with self._lock:
                if decoded.error is None or place < decoded.place:
                    decoded.place, decoded.error = place, error


def decode_image(data: bytes, transform: DecodeImage) -> Array:
    """An encoded image as uint8 (H, W, C); of 16-bit images the upper 8 bits.

    Raises:
        Exception: what Pillow raises for data that it cannot decode; ValueError: its pixels are
            floats or 32-bit integers.
    """
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as opened:
        turned: Image.Image = opened
        if transform.exif:
            with contextlib.suppress(Exception):  # a broken tag does not spoil the image
                turned = ImageOps.exif_transpose(opened)
        image = in_8_bits(turned).convert(transform.mode)
    if transform.size is not None:
        height, width = transform.size
        if transform.resize is None:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        else:
            short, long = sorted(image.size)
            # As torchvision: the longer side is cut down to an integer, the corner rounded.
            sides = transform.resize, int(transform.resize * long / short)
            scaled = sides if image.width <= image.height else sides[::-1]
            image = image.resize(scaled, Image.Resampling.BILINEAR)
            left, top = round((scaled[0] - width) / 2), round((scaled[1] - height) / 2)
            image = image.crop((left, top, left + width, top + height))
    return np.asarray(image).reshape(image.height, image.width, -1)


class DecodeStage:
    """Batches of a source with their images decoded, in its order.

    A thread decodes an image of a batch that is under way, or else takes the next batch from the
    source, if fewer than `depth` are under way or wait for the consumer. Without threads all is
    done inside `next`.

    Args:
        source: Gives the arrays; those of a field of images are its bytes and offsets, the last one
            says which samples they are: int64 (2, B), the dataset's indices and the draws.
        fields: For each field of images the number of its first array, in ascending order.
        threads: How many decode.
        depth: Batches under way.
    """

    def __init__(
        self, source: Source, fields: Mapping[int, ImageField], threads: int, depth: int
    ) -> None:
        self._source = source
        self._fields = dict(fields)
        self._depth = depth
        self._pid = os.getpid()
        self._changed = threading.Condition()  # guards what follows
        self._jobs: collections.deque[_Job] = collections.deque()
        self._open: collections.deque[_Job] = collections.deque()  # with tasks to begin
        self._taking = False
        self._stopped = False
        self._patience_s = _STOP_PATIENCE_S
        self._threads = [
            threading.Thread(target=self._work, name=f"fastload-decode-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def next(self, timeout_s: float = 0.0) -> Arrays | None:
        """The arrays of the next batch, each field of images as one `Decoded`; None at the end.

        Raises:
            TimeoutError: there was none for so many seconds; 0 waits for ever.
            StoppedError: the stage was stopped.
        """
        if not self._threads or self._pid != os.getpid():  # no thread lives on in a forked child
            job = self._begun(self._source.next(timeout_s))
            for task in job.tasks:
                task()
            return job.arrays
        end = time.monotonic() + timeout_s if timeout_s else None
        with self._changed:
            while not (self._jobs and self._jobs[0].left == 0):
                if self._stopped:
                    raise StoppedError("the iterator was stopped")
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(self._due())
                self._changed.wait(left)
            job = self._jobs[0]
            if job.arrays is not None or job.error is not None:  # else the end, which stays
                self._jobs.popleft()
                self._changed.notify_all()
        if job.error is not None:
            raise job.error
        return job.arrays

    def is_ready(self) -> bool:
        """Whether `next` has nothing to wait for."""
        with self._changed:
            return self._stopped or bool(self._jobs and self._jobs[0].left == 0)

    def describe_due(self) -> str:
        """What the batch that is due is waiting for."""
        with self._changed:
            return self._due()

    def _due(self) -> str:
        if not self._jobs:
            return self._source.describe_due()
        job = self._jobs[0]
        return f"decoding, {job.total - job.left} of {job.total} images done"

    def stop(self) -> None:
        """Stops the source and ends the threads; may be called again, and by any thread.

        A thread that is inside a long decode, or a read that stalls, is waited for a limited time:
        Ctrl-C has to take effect. It ends by itself when it comes back, and keeps what it needs.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            self._stopped = True
            self._jobs.clear()  # so that a stage that lives on keeps no batch
            self._open.clear()
            self._changed.notify_all()
        self._source.stop()
        end = time.monotonic() + self._patience_s
        self._patience_s = 0.0  # which is waited once
        for thread in self._threads:
            if thread is not threading.current_thread():  # which may be collecting garbage
                thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._stopped or self._open or self._may_take()):
                    self._changed.wait()
                if self._stopped:
                    return
                job = self._open[0] if self._open else None
                task = next(job.tasks, None) if job else None
                if job and task is None:
                    self._open.popleft()
                    continue
                self._taking = self._taking or job is None
            if job is None or task is None:
                self._take()
                continue
            task()
            with self._changed:
                job.left -= 1
                if job.left == 0:
                    self._changed.notify_all()
            del job, task  # a thread that waits keeps no batch

    def _may_take(self) -> bool:
        ended = self._jobs and self._jobs[-1].arrays is None and self._jobs[-1].error is None
        return not self._taking and not ended and len(self._jobs) < self._depth

    def _begun(self, arrays: Arrays | None) -> _Job:
        if arrays is None:
            return _Job(None)
        delivered, tasks, number = [], [], 0
        samples = arrays[-1]
        while number < len(arrays):
            field = self._fields.get(number)
            if field is None:
                delivered.append(arrays[number])
                number += 1
                continue
            images = _Images(field, arrays[number], arrays[number + 1], samples)
            delivered.append(images.decoded)
            tasks += images.tasks
            number += 2
        return _Job(delivered, None, iter(tasks), len(tasks), len(tasks))

    def _take(self) -> None:
        try:
            job = self._begun(self._source.next())
        except BaseException as error:
            job = _Job(None, error)
        with self._changed:
            self._taking = False
            self._changed.notify_all()
            if self._stopped:
                return
            self._stopped = isinstance(job.error, StoppedError)
            self._jobs.append(job)
            if job.left:
                self._open.append(job)
