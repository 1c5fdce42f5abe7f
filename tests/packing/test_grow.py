"""Datasets that grow: appended samples, added fields, generations."""

from __future__ import annotations

import collections
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import column, content, encoded, noise, put, same_bytes

import fastload
from fastload import FormatError
from fastload.cli import main
from fastload.formats import packed


def texts(start: int, stop: int) -> list[str]:
    return ["ab" * (n % 5) for n in range(start, stop)]


def samples(start: int, stop: int) -> dict[str, Any]:
    rows = np.arange(start, stop)
    return {"x": np.stack([rows, -rows], 1), "t": texts(start, stop), "y": rows * 0.5}


def check(path: Path, rows: int, split: str | None = None) -> None:
    dataset = fastload.open(path, split=split)
    assert len(dataset) == rows
    for n in range(rows):
        sample = dataset[n]
        assert sample["x"].tolist() == [n, -n]
        assert sample["t"] == "ab" * (n % 5)
        assert float(sample["y"]) == n * 0.5


# --- Append -----------------------------------------------------------------------------------


def test_appended_samples_follow(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(samples(0, 21), out, shard_size=200)
    before, old = content(out), fastload.open(out)
    report = fastload.append(samples(21, 40), out, shard_size=100)
    assert (report.rows, report.path) == (40, str(out))
    check(out, 40)
    # What was there stays, under its name; only the manifest moves.
    after = content(out)
    assert after["fastload.1.json"] == before.pop("fastload.json")
    assert before.items() <= after.items()
    assert not (out / ".fastload").exists()
    manifest = packed.read_manifest(out)
    assert manifest.generation == 2
    assert manifest.source["history"][0]["rows"] == 19
    assert len(old) == 21
    assert old[20]["x"].tolist() == [20, -20]  # read now, from the first generation
    fastload.append(samples(40, 41), out)
    check(out, 41)
    assert packed.read_manifest(out).generation == 3
    assert sorted(name for name in os.listdir(out) if "json" in name) == [
        "fastload.1.json",
        "fastload.2.json",
        "fastload.json",
    ]
    (out / "fastload.json").write_bytes((out / "fastload.1.json").read_bytes())
    check(out, 21)  # an old generation is a whole dataset


def test_an_append_is_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(50))
    np.save(tmp_path / "b.npy", np.arange(50, 90))
    for workers in (1, 3):
        out = tmp_path / f"{workers}"
        fastload.pack(tmp_path / "a.npy", out, shard_size=64)
        fastload.append(tmp_path / "b.npy", out, shard_size=32, workers=workers)
        assert column(out).tolist() == list(range(90))
    assert same_bytes(tmp_path / "1", tmp_path / "3")


def test_append_takes_what_pack_takes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.zeros(3, "f4")}, out)
    new = {"x": np.arange(10.0), "other": np.zeros(10)}
    fastload.append(new, out, fields=["x"], cast={"x": "f32"}, limit=4, shuffle=1)
    assert len(column(out, "x")) == 7
    np.arange(4, dtype="f4").tofile(tmp_path / "x.bin")
    with pytest.raises(ValueError, match="structure"):
        fastload.append(tmp_path / "x.bin", out, dtype="f4", shape=())
    with pytest.raises(TypeError, match="nonsense"):
        fastload.append(new, out, nonsense=1)


def test_images_are_appended_and_counted(tmp_path: Path) -> None:
    for where, first in (("a", 0), ("b", 10)):
        for number in range(6):
            name = tmp_path / where / f"{'cat' if number % 3 else 'dog'}/{number}.png"
            put(name, encoded(noise(4, 5, first + number), "PNG"))
    put(tmp_path / "b/cat/2.png", b"broken")
    out = tmp_path / "out"
    fastload.pack(tmp_path / "a", out, shard_size=150)
    report = fastload.append(tmp_path / "b", out, shard_size=150)
    assert [skipped.path for skipped in report.skipped] == ["cat/2.png"]
    manifest = packed.read_manifest(out)
    assert manifest.class_fields["label"].counts == (7, 4)
    assert manifest.groups[0].rows == (2, 2, 2, 2, 2, 1)
    assert [skipped.path for skipped in manifest.skipped] == ["cat/2.png"]
    assert len(column(out, "label")) == 11
    put(tmp_path / "b/bird/1.png", encoded(noise(4, 5), "PNG"))
    with pytest.raises(ValueError, match=r'classes.label\[0\]: "cat" -> "bird"'):
        fastload.append(tmp_path / "b", out)


@pytest.mark.parametrize(
    ("new", "difference"),
    [
        ({"x": np.zeros((3, 2), "i4"), "t": texts(0, 3), "y": np.zeros(3)}, '"int64" -> "int32"'),
        ({"x": np.zeros((3, 4), int), "t": texts(0, 3), "y": np.zeros(3)}, "shape[0]: 2 -> 4"),
        ({"x": np.zeros((3, 2), int), "t": texts(0, 3)}, "fields.y: {"),
        ({"x": np.zeros((3, 2), int), "t": texts(0, 3)}, "field 'y' is missing; fields.y: {"),
        (({"t": texts(0, 3)}, np.zeros((3, 2), int), np.zeros(3)), "structure"),
        ({"x": np.zeros((3, 2), int), "t": [b"a", b"", b"c"], "y": np.zeros(3)}, "fields.t"),
        (
            {"x": np.zeros((0, 2), int), "t": np.zeros((0, 2)), "y": np.zeros(0)},
            "fields.t.kind",
        ),
    ],
)
def test_other_samples_are_refused(tmp_path: Path, new: Any, difference: str) -> None:
    out = tmp_path / "out"
    fastload.pack(samples(0, 9), out)
    before = content(out)
    with pytest.raises(ValueError, match="the new samples differ") as raised:
        fastload.append(new, out)
    assert difference in str(raised.value)
    assert content(out) == before
    assert not (out / ".fastload").exists()


def test_there_must_be_something_to_append_and_something_to_append_to(tmp_path: Path) -> None:
    fastload.pack(np.arange(3), tmp_path / "out")
    with pytest.raises(ValueError, match="no samples to append"):
        fastload.append(np.arange(0), tmp_path / "out")
    with pytest.raises(FormatError, match="no packed dataset"):
        fastload.append(np.arange(3), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="shard_size"):
        fastload.append(np.arange(3), tmp_path / "out", shard_size=0)


def test_splits_grow_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(np.arange(10), out, split={"train": 0.8, "val": 0.2})
    assert "in no split" in fastload.append(np.arange(10, 12), out).notices[0]
    assert packed.read_manifest(out).splits == {"train": (0, 8), "val": (8, 10)}
    with pytest.raises(ValueError, match="'train' ends at row 8 and cannot grow"):
        fastload.append(np.arange(12, 15), out, split="train")
    assert fastload.append(np.arange(12, 15), out, split="new").splits["new"] == (12, 15)
    assert fastload.append(np.arange(15, 16), out, split="new").splits["new"] == (12, 16)
    assert [int(fastload.open(out, split="new")[n]) for n in range(4)] == [12, 13, 14, 15]


# --- Add a column -----------------------------------------------------------------------------


def test_bad_records_of_the_pack_are_not_reported_again_when_fields_are_added(
    tmp_path: Path,
) -> None:
    for number in range(3):
        put(tmp_path / f"in/cat/{number}.png", encoded(noise(4, 5, number), "PNG"))
    put(tmp_path / "in/cat/bad.png", b"broken")
    out = tmp_path / "out"
    assert len(fastload.pack(tmp_path / "in", out).skipped) == 1
    np.save(tmp_path / "mask.npy", np.arange(3))
    assert main(["add-column", str(out), str(tmp_path / "mask.npy")]) == 0
    assert [skipped.path for skipped in packed.read_manifest(out).skipped] == ["cat/bad.png"]


def test_added_fields_are_groups_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack(samples(0, 21), out, shard_size=200)
    before = content(out)
    np.save(tmp_path / "mask.npy", np.arange(42).reshape(21, 2).astype("u1"))
    fastload.add_column(out, tmp_path / "mask.npy", shard_size=8)
    check(out, 21)
    assert list(fastload.open(out)[5]) == ["x", "t", "y", "mask"]
    assert fastload.open(out)[5]["mask"].tolist() == [10, 11]
    fastload.add_column(out, {"a": texts(0, 21), "b": np.arange(21)}, name="more")
    fastload.add_column(out, {"k": np.arange(21), "l": np.arange(21.0)})
    sample = fastload.open(out)[7]
    assert sample["more"] == {"a": "abab", "b": 7}
    assert (sample["k"], sample["l"]) == (7, 7.0)
    after = content(out)
    assert {name: after[name] for name in before if name != "fastload.json"}.items() <= (
        before.items()
    )
    manifest = packed.read_manifest(out)
    assert manifest.generation == 4
    assert [group.name for group in manifest.groups] == ["main", "mask", "more.a", "k"]
    assert [field.name for field in manifest.fields][-4:] == ["more.a", "more.b", "k", "l"]
    assert manifest.groups[1].rows == (4, 4, 4, 4, 4, 1)
    # Samples are appended to all groups.
    new = samples(21, 30) | {"mask": np.full((9, 2), 9, "u1")}
    new |= {"more": {"a": texts(21, 30), "b": np.arange(21, 30)}}
    new |= {"k": np.arange(21, 30), "l": np.arange(21.0, 30)}
    fastload.append(new, out, shard_size=64)
    check(out, 30)
    sample = fastload.open(out)[28]
    assert (sample["mask"].tolist(), sample["more"], int(sample["k"])) == (
        [9, 9],
        {"a": "ababab", "b": 28},
        28,
    )


def test_archives_are_appended_to_all_groups(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(5)}, out)
    fastload.add_column(out, {"y": np.arange(5.0)})
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(5, 50), y=np.arange(5.0, 50))
    fastload.append(tmp_path / "a.npz", out, shard_size=64)
    assert column(out, "x").tolist() == list(range(50))
    assert column(out, "y").tolist() == list(range(50))


def test_every_container_takes_a_member_in_its_way(tmp_path: Path) -> None:
    pair = collections.namedtuple("pair", "a b")
    rows = np.arange(4)
    for number, (source, name, want) in enumerate(
        [
            ((rows, rows * 2), None, (2, 4, 6.0)),
            ((rows, rows * 2), "m", (2, 4, 6.0)),
            ([[n, n * 2] for n in range(4)], None, [2, 4, 6.0]),
            (pair(rows, rows * 2), "c", (2, 4, 6.0)),
            ({"a": rows}, "c", {"a": 2, "c": 6.0}),
        ]
    ):
        out = tmp_path / f"{number}"
        fastload.pack(source, out)
        fastload.add_column(out, rows * 3.0, name=name)
        sample = fastload.open(out)[2]
        assert sample == want
        kind = type(source[0]) if isinstance(source, list) else type(source)
        assert type(sample) is kind or sample._fields == ("a", "b", "c")
    assert [f.name for f in packed.read_manifest(tmp_path / "0").fields] == ["0", "1", "2"]
    assert [f.name for f in packed.read_manifest(tmp_path / "1").fields] == ["0", "1", "m"]


@pytest.mark.parametrize(
    ("old", "new", "name", "message"),
    [
        (np.arange(3), np.arange(3), "m", "bare arrays, to which no field can be added"),
        ({"a": np.arange(3)}, np.arange(4), "m", "the input has 4 samples, but .* has 3"),
        ({"a": np.arange(3)}, np.arange(3), "a", "already have a field 'a'"),
        ({"a": np.arange(3)}, {"a": np.arange(3)}, None, "already have a field 'a'"),
        ({"a": np.arange(3)}, np.arange(3), None, "needs a name"),
        ({"a": np.arange(3)}, np.arange(3), "__a", "kept for the format"),
        ({"a": {"b": np.arange(3)}}, np.arange(3), "a.b", "two fields have this name"),
    ],
)
def test_columns_that_do_not_fit(
    tmp_path: Path, old: Any, new: Any, name: str | None, message: str
) -> None:
    out = tmp_path / "out"
    fastload.pack(old, out)
    before = content(out)
    with pytest.raises(ValueError, match=message):
        fastload.add_column(out, new, name=name)
    assert content(out) == before
    assert not (out / ".fastload").exists()


def test_bad_images_cannot_be_a_column(tmp_path: Path) -> None:
    put(tmp_path / "in/a/1.png", encoded(noise(3, 3), "PNG"))
    put(tmp_path / "in/a/2.png", b"broken")
    fastload.pack({"x": np.arange(2)}, tmp_path / "out")
    with pytest.raises(FormatError, match=r"2\.png"):
        fastload.add_column(tmp_path / "out", tmp_path / "in", name="image")
    put(tmp_path / "in/a/2.png", encoded(noise(3, 3), "PNG"))
    fastload.add_column(tmp_path / "out", tmp_path / "in", name="image")
    assert packed.read_manifest(tmp_path / "out").class_fields["image.label"].counts == (2,)
    assert list(fastload.open(tmp_path / "out")[1]) == ["x", "image"]


def test_groups_have_names_for_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(2)}, out)
    for name in ("../up", "main", "shard", "ä b", "-", "x/y"):
        fastload.add_column(out, np.arange(2), name=name)
    assert [group.file_name for group in packed.read_manifest(out).groups[1:]] == [
        "up-{:06d}.safetensors".replace("up", "-up").lstrip("-"),
        "main-2-{:06d}.safetensors",
        "shard-2-{:06d}.safetensors",
        "b-{:06d}.safetensors",
        "column-{:06d}.safetensors",
        "x-y-{:06d}.safetensors",
    ]
    assert len(fastload.open(out)) == 2
    assert list(fastload.open(out)[1]) == ["x", "../up", "main", "shard", "ä b", "-", "x/y"]


def test_history_is_plain_json(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(9)}, out)
    fastload.append({"x": np.arange(9)}, out, shuffle=1)
    fastload.add_column(out, np.arange(18), name="n")
    history = json.loads((out / "fastload.json").read_text())["source"]["history"]
    assert [(entry["task"], entry["rows"], entry["kind"]) for entry in history] == [
        ("append", 9, "arrays"),
        ("add-column", 18, "arrays"),
    ]
    assert history[0]["shuffle"] == 1


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(9)}, out)
    for number in (0, 7):
        (out / f"mask-{number:06d}.safetensors").write_text("mine")
    fastload.add_column(out, {"mask": np.arange(9.0)})
    assert fastload.open(out)[8]["mask"] == 8
    for number in (0, 7):
        assert (out / f"mask-{number:06d}.safetensors").read_text() == "mine"


def test_long_names_make_no_long_file_names(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(9)}, out)
    fastload.add_column(out, {"y" * 300: np.arange(9.0)})
    assert fastload.open(out)[8]["y" * 300] == 8


def test_a_dataset_that_grew_is_not_unpickled_as_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(9)}, out)
    pickled = pickle.dumps(fastload.open(out))
    assert len(pickle.loads(pickled)) == 9
    fastload.append({"x": np.arange(3)}, out)
    with pytest.raises(FormatError, match="changed after it was pickled"):
        pickle.loads(pickled)
