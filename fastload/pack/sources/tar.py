"""Tar files of samples, as WebDataset has them."""

from __future__ import annotations

import collections
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.extents import Int64Array
from fastload.pack.inventory import Inventory, Names
from fastload.pack.sources.decoding import Contents
from fastload.pack.sources.images import ENCODED, RESIZE, BadRecordError, size_and_shaping
from fastload.pack.sources.images import SUFFIXES as IMAGE_SUFFIXES
from fastload.pack.sources.kind import RAGGED, Kind
from fastload.pack.sources.records import Decoder, FileRecords, RecordsSource, open_records
from fastload.pack.sources.wanted import ALL, Wanted

KEY = "key"
"""The field with what the members of a sample have in common in their names."""

_BLOCK = 512
_SUFFIXES = (".tar",)
_COMPRESSED = (".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz")
_MAGIC = slice(257, 262), b"ustar"


@dataclass(frozen=True)
class TarDecoder(Decoder):
    """Reads the members of a sample.

    Attributes:
        contents: Makes values of them.
        names: Those that every sample has, without the key.
    """

    contents: Contents
    names: tuple[str, ...]

    def decode(self, content: bytes) -> Any:
        """A dict of the key and the members."""
        found, key, wanted = {}, "", self.contents.wanted
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member, of, name in _members(archive):
                key = of
                file = archive.extractfile(member) if wanted.enters(name) else None
                if file is not None:
                    found[name] = file.read()
        for odd in (*self.names, *found):
            if odd not in found:
                raise BadRecordError(f"the sample {key!r} is incomplete: there is no .{odd}")
            if odd not in self.names:
                raise BadRecordError(f"the sample {key!r} has a .{odd}, which most have not")
        sample: dict[str, Any] = {KEY: key}
        for name in self.names:
            try:
                sample[name] = self.contents.value(name, found[name])
            except BadRecordError as error:
                raise BadRecordError(f"{key}.{name}: {error}") from error
        return sample


def open_tar(
    inventory: Inventory,
    *,
    resize: int | tuple[int, int] | None = None,
    encoded: bool = False,
    ragged: Sequence[str] = (),
    strict: bool = False,
    wanted: Wanted = ALL,
) -> RecordsSource:
    """The samples of a tar file, or of the `.tar` files below a folder in natural order.

    Members that follow each other and have the same name up to its first dot are one sample: a
    dict with `key`, and with the rest of the name for each member. Images are decoded to RGB,
    `.txt` is text, `.cls` an integer, `.json` parsed, `.npy` an array, everything else bytes.

    Args:
        inventory: The file or folder.
        resize: (height, width) of all images; one number is both.
        encoded: Keep images as the bytes of their files.
        ragged: Fields that vary in length, though the samples that were looked at do not.
        strict: An incomplete sample, or one that cannot be decoded, is an error.
        wanted: The fields that are read.

    Raises:
        FormatError: a file is no tar file, damaged or truncated; or samples differ.
        ValueError: images are to be resized and to be kept encoded.
    """
    size, shaping = size_and_shaping(resize, encoded)
    paths = inventory.need_files()
    if odd := [file for file in paths if file.lower().endswith(_COMPRESSED)]:
        raise FormatError(f"{odd[0]}: is compressed: unpack it first")
    seen: collections.Counter[tuple[str, ...]] = collections.Counter()
    places = [_samples(file, seen) for file in paths]
    known = list(dict.fromkeys(name for found in seen for name in found))
    wanted.check([KEY, *known], known)
    read: collections.Counter[tuple[str, ...]] = collections.Counter()
    for found, count in seen.items():
        read[tuple(name for name in found if wanted.enters(name))] += count
    names = max(read, key=lambda found: (bool(found), read[found]), default=())
    decoder = TarDecoder(Contents(size, encoded, wanted), names)
    records = FileRecords.of(paths, places, decoder, "sample")
    return open_records(
        "tar",
        records,
        strict=strict,
        ragged=ragged,
        images=[name for name in names if f".{name}".endswith(IMAGE_SUFFIXES)]
        if not encoded
        else [],
        shaping=shaping,
    )


def _members(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str, str]]:
    """The files of an archive, each with the key of its sample and its own name."""
    for member in archive:
        folder, _, name = member.name.rpartition("/")
        stem, _, rest = name.partition(".")
        if member.isreg() and stem and rest:
            yield member, f"{folder}/{stem}" if folder else stem, rest.lower()


def _samples(
    path: str, seen: collections.Counter[tuple[str, ...]]
) -> tuple[Int64Array, Int64Array]:
    """Where the samples begin, and their sizes; counts which names samples have."""
    starts, sizes = [], []
    end, last = 0, ""
    names: list[str] = []
    try:
        with tarfile.open(path, "r:") as archive:
            for member, key, name in _members(archive):
                if member.issparse():
                    raise FormatError(f"{path}: {member.name} is a sparse file; unpack it first")
                end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                if key != last or name in names:
                    if names:
                        seen[tuple(names)] += 1
                    starts.append(member.offset)
                    sizes.append(0)
                    last, names = key, []
                names.append(name)
                sizes[-1] = end - starts[-1]
            finish = archive.offset
    except tarfile.TarError as error:
        raise FormatError(
            f"{path}: no tar file, compressed, or damaged behind byte {end}: {error}"
        ) from error
    if names:
        seen[tuple(names)] += 1
    _check_end(path, finish)
    return np.array(starts, np.int64), np.array(sizes, np.int64)


def _check_end(path: str, end: int) -> None:
    """The module takes a damaged header, and the end of the file, for the archive's end."""
    with open(path, "rb") as file:
        for offset in (end - _BLOCK, end):  # it has read the first block of the mark, or has not
            file.seek(max(offset, 0))
            block = file.read(_BLOCK)
            if len(block) == _BLOCK and not any(block):
                return
    what = "truncated: there is no end mark" if len(block) < _BLOCK else "a damaged header"
    raise FormatError(f"{path}: {what} at byte {end}")


KIND = Kind(
    "tar",
    "a .tar file of samples (WebDataset), or a folder of them: dicts of the members",
    open_tar,
    lambda path: path.holds(*_SUFFIXES, *_COMPRESSED) or path.start[_MAGIC[0]] == _MAGIC[1],
    (RESIZE, ENCODED, RAGGED),
    ("PIL",),
    "images",
    Names((*_SUFFIXES, *_COMPRESSED)),
)
