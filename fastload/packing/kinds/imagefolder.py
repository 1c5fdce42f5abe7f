"""Folders of images, one folder for each class, as torchvision's ImageFolder reads them."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.formats.fields import Field
from fastload.formats.manifest import Skipped
from fastload.formats.walk import is_split
from fastload.packing.columns import Array, RaggedBuilder
from fastload.packing.inputs.arrays import ArrayColumn, columns_source
from fastload.packing.inputs.image_files import read_image, stream_images
from fastload.packing.inputs.images import (
    ENCODED,
    RESIZE,
    RESIZE_SHORTER,
    SUFFIXES,
    BadRecordError,
    Size,
    check_image,
    decode,
    open_image,
    pillow,
    size_and_shaping,
    unequal,
)
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import Kind, Option
from fastload.packing.inputs.source import (
    Advance,
    AnyStreamed,
    Part,
    Rows,
    Source,
    StreamedRagged,
    probed,
)
from fastload.packing.inputs.wanted import ALL, Wanted

_SIZES_LOOKED_AT = 1000

Item = tuple[str, int]
"""The path of an image below the root, and the number of its class."""


@dataclass(frozen=True)
class ImagesPart(Part):
    """Consecutive images.

    Attributes:
        root: The folder of the class folders.
        items: The images.
        image: The field: uint8 (height, width, 3), or ragged for the bytes of the files.
        first: The image that has this shape without being resized; empty if all are resized.
        size: Size to which images are resized.
        strict: A bad image is an error.
    """

    root: str
    items: tuple[Item, ...]
    image: Field
    first: str
    size: Size | None
    strict: bool

    def read(self, advance: Advance) -> Rows:
        """Decodes the images, or reads their files unchanged; bad images are skipped.

        Raises:
            FormatError: two images differ in size, or one is bad and `strict` is set.
            OSError: a file cannot be read.
        """
        encoded = RaggedBuilder(self.image)
        pixels = np.empty(
            (0 if self.image.ragged else len(self.items), *self.image.shape), np.uint8
        )
        labels = np.empty(len(self.items), np.int64)
        skipped, places = [], []
        row = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about odd metadata
            for place, (path, label) in enumerate(self.items):
                try:
                    if self.image.ragged:
                        encoded.append(_checked(self.root, path))
                    else:
                        pixels[row] = self._decode(path)
                except BadRecordError as error:
                    if self.strict:
                        raise FormatError(f"{self.root}/{path}: {error}") from error
                    skipped.append(Skipped(path, str(error)))
                    places.append(place)
                else:
                    labels[row] = label
                    row += 1
                advance(1)
        images = encoded.finish() if self.image.ragged else pixels[:row]
        return Rows((images, labels[:row]), tuple(skipped), tuple(places))

    def stream(self, advance: Advance) -> Sequence[AnyStreamed] | None:
        """Returns the unchanged files if encoded images are requested."""
        if not self.image.ragged:
            return None
        paths = [os.path.join(self.root, path) for path, _ in self.items]
        lengths = [os.stat(path).st_size for path in paths]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        sizes = np.zeros((len(paths), 2), np.uint32)
        labels = np.array([label for _, label in self.items], np.int64)
        pieces = stream_images(paths, lengths, sizes, advance)
        return [StreamedRagged(offsets, pieces, sizes), labels]

    def _decode(self, path: str) -> Array:
        height, width, _ = self.image.shape
        pixels = decode(read_image(os.path.join(self.root, path)), self.size)
        if pixels.shape != self.image.shape:
            first = f"{self.root}/{self.first}", height, width
            raise unequal(first, (f"{self.root}/{path}", pixels.shape[0], pixels.shape[1]))
        return pixels


@dataclass(frozen=True)
class LabelsColumn(ArrayColumn):
    """The labels of image files, which are not opened."""

    files: tuple[str, ...]

    def paths(self) -> Sequence[str]:
        """The images."""
        return self.files

    def describe(self) -> Any:
        """A hash of the images' names and classes."""
        names = ("/".join(path.rsplit("/", 2)[1:]) for path in self.files)
        return hashlib.sha256(os.fsencode("\0".join(names))).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ImagesSource(Source):
    """All images below a folder."""

    root: str
    items: tuple[Item, ...]
    first: str
    size: Size | None
    shaping: dict[str, Any]
    strict: bool

    def part(self, start: int, stop: int) -> ImagesPart:
        """The images [start, stop)."""
        return self._part(self.items[start:stop])

    def take(self, indices: Int64Array) -> ImagesPart:
        """The images at `indices`."""
        return self._part(tuple(self.items[index] for index in indices.tolist()))

    def _part(self, items: tuple[Item, ...]) -> ImagesPart:
        return ImagesPart(self.root, items, self.fields[0], self.first, self.size, self.strict)

    def names(self, indices: Int64Array) -> list[str]:
        """Paths below the root."""
        return [self.items[index][0] for index in indices.tolist()]

    def paths(self) -> list[str]:
        """All images."""
        return [f"{self.root}/{path}" for path, _ in self.items]

    def inputs(self) -> Any:
        """A hash of the images' paths below the root."""
        names = "\0".join(path for path, _ in self.items)
        return hashlib.sha256(os.fsencode(names)).hexdigest()

    def options(self) -> dict[str, Any]:
        """Description of how images are stored: as their files, or resized to which size."""
        return self.shaping


def open_images(
    inventory: Inventory,
    *,
    resize: int | tuple[int, int] | None = None,
    resize_shorter: int | None = None,
    encoded: bool = False,
    allow_empty: bool = False,
    strict: bool = False,
    wanted: Wanted = ALL,
) -> Source:
    """Opens the images below the class folders of a folder, in torchvision's order.

    A sample is the tuple (image, label): uint8 (height, width, 3), or the bytes of the file with
    `encoded`, and int64. If only the labels are wanted, no image is opened.

    Raises:
        ValueError: images are to be resized and to be kept encoded.
        FileNotFoundError: there are no class folders, or one has no image.
        FormatError: no image can be read, or two differ in size and `resize` is not given.
        ImportError: Pillow is not installed.
    """
    if wanted.takes("image"):
        pillow()
    inventory.need_folder()
    root = inventory.path
    classes, items = _scan(inventory)
    used = {label for _, label in items}
    empty = [name for label, name in enumerate(classes) if label not in used]
    if not items or (empty and not allow_empty):
        where = f"class folder {os.path.join(root, empty[0])!r}" if empty else repr(root)
        what = "has no images" if empty else "has no class folders with images"
        raise FileNotFoundError(
            f"{where} {what} (files that end in {', '.join(SUFFIXES)}); --allow-empty "
            "(allow_empty=True) keeps such classes"
        )
    size, shaping = size_and_shaping(resize, resize_shorter, encoded)
    if wanted.takes("label") and not wanted.takes("image"):
        return _labels(root, classes, items)
    first, shape = "", (0, 0) if size is None else (size.height, size.width)
    if not encoded and size is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first, shape = _common_size(root, items)
    image = Field("image", "uint8", (*shape, 3))
    if encoded:
        image = Field("image", "uint8", (), True, "image")
    return ImagesSource(
        kind="imagefolder",
        fields=(image, Field("label", "int64", ())),
        structure=(0, 1),
        rows=len(items),
        classes={"label": tuple(classes)},
        notices=tuple(_about_classes(inventory, classes, items)),
        ragged_bytes=_mean_bytes(root, items) if encoded else 0,
        root=root,
        items=tuple(items),
        first=first,
        size=size,
        shaping=shaping,
        strict=strict,
    )


def _labels(root: str, classes: Sequence[str], items: Sequence[Item]) -> Source:
    """Opens the labels only, in tuples."""
    numbers = np.array([label for _, label in items], np.int64)
    files = tuple(f"{root}/{path}" for path, _ in items)
    column = LabelsColumn(Field("label", "int64", ()), len(items), numbers, files)
    made = columns_source("imagefolder", [column], (0,), local=True)
    return replace(made, classes={"label": tuple(classes)})


def _scan(inventory: Inventory) -> tuple[list[str], list[Item]]:
    """Returns the class names, and the images in torchvision's order.

    Raises:
        FormatError: there are images outside of class folders, or the folders are splits.
    """
    classes = inventory.folders
    labels = {name: label for label, name in enumerate(classes)}
    paths = inventory.chosen
    inside = [path for path in paths if "/" in path]
    _check_splits(inventory, classes, inside)
    advice = "--labels FILE.csv (labels=) packs a folder of images without classes"
    outside = set(paths) - set(inside) if inside else set()
    inventory.refuse(outside, f"it lies in no class folder; {advice}")
    broken = {path for path in inventory.broken if not {"/", "."} & set(path)}
    inventory.refuse(broken, "a link to a class folder that cannot be resolved")
    inside.sort(key=lambda path: (path.split("/")[0], *os.path.split(path)))
    return classes, [(path, labels[path.split("/")[0]]) for path in inside]


def _check_splits(inventory: Inventory, classes: list[str], images: list[str]) -> None:
    """Raises FormatError if the folders are not classes, but splits of a dataset."""
    advice = "or rename the folders, if they are classes"
    inventory.check_splits(advice)
    used = {path.split("/")[0] for path in images}
    if used and all(map(is_split, used)):
        raise inventory.splits_error(sorted(used), advice)


def _about_classes(inventory: Inventory, classes: list[str], items: list[Item]) -> list[str]:
    """Returns a notice if the folder may be one level too high, else an empty list."""
    inner = {path.split("/")[1] for path, _ in items if path.count("/") > 1}
    if len(classes) > 1 or len(inner) < 2:
        return []
    return [
        f"all images have one class, {classes[0]!r}; if the {len(inner)} folders in it are the "
        f"classes, pack {inventory.absolute(classes[0])}"
    ]


def _common_size(root: str, items: list[Item]) -> tuple[str, tuple[int, int]]:
    """Returns the first image that can be opened, and its (height, width).

    Checks some other images, too, to refuse folders of mixed sizes before anything is written.
    """
    first: tuple[str, int, int] | None = None
    step = -(-len(items) // _SIZES_LOOKED_AT)
    for number, (path, _) in enumerate(items):
        if first is not None and number % step:
            continue
        try:
            width, height = _open(root, path).size
        except BadRecordError:
            continue
        first = first or (path, height, width)
        if first[1:] != (height, width):
            places = (f"{root}/{first[0]}", *first[1:]), (f"{root}/{path}", height, width)
            raise unequal(*places)
    if first is None:
        raise FormatError(f"{root}: none of {len(items)} images can be read, such as {items[0][0]}")
    return first[0], first[1:]


def _mean_bytes(root: str, items: list[Item]) -> int:
    sizes = [os.path.getsize(os.path.join(root, items[index][0])) for index in probed(len(items))]
    return sum(sizes) // len(sizes)


def _open(root: str, path: str) -> Any:
    """Opens an image and reads its header; the suffix is ignored."""
    return open_image(read_image(os.path.join(root, path)))


def _checked(root: str, path: str) -> bytes:
    """Returns the bytes of a file after checking that it starts like an image."""
    content = read_image(os.path.join(root, path))
    check_image(content)
    return content


KIND = Kind(
    "imagefolder",
    "a folder of class folders of images: tuples (image, label)",
    open_images,
    lambda path: path.is_folder,
    (RESIZE, RESIZE_SHORTER, ENCODED, Option("allow_empty", "keep classes without images", "flag")),
    ("PIL",),
    "images",
    Names(SUFFIXES),
)
