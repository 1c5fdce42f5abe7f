"""The original files of encoded images are stored next to the shards, in the order of the rows."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ragged import png

import fastload
from fastload import DecodeImage, FastLoader, FormatError, Mixture
from fastload.formats.original_names import original_name
from fastload.formats.packed import read_manifest
from fastload.formats.places import described_place

NAMES = sorted(f"{label}/{number}.png" for label in "ab" for number in range(12))


def images(root: Path, bad: tuple[str, ...] = (), names: list[str] = NAMES) -> Path:
    """A folder of images, each of which is unlike all others; some are no images."""
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image" if name in bad else png(number, 30, 30))
    return root


def pack(source: Any, out: Path, **options: Any) -> Path:
    fastload.pack(source, out, **{"encoded": True, "workers": 1, **options})
    return out


def names_of(out: Path) -> list[str | None]:
    manifest = read_manifest(out)
    return [original_name(str(out), manifest.names, row) for row in range(manifest.rows)]


def check(out: Path, *roots: Path) -> None:
    """Each sample has the bytes of the file that it is said to be from."""
    dataset = fastload.open(out)
    found = names_of(out)
    assert len(found) == len(dataset)
    for name, (image, *_) in zip(found, dataset[:], strict=True):
        assert name is not None
        assert image in [(root / name).read_bytes() for root in roots if (root / name).exists()]


BAD = ("a/0.png", "a/5.png", "b/11.png")


@pytest.mark.parametrize("bad", [(), BAD])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shard_size": 12_000},
        {"shuffle": 3},
        {"shuffle": 3, "limit": 9, "shard_size": 12_000},
        {"limit": 7},
        {"split": {"x": 0.5, "y": 0.5}},
    ],
    ids=str,
)
def test_names_follow_the_samples(
    tmp_path: Path, options: dict[str, Any], bad: tuple[str, ...]
) -> None:
    root = images(tmp_path / "in", bad)
    out = pack(root, tmp_path / "out", **options)
    check(out, root)
    assert not set(bad) & set(names_of(out))
    assert sorted(path.name for path in out.glob("names*")) == ["names-000000.txt"]


def test_append_add_column_and_merge_keep_them(tmp_path: Path) -> None:
    first, second = images(tmp_path / "1", BAD), images(tmp_path / "2")
    out, other = pack(first, tmp_path / "out"), pack(second, tmp_path / "other")
    fastload.append(second, out, encoded=True, workers=1)
    check(out, first, second)
    assert names_of(out)[len(NAMES) - len(BAD) :] == NAMES
    fastload.merge(tmp_path / "merged", [out, other, out])
    check(tmp_path / "merged", first, second)
    assert names_of(tmp_path / "merged") == [*names_of(out), *NAMES, *names_of(out)]
    fastload.add_column(out, np.arange(len(fastload.open(out))), name="n")
    check(out, first, second)
    assert fastload.verify(out, full=True).ok


def test_parts_without_names_are_none(tmp_path: Path) -> None:
    root = images(tmp_path / "in")
    plain = [(png(n), n % 2) for n in range(3)]
    samples = tmp_path / "samples.tar"
    out = pack(root, tmp_path / "out")
    manifest = read_manifest(out)
    with tarfile.open(samples, "w") as archive:
        archive.add(root / "a/0.png", "0.png")
    tarred = pack(samples, tmp_path / "tarred")
    assert names_of(tarred) == ["samples.tar: sample 0, at byte 0"]
    fastload.pack(plain, tmp_path / "plain", workers=1)
    assert read_manifest(tmp_path / "plain").names == ()
    assert not list((tmp_path / "plain").glob("names*"))
    pack(root, tmp_path / "decoded", encoded=False)
    assert read_manifest(tmp_path / "decoded").names == ()
    # As a fastload without names would have packed it.
    bare = pack(root, tmp_path / "bare")
    entries = json.loads((bare / "fastload.json").read_text())
    del entries["names"]
    (bare / "fastload.json").write_text(json.dumps(entries))
    fastload.merge(tmp_path / "merged", [bare, out])
    assert names_of(tmp_path / "merged") == [None] * len(NAMES) + NAMES
    assert manifest.fingerprint == read_manifest(bare).fingerprint


def test_a_run_that_was_broken_off_and_one_that_is_replaced(tmp_path: Path) -> None:
    root = images(tmp_path / "in", BAD)
    out = pack(root, tmp_path / "out", shard_size=12_000)
    whole = {path.name: path.read_bytes() for path in out.iterdir()}

    class BrokenError(Exception):
        pass

    def breaks(progress: Any) -> None:
        if progress.rows >= 12:
            raise BrokenError

    with pytest.raises(BrokenError):
        pack(root, tmp_path / "again", shard_size=12_000, progress=breaks)
    again = pack(root, tmp_path / "again", shard_size=12_000, resume=True)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == whole
    other = images(tmp_path / "other", (), NAMES[:5])
    check(pack(other, out, overwrite=True), other)
    fastload.pack({"x": np.arange(3)}, out, overwrite=True, workers=1)
    assert not list(out.glob("names*"))


@pytest.mark.parametrize("how", ["folder", "split", "shuffled", "mixture", "list", "merged"])
def test_the_error_of_a_damaged_image_names_shard_row_and_file(tmp_path: Path, how: str) -> None:
    root = images(tmp_path / "in")
    broken = root / "b/3.png"
    broken.write_bytes(broken.read_bytes()[:-600])
    options: dict[str, Any] = {"shard_size": 12_000}
    source: Any = root
    if how == "split":
        options["split"] = {"train": 0.4, "val": 0.6}
    if how == "shuffled":
        options["shuffle"] = 1
    if how == "list":
        lines = "".join(f"{name},0\n" for name in NAMES)
        (tmp_path / "labels.csv").write_text(f"file,label\n{lines}")
        options["labels"] = tmp_path / "labels.csv"
    out = pack(source, tmp_path / "out", **options)
    if how == "merged":
        fastload.merge(tmp_path / "merged", [pack(images(tmp_path / "ok"), tmp_path / "k"), out])
        out = tmp_path / "merged"
    dataset: Any = fastload.open(out, split="val" if how == "split" else None)
    if how == "mixture":
        dataset = Mixture([dataset, fastload.open(out)], seed=1)
    name = fastload.open(out).fields[0].name
    where = r"sample \d+ \(.*shard-00000\d\.safetensors: row \d+, packed from b/3\.png"
    with pytest.raises(FormatError, match=where) as caught:
        list(FastLoader(dataset, 4, transforms={name: DecodeImage()}))
    text = str(caught.value)
    shard, row = text[text.index("(") + 1 :].split(": row ")
    held = fastload.open(shard)[int(row.partition(",")[0])]
    assert held[name] == broken.read_bytes()
    (out / "names-000000.txt").unlink()
    with pytest.raises(FormatError, match=r"sample \d+ \(.*: row \d+(, packed from .*)?\): the"):
        list(FastLoader(dataset, 4, transforms={name: DecodeImage()}))


def test_other_data_have_no_place_or_no_name(tmp_path: Path) -> None:
    from fastload import ArrayDataset

    extents = ArrayDataset({"x": np.arange(3)}).extents
    assert described_place(extents, "x", 1) == ""
    assert described_place(None, "x", 1) == ""
    assert described_place(extents, "y", 1) == ""
    np.save(tmp_path / "x.npy", np.arange(3))
    path = os.fspath(tmp_path / "x.npy")
    assert described_place(fastload.open(path).extents, "data", 2) == f" ({path}: row 2)"


@pytest.mark.parametrize(
    "names",
    [3, [3], [[24]], [["24", None]], [[24, "../x.txt"]], [[23, None]], [[-1, None], [25, None]]],
    ids=str,
)
def test_damaged_entries_are_refused(tmp_path: Path, names: Any) -> None:
    out = pack(images(tmp_path / "in"), tmp_path / "out")
    entries = json.loads((out / "fastload.json").read_text())
    (out / "fastload.json").write_text(json.dumps({**entries, "names": names}))
    with pytest.raises(FormatError, match=r"fastload\.json: damaged manifest"):
        fastload.open(out)
