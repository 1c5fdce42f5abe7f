"""Writes MDS folders byte by byte.

A shard is u32 samples, u32 offsets[samples + 1] from the start of the file, a description in JSON,
and the samples; a sample is u32 sizes of the columns of varying size, then all columns.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from packing import encoded, noise

ROWS = 30
COLUMNS = {
    "a": ("int", 8),
    "b": ("float32", 4),
    "c": ("str", None),
    "d": ("bytes", None),
    "e": ("png", None),
    "f": ("ndarray:int16:2,2", 8),
    "g": ("ndarray", None),
    "h": ("ndarray:float64", None),
    "i": ("json", None),
    "j": ("str_int", None),
    "k": ("str_float", None),
}


def values(n: int) -> dict[str, Any]:
    return {
        "a": n - 5,
        "b": n / 4,
        "c": f"é{n}" * (n % 3),
        "d": bytes([n]) * (n % 4),
        "e": encoded(noise(3, 4 + n % 2, n), "PNG"),
        "f": [[n, 1], [2, -n]],
        "g": [[n, n]] * (1 + n % 3),
        "h": [n / 8] * (1 + n % 2),
        "i": {"n": n, "s": "x" * n},
        "j": (-1) ** n * (2**63 - 1 - n),
        "k": n / 3,
    }


def sample(n: int) -> bytes:
    v = values(n)
    g, h = np.array(v["g"], "<u4"), np.array(v["h"], "<f8")
    columns = [
        struct.pack("<q", v["a"]),
        struct.pack("<f", v["b"]),
        v["c"].encode(),
        v["d"],
        v["e"],
        np.array(v["f"], "<i2").tobytes(),
        bytes([32, 2 << 2, *g.shape]) + g.tobytes(),  # uint32; two axes, lengths of a byte
        bytes([1 << 2 | 1]) + struct.pack("<H", len(h)) + h.tobytes(),  # lengths of two bytes
        json.dumps(v["i"]).encode(),
        str(v["j"]).encode(),
        str(v["k"]).encode(),
    ]
    sizes = [len(c) for c, (_, size) in zip(columns, COLUMNS.values(), strict=True) if size is None]
    return struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(columns)


def shard(samples: list[bytes]) -> bytes:
    config = b'{"the": "description"}'
    first = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = np.cumsum([first, *map(len, samples)]).astype("<u4").tobytes()
    return struct.pack("<I", len(samples)) + offsets + config + b"".join(samples)


def write(folder: Path, samples: list[bytes], **changes: Any) -> None:
    folder.mkdir(exist_ok=True)
    entries = []
    for number, part in enumerate((samples[:20], samples[20:])):
        name, content = f"shard.{number:05d}.mds", shard(part)
        (folder / name).write_bytes(content)
        entry = {
            "column_names": list(COLUMNS),
            "column_encodings": [encoding for encoding, _ in COLUMNS.values()],
            "column_sizes": [size for _, size in COLUMNS.values()],
            "compression": None,
            "format": "mds",
            "raw_data": {"basename": name, "bytes": len(content), "hashes": {}},
            "samples": len(part),
        }
        entries.append(entry | changes)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
