"""`fastload.pack` of MDS folders, whose bytes are put together here.

A shard is u32 samples, u32 offsets[samples + 1] from the start of the file, a description in JSON,
and the samples; a sample is u32 sizes of the columns of varying size, then all columns.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import damaged, encoded, noise, refused, same_bytes, samples_of

import fastload

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


def test_every_encoding_comes_back_in_order(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(n) for n in range(ROWS)])
    for workers in (1, 2):
        out = tmp_path / f"{workers}"
        fastload.pack(tmp_path / "in", out, workers=workers, shard_size=3000)
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    assert samples_of(tmp_path / "1") == [values(n) for n in range(ROWS)]
    fields = {field.name: str(field) for field in fastload.open(tmp_path / "1").fields}
    assert fields["e"] == "uint8 [-1] (image)"
    assert fields["g"] == "uint32 [-1, 2]"


def test_shards_agree_in_the_columns_that_are_read(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(n) for n in range(ROWS)])
    index = tmp_path / "in/index.json"
    content = json.loads(index.read_text())
    last = content["shards"][1]
    last["column_encodings"][2] = "bytes"
    index.write_text(json.dumps(content))
    with pytest.raises(fastload.FormatError, match="'c' is str in one and is bytes in another"):
        fastload.pack(tmp_path / "in", tmp_path / "no")
    fastload.pack(tmp_path / "in", tmp_path / "out", fields=["a", "i"])
    assert samples_of(tmp_path / "out") == [
        {"a": values(n)["a"], "i": values(n)["i"]} for n in range(ROWS)
    ]


def test_shards_may_order_their_columns_differently(tmp_path: Path) -> None:
    entries = []
    (tmp_path / "in").mkdir()
    for number, names in enumerate((["n", "t"], ["t", "n"])):
        text = [b"ab", b"c"][number]
        pieces = {"n": struct.pack("<q", number), "t": text}
        content = shard([struct.pack("<I", len(text)) + b"".join(pieces[name] for name in names)])
        (tmp_path / f"in/{number}.mds").write_bytes(content)
        entries.append(
            {
                "column_names": names,
                "column_encodings": [{"n": "int", "t": "str"}[name] for name in names],
                "column_sizes": [{"n": 8, "t": None}[name] for name in names],
                "compression": None,
                "format": "mds",
                "raw_data": {"basename": f"{number}.mds", "bytes": len(content), "hashes": {}},
                "samples": 1,
            }
        )
    (tmp_path / "in/index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    for workers in (1, 2):
        fastload.pack(tmp_path / "in", tmp_path / f"{workers}", workers=workers, shuffle=0)
        got = samples_of(tmp_path / f"{workers}")
        assert sorted(got, key=lambda of: of["n"]) == [{"n": 0, "t": "ab"}, {"n": 1, "t": "c"}]


def test_damage_ends_in_one_error_or_is_listed(tmp_path: Path) -> None:
    samples = [sample(n) for n in range(ROWS)]
    folder, out = tmp_path / "in", tmp_path / "out"
    write(folder, samples)
    path = folder / "shard.00001.mds"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    damaged(folder, out, "shard.00001.mds", "truncated?")
    path.write_bytes(b"\x09" + content[1:])
    damaged(folder, out, "shard.00001.mds: has 9 samples, but index.json says 10")
    path.write_bytes(content[:8] + b"\xff\xff\xff\xff" + content[12:])
    damaged(folder, out, "shard.00001.mds: damaged: its table")
    path.unlink()
    assert refused(folder, out, overwrite=True).startswith("FileNotFoundError")
    write(folder, samples, compression="zstd")
    damaged(folder, out, "compressed")
    write(folder, samples, column_encodings=["pkl"] * len(COLUMNS))
    assert "'a' is encoded as pkl, which is not read" in refused(folder, out, overwrite=True)
    (folder / "index.json").write_text("{}")
    damaged(folder, out, "index.json: damaged")
    samples[3] = samples[3][:-1]
    write(folder, samples)
    report = fastload.pack(folder, out, overwrite=True)
    assert report.skipped[0].path.startswith("shard.00000.mds: sample 3, at byte")
    assert "bytes" in report.skipped[0].reason
    assert samples_of(out) == [values(n) for n in range(ROWS) if n != 3]
    damaged(folder, tmp_path / "no", "shard.00000.mds: sample 3", strict=True)
