"""Plain safetensors files whose tensors share their first dimension, read in place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastload.errors import FormatError
from fastload.formats.extents import MAX_BYTES, Extents, Field, FileSource, single_group
from fastload.formats.files import Paths, file_source, with_suffix

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
    """The tensors of a file in the order of its header, and its `__metadata__`."""

    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]


def read_header(source: FileSource) -> Header:
    """Reads and checks the header as strictly as the format demands.

    Raises:
        FormatError: the file is truncated or has bytes behind its last tensor; the header is no
            JSON of the right shape, or its tensors do not tile the data without gap or overlap.
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
    tensors, spans = [], []
    for name, entry in entries.items():
        dtype, shape, (begin, end) = _entry(path, name, entry)
        tensors.append(Tensor(name, dtype, shape, 8 + length + begin))
        spans.append((begin, end, name))
    _check_tiling(path, sorted(spans), size - 8 - length)
    return Header(tuple(tensors), metadata)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key appears twice")
    return made


def _entry(path: str, name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """Dtype, shape and data_offsets of one tensor."""
    try:
        dtype, shape, offsets = (entry[key] for key in ("dtype", "shape", "data_offsets"))
        begin, end = offsets
        well_formed = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError) as error:
        raise FormatError(f"{path}: tensor {name!r}: damaged entry {entry!r:.100}") from error
    if not well_formed or not isinstance(shape, list):
        raise FormatError(f"{path}: tensor {name!r}: damaged entry {entry!r:.100}")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(f"{path}: tensor {name!r}: dtype {dtype!r:.50} is not supported")
    try:
        field = Field(name, DTYPES[dtype], tuple(shape))
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error
    if end > MAX_BYTES or end - begin != field.row_bytes:
        raise FormatError(
            f"{path}: tensor {name!r}: {field} needs {field.row_bytes} bytes, but its data_offsets "
            f"are [{begin}, {end}]"
        )
    return field.dtype, field.shape, (begin, end)


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


def read_extents(paths: Paths) -> Extents:
    """The samples along the shared first dimension of the tensors of one file or several.

    A sample is a dict with a key for each tensor, in the order of the first file's header. The
    columns that fastload keeps for itself in its own shards are left out.

    Args:
        paths: A file, a folder of `.safetensors` files (in natural order) or a sequence of files.

    Raises:
        FormatError: a file is damaged, has no tensors, a tensor without a first dimension or
            tensors that differ in it; or a file's tensors differ from the first one's.
        OSError: a file cannot be read.
    """
    sources = [file_source(path) for path in with_suffix(paths, ".safetensors")]
    shards = [_columns(source) for source in sources]
    first = shards[0]
    fields = [Field(t.name, t.dtype, t.shape[1:]) for t in first.values()]
    for source, tensors in zip(sources, shards, strict=True):
        if tensors.keys() != first.keys():
            odd = sorted(tensors.keys() ^ first.keys())[0]
            raise FormatError(f"{sources[0]} and {source}: only one of them has a tensor {odd!r}")
        for field in fields:
            other = Field(field.name, tensors[field.name].dtype, tensors[field.name].shape[1:])
            if other != field:
                raise FormatError(
                    f"{sources[0]} holds {field.name!r} as samples of {field}, but {source} of "
                    f"{other}; all files of a dataset must agree"
                )
    rows = [next(iter(tensors.values())).shape[0] for tensors in shards]
    offsets = [[tensors[field.name].offset for tensors in shards] for field in fields]
    structure = {field.name: column for column, field in enumerate(fields)}
    return single_group(fields, rows, sources, offsets, structure)


def _columns(source: FileSource) -> dict[str, Tensor]:
    header = read_header(source)
    own_shard = header.metadata.get("fastload") == "1"
    tensors = {t.name: t for t in header.tensors if not (own_shard and t.name.startswith("__"))}
    if not tensors:
        raise FormatError(f"{source}: holds no tensors")
    first = next(iter(tensors.values()))
    for tensor in tensors.values():
        if not tensor.shape:
            raise FormatError(f"{source}: tensor {tensor.name!r} of shape () has no sample axis")
        if tensor.shape[0] != first.shape[0]:
            raise FormatError(
                f"{source}: tensors {first.name!r} and {tensor.name!r} have {first.shape[0]} and "
                f"{tensor.shape[0]} samples; all must share the first dimension"
            )
    return tensors
