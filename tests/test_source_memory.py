"""`fastload.pack` holds at most two shards of an input that is many times as large."""

from __future__ import annotations

import importlib
import io
import json
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastload

SHARD = 1 << 20
SHARDS = 20
ROW = 16 << 10
ROWS = SHARDS * SHARD // ROW
BUFFERS = [("parquet", "_BATCH_BYTES"), ("parquet", "_READ_BYTES")]
BUFFERS += [("csv", "_BLOCK_BYTES"), ("jsonl", "_BLOCK_BYTES")]


def write_parquet(path: Path) -> Path:
    file = path / "a.parquet"
    values = np.random.default_rng(0).random((ROWS // 16, ROW // 4), np.float32)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), ROW // 4)
    of = pa.table({"x": flat})
    with pq.ParquetWriter(file, of.schema, use_dictionary=False, data_page_size=1 << 16) as writer:
        for _ in range(16):
            writer.write_table(of, row_group_size=10)
    return file


def write_arrow(path: Path) -> Path:
    of = pq.read_table(write_parquet(path))
    (path / "a.parquet").unlink()
    with pa.ipc.new_stream(path / "a.arrow", of.schema) as writer:
        writer.write_table(of, max_chunksize=10)
    return path / "a.arrow"


def write_csv(path: Path) -> Path:
    (path / "a.csv").write_text("x,y\n" + f"{'t' * (ROW - 16)},1\n" * ROWS)
    return path / "a.csv"


def write_jsonl(path: Path) -> Path:
    line = json.dumps({"x": "t" * (ROW - 16)}) + "\n"
    (path / "a.jsonl").write_text(line * ROWS)
    return path / "a.jsonl"


def write_tar(path: Path) -> Path:
    content = bytes(ROW - 16)
    with tarfile.open(path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for n in range(ROWS):
            entry = tarfile.TarInfo(f"{n}.bin")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path / "a.tar"


@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_csv, write_jsonl, write_tar])
def test_memory_is_that_of_two_shards(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path)
    for module, name in BUFFERS:  # which are some MiB, whatever is read
        found = importlib.import_module(f"fastload.pack.sources.{module}")
        monkeypatch.setattr(found, name, 64 << 10)
    fastload.pack(file, tmp_path / "first", limit=1, workers=1)  # imports what is needed
    arrow = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(arrow)
    tracemalloc.start()
    try:
        report = fastload.pack(file, tmp_path / "out", shard_size=SHARD, workers=1)
        most = tracemalloc.get_traced_memory()[1] + (arrow.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert report.rows == ROWS
    assert report.bytes > 0.9 * SHARDS * SHARD
    assert most < 2.5 * SHARD, f"{most / SHARD:.2f} shards"
