"""Merged datasets: links, numbers, splits, classes, refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import column, encoded, noise, put

import fastload
from fastload import FormatError
from fastload.formats import packed


def packs(where: Path, *ranges: tuple[int, int], **options: Any) -> list[Path]:
    paths = []
    for number, (start, stop) in enumerate(ranges):
        rows = np.arange(start, stop)
        source = {"x": rows, "t": ["a" * (n % 4) for n in rows.tolist()]}
        if start == stop:
            np.save(where / "x.npy", rows)
            source = {"x": rows}
        paths.append(where / f"{number}")
        fastload.pack(source, paths[-1], shard_size=100, **options)
    return paths


def test_shards_are_linked_and_renumbered(tmp_path: Path) -> None:
    paths = packs(tmp_path, (0, 20), (20, 21), (21, 47))
    report = fastload.merge(tmp_path / "out", paths)
    assert (report.rows, report.notices) == (47, ())
    assert column(tmp_path / "out", "x").tolist() == list(range(47))
    assert [fastload.open(tmp_path / "out")[n]["t"] for n in range(47)] == [
        "a" * (n % 4) for n in range(47)
    ]
    shards = sorted((tmp_path / "out").glob("shard-*"))
    assert [shard.name for shard in shards] == [
        f"shard-{n:06d}.safetensors" for n in range(len(shards))
    ]
    assert all(shard.stat().st_nlink == 2 for shard in shards)
    assert not (tmp_path / "out/.fastload").exists()
    # The inputs can go, grow or be replaced.
    fastload.append({"x": np.arange(9), "t": ["b"] * 9}, paths[0])
    fastload.pack(np.zeros(3), paths[1], overwrite=True)
    assert column(tmp_path / "out", "x").tolist() == list(range(47))
    fastload.append({"x": np.arange(9), "t": ["b"] * 9}, tmp_path / "out")
    assert len(fastload.open(tmp_path / "out")) == 56


def test_other_file_systems_get_checked_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = packs(tmp_path, (0, 20), (20, 40))

    def link(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    report = fastload.merge(tmp_path / "out", paths)
    assert "shards were copied" in report.notices[0]
    assert column(tmp_path / "out", "x").tolist() == list(range(40))
    shard = next(paths[1].glob("shard-*"))
    content = bytearray(shard.read_bytes())
    content[-5000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(FormatError, match="damaged: its checksum"):
        fastload.merge(tmp_path / "out2", paths)
    with pytest.raises(FormatError, match=r"incomplete merge.*with --overwrite"):
        fastload.open(tmp_path / "out2")
    with pytest.raises(FileExistsError, match="incomplete merge"):
        fastload.merge(tmp_path / "out2", paths[:1])
    fastload.merge(tmp_path / "out2", paths[:1], overwrite=True)
    assert len(fastload.open(tmp_path / "out2")) == 20


def test_splits_that_stay_ranges_are_kept(tmp_path: Path) -> None:
    half = {"train": 0.5, "val": 0.5}
    (a,) = packs(tmp_path, (0, 10), split=half)
    (tmp_path / "more").mkdir()
    b, c = packs(tmp_path / "more", (10, 20), (20, 30), split={"val": 1})
    (tmp_path / "rest").mkdir()
    (d,) = packs(tmp_path / "rest", (30, 40))
    out = tmp_path / "out"
    assert fastload.merge(out, [a, b, c]).splits == {"train": (0, 5), "val": (5, 30)}
    assert [int(fastload.open(out, split="val")[n]["x"]) for n in (0, 24)] == [5, 29]
    report = fastload.merge(tmp_path / "out2", [b, d, a])
    assert report.splits == {"train": (20, 25)}
    assert report.notices == ("left out the splits that are no longer contiguous: val",)
    assert fastload.merge(tmp_path / "out3", [d, b]).splits == {"val": (10, 20)}


def test_classes_are_added_up_and_must_be_equal(tmp_path: Path) -> None:
    for name, classes in (("a", "01"), ("b", "01"), ("c", "02")):
        for number in range(5):
            image = encoded(noise(3, 3, number), "PNG")
            put(tmp_path / name / classes[number % 2] / f"{number}.png", image)
        fastload.pack(tmp_path / name, tmp_path / f"{name}-out")
    fastload.merge(tmp_path / "out", [tmp_path / "a-out", tmp_path / "b-out"])
    assert packed.read_manifest(tmp_path / "out").class_fields["label"].counts == (6, 4)
    with pytest.raises(ValueError, match=r'classes.label\[1\]: "1" -> "2"'):
        fastload.merge(tmp_path / "out2", [tmp_path / "a-out", tmp_path / "c-out"])
    assert not (tmp_path / "out2").exists()


def test_groups_are_merged_one_by_one(tmp_path: Path) -> None:
    for number in range(3):
        fastload.pack({"x": np.arange(9) + 9 * number}, tmp_path / f"{number}", shard_size=16)
        column_ = {"y": (np.arange(9) + 9 * number) * 0.5}
        fastload.add_column(tmp_path / f"{number}", column_, shard_size=32)
    fastload.merge(tmp_path / "out", [tmp_path / f"{number}" for number in range(3)])
    assert column(tmp_path / "out", "x").tolist() == list(range(27))
    assert column(tmp_path / "out", "y").tolist() == [n * 0.5 for n in range(27)]
    fastload.pack({"x": np.arange(9), "y": np.arange(9.0)}, tmp_path / "flat")
    with pytest.raises(ValueError, match="groups"):
        fastload.merge(tmp_path / "out2", [tmp_path / "0", tmp_path / "flat"])


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    a, b = packs(tmp_path, (0, 10), (10, 20))
    fastload.pack({"x": np.arange(3), "t": [b"a", b"", b"c"]}, tmp_path / "bytes")
    fastload.pack({"x": np.arange(3)}, tmp_path / "less")
    out = tmp_path / "out"
    for inputs, error, message in [
        ([], ValueError, "a list of packed folders"),
        (str(a), ValueError, "a list of packed folders"),
        ([a, tmp_path / "nothing"], FormatError, "no packed dataset"),
        ([a, tmp_path / "bytes"], ValueError, 'fields.t.logical: "utf8" -> "bytes"'),
        ([a, tmp_path / "less"], ValueError, "fields.t"),
    ]:
        with pytest.raises(error, match=message):
            fastload.merge(out, inputs)
        assert not out.exists()
    with pytest.raises(ValueError, match="inside the input"):
        fastload.merge(a, [a, b], overwrite=True)
    with pytest.raises(FileExistsError, match="--overwrite"):
        fastload.merge(tmp_path / "less", [a, b])
    fastload.merge(tmp_path / "less", [a, b], overwrite=True)
    assert len(fastload.open(tmp_path / "less")) == 20
    next(b.glob("shard-*")).unlink()
    with pytest.raises(FormatError, match="is missing"):
        fastload.merge(out, [a, b])


def test_the_same_inputs_make_the_same_dataset(tmp_path: Path) -> None:
    paths = packs(tmp_path, (0, 10), (10, 20))
    for name in ("a", "b"):
        fastload.merge(tmp_path / name, paths)
    assert (tmp_path / "a/fastload.json").read_bytes() == (
        tmp_path / "b/fastload.json"
    ).read_bytes()
    fastload.merge(tmp_path / "c", paths[::-1])
    assert packed.read_manifest(tmp_path / "c").dataset != (
        packed.read_manifest(tmp_path / "a").dataset
    )
