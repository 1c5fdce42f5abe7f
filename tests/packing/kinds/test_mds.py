"""`fastload.pack` of MDS folders."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from mds_files import COLUMNS, ROWS, sample, shard, values, write
from packing import damaged, refused, same_bytes, samples_of

import fastload


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
