"""Small files of each kind of input that reads several files of a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
from packing import encoded, noise, put
from prelude import tar
from safetensors.numpy import save_file

TABLE = pa.table({"x": [1, 2], "y": [0.5, 1.5]})
Made = Callable[[Path, int], None]


def _tfrecord(path: Path, number: int) -> None:
    from fastload.packing.kinds.tfrecord import masked_crc

    value = b"\x0a\x0f\x0a\x0d\x0a\x01x\x12\x08\x1a\x06\x0a\x04\x01\x02\x03\x04"
    length = len(value).to_bytes(8, "little")
    crcs = (masked_crc(length).to_bytes(4, "little"), masked_crc(value).to_bytes(4, "little"))
    path.write_bytes(length + crcs[0] + value + crcs[1])


def _hdf5(path: Path, number: int) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)


def _megatron(path: Path, number: int) -> None:
    path.write_bytes(np.arange(6, dtype="<u2").tobytes())
    head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08"
    counts = (2).to_bytes(8, "little") + (3).to_bytes(8, "little")
    lengths = np.array([3, 3], "<i4").tobytes() + np.array([0, 6], "<i8").tobytes()
    index = head + counts + lengths + np.array([0, 1, 2], "<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index)


def _tar(path: Path, number: int) -> None:
    tar(str(path), [(f"{number}.cls", b"1"), (f"{number}.bin", b"ab")])


# Of each kind that reads several files of a folder: the suffix, how one is made, files of each.
KINDS: dict[str, tuple[str, Made, int]] = {
    "npy": (".npy", lambda path, n: np.save(path, np.arange(3)), 1),
    "safetensors": (".safetensors", lambda path, n: save_file({"x": np.arange(3)}, path), 1),
    "hdf5": (".h5", _hdf5, 1),
    "megatron": (".bin", _megatron, 2),
    "parquet": (".parquet", lambda path, n: pa.parquet.write_table(TABLE, path), 1),
    "arrow": (".arrow", lambda path, n: pa.feather.write_feather(TABLE, path), 1),
    "csv": (".csv", lambda path, n: pa.csv.write_csv(TABLE, path), 1),
    "jsonl": (".jsonl", lambda path, n: put(path, b'{"x": 1}\n{"x": 2}\n'), 1),
    "tar": (".tar", _tar, 1),
    "tfrecord": (".tfrecord", _tfrecord, 1),
    "imagefolder": (".png", lambda path, n: put(path, encoded(noise(4, 4, n), "PNG")), 1),
}
