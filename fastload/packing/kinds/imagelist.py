"""A folder of images, and a CSV file that gives their labels."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.formats.files import AnyPath, file_source
from fastload.packing.columns import Array
from fastload.packing.inputs import images
from fastload.packing.inputs.exact import changed
from fastload.packing.inputs.images import (
    ENCODED,
    RESIZE,
    RESIZE_SHORTER,
    BadRecordError,
    size_and_shaping,
)
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import Kind, Option
from fastload.packing.inputs.leaves import Leaf
from fastload.packing.inputs.open_files import OpenFiles
from fastload.packing.inputs.records import Records, RecordsSource, open_records
from fastload.packing.inputs.wanted import ALL, Wanted

_ZERO_LED = re.compile(r"[+-]?0[0-9]+")


@dataclass(frozen=True, eq=False)
class LabelledImages(Records):
    """Images of a folder with their labels.

    Attributes:
        folder: Folder of the images.
        names: Names of the files in the folder.
        labels: int64 or float64 (samples).
        table: The file that names them, first.
        lines: int64 (samples): where it does.
        size: (height, width) that images are resized to.
        encoded: Images stay as they are.
        reads_images: Otherwise a number takes the place of each image.
    """

    folder: str
    names: tuple[str, ...]
    labels: Array
    table: str
    lines: Int64Array
    size: images.Size | None
    encoded: bool
    reads_images: bool = True

    def __len__(self) -> int:
        return len(self.names)

    def read(self, row: int, files: OpenFiles) -> Any:
        """The tuple (image, label)."""
        if not self.reads_images:
            return 0, self.labels[row]
        path = os.path.join(self.folder, self.names[row])
        try:
            content = files.read(path, 0, os.path.getsize(path))
        except (FileNotFoundError, IsADirectoryError) as error:
            raise BadRecordError(f"there is no file {self.names[row]!r} in the folder") from error
        if not self.encoded:
            return images.decode(content, self.size), self.labels[row]
        images.check_image(content)
        return Leaf(content, "uint8", "image"), self.labels[row]

    def where(self, row: int) -> str:
        """The image, and the line that names it."""
        return f"{self.folder}/{self.name(row)}"

    def name(self, row: int) -> str:
        """Description of the sample, without the folder of the images."""
        return f"{self.names[row]} ({os.path.basename(self.table)}: line {self.lines[row]})"

    def take(self, rows: Int64Array) -> LabelledImages:
        """The images at `rows`."""
        names = tuple(self.names[row] for row in rows.tolist())
        return replace(self, names=names, labels=self.labels[rows], lines=self.lines[rows])

    def files(self) -> Sequence[str]:
        """The table, and the images that are there."""
        paths = [os.path.join(self.folder, name) for name in dict.fromkeys(self.names)]
        return [self.table, *filter(os.path.isfile, paths)]

    def describe(self) -> Any:
        """A hash of names and labels."""
        lines = (f"{name}\0{label}" for name, label in zip(self.names, self.labels, strict=True))
        return hashlib.sha256(os.fsencode("\0".join(lines))).hexdigest()


def open_imagelist(
    inventory: Inventory,
    *,
    labels: AnyPath | None = None,
    label_column: str | None = None,
    resize: int | tuple[int, int] | None = None,
    resize_shorter: int | None = None,
    encoded: bool = False,
    strict: bool = False,
    wanted: Wanted = ALL,
) -> RecordsSource:
    """Opens the images that a CSV file lists, in its order: samples (image, label).

    Its first column has the images' names below the folder, with or without their suffix; labels
    are integers, numbers, or names of classes, which are numbered in the order of the alphabet.

    Args:
        inventory: The folder of the images.
        labels: The CSV file. Its first line names its columns, unless it names an image.
        label_column: Column of the labels; None: the second column.
        resize: (height, width) of all images; one number is both.
        resize_shorter: The shorter side of all images, of which the square in the middle is kept.
        encoded: Keep images as the bytes of their files.
        strict: An image that is missing or damaged is an error.
        wanted: The fields that are read.

    Raises:
        FormatError: the CSV file is damaged, or images differ in size.
        ValueError: there is no such column, or no CSV file was given.
    """
    if labels is None:
        raise ValueError("a folder of images without classes needs --labels FILE.csv (labels=)")
    size, shaping = size_and_shaping(resize, resize_shorter, encoded)
    inventory.need_folder()
    root, table = inventory.path, file_source(labels).path
    here = set(inventory.chosen)
    known = inventory.paths | inventory.ignored
    stems: dict[str, str] = {}
    for name in sorted(here | inventory.ignored, key=lambda name: (name not in here, name)):
        stems.setdefault(os.path.splitext(name)[0], name)

    def is_image(text: str) -> bool:
        name = os.path.normpath(text)
        return text.lower().endswith(images.SUFFIXES) or name in known or name in stems

    names, texts, lines, unread = _read_table(table, label_column, is_image)
    names = list(map(os.path.normpath, names))
    found = [name if name in known else stems.get(name, name) for name in names]
    kept = [row for row, name in enumerate(found) if name not in inventory.ignored]
    found, texts, lines = [found[row] for row in kept], [texts[row] for row in kept], lines[kept]
    try:
        values, classes = _values(texts)
    except OverflowError as error:
        raise FormatError(f"{table}: a label exceeds int64") from error
    except ValueError as error:
        raise FormatError(f"{table}: {error}") from None
    inventory.not_read(sorted(here - set(found)), "an image without a label")
    inventory.also_read([os.path.relpath(table, root), *found])
    records = LabelledImages(
        root, tuple(found), values, table, lines, size, encoded, wanted.takes("image")
    )
    if label_column is not None:
        shaping["label_column"] = label_column
    opened = open_records(
        "imagelist",
        records,
        strict=strict,
        images=["0"] if records.reads_images and not encoded else [],
        names=("image", "label"),
        classes={"label": classes} if classes else {},
        shaping=shaping,
    )
    notices = [f"{table}: columns that are not read: {', '.join(unread)}"] if unread else []
    return replace(opened, notices=tuple(notices), guessed=() if classes else ("label",))


def _read_table(
    path: str, column: str | None, is_image: Callable[[str], bool]
) -> tuple[list[str], list[str], Int64Array, list[str]]:
    """Returns names, labels, their line numbers, and the columns that are not read."""
    names, labels, lines = [], [], []
    unread: list[str] = []
    for number, (line, row) in enumerate(_rows(path)):
        if number == 0:
            if len(row) < 2:
                raise FormatError(f"{path}: line 1: two columns are needed: files and labels")
            width, place = len(row), _label_index(path, row, column, is_image(row[0]))
            has_names = not is_image(row[0])
            others = [n for n in range(1, width) if n != place]
            unread = [repr(row[n]) if has_names else f"the {n + 1}." for n in others]
            if has_names:
                continue
        if len(row) != width:
            raise FormatError(f"{path}: line {line}: {len(row)} values in {width} columns")
        names.append(row[0])
        labels.append(row[place].strip())
        lines.append(line)
        if os.path.isabs(row[0]) or ".." in row[0].split("/"):
            raise FormatError(f"{path}: line {line}: a path {row[0]!r}")
    return names, labels, np.array(lines, np.int64), unread


def _rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the first row and the rows that are not blank, each with its line number."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        line = 1
        try:
            for row in reader:
                if row or line == 1:
                    yield line, row
                line = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError) as error:
            raise FormatError(f"{path}: line {reader.line_num}: {error}") from error
    if line == 1:
        yield 1, []


def _label_index(path: str, row: list[str], column: str | None, has_no_names: bool) -> int:
    """Returns the index of the label column, found in the first row."""
    if column is None:
        return 1
    if has_no_names:
        what = f"line 1 names the image {row[0]!r}, and no columns"
        raise ValueError(f"{path}: there is no column {column!r}: {what}")
    if column not in row[1:]:
        known = ", ".join(row[1:])
        raise ValueError(f"{path}: there is no column {column!r}; the columns are {known}")
    return row.index(column)


def _values(texts: list[str]) -> tuple[Array, tuple[str, ...]]:
    """Labels as numbers, missing ones masked, and the names of classes if they are such (`007`).

    Raises:
        ValueError: float64 does not hold a number as it is written.
    """
    mask = np.array([not text for text in texts])
    values, names = _present([text for text in texts if text])
    if not mask.any():
        return values, names
    labels = np.zeros(len(texts), values.dtype)
    labels[~mask] = values
    return np.ma.MaskedArray(labels, mask), names


def _present(texts: list[str]) -> tuple[Array, tuple[str, ...]]:
    for kind in () if any(map(_ZERO_LED.fullmatch, texts)) else (int, float):
        try:
            numbers = list(map(kind, texts))
        except ValueError:
            continue
        for text in texts if kind is float else ():
            if (reason := changed(text)) is not None:
                raise ValueError(f"the label {text} {reason}")
        return np.array(numbers, np.int64 if kind is int else np.float64), ()
    names = tuple(sorted(set(texts)))
    places = {name: number for number, name in enumerate(names)}
    return np.array([places[text] for text in texts], np.int64), names


KIND = Kind(
    "imagelist",
    "a folder of images and a CSV file of their labels: tuples (image, label)",
    open_imagelist,
    lambda path: path.is_folder and "labels" in path.given,
    (
        Option("labels", "CSV file with names of images, then labels"),
        Option("label_column", "name of the column with the labels (default: the second column)"),
        RESIZE,
        RESIZE_SHORTER,
        ENCODED,
    ),
    ("PIL",),
    "images",
    Names(images.SUFFIXES),
)
