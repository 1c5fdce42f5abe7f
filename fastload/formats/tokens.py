"""Files of token ids, read in place: raw `.bin`, `.npy`, Megatron's `.bin` and `.idx`, llm.c's.

A file is one stream of integers. The core casts them to int64 on the way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import FormatError
from fastload.formats import npy
from fastload.formats.columns import Bounds, Column, FileSource, Group, Int64Array, MemorySource
from fastload.formats.dtypes import dtype_name
from fastload.formats.extents import Extents
from fastload.formats.fields import Field
from fastload.formats.files import Paths, absolute_paths, file_source, suffix
from fastload.formats.signatures import refuse_other_formats
from fastload.formats.structure import BARE_NAME
from fastload.formats.walk import data_files

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
"""The dtypes of tokens in files."""

RAW_DTYPE = "uint16"
"""What a raw file is read as when nobody says; GPT-2's ids fit."""

_CHECKED_BYTES = 1 << 24  # of tokens that are compared with the vocabulary at once

_MEGATRON_MAGIC = b"MMIDIDX\0\0"
# Megatron's codes; fairseq, whose files differ by the document index, added the last two.
_MEGATRON_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float32"}
_MEGATRON_CODES |= {7: "float64", 8: "uint16", 9: "uint32", 10: "uint64"}
_LLMC_HEADER_BYTES = 1024
_LLMC_KINDS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # magic: version, dtype


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A stream of tokens in a file.

    Attributes:
        source: The file.
        offset: The byte of its first token.
        dtype: Dtype of a token.
        count: Tokens.
        documents: int64 (documents + 1,): where documents begin, in tokens, from 0 to `count`;
            None if the file does not say.
    """

    source: FileSource
    offset: int
    dtype: str
    count: int
    documents: Int64Array | None = None


def read_files(paths: Paths, dtype: Any = None) -> list[TokenFile]:
    """The streams of a file, of a folder of them or of a sequence of files.

    Args:
        paths: A `.bin` or `.npy` file; Megatron's `.bin`, `.idx` or what the two names begin with;
            a folder of such files, in natural order; or a sequence of files.
        dtype: Dtype of the tokens; None: as a header says, uint16 in raw files.

    Raises:
        FormatError: a file is damaged or not of tokens, or files differ in dtype.
        ValueError: `dtype` is not one of tokens, or a header says another.
        OSError: a file cannot be read.
    """
    wanted = None if dtype is None else dtype_name(dtype)
    if wanted is not None and wanted not in DTYPES:
        raise ValueError(f"dtype {wanted!r} is not one of tokens: {', '.join(DTYPES)}")
    files = [_read_file(path, wanted) for path in _find(paths)]
    for file in files:
        if file.dtype not in DTYPES:
            raise FormatError(f"{file.source}: holds {file.dtype}; tokens are {', '.join(DTYPES)}")
        if wanted is not None and file.dtype != wanted:
            raise ValueError(f"{file.source}: holds {file.dtype}, not dtype={wanted!r}")
        if file.dtype != files[0].dtype:
            raise FormatError(
                f"{files[0].source} holds {files[0].dtype}, but {file.source} {file.dtype}; "
                "all files of a dataset must agree"
            )
    return files


def check_vocabulary(file: TokenFile, vocab_size: int, *, big_endian: bool = False) -> None:
    """Reads all tokens of a file, unless its dtype holds no other ids.

    Args:
        file: File of tokens.
        vocab_size: A token must be less, and not negative.
        big_endian: The byte order of the file.

    Raises:
        FormatError: a token is not in [0, vocab_size); the message names its place.
        OSError: the file cannot be read.
    """
    dtype = np.dtype(file.dtype).newbyteorder(">" if big_endian else "<")
    if dtype.kind == "u" and np.iinfo(dtype).max < vocab_size:
        return
    step = _CHECKED_BYTES // dtype.itemsize
    for start in range(0, file.count, step):
        count = min(step, file.count - start)
        data = file.source.read(file.offset + start * dtype.itemsize, count * dtype.itemsize)
        if len(data) != count * dtype.itemsize:
            raise FormatError(f"{file.source}: truncated while it was read")
        tokens = np.frombuffer(data, dtype)
        if tokens.min() >= 0 and tokens.max() < vocab_size:
            continue
        place = int(((tokens < 0) | (tokens >= vocab_size)).argmax())
        raise FormatError(
            f"{file.source}: token {start + place} (byte "
            f"{file.offset + (start + place) * dtype.itemsize}) is {tokens[place]}, not in "
            f"[0, {vocab_size}), the ids of vocab_size={vocab_size}; the file is read as "
            f"{file.dtype}: is it what was written?"
        )


def _find(paths: Paths) -> list[str]:
    where = absolute_paths(paths)
    if not where:
        raise FormatError("no files: the sequence of paths is empty")
    if not isinstance(where, str):
        return [path for path in where if _data_path(path) == path or _data_path(path) not in where]
    if not os.path.isdir(where):
        return [where]
    listed = data_files(where, ".bin", ".npy", ".idx")
    found = [path for path in listed if suffix(path) in (".bin", ".npy")]
    for path in listed:
        if _data_path(path) not in (path, *found):
            raise FormatError(f"{path}: the .bin file that belongs to it is missing")
    if not found:
        raise FormatError(f"{where}: no .bin or .npy files in this folder")
    return found


def _data_path(path: str) -> str:
    """Returns the file of the tokens: for an index, the `.bin` file next to it."""
    return os.path.splitext(path)[0] + ".bin" if suffix(path) == ".idx" else path


def _read_file(path: str, wanted: str | None) -> TokenFile:
    stem = os.path.splitext(path)[0]
    if suffix(path) == ".idx":
        return _read_megatron(_data_path(path), path)
    if not os.path.exists(path) and os.path.exists(path + ".idx"):
        return _read_megatron(path + ".bin", path + ".idx")
    if suffix(path) == ".bin" and os.path.exists(stem + ".idx"):
        return _read_megatron(path, stem + ".idx")
    source = file_source(path)
    start = source.read(0, _LLMC_HEADER_BYTES)
    if start.startswith(npy.MAGIC) or suffix(path) == ".npy":
        return _read_npy(source)
    if int.from_bytes(start[:4], "little") in _LLMC_KINDS:
        return _read_llmc(source, start)
    refuse_other_formats(source, "tokens")
    dtype = wanted or RAW_DTYPE
    item_bytes = np.dtype(dtype).itemsize
    if rest := source.size_bytes % item_bytes:
        raise FormatError(
            f"{source}: {source.size_bytes} bytes is not a multiple of {item_bytes}, the size of a "
            f"{dtype} token: {rest} bytes are left over; is dtype= right?"
        )
    return TokenFile(source, 0, dtype, source.size_bytes // item_bytes)


def _read_npy(source: FileSource) -> TokenFile:
    header = npy.read_header(source)
    if len(header.shape) != 1:
        raise FormatError(
            f"{source}: tokens are an array of one axis, this has shape {header.shape}"
        )
    if not header.dtype.isnative:
        raise FormatError(f"{source}: {header.dtype.str!r} is big-endian; save it little-endian")
    return TokenFile(source, header.data_offset, header.dtype.name, header.shape[0])


def _read_llmc(source: FileSource, start: bytes) -> TokenFile:
    if len(start) < _LLMC_HEADER_BYTES:
        raise FormatError(f"{source}: truncated: llm.c's header has {_LLMC_HEADER_BYTES} bytes")
    magic, version, count = np.frombuffer(start[:12], "<i4").tolist()
    known, dtype = _LLMC_KINDS[magic]
    if version != known:
        raise FormatError(f"{source}: llm.c magic {magic} with version {version}, not {known}")
    expected = _LLMC_HEADER_BYTES + count * np.dtype(dtype).itemsize
    if count < 0 or source.size_bytes != expected:
        raise FormatError(
            f"{source}: the header says {count} {dtype} tokens, {expected} bytes with the header, "
            f"but the file has {source.size_bytes}"
        )
    return TokenFile(source, _LLMC_HEADER_BYTES, dtype, count)


# --- Megatron ----------------------------------------------------------------------------------


def _read_megatron(data_path: str, index_path: str) -> TokenFile:
    index, data = file_source(index_path), file_source(data_path)
    code, lengths, pointers, starts = _read_index(index)
    if code not in _MEGATRON_CODES:
        raise FormatError(f"{index}: dtype code {code} is not known")
    dtype = _MEGATRON_CODES[code]
    if len(lengths) and lengths.min() < 0:
        raise FormatError(f"{index}: sequence {int(lengths.argmin())} has a negative length")
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=ends[1:])
    item_bytes = np.dtype(dtype).itemsize
    wrong = np.flatnonzero(pointers != ends[:-1] * item_bytes)
    if len(wrong):
        raise FormatError(
            f"{index}: sequence {wrong[0]} starts at byte {pointers[wrong[0]]}, not where the one "
            f"before it ends, byte {ends[wrong[0]] * item_bytes}; such files are not read in place"
        )
    count = int(ends[-1])
    if data.size_bytes != count * item_bytes:
        raise FormatError(
            f"{data}: has {data.size_bytes} bytes, but {index} describes {count} {dtype} tokens, "
            f"{count * item_bytes} bytes"
        )
    if starts is None:
        return TokenFile(data, 0, dtype, count, ends)
    whole = len(starts) and starts[0] == 0 and starts[-1] == len(lengths)
    if not whole or (np.diff(starts) < 0).any():
        raise FormatError(
            f"{index}: the documents do not go upwards from sequence 0 to {len(lengths)}"
        )
    return TokenFile(data, 0, dtype, count, ends[starts])


def _read_index(
    index: FileSource,
) -> tuple[int, npt.NDArray[np.int32], Int64Array, Int64Array | None]:
    """The dtype's code, the lengths and pointers of sequences, and the sequence of each document.

    Fairseq's files have no documents: there, each sequence is one.
    """
    head = index.read(0, 34)
    if not head.startswith(_MEGATRON_MAGIC):
        old = head.startswith(b"TNTIDX")
        what = "the older layout TNTIDX, which is not read" if old else "no Megatron index"
        raise FormatError(f"{index}: {what}; expected {_MEGATRON_MAGIC!r}")
    version = int.from_bytes(head[9:17], "little")
    if len(head) < 26 or version != 1:
        raise FormatError(f"{index}: truncated, or of version {version}; 1 is known")
    count = int.from_bytes(head[18:26], "little")
    documents = int.from_bytes(head[26:34], "little")
    size, end = index.size_bytes, 34 + 12 * count + 8 * documents
    is_fairseq = size == 26 + 12 * count
    if not is_fairseq and size not in (end, end + count):  # a byte for the mode of each sequence
        raise FormatError(
            f"{index}: has {size} bytes, but {count} sequences and {documents} documents make {end}"
        )
    first = 26 if is_fairseq else 34
    lengths = _read_array(index, "<i4", first, count)
    pointers = _read_array(index, "<i8", first + 4 * count, count)
    if is_fairseq:
        return head[17], lengths, pointers, None
    return head[17], lengths, pointers, _read_array(index, "<i8", 34 + 12 * count, documents)


def _read_array(source: FileSource, dtype: str, offset: int, count: int) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.fromfile(source.path, dtype, count, offset=offset)
    if len(array) != count:
        raise FormatError(f"{source}: truncated while it was read")
    return array


# --- Extents -----------------------------------------------------------------------------------


def window_extents(
    files: Sequence[TokenFile], seq_len: int, stride: int, *, targets: bool
) -> Extents:
    """Windows of `seq_len + 1` tokens, none across two files.

    Args:
        files: Token files of one dtype.
        seq_len: Tokens that a model sees.
        stride: Tokens from one window to the next.
        targets: A sample is (x, y), the first and the last `seq_len` tokens of the window; else the
            window, bare.
    """
    item_bytes = np.dtype(files[0].dtype).itemsize
    counts = np.array([file.count for file in files], np.int64)
    rows = np.maximum(0, (counts - 1 - seq_len) // stride + 1)
    if targets:
        fields = [Field("0", "int64", (seq_len,)), Field("1", "int64", (seq_len,))]
    else:
        fields = [Field(BARE_NAME, "int64", (seq_len + 1,))]
    sources = tuple(file.source for file in files)
    starts = np.array([file.offset for file in files], np.int64)
    columns = tuple(
        Column(
            field,
            stride * item_bytes,
            sources,
            np.where(rows > 0, starts + number * item_bytes, 0),  # inside the file in any case
            stored=_stored(files),
        )
        for number, field in enumerate(fields)
    )
    return Extents((Group(rows, columns),), (0, 1) if targets else 0)


def document_extents(files: Sequence[TokenFile], documents: Sequence[Int64Array]) -> Extents:
    """Whole documents: samples `{"tokens": [length]}`.

    Args:
        files: Token files of one dtype.
        documents: For each file where its documents begin, in tokens; one more than documents.
    """
    held = [np.ascontiguousarray(bounds, np.int64) for bounds in documents]
    bounds = Bounds(
        tuple(MemorySource(a, a.__array_interface__["data"][0], a.nbytes) for a in held),
        np.zeros(len(files), np.int64),
        np.array([file.count for file in files], np.int64),
    )
    column = Column(
        Field("tokens", "int64", (), ragged=True),
        np.dtype(files[0].dtype).itemsize,
        tuple(file.source for file in files),
        np.array([file.offset for file in files], np.int64),
        bounds,
        _stored(files),
    )
    rows = np.array([len(bounds) - 1 for bounds in held], np.int64)
    return Extents((Group(rows, (column,)),), {"tokens": 0})


def _stored(files: Sequence[TokenFile]) -> str | None:
    return None if files[0].dtype == "int64" else files[0].dtype
