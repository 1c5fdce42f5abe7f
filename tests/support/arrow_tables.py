"""A table with a column of each type, and the files of Arrow that hold tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROWS = 260


def table() -> pa.Table:
    random = np.random.default_rng(0)
    numbers = {
        f"{dtype}": random.integers(0, 100, ROWS).astype(dtype)
        for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?")
    }
    rows = range(ROWS)
    return pa.table(
        {
            **numbers,
            "text": [f"é{n}" * (n % 5) for n in rows],
            "large": pa.array([f"{n}" for n in rows], pa.large_string()),
            "bytes": pa.array([bytes([n % 256]) * (n % 3) for n in rows], pa.binary()),
            "exact": pa.array([bytes([n % 256, 1]) for n in rows], pa.binary(2)),
            "list": pa.array([[float(n)] * (n % 4) for n in rows], pa.list_(pa.float32())),
            "pair": pa.array([[n, -n] for n in rows], pa.list_(pa.int16())),
            "fixed": pa.array([[n, n, 1] for n in rows], pa.list_(pa.uint16(), 3)),
            "matrix": pa.array([[[n, 1], [2, 3], [4, 5]] for n in rows]),
            "pairs": pa.array([[[n, 1]] * (n % 3) for n in rows]),
            "struct": pa.array([{"a": n, "b": {"c": str(n)}} for n in rows]),
            "word": pa.array(["x", "yy"] * (ROWS // 2)).dictionary_encode(),
        }
    )


def plain_rows(of: pa.Table) -> list[dict[str, Any]]:
    return of.to_pylist()


def write_stream(of: pa.Table, path: Path, rows: int) -> None:
    with pa.ipc.new_stream(path, of.schema) as writer:
        writer.write_table(of, max_chunksize=rows)


def save_to_disk(folder: Path, of: pa.Table, features: dict[str, Any], files: int = 2) -> None:
    """What `Dataset.save_to_disk` writes: streams, their names in state.json, and features."""
    folder.mkdir()
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    of = of.replace_schema_metadata(metadata)
    names = [f"data-{n:05d}-of-{files:05d}.arrow" for n in range(files)]
    each = -(-len(of) // files)
    for number, name in enumerate(names):
        write_stream(of.slice(number * each, each), folder / name, 4)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
