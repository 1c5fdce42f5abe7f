"""The input of the folders in tests/golden/v1, which are read for ever and never written again."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastload.formats.extents import Field
from fastload.formats.manifest import Classes, Manifest, Shards
from fastload.formats.shard import shard_layout
from fastload.packing.columns import Ragged
from fastload.packing.output.writer import write_shard

ROWS = 19
RAGGED_SHARD_SIZE = 1500


def arrays() -> Any:
    """What `samples` holds: every dtype, with values that are exact in it."""
    count = np.arange(ROWS)
    fields: dict[str, Any] = {
        "image": (count[:, None, None, None] + np.arange(18).reshape(2, 3, 3)).astype("u1"),
        "label": count * 10**12 - 5,
        "flag": count % 3 == 0,
        "pair": (count.astype("f2"), [count / 4, count.astype("f4") * 1.5]),
        "z": {"c64": (count + 2j).astype("c8"), "c128": np.stack([count - 1j, 1j * count], 1)},
        "bf16": torch.arange(ROWS, dtype=torch.bfloat16),
        "fp8": torch.arange(ROWS, dtype=torch.float32).to(torch.float8_e4m3fn),
        "empty": np.zeros((ROWS, 0), "u1"),
    }
    for name in ("u2", "u4", "u8", "i1", "i2", "i4"):
        fields[name] = np.array(np.iinfo(name).max, name) - count.astype(name)
    return fields


def ragged() -> list[Any]:
    """What `ragged` holds: fields of varying length, empty ones too, and what numbers can mean."""
    return [
        {
            "text": "grüße, 世界"[: row % 10],
            "bytes": bytes(range(row % 4)),
            "boxes": np.arange(8 * (row % 3), dtype="f4").reshape(-1, 2, 4) - row,
            "meta": {
                "tokens": np.arange(row, dtype="u2") * 1000,
                "flags": np.arange(row % 5) % 2 == 0,
                "c128": np.arange(row % 2 + 1) * (1 - 2j),
                "bf16": torch.arange(row % 3, dtype=torch.bfloat16),
                "days": np.arange(row % 6).astype("M8[D]"),
            },
            "time": np.datetime64(row * 10**15, "ns"),
            "span": np.timedelta64(row, "us"),
            "label": row,
        }
        for row in range(ROWS)
    ]


def images() -> dict[str, tuple[bytes, tuple[int, int]]]:
    """What `images` was packed from: files, the first bytes of images, and height and width."""
    jpeg = b"\xff\xd8\xff\xe0\0\x02\xff\xc2\0\x11\x08" + struct.pack(">HH", 300, 400)
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 70_000, 1)
    return {
        "a/0.ppm": (b"P6 2 1 255\nfast!!", (1, 2)),
        "a/1.jpg": (jpeg, (300, 400)),
        "b/0.png": (png, (1, 70_000)),
        "b/1.ppm": (b"P6 1 3 255\n" + bytes(range(9)), (3, 1)),
    }


GROUPS_ROWS = 7


def groups() -> list[Any]:
    """What `groups` holds, in two column groups with shards of other lengths."""
    return [{"x": [row, 2 * row], "y": row % 2, "t": f"sample {row}"} for row in range(GROUPS_ROWS)]


def write_groups(folder: Path) -> None:
    """Writes `groups` as a dataset that was appended to and got a column."""
    dataset = "0123456789abcdef" * 4
    fields = Field("x", "int32", (2,)), Field("y", "int64", ())
    text = Field("t", "uint8", (), True, "utf8")
    samples = groups()
    described = []
    for name, own, shard_rows in (("main", fields, (5, 2)), ("text", (text,), (4, 3))):
        names, crcs, totals, sizes, start = f"{'shard' if name == 'main' else name}-", [], [], [], 0
        for shard, rows in enumerate(shard_rows):
            part = samples[start : start + rows]
            texts = [sample["t"].encode() for sample in part]
            bounds = np.cumsum([0, *map(len, texts)])
            columns = {
                "x": np.array([sample["x"] for sample in part], "i4"),
                "y": np.array([sample["y"] for sample in part], "i8"),
                "t": Ragged(np.frombuffer(b"".join(texts), np.uint8), bounds),
            }
            totals.append(int(bounds[-1]))
            layout = shard_layout(own, rows, totals[-1:] if name == "text" else ())
            path = folder / f"{names}{shard:06d}.safetensors"
            crc = write_shard(str(path), layout, dataset, shard, [columns[f.name] for f in own])
            crcs.append(f"{crc:08x}")
            sizes.append(layout.file_bytes)
            start += rows
        file = names + "{:06d}.safetensors"
        held = {"t": tuple(totals)} if name == "text" else {}
        described.append(Shards(name, own, file, shard_rows, tuple(sizes), tuple(crcs), held))
    manifest = Manifest(
        rows=GROUPS_ROWS,
        structure={"x": 0, "y": 1, "t": 2},
        groups=tuple(described),
        dataset=dataset,
        class_fields={"y": Classes(("even", "odd"), (4, 3))},
        source={"kind": "golden"},
        generation=3,
        splits={"train": (0, 5), "val": (5, 7)},
    )
    (folder / "fastload.json").write_bytes(manifest.encode("fastload 0.1.0"))
