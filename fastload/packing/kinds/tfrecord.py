"""TFRecord files of `tf.train.Example`; both checksums of each record are checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload import _core
from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.packing.inputs.images import BadRecordError
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import RAGGED, Kind
from fastload.packing.inputs.leaves import Leaf
from fastload.packing.inputs.open_files import OpenFiles
from fastload.packing.inputs.records import Decoder, FileRecords, RecordsSource, open_records
from fastload.packing.inputs.source import probed
from fastload.packing.inputs.wanted import ALL, Wanted
from fastload.packing.kinds.tf_example import parse_example

_HEAD, _FOOT = 12, 4
_NAME = ".tfrecord"
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class ExampleDecoder(Decoder):
    """Checks and parses a record.

    Attributes:
        single: Features of one value, which are numbers rather than arrays.
        images: Features that hold encoded images.
        wanted: Features that are read.
    """

    single: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    wanted: Wanted = ALL

    def decode(self, content: bytes) -> Any:
        """Returns the features as bytes, numbers, arrays of float32 or int64; None if missing."""
        data = content[_HEAD:-_FOOT]
        if masked_crc(data) != int.from_bytes(content[-_FOOT:], "little"):
            raise BadRecordError("wrong checksum of its data")
        try:
            features = parse_example(data, self.wanted)
        except ValueError as error:
            raise BadRecordError(str(error)) from error
        sample: dict[str, Any] = {}
        for name, value in features.items():
            if value is None or (isinstance(value, list) and not value):
                sample[name] = None
            elif isinstance(value, list):
                if len(value) > 1:
                    raise BadRecordError(f"the feature {name!r} has {len(value)} byte strings")
                sample[name] = Leaf(value[0], "uint8", "image" if name in self.images else "bytes")
            else:
                sample[name] = value[0] if name in self.single and len(value) == 1 else value
        return sample


def masked_crc(data: bytes) -> int:
    """Returns the checksum of the format: CRC-32C, rotated plus a constant."""
    crc = _core.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def open_tfrecord(
    inventory: Inventory,
    *,
    ragged: Sequence[str] = (),
    strict: bool = False,
    wanted: Wanted = ALL,
) -> RecordsSource:
    """Opens a file, or the files below a folder with `.tfrecord` in their names.

    A sample is a dict of the features. Those that have one value in each checked record
    are numbers, others arrays. Byte strings are bytes; JPEG and PNG files are kept encoded.

    Args:
        inventory: The file or folder.
        ragged: Features that vary in length, though the records that were checked do not.
        strict: A record with a wrong checksum, or that cannot be parsed, is an error.
        wanted: The fields that are read.

    Raises:
        FormatError: a file is no TFRecord file, or truncated; or records differ.
    """
    paths = inventory.need_files()
    records = FileRecords.of(
        inventory.root, paths, list(map(_records, paths)), ExampleDecoder(wanted=wanted)
    )
    decoder = _decoder_for(records, wanted, frozenset(ragged))
    return open_records("tfrecord", replace(records, decoder=decoder), strict=strict, ragged=ragged)


def _decoder_for(records: FileRecords, wanted: Wanted, ragged: frozenset[str]) -> ExampleDecoder:
    """Returns the decoder for the features of the sampled records."""
    counts: dict[str, set[int]] = {}
    pictures: dict[str, bool] = {}
    with OpenFiles() as files:
        for row in probed(len(records)):
            try:
                sample = records.read(row, files)
            except BadRecordError:
                continue
            for name, value in sample.items():
                if isinstance(value, Leaf):
                    is_image = isinstance(value.content, bytes) and value.content[:8].startswith(
                        _IMAGES
                    )
                    pictures[name] = pictures.get(name, True) and is_image
                elif value is not None:
                    counts.setdefault(name, set()).add(len(value))
    single = frozenset(name for name, found in counts.items() if found == {1}) - ragged
    return ExampleDecoder(single, frozenset(name for name, yes in pictures.items() if yes), wanted)


def _records(path: str) -> tuple[Int64Array, Int64Array]:
    """Returns the start offsets and the sizes of the records of a file, checksums included."""
    starts: list[int] = []
    sizes: list[int] = []
    offset = 0
    with open(path, "rb", buffering=_BUFFER_BYTES) as file:
        end = os.fstat(file.fileno()).st_size
        while offset < end:
            file.seek(offset)
            head = file.read(_HEAD)
            where = f"{path}: record {len(starts)}, at byte {offset}"
            if head.startswith(b"\x1f\x8b") and not starts:
                raise FormatError(f"{path}: compressed by gzip; unpack it first")
            if len(head) < _HEAD:
                raise FormatError(f"{where}: truncated: {len(head)} of {_HEAD} bytes of its head")
            if masked_crc(head[:8]) != int.from_bytes(head[8:], "little"):
                what = "wrong checksum of its length" if starts else "no TFRecord file"
                raise FormatError(f"{where}: {what}; nothing behind it can be found")
            size = _HEAD + int.from_bytes(head[:8], "little") + _FOOT
            if offset + size > end:
                raise FormatError(f"{where}: truncated: {end - offset} of its {size} bytes")
            starts.append(offset)
            sizes.append(size)
            offset += size
    return np.array(starts, np.int64), np.array(sizes, np.int64)


def _detects(path: Inventory) -> bool:
    if path.is_folder:
        return True
    head = path.start[:_HEAD]
    is_one = len(head) == _HEAD and masked_crc(head[:8]) == int.from_bytes(head[8:], "little")
    return is_one or _NAME in os.path.basename(path.path).lower()


KIND = Kind(
    "tfrecord",
    "a TFRecord file of tf.train.Example, or a folder of them: dicts of the features",
    open_tfrecord,
    _detects,
    (RAGGED,),
    names=Names(infix=_NAME),
)
