"""Public reports about what is packed at all: nothing that holds data is skipped silently."""

from __future__ import annotations

import os
import subprocess

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from prelude import packed, put, tar

import fastload


def image(path: str, height: int = 4, width: int = 4) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Image.fromarray(np.zeros((height, width, 3), "u1")).save(path)


def test_a_stray_table_next_to_class_folders_is_reported_and_the_images_are_packed() -> None:
    # datasets#6777
    for name in "ab":
        for number in range(50):
            image(f"d/{name}/{number}.png")
    put("d/labels.csv", b"id,breed\n0,x\n")
    report = fastload.pack("d", "out")
    assert (report.rows, report.kind) == (100, "imagefolder")
    assert [(left.count, left.paths) for left in report.leftovers] == [(1, ("labels.csv",))]


def test_files_in_subfolders_are_packed_and_opened() -> None:
    # datasets#6259, polars#17362
    put("n/a.jsonl", b'{"x":1}\n')
    put("n/sub/b.jsonl", b'{"x":2}\n')
    assert packed("n") == [{"x": 1}, {"x": 2}]
    os.makedirs("nn/sub")
    np.save("nn/a.npy", np.arange(3))
    np.save("nn/sub/b.npy", np.arange(3))
    assert len(fastload.open("nn")) == 6


def test_a_partition_column_is_a_column() -> None:
    for number in range(2):
        os.makedirs(f"hive/cls={number}")
        pq.write_table(pa.table({"x": [number * 10]}), f"hive/cls={number}/part.parquet")
    assert packed("hive") == [{"x": 0, "cls": 0}, {"x": 10, "cls": 1}]


def test_hard_links_in_tar_files_hold_the_content_of_their_targets() -> None:
    # ratarmount#28
    put("hl/0.txt", b"zero")
    os.link("hl/0.txt", "hl/1.txt")
    subprocess.run(["tar", "cf", "hl.tar", "-C", "hl", "."], check=True)
    assert sorted(sample["txt"] for sample in packed("hl.tar")) == ["zero", "zero"]


def test_a_named_database_is_no_sample() -> None:
    with lmdb.open("l", max_dbs=1) as environment:
        database = environment.open_db(b"train")
        with environment.begin(write=True, db=database) as entries:
            entries.put(b"0", b"v")
    with pytest.raises(fastload.FormatError, match="named databases: train; --database"):
        packed("l")
    assert packed("l", database="train") == [{"key": b"0", "value": b"v"}]


def test_a_member_does_not_replace_the_key_of_its_sample() -> None:
    tar("k.tar", [("0.key", b"K"), ("0.cls", b"1")])
    with pytest.raises(fastload.FormatError, match=r"0\.key: a field 'key'"):
        packed("k.tar")


def test_external_links_of_hdf5_keep_their_names() -> None:
    for name in "ab":
        with h5py.File(f"{name}.h5", "w") as file:
            file["d"] = np.arange(3)
    with h5py.File("m.h5", "w") as file:
        file["x"] = h5py.ExternalLink("a.h5", "d")
        file["y"] = h5py.ExternalLink("b.h5", "d")
        file["root"] = h5py.SoftLink("/")
    assert packed("m.h5") == [{"x": n, "y": n} for n in range(3)]


def test_a_pipe_among_the_files_is_refused_at_once() -> None:
    os.makedirs("p")
    os.mkfifo("p/a.jsonl")
    with pytest.raises(fastload.FormatError, match=r"p/a\.jsonl: a pipe"):
        fastload.pack("p", "out")


def test_a_link_to_a_folder_above_mixes_no_classes() -> None:
    for name in "ab":
        image(f"c/{name}/0.png")
    os.symlink("..", "c/a/up")
    os.symlink("../..", "c/b/above")
    assert [int(label) for _, label in packed("c")] == [0, 1]


def test_train_and_val_folders_are_no_classes() -> None:
    for split in ("train", "val"):
        for name in ("n01", "n02"):
            image(f"imagenet/{split}/{name}/0.png")
    for options in ({}, {"kind": "imagefolder"}):
        with pytest.raises(fastload.FormatError, match="imagenet/train"):
            fastload.pack("imagenet", "out", **options)


def test_images_of_different_sizes_name_all_ways_out() -> None:
    image("s/a/0.png", 4, 5)
    image("s/a/1.png", 6, 5)
    with pytest.raises(fastload.FormatError, match=r"--resize-shorter N.*--encoded"):
        fastload.pack("s", "out")
    assert packed("s", resize_shorter=4)[1][0].shape == (4, 4, 3)


def test_a_folder_of_packed_folders_names_them() -> None:
    for name in ("train", "val"):
        fastload.pack(np.arange(3), f"data/{name}")
    with pytest.raises(fastload.FormatError, match=r"data/train, .*data/val; take one of them"):
        fastload.open("data")


def test_an_image_list_without_a_header_keeps_its_first_image() -> None:
    for number in range(2):
        image(f"i/{number}.png")
    put("l.csv", b"0.png,7\n1.png,8\n")
    assert [int(label) for _, label in packed("i", labels="l.csv")] == [7, 8]


def test_model_and_evaluation_files_of_llm_c_are_no_tokens() -> None:
    for magic in (20240326, 20240522, 20240803):
        put("m.bin", magic.to_bytes(4, "little") + bytes(2044))
        with pytest.raises(fastload.FormatError, match=r"llm\.c"):
            fastload.TokenDataset("m.bin", 8)
