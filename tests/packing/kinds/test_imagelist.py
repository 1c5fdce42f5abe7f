"""`fastload.pack` of a folder of images and a CSV file of their labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from packing import column, damaged, encoded, noise, put, refused, same_bytes

import fastload
from fastload.formats import packed
from fastload.formats.manifest import Leftover


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(6):
        put(tmp_path / f"in/i{n}.png", encoded(noise(5, 6, n), "PNG"))
    return tmp_path / "in"


def test_images_come_in_the_order_of_the_table(folder: Path, tmp_path: Path) -> None:
    labels = tmp_path / "l.csv"
    labels.write_text('id,breed,age\ni4,"dog, big",1\ni0.png,cat,2.5\n\ni2,"dog, big",3\n')
    for workers in (1, 2):
        out = tmp_path / f"{workers}"
        report = fastload.pack(folder, out, labels=labels, workers=workers, shard_size=99)
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    (left,) = report.leftovers
    assert left == Leftover("an image without a label", 3, ("i1.png", "i3.png", "i5.png"))
    dataset = fastload.open(tmp_path / "1")
    assert dataset.classes == ["cat", "dog, big"]
    assert packed.read_manifest(tmp_path / "1").class_fields["label"].counts == (1, 2)
    for row, (n, label) in enumerate(((4, 1), (0, 0), (2, 1))):
        image, number = dataset[row]
        np.testing.assert_array_equal(image, np.asarray(noise(5, 6, n)))
        assert number == label
    fastload.pack(folder, tmp_path / "ages", labels=labels, label_column="age", encoded=True)
    assert column(tmp_path / "ages", "label").tolist() == [1.0, 2.5, 3.0]
    assert fastload.open(tmp_path / "ages")[0][0] == (folder / "i4.png").read_bytes()
    labels.write_text("id,n\ni1,-3\n")
    fastload.pack(folder, tmp_path / "small", labels=labels, resize=4)
    assert column(tmp_path / "small", "label").tolist() == [-3]
    assert column(tmp_path / "small", "image").shape == (1, 4, 4, 3)


def test_what_is_left_out_of_the_table_is_told(folder: Path, tmp_path: Path) -> None:
    labels = tmp_path / "l.csv"
    labels.write_text("id,breed,age,name\ni4,3,1,x\ni0,4,2,y\n")
    report = fastload.pack(folder, tmp_path / "out", labels=labels, ignore="i4.*", fields=["label"])
    assert column(tmp_path / "out", "label").tolist() == [4]
    assert f"{labels}: columns that are not read: 'age', 'name'" in report.notices
    assert Leftover("named by --ignore", 1, ("i4.png",)) in report.leftovers
    labels.write_text("i4,3,1\n")
    report = fastload.pack(folder, tmp_path / "bare", labels=labels)
    assert f"{labels}: columns that are not read: the 3." in report.notices


def test_missing_and_bad_images_are_listed_or_stop(folder: Path, tmp_path: Path) -> None:
    labels = tmp_path / "l.csv"
    labels.write_text("id,y\ni0,1\nsub/gone,2\ni1,3\ni2,4\n")
    (folder / "i1.png").write_bytes(b"x")
    report = fastload.pack(folder, tmp_path / "out", labels=labels)
    assert [(skipped.path, skipped.reason) for skipped in report.skipped] == [
        ("sub/gone (l.csv: line 3)", "there is no file 'sub/gone' in the folder"),
        ("i1.png (l.csv: line 4)", "not an image of a known kind"),
    ]
    assert column(tmp_path / "out", "label").tolist() == [1, 4]
    damaged(folder, tmp_path / "no", "in/sub/gone (l.csv: line 3)", labels=labels, strict=True)
    labels.write_text("id,y\ni0,1\ni1,3\n")
    for height, width in ((6, 6), (3, 6), (6, 3)):
        put(folder / "i1.png", encoded(noise(height, width), "PNG"))
        damaged(folder, tmp_path / "no", "images", "differ in size", "--resize", labels=labels)


def test_tables_that_are_none(folder: Path, tmp_path: Path) -> None:
    labels, out = tmp_path / "l.csv", tmp_path / "out"
    for text, part in (
        ("", "line 1: two columns"),
        ("id\ni0\n", "line 1: two columns"),
        ("id,y\ni0,1\ni1\n", "line 3: 1 values in 2 columns"),
        ("id,y\ni0,\n", "line 2): field 'label': no value was seen"),
        ("id,y\ni0,1\ni1,9223372036854775809\n", "l.csv: a label exceeds int64"),
        ("id,y\n../x,1\n", "line 2: a path '../x'"),
        ('id,y\ni0,"1\n', "line 2: unexpected end of data"),
        ("id,y\n", "no imagelist records"),
    ):
        labels.write_text(text)
        damaged(folder, out, part, labels=labels)
    labels.write_text("id,y\ni0,1\n")
    assert "no column 'z'" in refused(folder, out, labels=labels, label_column="z")
    assert "--labels" in refused(folder, out, kind="imagelist")


@pytest.mark.parametrize("first", ["i3.png,5", "i3,5", "./i3.png,5", "gone.png,5"])
def test_a_first_line_that_names_an_image_is_no_line_of_names(
    folder: Path, tmp_path: Path, first: str
) -> None:
    labels = tmp_path / "l.csv"
    labels.write_text(f"{first}\ni1.png,6\n")
    report = fastload.pack(folder, tmp_path / "out", labels=labels)
    if first.startswith("gone"):
        assert [skipped.path for skipped in report.skipped] == ["gone.png (l.csv: line 1)"]
        assert column(tmp_path / "out", "label").tolist() == [6]
    else:
        assert column(tmp_path / "out", "label").tolist() == [5, 6]
    text = refused(folder, tmp_path / "no", labels=labels, label_column="y")
    assert "no column 'y': line 1 names the image" in text


def test_images_in_subfolders_and_the_table_itself_are_accounted_for(
    folder: Path, tmp_path: Path
) -> None:
    put(folder / "sub/j.png", encoded(noise(5, 6), "PNG"))
    put(folder / "sub/k.png", encoded(noise(5, 6), "PNG"))
    put(folder / "l.csv", b"id,y\nsub/j,1\ni0.png,2\n")
    report = fastload.pack(folder, tmp_path / "out", labels=folder / "l.csv")
    assert report.rows == 2
    (left,) = report.leftovers
    assert left.paths == ("i1.png", "i2.png", "i3.png", "i4.png", "i5.png", "sub/k.png")
