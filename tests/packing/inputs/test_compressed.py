"""`fastload.pack` of texts that are compressed: what comes out, what is held, what is damaged."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import content, damaged, put, refused, same_bytes, samples_of

import fastload
from fastload.packing.inputs import compressed as unpacked
from fastload.packing.inputs.compressed import Unpacked
from fastload.packing.kinds import csv_rows, jsonl
from fastload.packing.opening import open_input

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    zstd = pytest.importorskip("backports.zstd", reason="pip install backports.zstd")

ROWS = 300
PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstd.compress}


@pytest.fixture(params=PACK)
def ending(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(unpacked, "_PACKED_BYTES", 100)
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 700)
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", 700)


def lines(first: int = 0) -> bytes:
    random = np.random.default_rng(first)
    texts = (random.bytes(n % 40).hex() for n in range(ROWS))
    rows = (json.dumps({"n": first + n, "t": text}) for n, text in enumerate(texts))
    return "\n".join(rows).encode() + b"\n"


def table(first: int = 0) -> bytes:
    rows = (json.loads(line) for line in lines(first).splitlines())
    return b"n,t\n" + b"".join(b'%d,"x\n%s"\n' % (row["n"], row["t"].encode()) for row in rows)


TEXTS = {".jsonl": lines, ".csv": table}


@pytest.mark.parametrize(("kind", "ending"), [(".jsonl", ".gz"), (".csv", ".zst")])
def test_the_same_samples_as_of_the_plain_files(kind: str, ending: str, tmp_path: Path) -> None:
    for n, first in ((9, 0), (10, ROWS)):
        text = TEXTS[kind](first)
        half = len(text) // 2
        packed = PACK[ending](text[:half]) + PACK[ending](b"") + PACK[ending](text[half:])
        put(tmp_path / "plain" / f"{n}{kind}", text)
        put(tmp_path / "packed" / f"{n}{kind}{ending}", packed)
    for options in ({"shuffle": 3}, {}):
        options |= {"shard_size": 20000, "overwrite": True}
        for name in ("plain", "packed"):
            fastload.pack(tmp_path / name, tmp_path / f"{name} out", workers=1, **options)
        want = samples_of(tmp_path / "plain out")
        assert samples_of(tmp_path / "packed out") == want
        assert len(want) == 2 * ROWS
    fastload.pack(tmp_path / "packed", tmp_path / "two", workers=2, **options)
    assert same_bytes(tmp_path / "two", tmp_path / "packed out")


def test_a_file_is_unpacked_once_by_a_thread(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACK[ending](lines()))
    own, begun = unpacked._pieces, []

    def counted(path: str) -> Any:
        begun.append(threading.get_ident())
        return own(path)

    monkeypatch.setattr(unpacked, "_pieces", counted)
    report = fastload.pack(path, tmp_path / "out", shard_size=1000, workers=1)
    assert report.shards > 10
    assert len(begun) == 3  # to find the lines, to look at some, to pack
    begun.clear()
    with ThreadPoolExecutor(2) as threads:
        fastload.pack(path, tmp_path / "more", shard_size=1000, executor=threads)
        assert len(begun[2:]) == len(set(begun[2:])) <= 2
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        assert str(path) not in [os.readlink(link) for link in links if os.path.lexists(link)]
    assert content(tmp_path / "more") == content(tmp_path / "out")


def test_ranges_in_any_order(tmp_path: Path, ending: str) -> None:
    text = lines()
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACK[ending](text[:5000]) + PACK[ending](text[5000:]))
    reader, random = Unpacked(str(path)), np.random.default_rng(0)
    for start, size in random.integers(0, (len(text) + 100, 3000), (100, 2)).tolist():
        assert reader.read(start, size) == text[start : start + size]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path, ending: str) -> None:
    def write(path: Path, first: int) -> None:
        path.write_bytes(PACK[ending](b"".join(b"%d\n" % n for n in range(first, first + ROWS))))

    path, new = tmp_path / f"a.jsonl{ending}", tmp_path / "new"
    write(path, 100_000)
    source = open_input(path)
    for first in (100_000, 200_000):
        write(new, first)
        os.replace(new, path)
        for start in (10, 20):
            column = source.part(start, start + 10).read(lambda _: None).columns[0]
            assert isinstance(column, np.ndarray)
            assert column.tolist() == list(range(first + start, first + start + 10))
    source.close()


# --- Damage -----------------------------------------------------------------------------------


def checked(text: bytes) -> dict[str, bytes]:
    """The text, compressed with a checksum."""
    options = {zstd.CompressionParameter.checksum_flag: 1}
    return {".gz": gzip.compress(text), ".zst": zstd.compress(text, options=options)}


def read_all(path: Path) -> bytes:
    return b"".join(unpacked.blocks(str(path), 700))


def test_a_file_that_breaks_off_anywhere_is_seen(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    packed = checked(lines()[:300])[ending]
    for size in range(len(packed)):
        path.write_bytes(packed[:size])
        with pytest.raises(fastload.FormatError) as raised:
            read_all(path)
        what = (
            f"truncated: .* data end at byte {size} "
            if size > 3
            else "(not a .* file despite|truncated)"
        )
        assert re.search(f"{path}: {what}", str(raised.value))


def test_a_wrong_bit_is_seen_or_does_not_matter(tmp_path: Path, ending: str) -> None:
    path, text = tmp_path / f"a{ending}", lines()[:300]
    packed = checked(text)[ending]
    found = []
    for place in range(len(packed)):
        path.write_bytes(
            packed[:place] + bytes([packed[place] ^ 1 << place % 8]) + packed[place + 1 :]
        )
        try:
            found.append(read_all(path).decode())
        except fastload.FormatError as error:
            found.append(str(error))
    wrong = [got for got in found if got != text.decode()]  # else it was the time or the like
    assert all(re.match(f"{path}: (damaged|truncated|not)\\b", got) for got in wrong)
    assert len(wrong) > 0.95 * len(packed)


def test_what_may_lie_behind_and_between(tmp_path: Path) -> None:
    text = b"1\n" * 500
    gz, zst = gzip.compress(text), zstd.compress(text)
    skipped = b"\x53\x2a\x4d\x18\x05\0\0\0abcde"
    for name, packed, times in (
        ("a.gz", gz + bytes(700), 1),
        ("a.gz", gz + bytes(3) + gz + b"\0", 2),
        ("a.zst", skipped + zst + skipped + skipped + zst, 2),
    ):
        (tmp_path / name).write_bytes(packed)
        assert read_all(tmp_path / name) == text * times
    for name, packed, behind in (
        ("a.jsonl.gz", gz, b"x"),
        ("a.jsonl.gz", gz, bytes(300) + gz[1:]),
        ("a.jsonl.zst", zst, b"x"),
        ("a.jsonl.zst", zst, bytes(9)),
    ):
        (tmp_path / name).write_bytes(packed + behind)
        at = len(packed) + (300 if len(behind) > 300 else 0)
        damaged(tmp_path / name, tmp_path / "out", f"{name}: garbage after", f"at byte {at}")


def test_records_are_named_by_their_place_in_the_text(tmp_path: Path) -> None:
    out, ending = tmp_path / "out", ".gz"
    rows = [b'{"x": 1}'] * 300
    rows[70], rows[200] = b"{", b'{"x": 1'
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACK[ending](b"\n".join(rows)))
    report = fastload.pack(path, out, shuffle=1, shard_size=1024, workers=1)
    places = {
        f"{path.name}: line {n + 1}, at byte {at} of its text" for n, at in ((70, 630), (200, 1793))
    }
    assert {skipped.path for skipped in report.skipped} == places
    assert len(samples_of(out)) == 298
    damaged(path, tmp_path / "no", "line 71, at byte 630 of its text: not JSON", strict=True)
    path = tmp_path / f"a.csv{ending}"
    path.write_bytes(PACK[ending](b"x\n" + b"1\n" * 600 + b"1,2\n"))
    damaged(path, tmp_path / "no", f"{path.name}: line 602, at byte 1202 of its text: ")
    assert not unpacked._half_read._left  # no file stays open


def test_names_that_are_not_kept(tmp_path: Path, ending: str) -> None:
    put(tmp_path / "in" / f"a.jsonl{ending}", PACK[ending](b"1\n"))
    put(tmp_path / "in/a.jsonl", b"1\n")
    damaged(tmp_path / "in", tmp_path / "out", f"a.jsonl and a.jsonl{ending} would both be read")
    for text in (b"", b"1\n2\n3\n"):
        (tmp_path / f"b.jsonl{ending}").write_bytes(text)
        damaged(tmp_path / f"b.jsonl{ending}", tmp_path / "out", "despite its name: it starts with")


def test_zstandard_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(zstd.compress(b"1\n"))
    monkeypatch.setitem(sys.modules, zstd.__name__, None)
    text = refused(tmp_path / "a.jsonl.zst", tmp_path / "out")
    assert text.startswith("ImportError")
    assert "pip install backports.zstd" in text
