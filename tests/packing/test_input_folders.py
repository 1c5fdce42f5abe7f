"""Folders in folders: what is read of them, and which are refused."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
from kind_files import KINDS
from packing import encoded, noise, put, refused

import fastload


def test_files_below_a_folder_come_in_natural_order_as_open_reads_them(tmp_path: Path) -> None:
    for number, name in enumerate(["x2", "x10", "b/x1", "b10/x", "b2/x", "x2/a", "x2/c/a"]):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / f"in/{name}.npy", np.array([number]))
    dataset = fastload.open(tmp_path / "in")
    rows = [int(dataset[row]) for row in range(len(dataset))]
    assert rows == [2, 4, 3, 5, 6, 0, 1]
    fastload.pack(tmp_path / "in", tmp_path / "out")
    out = fastload.open(tmp_path / "out")
    assert [int(out[row]) for row in range(len(out))] == rows


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "TEST"), ("train2017", "val2017")])
@pytest.mark.parametrize("kind", ["csv", "imagefolder", "npy"])
def test_folders_that_look_like_splits_are_refused(
    tmp_path: Path, kind: str, names: tuple[str, str]
) -> None:
    suffix, make, _ = KINDS[kind]
    for name in names:
        where = tmp_path / "in" / name / "n01"
        where.mkdir(parents=True)
        make(where / f"0{suffix}", 0)
    text = refused(tmp_path / "in", tmp_path / "out")
    first, second = sorted(names)
    assert f"pack {tmp_path}/in/{first}, then append {tmp_path}/in/{second}" in text
    fastload.pack(tmp_path / "in" / first, tmp_path / "out")
    fastload.append(tmp_path / "in" / second, tmp_path / "out", split=second)


@pytest.mark.parametrize("kind", ["jsonl", "imagefolder"])
def test_splits_further_below_are_refused(tmp_path: Path, kind: str) -> None:
    suffix, make, _ = KINDS[kind]
    for name in ("data/en/train/a", "data/en/dev/a"):
        (tmp_path / "in" / name).mkdir(parents=True)
        make(tmp_path / "in" / name / f"0{suffix}", 0)
    text = refused(tmp_path / "in", tmp_path / "out")
    assert "data/en/dev and data/en/train look like splits" in text
    (tmp_path / "in/data/en/dev").rename(tmp_path / "in/data/en/more")
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    if kind == "imagefolder":
        assert "all images have one class, 'data'" not in str(report.notices)
        report = fastload.pack(tmp_path / "in/data", tmp_path / "out", overwrite=True)
        assert "if the 2 folders in it are the classes, pack" in report.notices[0]


def test_open_refuses_folders_that_look_like_splits(tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / "in" / name).mkdir(parents=True)
        np.save(tmp_path / "in" / name / "0.npy", np.arange(9, dtype="u2"))
    for opened in (fastload.open, lambda path: fastload.TokenDataset(path, 2)):
        with pytest.raises(fastload.FormatError, match="train and val look like splits"):
            opened(tmp_path / "in")
        assert len(opened(tmp_path / "in/train"))


def test_a_folder_of_packed_folders_names_them(tmp_path: Path) -> None:
    for name in ("train", "val"):
        fastload.pack(np.arange(3), tmp_path / "data" / name)
    put(tmp_path / "data/README.md", b"x")
    names = f"holds packed datasets: {tmp_path}/data/train, {tmp_path}/data/val"
    assert names in refused(tmp_path / "data", tmp_path / "out")
    with pytest.raises(fastload.FormatError, match=names):
        fastload.open(tmp_path / "data")
    with pytest.raises(fastload.FormatError, match=names):
        fastload.TokenDataset(tmp_path / "data", 2)


def test_a_packed_dataset_beside_other_files_is_left_over(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/x.npy", np.arange(3))
    fastload.pack(tmp_path / "in/x.npy", tmp_path / "in/out")
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert report.rows == 3
    (left,) = report.leftovers
    assert left.reason == "part of a packed dataset"
    assert left.paths == ("out/fastload.json", "out/shard-000000.safetensors")
    text = refused(tmp_path / "in", tmp_path / "no", kind="safetensors")
    assert f"holds packed datasets: {tmp_path}/in/out" in text
    report = fastload.pack(tmp_path / "in", tmp_path / "strict", strict=True, ignore="out")
    assert [(of.reason, of.count) for of in report.leftovers] == [("named by --ignore", 2)]
    shard = tmp_path / "in/out/shard-000000.safetensors"
    (tmp_path / "in/own.safetensors").write_bytes(shard.read_bytes())
    options = {"kind": "safetensors", "ignore": "out"}
    assert fastload.pack(tmp_path / "in", tmp_path / "own", **options).rows == 3


def test_a_pattern_of_ignore_that_names_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "in/.git").mkdir(parents=True)
    for name in ("x.csv", "bad.csv", ".git/x.csv"):
        (tmp_path / "in" / name).write_text("a\n1\n")
    patterns = ["in/bad.csv", ".git", "./x.csv"]
    report = fastload.pack(tmp_path / "in", tmp_path / "out", ignore=patterns)
    told = [notice for notice in report.notices if "--ignore" in notice]
    what = "matches nothing; paths are relative to the input folder"
    assert told == [f"--ignore in/bad.csv (ignore=) {what}"]


def test_folders_of_nothing_and_empty_paths_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    assert f"{folder}: there are no files in this folder" in refused(folder, tmp_path / "no")
    (folder / "x.csv").write_text("a\n1\n")
    (folder / ".x.csv").write_text("a\n1\n")
    text = refused(folder, tmp_path / "no", ignore="*")
    assert "no files but 1 hidden, or a file of the operating system, 1 named by --ignore" in text
    for act in (lambda: fastload.pack("", tmp_path / "no"), lambda: fastload.pack([1], "")):
        with pytest.raises(ValueError, match="the path is empty"):
            act()


def test_environments_and_mds_folders_in_subfolders_are_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        with lmdb.open(str(tmp_path / "in" / name)) as made, made.begin(write=True) as entries:
            entries.put(b"k", b"v")
    text = refused(tmp_path / "in", tmp_path / "out")
    assert f"2 files of such names lie in {tmp_path}/in/a, {tmp_path}/in/b; pack one" in text
    report = fastload.pack(tmp_path / "in/a", tmp_path / "out", strict=True)
    assert (report.rows, report.leftovers) == (1, ())
    put(tmp_path / "in/data.mdb", (tmp_path / "in/a/data.mdb").read_bytes())
    (tmp_path / "in/b/data.mdb").unlink()
    text = refused(tmp_path / "in", tmp_path / "no")
    assert f"but 1 file of such a name lies in {tmp_path}/in/a; pack one" in text


def test_links_to_the_root_and_above_it_mix_no_classes(tmp_path: Path) -> None:
    for name in ("a/0", "b/1"):
        put(tmp_path / f"in/{name}.png", encoded(noise(4, 4), "PNG"))
    (tmp_path / "in/a/root").symlink_to("..")
    (tmp_path / "in/b/above").symlink_to("../..")
    (tmp_path / "in/b/again").symlink_to(tmp_path / "in/b")
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    dataset = fastload.open(tmp_path / "out")
    assert [int(label) for _, label in map(dataset.__getitem__, range(len(dataset)))] == [0, 1]
    assert report.leftovers[0].paths == ("a/root", "b/above", "b/again")
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "in/c").symlink_to("gone")
    assert "in/c: a link to a class folder" in refused(tmp_path / "in", tmp_path / "out")


def test_images_beside_the_class_folders_are_refused(tmp_path: Path) -> None:
    for name in ("a/0", "b/1", "cover"):
        put(tmp_path / f"in/{name}.png", encoded(noise(4, 4), "PNG"))
    assert "cover.png: it lies in no class folder" in refused(tmp_path / "in", tmp_path / "out")
    report = fastload.pack(tmp_path / "in", tmp_path / "out", ignore=["cover.png"], strict=True)
    assert report.rows == 2


def test_files_that_an_index_does_not_name_are_refused(tmp_path: Path) -> None:
    from arrow_tables import save_to_disk

    save_to_disk(tmp_path / "in", pa.table({"x": list(range(10))}), {})
    shutil.copy(tmp_path / "in/data-00000-of-00002.arrow", tmp_path / "in/cache-1.arrow")
    report = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert [left.paths for left in report.leftovers] == [("cache-1.arrow",)]
    shutil.copy(tmp_path / "in/data-00000-of-00002.arrow", tmp_path / "in/data-7.arrow")
    text = refused(tmp_path / "in", tmp_path / "out2")
    assert "data-7.arrow: state.json does not name it" in text


def test_a_file_where_a_folder_is_needed(tmp_path: Path) -> None:
    put(tmp_path / "x.png", encoded(noise(4, 4), "PNG"))
    text = refused(tmp_path / "x.png", tmp_path / "out", kind="imagefolder")
    assert "imagefolder needs a folder" in text


def test_examples_of_what_a_walk_must_stand(tmp_path: Path) -> None:
    odd = os.fsdecode(b"in/\xff.txt")
    put(tmp_path / odd, b"x")
    put(tmp_path / "in/new\nline", b"x")
    (tmp_path / "in/loop").symlink_to("loop")
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    for name in ("a", "a1", "a1b", "a1b2"):  # names that begin alike
        put(tmp_path / f"in/{name}/x.npy", buffer.getvalue())
    report: Any = fastload.pack(tmp_path / "in", tmp_path / "out")
    assert report.rows == 12
    put(tmp_path / "images/a/0.png", encoded(noise(4, 4), "PNG"))
    (tmp_path / "images/loop.txt").symlink_to("loop.txt")
    images = fastload.pack(tmp_path / "images", tmp_path / "out2")
    assert [left.paths for left in images.leftovers] == [("loop.txt",)]
    assert sum(left.count for left in report.leftovers) == 3
