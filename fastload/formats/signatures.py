"""Known first bytes of files, so that no archive, table or image is read as raw numbers."""

from __future__ import annotations

from fastload.errors import FormatError
from fastload.formats.columns import FileSource

_MAX_START_BYTES = 320  # bytes that are read: tar has its mark at byte 257

# What a file is, the byte where its mark lies, and the marks. Short ones: `_checked_further`.
_MARKS: tuple[tuple[str, int, tuple[bytes, ...]], ...] = (
    ("a .npy file", 0, (b"\x93NUMPY",)),
    (
        "a zip archive (.npz and files of torch.save are such)",
        0,
        (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"),
    ),
    ("a Zstandard file", 0, (b"\x28\xb5\x2f\xfd",)),
    ("an xz file", 0, (b"\xfd7zXZ\0",)),
    ("an LZ4 file", 0, (b"\x04\x22\x4d\x18",)),
    ("a 7z archive", 0, (b"7z\xbc\xaf\x27\x1c",)),
    ("a RAR archive", 0, (b"Rar!\x1a\x07",)),
    ("a tar archive", 257, (b"ustar\0", b"ustar ")),
    ("an HDF5 file", 0, (b"\x89HDF\r\n\x1a\n",)),
    ("a NetCDF file", 0, (b"CDF\x01", b"CDF\x02", b"CDF\x05")),
    ("a MATLAB file", 0, (b"MATLAB 5.0 MAT-file",)),
    ("a Parquet file", 0, (b"PAR1", b"PARE")),
    ("an Arrow or Feather file", 0, (b"ARROW1\0\0", b"FEA1")),
    ("an ORC file", 0, (b"ORC\x0a", b"ORC\x08")),
    ("an Avro file", 0, (b"Obj\x01",)),
    ("an SQLite database", 0, (b"SQLite format 3\0",)),
    ("an LMDB database", 16, (b"\xde\xc0\xef\xbe",)),
    ("a GGUF model", 0, (b"GGUF",)),
    ("a torch.save file", 0, (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",)),
    ("a Megatron index", 0, (b"MMIDIDX\0\0", b"TNTIDX\0\0")),
    (
        "an llm.c model",
        0,
        tuple(magic.to_bytes(4, "little") for magic in (20240326, 20240327, 20240803)),
    ),
    ("an llm.c optimizer state", 0, ((20240527).to_bytes(4, "little"),)),
    ("an llm.c tokenizer", 0, ((20240328).to_bytes(4, "little"),)),
    ("an llm.c evaluation file", 0, ((20240522).to_bytes(4, "little"),)),
    (
        "an llm.c token file, which TokenDataset reads",
        0,
        tuple(magic.to_bytes(4, "little") for magic in (20240520, 20240801)),
    ),
    ("a PNG image", 0, (b"\x89PNG\r\n\x1a\n",)),
    ("a GIF image", 0, (b"GIF87a", b"GIF89a")),
    ("a FITS file", 0, (b"SIMPLE  =",)),
    ("a JPEG 2000 image", 0, (b"\0\0\0\x0cjP  \r\n\x87\n",)),
    ("a FLAC file", 0, (b"fLaC",)),
    ("an Ogg file", 0, (b"OggS",)),
    ("a Snappy file", 0, (b"\xff\x06\0\0sNaPpY",)),
    ("a PDF file", 0, (b"%PDF-",)),
    ("a program", 0, (b"\x7fELF\x01\x01\x01", b"\x7fELF\x02\x01\x01")),
    ("a pointer of Git LFS, without the data", 0, (b"version https://git-lfs.github.com/spec/",)),
    ("an HTML page", 0, (b"<!DOCTYPE html", b"<!doctype html", b"<html")),
    ("an XML file", 0, (b"<?xml ",)),
)


def signature(source: FileSource) -> str | None:
    """Returns the type of a file by its first bytes, such as "a gzip file"; None if unknown.

    Raises:
        OSError: the file cannot be read.
    """
    start = source.read(0, _MAX_START_BYTES)
    for what, offset, marks in _MARKS:
        if start[offset:].startswith(marks):
            return what
    return _checked_further(source, start)


def refuse_other_formats(source: FileSource, needed: str) -> None:
    """Raises FormatError for a file whose first bytes are those of a known format.

    Args:
        source: The file.
        needed: Expected type of the file, such as "raw numbers".

    Raises:
        FormatError: the file is something else.
        OSError: it cannot be read.
    """
    if (what := signature(source)) is not None:
        raise FormatError(
            f"{source}: is {what}, and is not read as {needed}; `fastload pack` converts archives, "
            "tables, images and others (docs/reference/packing.md)"
        )


def _checked_further(source: FileSource, start: bytes) -> str | None:
    """The kinds whose marks are so short that numbers may begin with them by chance."""
    size = source.size_bytes
    if start.startswith(b"\x1f\x8b\x08") and start[3:4] < b"\x20":  # deflate; reserved flags are 0
        return "a gzip file"
    if start.startswith(b"BZh") and start[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"):
        return "a bzip2 file"
    if start[8:9] == b"{" and start[9:10] in b'"} ' and 2 <= _integer(start[:8]) <= size - 8:
        return "a safetensors file"
    if start.startswith(b"\xff\xd8\xff") and start[3:4] in b"\xdb\xe0\xe1\xe2\xe8\xec\xed\xee\xfe":
        return "a JPEG image"
    orders = {b"II*\0": "little", b"MM\0*": "big"}
    if order := orders.get(start[:4]):
        first = int.from_bytes(start[4:8], "big" if order == "big" else "little")
        if 8 <= first < size:
            return "a TIFF image"
    if start.startswith(b"RIFF") and start[8:12] in (b"WAVE", b"WEBP", b"AVI "):
        return f"a {start[8:12].decode().strip()} file"
    if start[4:8] == b"ftyp" and start[:2] == b"\0\0":
        return "an MP4, HEIC or AVIF file"
    if start.startswith(b"BM") and _integer(start[2:6]) == size and not any(start[6:10]):
        return "a BMP image"
    if start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05" and _is_pickle(source, start):
        return "a pickle"
    return None


def _is_pickle(source: FileSource, start: bytes) -> bool:
    size = source.size_bytes
    if source.read(size - 1, 1) != b".":
        return False
    if start[1] < 4:
        return start[2:3] in b"}]c(KMJGXU\x8a"
    return start[2:3] == b"\x95" and _integer(start[3:11]) <= size - 11


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little")
