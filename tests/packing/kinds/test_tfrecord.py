"""`fastload.pack` of TFRecord files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import crc32c
from packing import damaged, encoded, noise, refused, same_bytes, samples_of
from tfrecord_files import example, field, record

import fastload
from fastload.packing.inputs.source import probed


def features(n: int) -> dict[str, Any]:
    return {
        "image/raw": bytes([n]) * (n % 3),
        "label": [n - 5],
        "box": [float(n), 0.5],
        "ids": [2**62 + n, -n, 1][: 1 + n % 3],
    }


def wanted(n: int) -> dict[str, Any]:
    return {**features(n), "label": n - 5}


def test_the_checksum_is_the_published_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("name", ["a.tfrecord", "train-00000-of-00001"])
def test_features_come_back_in_order(tmp_path: Path, name: str) -> None:
    rows = 40
    content = [record(example(features(n), packed=n % 2 == 0)) for n in range(rows)]
    (tmp_path / name).write_bytes(b"".join(content))
    fastload.pack(tmp_path / name, tmp_path / "1", workers=1, shard_size=300)
    assert samples_of(tmp_path / "1") == [wanted(n) for n in range(rows)]
    assert [str(of) for of in fastload.open(tmp_path / "1").fields] == [
        "uint8 [-1] (bytes)", "int64 []", "float32 [2]", "int64 [-1]",
    ]  # fmt: skip
    if name == "a.tfrecord":
        (tmp_path / "in").mkdir()
        for number, part in ((10, content[20:]), (9, content[:20])):
            (tmp_path / f"in/x.tfrecord-{number}").write_bytes(b"".join(part))
        fastload.pack(tmp_path / "in", tmp_path / "2", workers=2, shard_size=300)
        assert samples_of(tmp_path / "2") == samples_of(tmp_path / "1")
        fastload.pack(tmp_path / "in", tmp_path / "3", workers=1, shard_size=300)
        assert same_bytes(tmp_path / "2", tmp_path / "3")


def test_images_stay_encoded_and_ragged_is_what_is_said(tmp_path: Path) -> None:
    pictures = [encoded(noise(4, 5 + n, n), "PNG") for n in range(80)]
    lists = [[n] if n != 1 else [1, 2] for n in range(80)]
    samples = [{"i": pictures[n], "x": lists[n]} for n in range(80)]
    path, out = tmp_path / "a.tfrecord", tmp_path / "out"
    path.write_bytes(b"".join(record(example(sample)) for sample in samples))
    fastload.pack(path, out, ragged=["x"])
    assert samples_of(out) == samples
    assert fastload.open(out).fields[0].logical == "image"
    lists = [[n] for n in range(200)]
    lists[next(n for n in range(200) if n not in probed(200))] = [7, 7]
    path.write_bytes(b"".join(record(example({"x": found})) for found in lists))
    text = refused(path, tmp_path / "no")
    assert "FormatError" in text
    assert "'x'" in text


def test_records_that_are_bad_are_listed_or_stop(tmp_path: Path) -> None:
    content = [bytearray(record(example(features(n)))) for n in range(12)]
    content[3][20] ^= 1
    content[5][-1] ^= 1
    content[7] = bytearray(record(b"\x0a\x05abc"))
    content[8] = bytearray(record(field(2, b"")))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(content))
    report = fastload.pack(path, tmp_path / "out")
    offsets = [sum(map(len, content[:n])) for n in range(12)]
    bad = {3: "checksum", 5: "checksum", 7: "truncated", 8: "SequenceExample"}
    for skipped, (n, reason) in zip(report.skipped, bad.items(), strict=True):
        assert skipped.path == f"a.tfrecord: record {n}, at byte {offsets[n]}"
        assert reason in skipped.reason
    want = [wanted(n) for n in range(12) if n not in bad]
    assert samples_of(tmp_path / "out") == want
    where = f"a.tfrecord: record 3, at byte {offsets[3]}: wrong checksum of its data"
    damaged(path, tmp_path / "no", where, strict=True)


def test_damaged_framing_is_one_error(tmp_path: Path) -> None:
    content = b"".join(record(example(features(n))) for n in range(2))
    first = len(record(example(features(0))))
    path, out = tmp_path / "a.tfrecord", tmp_path / "out"
    for size in [*range(1, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:size])
        if size != first:
            number, start = (0, 0) if size < first else (1, first)
            damaged(path, out, f"a.tfrecord: record {number}, at byte {start}: truncated")
    for place in (first, first + 9):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        damaged(path, out, f"record 1, at byte {first}: wrong checksum of its length")
    path.write_bytes(b"PK" + content)
    damaged(path, out, "record 0, at byte 0: no TFRecord file", kind="tfrecord")
    path.write_bytes(b"\x1f\x8b" + content)
    damaged(path, out, "a.tfrecord: compressed by gzip")
    path.write_bytes(b"")
    damaged(path, out, "no tfrecord records")


def test_large_integers_and_floats_are_exact(tmp_path: Path) -> None:
    numbers = [2**63 - 1, -(2**63), -1, 0]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(record(example({"n": numbers, "x": [float(np.float32(0.1)), float("inf")]})))
    fastload.pack(path, tmp_path / "out")
    (sample,) = samples_of(tmp_path / "out")
    assert sample == {"n": numbers, "x": [float(np.float32(0.1)), float("inf")]}
