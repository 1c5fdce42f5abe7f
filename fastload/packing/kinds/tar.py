"""Tar files of samples in WebDataset's layout."""

from __future__ import annotations

import collections
import io
import itertools
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.packing.inputs.contents import Contents
from fastload.packing.inputs.images import (
    ENCODED,
    RESIZE,
    RESIZE_SHORTER,
    BadRecordError,
    size_and_shaping,
)
from fastload.packing.inputs.images import SUFFIXES as IMAGE_SUFFIXES
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import RAGGED, Kind
from fastload.packing.inputs.open_files import OpenFiles
from fastload.packing.inputs.records import Decoder, FileRecords, RecordsSource, open_records
from fastload.packing.inputs.wanted import ALL, Wanted
from fastload.packing.kinds.tar_members import KEY, Member, Place, fields_in, list_members

_SUFFIXES = (".tar",)
_COMPRESSED = (".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz")
_MAGIC = slice(257, 262), b"ustar"


@dataclass(frozen=True)
class TarDecoder(Decoder):
    """Reads the members of a sample.

    Attributes:
        contents: Makes values of them.
        names: Names that every sample has, without the key.
    """

    contents: Contents
    names: tuple[str, ...]

    def decode(self, content: bytes) -> Any:
        """A dict of the key and the members."""
        return self.decode_with(content, {})

    def decode_with(self, content: bytes, linked: Mapping[str, bytes]) -> Any:
        """Returns a dict of the key and the members of a sample with links."""
        found, key, wanted = {**linked}, "", self.contents.wanted
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member, of, name in fields_in(archive):
                key = of if member.isreg() or name in linked else key
                is_read = member.isreg() and wanted.enters(name)
                file = archive.extractfile(member) if is_read else None
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


@dataclass(frozen=True, eq=False)
class TarRecords(FileRecords):
    """Samples of tar files.

    Attributes:
        links: For samples that have links: the names of those members, and where the contents lie,
            by the file and the offset of the sample.
    """

    links: Mapping[tuple[str, int], Mapping[str, Place]] = field(default_factory=dict)

    def read(self, row: int, files: OpenFiles) -> Any:
        """A dict of the key and the members."""
        path, offset = self.paths[self.numbers[row]], int(self.offsets[row])
        assert isinstance(self.decoder, TarDecoder)
        wanted = self.decoder.contents.wanted
        places = self.links.get((path, offset), {})
        linked = {n: files.read(path, *of) for n, of in places.items() if wanted.enters(n)}
        content = files.read(path, offset, int(self.sizes[row]))
        return self.decoder.decode_with(content, linked)

    def take(self, rows: Int64Array) -> TarRecords:
        """The samples at `rows`, with the links of these alone."""
        taken = super().take(rows)
        assert isinstance(taken, TarRecords)
        keys = zip(taken.numbers.tolist(), taken.offsets.tolist(), strict=True)
        places = ((taken.paths[number], offset) for number, offset in keys)
        found = {of: self.links[of] for of in places if of in self.links} if self.links else {}
        return replace(taken, links=found)


def open_tar(
    inventory: Inventory,
    *,
    resize: int | tuple[int, int] | None = None,
    resize_shorter: int | None = None,
    encoded: bool = False,
    ragged: Sequence[str] = (),
    strict: bool = False,
    wanted: Wanted = ALL,
) -> RecordsSource:
    """Opens a tar file, or the `.tar` files below a folder in natural order.

    Members that follow each other and have the same name up to its first dot are one sample: a
    dict with `key`, and with the rest of the name for each member. Images are decoded to RGB,
    `.txt` is text, `.cls` an integer, `.json` parsed, `.npy` an array, everything else bytes. Links
    hold the content of the member that they lead to.

    Args:
        inventory: The file or folder.
        resize: (height, width) of all images; one number is both.
        resize_shorter: The shorter side of all images, of which the square in the middle is kept.
        encoded: Keep images as the bytes of their files.
        ragged: Fields that vary in length, though the samples that were checked do not.
        strict: An incomplete sample, or one that cannot be decoded, is an error.
        wanted: The fields that are read.

    Raises:
        FormatError: a file is no tar file, damaged or truncated; samples differ; a sample has two
            members of one name; or as `list_members`.
        ValueError: images are to be resized and to be kept encoded.
    """
    size, shaping = size_and_shaping(resize, resize_shorter, encoded)
    paths = inventory.need_files()
    if odd := [file for file in paths if file.lower().endswith(_COMPRESSED)]:
        raise FormatError(f"{odd[0]}: is compressed; decompress it first")
    seen: collections.Counter[tuple[str, ...]] = collections.Counter()
    links: dict[tuple[str, int], dict[str, Place]] = {}
    places = [_samples(file, list_members(file, inventory), seen, links) for file in paths]
    known = list(dict.fromkeys(name for found in seen for name in found))
    wanted.check([KEY, *known], known)
    read: collections.Counter[tuple[str, ...]] = collections.Counter()
    for found, count in seen.items():
        read[tuple(name for name in found if wanted.enters(name))] += count
    names = max(read, key=lambda found: (bool(found), read[found]), default=())
    decoder = TarDecoder(Contents(size, encoded, wanted), names)
    records = TarRecords.of(inventory.root, paths, places, decoder, "sample")
    assert isinstance(records, TarRecords)
    records = replace(records, links=links)
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


def _samples(
    path: str,
    members: Sequence[Member],
    seen: collections.Counter[tuple[str, ...]],
    links: dict[tuple[str, int], dict[str, Place]],
) -> tuple[Int64Array, Int64Array]:
    """Returns the start offsets and the sizes of the samples.

    Args:
        path: Path of the archive.
        members: In their order.
        seen: Counts which names samples have.
        links: Gets those of samples that have some.

    Raises:
        FormatError: a sample has two members of one name.
    """
    starts, sizes = [], []
    for key, group in itertools.groupby(members, key=lambda member: member.key):
        sample = list(group)
        names = tuple(member.name for member in sample)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FormatError(f"{path}: the sample {key!r} has two members .{twice}")
        seen[names] += 1
        starts.append(sample[0].start)
        sizes.append(sample[-1].end - sample[0].start)
        if linked := {of.name: of.linked for of in sample if of.linked is not None}:
            links[path, sample[0].start] = linked
    return np.array(starts, np.int64), np.array(sizes, np.int64)


KIND = Kind(
    "tar",
    "a .tar file of samples (WebDataset), or a folder of them: dicts of the members",
    open_tar,
    lambda path: path.holds(*_SUFFIXES, *_COMPRESSED) or path.start[_MAGIC[0]] == _MAGIC[1],
    (RESIZE, RESIZE_SHORTER, ENCODED, RAGGED),
    ("PIL",),
    "images",
    Names((*_SUFFIXES, *_COMPRESSED)),
)
