"""MosaicML's MDS folders of shards that are not compressed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.formats.files import file_source
from fastload.packing.inputs.images import BadRecordError
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.json_values import parse_json
from fastload.packing.inputs.kind import RAGGED, Kind
from fastload.packing.inputs.leaves import Leaf
from fastload.packing.inputs.records import Decoder, FileRecords, RecordsSource, open_records
from fastload.packing.inputs.wanted import ALL, Wanted

_INDEX = "index.json"
_NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_NUMBERS: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in _NAMES.split()}
_NUMBERS["int"] = np.dtype("int64")
_IMAGES = frozenset(["jpeg", "png"])
_TEXT_NUMBERS: dict[str, Callable[[str], int | float]] = {"str_int": int, "str_float": float}
_PLAIN = frozenset(["str", "bytes", "json", *_TEXT_NUMBERS]) | _IMAGES
# Code of the dtype that precedes an array: the bits, and 1 for signed integers or 2 for floats.
_ARRAY_DTYPES = {
    8 * dtype.itemsize + "uif".index(dtype.kind): dtype
    for name, dtype in _NUMBERS.items()
    if name != "int"
}


@dataclass(frozen=True)
class MdsDecoder(Decoder):
    """Splits a sample into its columns.

    Attributes:
        names: Names of the columns.
        encodings: Encoding of each column.
        sizes: Bytes of each; None where each sample says it.
        wanted: The fields that are read.
    """

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    wanted: Wanted = ALL

    @property
    def read(self) -> dict[str, str]:
        """Encodings of the requested columns, by name."""
        pairs = zip(self.names, self.encodings, strict=True)
        return {name: encoding for name, encoding in pairs if self.wanted.enters(name)}

    def decode(self, content: bytes) -> Any:
        """A dict of the columns."""
        varying = sum(size is None for size in self.sizes)
        if len(content) < 4 * varying:
            raise BadRecordError("shorter than the sizes of its columns")
        lengths = iter(np.frombuffer(content, "<u4", varying).tolist())
        sizes = [next(lengths) if size is None else size for size in self.sizes]
        place = 4 * varying
        sample: dict[str, Any] = {}
        if place + sum(sizes) != len(content):
            raise BadRecordError(
                f"its columns have {place + sum(sizes)} bytes, but it has {len(content)}"
            )
        for name, encoding, size in zip(self.names, self.encodings, sizes, strict=True):
            piece = content[place : place + size]
            place += size
            if not self.wanted.enters(name):
                continue
            try:
                sample[name] = (
                    parse_json(piece, self.wanted, name)
                    if encoding == "json"
                    else _value(encoding, piece)
                )
            except ValueError as error:
                raise BadRecordError(f"column {name!r} ({encoding}): {error}") from error
        return sample


def _value(encoding: str, content: bytes) -> Any:
    if encoding in _NUMBERS:
        return np.frombuffer(content, _NUMBERS[encoding].newbyteorder("<"), 1)[0]
    if encoding in _TEXT_NUMBERS:
        return _TEXT_NUMBERS[encoding](content.decode("utf-8"))
    if encoding == "str":
        return content.decode("utf-8")
    if encoding in _IMAGES:
        return Leaf(content, "uint8", "image")
    if encoding == "bytes":
        return content
    return _array(encoding.split(":")[1:], content)


def _array(given: list[str], content: bytes) -> Any:
    """Decodes an array, whose dtype and shape are in its encoding's name or precede it."""
    try:
        place = 0
        if given:
            dtype = _NUMBERS[given[0]]
        else:
            dtype, place = _ARRAY_DTYPES[content[0]], 1
        if len(given) > 1:
            shape = [int(length) for length in given[1].split(",")]
        else:  # a byte of 4 * axes + log2 of the bytes of a length, then the lengths
            axes, width = content[place] >> 2, 1 << (content[place] & 3)
            shape = np.frombuffer(content, f"<u{width}", axes, place + 1).tolist()
            place += 1 + axes * width
    except (KeyError, IndexError) as error:
        raise ValueError(f"its dtype or shape is not known: {error}") from error
    return np.frombuffer(content, dtype.newbyteorder("<"), offset=place).reshape(shape)


def open_mds(
    inventory: Inventory,
    *,
    ragged: Sequence[str] = (),
    strict: bool = False,
    wanted: Wanted = ALL,
) -> RecordsSource:
    """Opens a folder with an `index.json` and shards that are not compressed.

    A sample is a dict of the columns. Images are kept encoded.

    Args:
        inventory: The folder.
        ragged: Columns that vary in length, though the samples that were checked do not.
        strict: A sample that cannot be read is an error.
        wanted: The fields that are read.

    Raises:
        FormatError: the index is damaged, a shard differs from it in size or number of samples, or
            is compressed; or samples differ.
        TypeError: a column has an encoding that is not read, such as pickle.
    """
    inventory.need_folder()
    folder = inventory.path
    index = os.path.join(folder, _INDEX)
    paths, places = [], []
    decoders: list[MdsDecoder] = []
    with open(index, "rb") as file:
        content = file.read()
    try:
        shards = json.loads(content)["shards"]
        for shard in shards:
            decoders.append(_decoder(index, shard, wanted))
            _check_same(index, decoders[-1], decoders[0])
            name = shard["raw_data"]["basename"]
            if shard["compression"] or os.path.basename(name) != name:
                raise FormatError(f"{index}: shard {name!r} is compressed, or not in the folder")
            paths.append(os.path.join(folder, name))
            places.append(_samples(paths[-1], shard["raw_data"]["bytes"], shard["samples"]))
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, TypeError) and "is not read" in str(error):
            raise
        raise FormatError(f"{index}: damaged: {error!r}") from error
    if not decoders:
        raise FormatError(f"{index}: there are no shards")
    others = set(inventory.files) - {index, *paths}
    inventory.refuse(set(map(os.path.basename, others)), f"{_INDEX} does not name it")
    first = decoders[0]
    wanted.check(first.names, first.names)
    pairs = zip(paths, decoders, strict=True)
    records = replace(
        FileRecords.of(inventory.root, paths, places, first, "sample"),
        others={path: decoder for path, decoder in pairs if decoder != first},
    )
    return open_records("mds", records, strict=strict, ragged=ragged)


def _decoder(index: str, shard: dict[str, Any], wanted: Wanted) -> MdsDecoder:
    names, encodings, sizes = (
        tuple(shard[key]) for key in ("column_names", "column_encodings", "column_sizes")
    )
    if shard["format"] != "mds" or not len(names) == len(encodings) == len(sizes):
        raise FormatError(f"{index}: no description of an MDS shard")
    for name, encoding in zip(names, encodings, strict=True):
        kind = encoding.split(":")[0]
        if not wanted.enters(name):
            continue
        if kind not in _NUMBERS and kind not in _PLAIN and kind != "ndarray":
            raise TypeError(f"{index}: column {name!r} is encoded as {encoding}, which is not read")
    return MdsDecoder(names, encodings, sizes, wanted)


def _check_same(index: str, decoder: MdsDecoder, first: MdsDecoder) -> None:
    """Raises FormatError if two shards differ in the requested columns; order is ignored."""
    here, there = decoder.read, first.read
    for name in dict.fromkeys((*there, *here)):
        if here.get(name) != there.get(name):
            kinds = (f"is {of[name]}" if name in of else "is missing" for of in (there, here))
            raise FormatError(
                f"{index}: shards differ in their columns: {name!r} {' in one and '.join(kinds)} "
                "in another; --fields (fields=) leaves it out"
            )


def _samples(path: str, size_bytes: int, rows: int) -> tuple[Int64Array, Int64Array]:
    """Returns the start offsets and the sizes of the samples of a shard."""
    source = file_source(path)
    if source.size_bytes != size_bytes:
        raise FormatError(
            f"{path}: has {source.size_bytes} bytes, but {_INDEX} says {size_bytes}: truncated?"
        )
    count = int.from_bytes(source.read(0, 4), "little")
    if count != rows:
        raise FormatError(f"{path}: has {count} samples, but {_INDEX} says {rows}")
    table = source.read(4, 4 * (rows + 1))
    if len(table) < 4 * (rows + 1):
        raise FormatError(f"{path}: truncated: its table of samples is not whole")
    offsets = np.frombuffer(table, "<u4").astype(np.int64)
    sizes = np.diff(offsets)
    first = 4 + len(table)
    if offsets[0] < first or offsets[-1] != size_bytes or (sizes < 0).any():
        raise FormatError(f"{path}: damaged: its table of samples does not fit the file")
    return offsets[:-1], sizes


def _detects(path: Inventory) -> bool:
    return path.holds(_INDEX) and path.holds(".mds")


KIND = Kind(
    "mds",
    "a folder of MosaicML's MDS shards, not compressed: dicts of the columns",
    open_mds,
    _detects,
    (RAGGED,),
    names=Names((".mds",), (_INDEX,), nested=False),
)
