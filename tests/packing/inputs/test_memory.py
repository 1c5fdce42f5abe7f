"""`fastload.pack` holds at most two shards of an input that is many times as large.

Packed in a process of its own, whose anonymous memory (RssAnon) is read every half millisecond by
this one, and compared with what it was after a small input of the same kind was packed.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import select
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import encoded, noise
from token_files import megatron_index

from fastload import _core

pytestmark = pytest.mark.slow

SHARD = 4 << 20
SHARDS = 12
ROW = 16 << 10
ROWS = SHARDS * SHARD // ROW
FEW = 8
MORE = 16 << 20
"""Beside two shards: buffers, decoded pages, and what allocators keep."""

CHILD = """
import json, sys, fastload
out, options = sys.argv[1], json.loads(sys.argv[2])
fastload.pack(sys.stdin.readline().strip(), out + "/few", workers=1, **options)
print("ready", flush=True)
report = fastload.pack(sys.stdin.readline().strip(), out + "/many", workers=1, **options)
print(json.dumps([report.rows, report.bytes, "pandas" in sys.modules]))
"""

Write = Callable[[Path, int], Path]
"""Writes samples of `ROW` bytes each into a folder, and gives the path of the input."""


def numbers(rows: int, dtype: str = "<f4") -> np.ndarray:
    random = np.random.default_rng(0)
    return random.integers(0, 1 << 20, (rows, ROW // 4), np.int32).astype(dtype)


def pieces(rows: int) -> Iterator[bytes]:
    random = np.random.default_rng(0)
    return (random.bytes(ROW - 64) for _ in range(rows))


def write_raw(path: Path, rows: int) -> Path:
    np.load(write_npy(path, rows)).tofile(path / "a.bin")
    return path / "a.bin"


def write_npy(path: Path, rows: int) -> Path:
    np.save(path / "a.npy", numbers(rows))
    return path / "a.npy"


def write_foreign_npy(path: Path, rows: int) -> Path:
    np.save(path / "a.npy", numbers(rows, ">f4"))
    return path / "a.npy"


def write_npz(path: Path, rows: int) -> Path:
    np.savez(path / "a.npz", x=numbers(rows))
    return path / "a.npz"


def write_fortran_npz(path: Path, rows: int) -> Path:
    np.savez(path / "a.npz", x=np.asfortranarray(numbers(rows)))
    return path / "a.npz"


def write_safetensors(path: Path, rows: int) -> Path:
    entry = {"dtype": "F32", "shape": [rows, ROW // 4], "data_offsets": [0, rows * ROW]}
    header = json.dumps({"x": entry}).encode()
    content = struct.pack("<Q", len(header)) + header + numbers(rows).tobytes()
    (path / "a.safetensors").write_bytes(content)
    return path / "a.safetensors"


def write_hdf5(path: Path, rows: int) -> Path:
    h5py = pytest.importorskip("h5py", reason="pip install h5py")
    with h5py.File(path / "a.h5", "w") as file:
        file["x"] = numbers(rows)
    return path / "a.h5"


def write_lmdb(path: Path, rows: int) -> Path:
    lmdb = pytest.importorskip("lmdb", reason="pip install lmdb")
    with lmdb.open(str(path / "a.lmdb"), map_size=2 * ROW * (rows + FEW)) as made:
        with made.begin(write=True) as transaction:
            for number, piece in enumerate(pieces(rows)):
                transaction.put(b"%08d" % number, piece)
    return path / "a.lmdb"


def tables(rows: int) -> Any:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    flat = pyarrow.array(numbers(rows).reshape(-1))
    return pyarrow.table({"x": pyarrow.FixedSizeListArray.from_arrays(flat, ROW // 4)})


def texts(rows: int) -> Any:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    return pyarrow.table({"t": [piece[: ROW // 2].hex() for piece in pieces(rows)]})


def two_columns(rows: int) -> Any:
    return texts(rows).append_column("y", [list(range(rows))])


def parquet_of(table: Callable[[int], Any], group: int) -> Write:
    def write_parquet(path: Path, rows: int) -> Path:
        parquet = pytest.importorskip("pyarrow.parquet", reason="pip install pyarrow")
        options = {"use_dictionary": False, "write_batch_size": 16}
        parquet.write_table(table(rows), path / "a.parquet", row_group_size=group, **options)
        return path / "a.parquet"

    return write_parquet


def arrow_of(table: Callable[[int], Any], rows_each: int, compression: str | None = None) -> Write:
    def write_arrow(path: Path, rows: int) -> Path:
        made = table(rows)
        pyarrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
        options = pyarrow.ipc.IpcWriteOptions(compression=compression)
        with pyarrow.ipc.new_stream(path / "a.arrow", made.schema, options=options) as writer:
            writer.write_table(made, max_chunksize=rows_each)
        return path / "a.arrow"

    return write_arrow


def write_csv(path: Path, rows: int) -> Path:
    pytest.importorskip("pyarrow", reason="pip install pyarrow")
    with open(path / "a.csv", "w") as file:
        file.write("x,y\n")
        file.writelines(f"{piece[: ROW // 2].hex()},1\n" for piece in pieces(rows))
    return path / "a.csv"


def write_jsonl(path: Path, rows: int) -> Path:
    lines = (json.dumps({"x": piece[: ROW // 2].hex()}) + "\n" for piece in pieces(rows))
    (path / "a.jsonl").write_text("".join(lines))
    return path / "a.jsonl"


def write_compressed_jsonl(path: Path, rows: int) -> Path:
    line = json.dumps({"x": "0123456789abcdef" * (ROW // 16)}).encode() + b"\n"
    with gzip.open(path / "a.jsonl.gz", "wb", 1) as file:
        file.writelines([line] * rows)
    return path / "a.jsonl.gz"


def write_tar(path: Path, rows: int) -> Path:
    with tarfile.open(path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, piece in enumerate(pieces(rows)):
            entry = tarfile.TarInfo(f"{number}.bin")
            entry.size = len(piece)
            archive.addfile(entry, io.BytesIO(piece))
    return path / "a.tar"


def write_tfrecord(path: Path, rows: int) -> Path:
    def masked(data: bytes) -> bytes:
        crc = _core.crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def field(data: bytes) -> bytes:  # of bytes, number 1; lengths in three bytes
        size = len(data)
        return bytes([10, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + data

    with open(path / "a.tfrecord", "wb") as file:
        for piece in pieces(rows):
            value = field(field(piece))
            entry = b"\x0a\x01x\x12" + field(value)[1:]
            data = field(field(entry))
            length = struct.pack("<Q", len(data))
            file.write(length + masked(length) + data + masked(data))
    return path / "a.tfrecord"


def write_mds(path: Path, rows: int) -> Path:
    samples = [struct.pack("<I", len(piece)) + piece for piece in pieces(rows)]
    ends = 4 + 4 * (rows + 1) + np.cumsum([0, *map(len, samples)])
    head = struct.pack("<I", rows) + ends.astype("<u4").tobytes()
    (path / "shard.mds").write_bytes(head + b"".join(samples))
    columns = {"column_names": ["x"], "column_encodings": ["bytes"], "column_sizes": [None]}
    raw = {"basename": "shard.mds", "bytes": int(ends[-1])}
    shard = {"format": "mds", "compression": None, "samples": rows, "raw_data": raw, **columns}
    (path / "index.json").write_text(json.dumps({"shards": [shard]}))
    return path


def write_megatron(path: Path, rows: int) -> Path:
    lengths = [ROW // 2] * rows
    (path / "a.bin").write_bytes(numbers(rows).tobytes())
    (path / "a.idx").write_bytes(megatron_index("uint16", lengths, range(rows + 1)))
    return path / "a.bin"


def write_images(path: Path, rows: int) -> Path:
    (path / "in/class").mkdir(parents=True)
    image = encoded(noise(64, ROW // 64 // 3), "BMP")
    for number in range(rows):
        (path / f"in/class/{number}.bmp").write_bytes(image)
    return path / "in"


WRITERS: dict[str, tuple[Write, dict[str, Any]]] = {
    "npy": (write_npy, {}),
    "npy of another byte order": (write_foreign_npy, {}),
    "npz": (write_npz, {}),
    "raw": (write_raw, {"kind": "raw", "dtype": "uint8", "shape": [128]}),
    "safetensors": (write_safetensors, {}),
    "hdf5": (write_hdf5, {}),
    "lmdb": (write_lmdb, {}),
    "parquet": (parquet_of(tables, 64), {}),
    "parquet of one row group": (parquet_of(tables, ROWS), {}),
    "parquet of texts": (parquet_of(texts, ROWS), {}),
    "arrow": (arrow_of(tables, ROWS), {}),
    "arrow of texts": (arrow_of(texts, 64), {}),
    "compressed arrow": (arrow_of(texts, ROWS // SHARDS, "zstd"), {}),
    "csv": (write_csv, {}),
    "jsonl": (write_jsonl, {}),
    "compressed jsonl": (write_compressed_jsonl, {}),
    "tar": (write_tar, {}),
    "tfrecord": (write_tfrecord, {}),
    "mds": (write_mds, {}),
    "megatron": (write_megatron, {}),
    "images": (write_images, {}),
    "encoded images": (write_images, {"encoded": True}),
}


def anonymous(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return int(re.findall(r"RssAnon:\s+(\d+) kB", file.read())[0]) << 10


def packed(write: Write, options: dict[str, Any], path: Path) -> tuple[int, int]:
    """What packing an input takes at most, beside what packing a small one has left.

    And the bytes that it writes.
    """
    given = json.dumps({"shard_size": SHARD} | options)
    command = [sys.executable, "-c", CHILD, str(path), given]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=path) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def tell(input_path: Path) -> None:
            assert child.stdin is not None
            child.stdin.write(os.fsencode(input_path) + b"\n")
            child.stdin.flush()

        for name in ("small", "large"):
            (path / name).mkdir()
        tell(write(path / "small", FEW))
        large = write(path / "large", ROWS)  # while the other starts
        assert child.stdout.readline() == b"ready\n"
        before = most = anonymous(child.pid)
        tell(large)
        while not select.select([child.stdout], [], [], 0.0005)[0]:
            most = max(most, anonymous(child.pid))
        _, stored, pandas = json.loads(child.stdout.readline())
    assert child.returncode == 0
    assert not pandas, "which takes long to import"
    return most - before, stored


@pytest.mark.parametrize("name", WRITERS)
def test_memory_is_that_of_two_shards(name: str, tmp_path: Path) -> None:
    most, stored = packed(*WRITERS[name], tmp_path)
    assert stored > 0.9 * SHARDS * SHARD
    assert most < 2 * SHARD + MORE, f"{most / 2**20:.1f} MiB"


def test_an_input_that_is_read_at_once_is_seen(tmp_path: Path) -> None:
    most, _ = packed(write_fortran_npz, {}, tmp_path)
    assert most > 0.9 * SHARDS * SHARD


@pytest.mark.parametrize(
    ("name", "field"), [("csv", "y"), ("lmdb", "key"), ("parquet of a narrow column", "y")]
)
def test_fields_that_are_left_out_take_no_more(name: str, field: str, tmp_path: Path) -> None:
    """One shard holds all samples of what is left of them."""
    write = parquet_of(two_columns, 64) if name.startswith("parquet") else WRITERS[name][0]
    most, stored = packed(write, {"fields": [field]}, tmp_path)
    assert stored < SHARD / 8
    assert most < 2 * SHARD + MORE, f"{most / 2**20:.1f} MiB"
