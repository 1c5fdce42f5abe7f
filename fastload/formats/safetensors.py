"""Plain safetensors files whose tensors share their first dimension, read in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Blocks, Bounds, Column, FileSource, Group, Source
from fastload.formats.extents import Extents
from fastload.formats.fields import MAX_BYTES, Field, read_schema
from fastload.formats.files import Paths, file_source
from fastload.formats.walk import with_suffix

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
"""The format's names of dtypes, and torch's."""

VALUES, OFFSETS = "::values", "::offsets"
"""What the names of the two tensors of a ragged field end in."""
SIZES = "::sizes"
"""That of a third one of images: their heights and widths."""

CRC_BLOCK_BYTES = 1 << 20
"""Each block of the data section of a fastload shard has its own checksum."""
CHECKSUMS = "__crc__"
"""The tensor of them."""

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file: its dtype as torch spells it, and the byte of the file it starts at."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Header:
    """The tensors of a file in the order of its header, and its `__metadata__`.

    `left_out` are the names of tensors that the caller does not need.
    """

    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]
    left_out: tuple[str, ...] = ()

    @property
    def field_names(self) -> list[str]:
        """The names of all fields, also of those left out."""
        names = (whole_name(name) for name in (*(t.name for t in self.tensors), *self.left_out))
        own = self.metadata.get("fastload") == "1"
        return [name for name in dict.fromkeys(names) if not own or not name.startswith("__")]


def whole_name(tensor: str) -> str:
    """The name of the field that a tensor belongs to."""
    for part in (VALUES, OFFSETS, SIZES):
        if tensor.endswith(part):
            return tensor.removesuffix(part)
    return tensor


def _takes_all(field: str) -> bool:
    return True


def read_header(source: FileSource, takes: Callable[[str], bool] = _takes_all) -> Header:
    """Reads and checks the header as strictly as the format demands.

    Args:
        source: The file.
        takes: Returns True for needed fields; dtype and shape of others are not checked.

    Raises:
        FormatError: the file is truncated or has bytes behind its last tensor; the header is no
            JSON of the right shape, or its tensors do not tile the data without hole or overlap.
    """
    path, size = source.path, source.size_bytes
    start = source.read(0, 8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or 8 + length > size:
        needs = "at least 8 bytes" if len(start) < 8 else f"a header of {8 + length} bytes"
        raise FormatError(f"{path}: truncated or no safetensors file: {needs} expected, has {size}")
    if length > _MAX_HEADER_BYTES:
        raise FormatError(f"{path}: header of {length} bytes, more than {_MAX_HEADER_BYTES}")
    text = source.read(8, length)
    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
        if not isinstance(entries, dict):
            raise ValueError("it is no JSON object")
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: damaged safetensors header: {error}") from error
    metadata = entries.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError(f"{path}: damaged safetensors header: __metadata__ must map str to str")
    tensors, spans, left_out = [], [], []
    for name, entry in entries.items():
        dtype, shape, (begin, end) = _parts(path, name, entry)
        if not name.startswith("__") and not takes(whole_name(name)):
            left_out.append(name)
            spans.append((begin, end, name))
            continue
        dtype, shape = _checked(path, name, dtype, shape, (begin, end))
        tensors.append(Tensor(name, dtype, shape, 8 + length + begin))
        spans.append((begin, end, name))
    _check_tiling(path, sorted(spans), size - 8 - length)
    return Header(tuple(tensors), metadata, tuple(left_out))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key appears twice")
    return made


def _parts(path: str, name: str, entry: Any) -> tuple[Any, tuple[int, ...], tuple[int, int]]:
    """Dtype, shape and data_offsets of one tensor, as the header spells them."""
    try:
        dtype, shape, offsets = (entry[key] for key in ("dtype", "shape", "data_offsets"))
        begin, end = offsets
        well_formed = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError) as error:
        raise FormatError(f"{path}: tensor {name!r}: damaged entry {entry!r:.100}") from error
    if not well_formed or not isinstance(shape, list):
        raise FormatError(f"{path}: tensor {name!r}: damaged entry {entry!r:.100}")
    return dtype, tuple(shape), (begin, end)


def _checked(
    path: str, name: str, dtype: Any, shape: tuple[int, ...], span: tuple[int, int]
) -> tuple[str, tuple[int, ...]]:
    """Dtype, as torch spells it, and shape of a tensor that has as many bytes."""
    begin, end = span
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(f"{path}: tensor {name!r}: dtype {dtype!r:.50} is not supported")
    try:
        field = Field(name, DTYPES[dtype], shape)
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error
    if end > MAX_BYTES or end - begin != field.row_bytes:
        raise FormatError(
            f"{path}: tensor {name!r}: {field} needs {field.row_bytes} bytes, but its data_offsets "
            f"are [{begin}, {end}]"
        )
    return field.dtype, field.shape


def _check_tiling(path: str, spans: list[tuple[int, int, str]], data_bytes: int) -> None:
    expected = 0
    for begin, end, name in spans:
        if begin != expected:
            what = "overlaps" if begin < expected else "leaves a gap behind"
            raise FormatError(f"{path}: tensor {name!r} {what} the one before it, at byte {begin}")
        expected = end
    if expected != data_bytes:
        what = "truncated" if data_bytes < expected else "bytes behind the last tensor"
        raise FormatError(f"{path}: {what}: its tensors end at {expected} of {data_bytes} bytes")


@dataclass(frozen=True)
class _Place:
    """Location of a field; `total` and `bounds` for ragged fields, `sizes` for images."""

    field: Field
    rows: int
    offset: int
    total: int = 0
    bounds: int = 0
    sizes: int = 0


def read_extents(paths: Paths, takes: Callable[[str], bool] = _takes_all) -> Extents:
    """The samples along the shared first dimension of the tensors of one file or several.

    A sample is a dict with a key for each tensor, in the order of the first file's header. Two
    tensors `t::values` and `t::offsets` (I64, samples + 1) are one ragged field `t`: sample i is
    `values[offsets[i] : offsets[i + 1]]`. A shard that fastload wrote has the fields that were
    packed; the tensors that fastload keeps for itself are left out.

    Args:
        paths: A file, a folder of `.safetensors` files (in natural order) or a sequence of files.
        takes: Returns True for needed fields; others are not checked.

    Raises:
        FormatError: a file is damaged, has no tensors, a tensor without a first dimension or
            tensors that differ in it, or offsets that do not fit their values; or a file's tensors
            differ from the first one's.
        OSError: a file cannot be read.
    """
    files = [file_source(path) for path in with_suffix(paths, ".safetensors")]
    headers = [read_header(file, takes) for file in files]
    shards = [_places(*pair, takes) for pair in zip(files, headers, strict=True)]
    sources: tuple[Source, ...] = tuple(map(_with_blocks, files, headers))
    first = shards[0]
    for source, places in zip(sources, shards, strict=True):
        if places.keys() != first.keys():
            odd = sorted(places.keys() ^ first.keys())[0]
            raise FormatError(f"{sources[0]} and {source}: only one of them has a tensor {odd!r}")
        for name, place in first.items():
            if (other := places[name].field) != place.field:
                raise FormatError(
                    f"{sources[0]} holds {name!r} as samples of {place.field}, but {source} of "
                    f"{other}; all files of a dataset must agree"
                )
    columns = []
    for name, place in first.items():
        parts = [places[name] for places in shards]
        bounds = sizes = None
        if all(part.sizes for part in parts):
            sizes = np.array([part.sizes for part in parts], np.int64)
        if place.field.ragged:
            starts, totals = ([p.bounds for p in parts], [p.total for p in parts])
            bounds = Bounds(sources, np.array(starts, np.int64), np.array(totals, np.int64))
        offsets = np.array([part.offset for part in parts], np.int64)
        of = replace(place.field, sized=False)  # the column knows
        columns.append(Column(of, of.row_bytes, sources, offsets, bounds, sizes=sizes))
    rows = [next(iter(places.values())).rows for places in shards]
    structure = {name: column for column, name in enumerate(first)}
    return Extents((Group(np.array(rows, np.int64), tuple(columns)),), structure)


def _with_blocks(source: FileSource, header: Header) -> FileSource:
    """The file with the place of the checksums that fastload writes."""
    crcs = next((tensor for tensor in header.tensors if tensor.name == CHECKSUMS), None)
    size = header.metadata.get("fastload.crc_block")
    if crcs is None or crcs.dtype != "uint32" or size != str(CRC_BLOCK_BYTES):
        return source
    begin = min(tensor.offset for tensor in header.tensors)
    count = -(-(crcs.offset - begin) // CRC_BLOCK_BYTES)
    if crcs.shape != (1 + count,):
        return source
    return source._replace(blocks=Blocks(begin, crcs.offset, CRC_BLOCK_BYTES, crcs.offset + 4))


def _places(source: FileSource, header: Header, takes: Callable[[str], bool]) -> dict[str, _Place]:
    """The fields of a file by name."""
    tensors = {t.name: t for t in header.tensors if takes(whole_name(t.name))}
    own = header.metadata.get("fastload") == "1"
    if own:
        tensors = {name: t for name, t in tensors.items() if not name.startswith("__")}
    if not tensors:
        raise FormatError(f"{source}: holds no tensors")
    if own and "fastload.schema" in header.metadata:
        fields = _own_fields(source, header.metadata["fastload.schema"])
        fields = tuple(field for field in fields if takes(field.name))
    else:
        fields = _fields(source, tensors)
    places = {field.name: _place(source, field, tensors) for field in fields}
    first = next(iter(places.values()))
    for place in places.values():
        if place.rows != first.rows:
            raise FormatError(
                f"{source}: tensors {first.field.name!r} and {place.field.name!r} have "
                f"{first.rows} and {place.rows} samples; all must share the first dimension"
            )
    return places


def _own_fields(source: FileSource, text: str) -> tuple[Field, ...]:
    try:
        fields = read_schema(json.loads(text))
        if not fields:
            raise ValueError("there are no fields")
    except (ValueError, KeyError, RecursionError) as error:
        raise FormatError(f"{source}: damaged fastload.schema: {error}") from error
    return fields


def _fields(source: FileSource, tensors: dict[str, Tensor]) -> tuple[Field, ...]:
    fields = []
    for name, tensor in tensors.items():
        whole = name.removesuffix(OFFSETS)
        if whole != name and whole + VALUES in tensors:
            continue
        if not tensor.shape:
            raise FormatError(f"{source}: tensor {name!r} of shape () has no sample axis")
        whole = name.removesuffix(VALUES)
        ragged = whole != name and whole + OFFSETS in tensors
        fields.append(Field(whole if ragged else name, tensor.dtype, tensor.shape[1:], ragged))
    return tuple(fields)


def _place(source: FileSource, field: Field, tensors: dict[str, Tensor]) -> _Place:
    """Returns the location of a field, after checking that the tensors match it."""
    dtype, shape = field.dtype, field.shape
    if dtype == "complex128":  # which the format lacks
        dtype, shape = "float64", (*shape, 2)
    values = tensors.get(field.name + VALUES * field.ragged)
    if values is None or not values.shape or (values.dtype, values.shape[1:]) != (dtype, shape):
        raise FormatError(f"{source}: field {field.name!r}: no tensor that holds {field}")
    if not field.ragged:
        return _Place(field, values.shape[0], values.offset)
    offsets = tensors.get(field.name + OFFSETS)
    if offsets is None or offsets.dtype != "int64" or len(offsets.shape) != 1 or 0 in offsets.shape:
        raise FormatError(
            f"{source}: field {field.name!r}: its offsets must be I64 of shape [samples + 1]"
        )
    rows, total = offsets.shape[0] - 1, values.shape[0]
    # Those between are checked when samples are read.
    ends = [source.read(offsets.offset + 8 * row, 8) for row in (0, rows)]
    start, stop = (int.from_bytes(end, "little", signed=True) for end in ends)
    if (start, stop) != (0, total):
        raise FormatError(
            f"{source}: field {field.name!r}: its offsets go from {start} to {stop}, but there are "
            f"{total} values"
        )
    sizes = tensors.get(field.name + SIZES) if field.sized else None
    if field.sized and (sizes is None or (sizes.dtype, sizes.shape) != ("uint32", (rows, 2))):
        raise FormatError(
            f"{source}: field {field.name!r}: its sizes must be U32 of shape [samples, 2]"
        )
    at = 0 if sizes is None else sizes.offset
    return _Place(field, rows, values.offset, total, offsets.offset, at)
