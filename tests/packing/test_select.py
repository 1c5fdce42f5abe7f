"""What is packed of an input: fields, dtypes, order, number; splits; dry runs."""

from __future__ import annotations

import collections
import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packing import column, encoded, noise, put, refused, same_bytes

import fastload
from fastload import _core
from fastload.formats import packed

ROWS = 37
MODULE = """
import numpy as np
class Things:
    def __len__(self): return 37
    def __getitem__(self, i): return {"x": np.arange(3) + 10 * i, "t": "ab" * (i % 4), "y": i}
"""


def inputs(where: Path) -> dict[str, tuple[Any, str]]:
    """One input of every kind, each with a field that tells the number of the sample."""
    x = np.arange(ROWS * 3).reshape(ROWS, 3)
    np.save(where / "c.npy", x)
    np.save(where / "f.npy", np.asfortranarray(x))
    np.save(where / "b.npy", x.astype(">i4"))
    (where / "several").mkdir()
    for number, (start, stop) in enumerate(((0, 10), (10, 10), (10, 11), (11, ROWS))):
        np.save(where / f"several/{number}.npy", x[start:stop].astype(">i8" if number else "<i8"))
    np.savez_compressed(where / "a.npz", x=x, z=np.arange(ROWS * 1.0), f=np.asfortranarray(x))
    x.astype("<u2").tofile(where / "raw.bin")
    (where / "things_.py").write_text(MODULE)
    for number in range(ROWS):
        put(where / f"img/{number % 3}/{number:02d}.png", encoded(noise(4, 5, number), "PNG"))
    texts = ["x" * (n % 5) for n in range(ROWS)]
    return {
        "npy": (where / "c.npy", "data"),
        "fortran": (where / "f.npy", "data"),
        "big-endian": (where / "b.npy", "data"),
        "several": (where / "several", "data"),
        "npz": (where / "a.npz", "x"),
        "raw": (where / "raw.bin", "data"),
        "named": ("things_:Things", "x"),
        "held": (held(x), "x"),
        "arrays": ({"x": x, "t": texts}, "x"),
        "images": (where / "img", "image"),
    }


def held(x: np.ndarray) -> Any:
    """A dataset that no other process can make."""

    class Held:
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"x": x[index], "y": index}

    return Held()


KINDS = ["npy", "fortran", "big-endian", "several", "npz", "raw", "named", "held"]
KINDS += ["arrays", "images"]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return inputs(tmp_path)


# --- Order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_shuffled_is_permuted(sources: dict[str, Any], tmp_path: Path, kind: str) -> None:
    source, name = sources[kind]
    options = {"dtype": "u2", "shape": 3} if kind == "raw" else {}
    fastload.pack(source, tmp_path / "plain", **options)
    plain = column(tmp_path / "plain", name)
    order = _core.Permutation(ROWS, 5, 0).indices(0, ROWS)
    for workers in (1, 2):
        out = tmp_path / f"{workers}"
        fastload.pack(source, out, shuffle=5, shard_size=200, workers=workers, **options)
        np.testing.assert_array_equal(column(out, name), plain[order])
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    assert packed.read_manifest(tmp_path / "1").source["shuffle"] == 5
    # A limit is the start of the shuffled order.
    fastload.pack(source, tmp_path / "some", shuffle=5, limit=11, **options)
    np.testing.assert_array_equal(column(tmp_path / "some", name), plain[order[:11]])


def test_all_fields_of_a_sample_move_together(sources: dict[str, Any], tmp_path: Path) -> None:
    fastload.pack("things_:Things", tmp_path / "out", shuffle=3, shard_size=300, workers=2)
    samples = [fastload.open(tmp_path / "out")[n] for n in range(ROWS)]
    assert sorted(int(sample["y"]) for sample in samples) == list(range(ROWS))
    for sample in samples:
        assert sample["t"] == "ab" * (int(sample["y"]) % 4)
        assert sample["x"].tolist() == [10 * int(sample["y"]) + n for n in range(3)]


def test_skipped_images_leave_no_gaps_in_a_shuffled_pack(
    sources: dict[str, Any], tmp_path: Path
) -> None:
    for number in (0, 7, 20):
        put(tmp_path / f"img/{number % 3}/{number:02d}.png", b"broken")
    for workers in (1, 2):
        out = tmp_path / f"{workers}"
        report = fastload.pack(
            tmp_path / "img", out, shuffle=1, shard_size=300, workers=workers, limit=30
        )
        assert report.rows == 30 - len(report.skipped)
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    rows = packed.read_manifest(tmp_path / "1").groups[0].rows
    assert set(rows[:-1]) == {4}


@pytest.mark.parametrize("limit", [1, 36, 37, 1000])
def test_limit(sources: dict[str, Any], tmp_path: Path, limit: int) -> None:
    for kind in ("npz", "images", "named"):
        source, name = sources[kind]
        report = fastload.pack(source, tmp_path / kind, limit=limit, shard_size=200)
        assert report.rows == min(limit, ROWS)
        assert len(column(tmp_path / kind, name)) == min(limit, ROWS)


# --- Fields -----------------------------------------------------------------------------------


def test_fields_are_picked_and_containers_pruned(tmp_path: Path) -> None:
    pair = collections.namedtuple("pair", "a b")
    source = {
        "x": np.arange(4),
        "meta": {"id": np.arange(4) * 2, "pair": pair(np.arange(4.0), np.arange(4) * 3)},
        "t": (np.zeros(4, "u1"), ["a", "", "bc", "d"]),
    }
    cases: list[tuple[list[str], Any]] = [
        (["x"], {"x": 1}),
        (["t.1", "x"], {"x": 1, "t": ("",)}),
        (["meta"], {"meta": {"id": 2, "pair": (1.0, 3)}}),
        (["meta.pair.b"], {"meta": {"pair": (3,)}}),
    ]
    for number, (names, want) in enumerate(cases):
        fastload.pack(source, tmp_path / f"{number}", fields=names)
        assert fastload.open(tmp_path / f"{number}")[1] == want
    sample = fastload.open(tmp_path / "3")[1]
    assert type(sample["meta"]["pair"])._fields == ("b",)
    assert packed.read_manifest(tmp_path / "1").source["fields"] == ["x", "t.1"]


@pytest.mark.parametrize("kind", ["npz", "named", "held", "images"])
@pytest.mark.parametrize("shuffle", [None, 1])
def test_fields_of_every_kind(
    sources: dict[str, Any], tmp_path: Path, kind: str, shuffle: int | None
) -> None:
    source, name = sources[kind]
    fastload.pack(source, tmp_path / "all", shuffle=shuffle, shard_size=200)
    fastload.pack(source, tmp_path / "one", shuffle=shuffle, shard_size=200, fields=[name])
    np.testing.assert_array_equal(column(tmp_path / "one", name), column(tmp_path / "all", name))
    manifest = packed.read_manifest(tmp_path / "one")
    assert [field.name for field in manifest.fields] == [name]
    assert manifest.class_fields == {}


def test_fields_that_are_not_there(tmp_path: Path) -> None:
    message = refused({"x": np.zeros(2), "y": np.zeros(2)}, tmp_path / "out", fields=["x", "z"])
    assert "there is no field 'z'; the fields are x, y" in message
    assert "fields must not be empty" in refused({"x": np.zeros(2)}, tmp_path / "out", fields=[])


# --- Dtypes -----------------------------------------------------------------------------------


def test_casts_are_written(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    source = {"x": x, "y": np.arange(50), "r": [np.arange(n % 4) for n in range(50)]}
    casts = {"x": "bf16", "y": np.uint8, "r": torch.float16}
    fastload.pack(source, tmp_path / "out", cast=casts, shard_size=200)
    dataset = fastload.open(tmp_path / "out")
    assert [field.dtype for field in dataset.fields] == ["bfloat16", "uint8", "float16"]
    want = torch.from_numpy(x).to(torch.bfloat16)
    assert all(torch.equal(dataset[n]["x"], want[n]) for n in range(50))
    assert [int(dataset[n]["y"]) for n in range(50)] == list(range(50))
    assert [dataset[n]["r"].tolist() for n in range(5)] == [[], [0], [0, 1], [0, 1, 2], []]
    assert packed.read_manifest(tmp_path / "out").source["cast"] == {
        "x": "bfloat16",
        "y": "uint8",
        "r": "float16",
    }


@pytest.mark.parametrize("shuffle", [None, 4])
def test_the_sample_that_does_not_fit_is_named(tmp_path: Path, shuffle: int | None) -> None:
    values = np.arange(50)
    values[33] = 70_000
    np.save(tmp_path / "x.npy", values)
    options = {"cast": {"data": "uint16"}, "shuffle": shuffle, "shard_size": 32, "workers": 1}
    message = refused(tmp_path / "x.npy", tmp_path / "out", **options)
    assert "sample 33: field 'data': 70000 does not fit uint16" in message
    ragged = {"t": [np.arange(n) * 100 for n in range(5)]}
    assert "sample 4: field 't': 300 does not fit uint8" in refused(
        ragged, tmp_path / "out2", cast={"t": "uint8"}, workers=1
    )


def test_the_sample_is_named_behind_images_that_were_left_out(tmp_path: Path) -> None:
    for number in range(300):
        content = b"broken" if number in (3, 5) else encoded(noise(2, 2), "PNG")
        put(tmp_path / f"in/{number:03d}/a.png", content)
    message = refused(tmp_path / "in", tmp_path / "out", cast={"label": "q1", "image": "i1"})
    assert "'q1'" in message
    message = refused(tmp_path / "in", tmp_path / "out", cast={"label": "uint8"}, workers=1)
    assert "sample 256: field 'label': 256 does not fit uint8" in message


@pytest.mark.parametrize("piece_bytes", [64, 1 << 20])
def test_the_sample_is_named_behind_lines_that_were_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Also where the fields that are not picked are read in pieces."""
    monkeypatch.setattr(
        importlib.import_module("fastload.packing.select"), "PIECE_BYTES", piece_bytes
    )
    lines = [json.dumps({"a": n if n != 77 else 300, "b": "x" * 20}) for n in range(100)]
    lines[5] = lines[40] = "{"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    report = fastload.pack(tmp_path / "a.jsonl", tmp_path / "out", fields=["a"])
    want = [n if n != 77 else 300 for n in range(100) if n not in (5, 40)]
    assert column(tmp_path / "out", "a").tolist() == want
    assert [skipped.path for skipped in report.skipped] == [
        f"a.jsonl: line {n + 1}, at byte {sum(len(line) + 1 for line in lines[:n])}"
        for n in (5, 40)
    ]
    options = {"fields": ["a"], "cast": {"a": "uint8"}}
    assert "a.jsonl: line 78, at byte" in refused(tmp_path / "a.jsonl", tmp_path / "no", **options)


@pytest.mark.parametrize(
    ("cast", "message"),
    [
        ({"z": "f16"}, "there is no field 'z'"),
        ({"x": "text"}, "the dtypes are"),
        ({"c": "float32"}, "complex128 cannot be cast to float32"),
        ({"t": "int8"}, "holds utf8, not plain numbers"),
    ],
)
def test_casts_that_make_no_sense(tmp_path: Path, cast: dict[str, str], message: str) -> None:
    source = {"x": np.zeros(2), "c": np.zeros(2, "c16"), "t": ["a", "b"]}
    assert message in refused(source, tmp_path / "out", cast=cast)
    assert not (tmp_path / "out").exists()


# --- Splits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "split", "want"),
    [
        (10, {"train": 0.9, "val": 0.1}, [9, 1]),
        (7, {"a": 0.5, "b": 0.5}, [4, 3]),
        (100, {"a": "0.333333", "b": "0.333333", "c": "0.333334"}, [33, 34, 33]),
        (3, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, [1, 1, 1]),
        (5, {"all": 1}, [5]),
        (1001, {"a": 0.1, "b": 0.2, "c": 0.7}, [100, 200, 701]),
    ],
)
def test_splits(tmp_path: Path, rows: int, split: dict[str, Any], want: list[int]) -> None:
    report = fastload.pack(np.arange(rows), tmp_path / "out", split=split)
    sizes = [stop - start for start, stop in report.splits.values()]
    assert (list(report.splits), sizes) == (list(split), want)
    parts = [fastload.open(tmp_path / "out", split=name) for name in split]
    values = [int(part[n]) for part in parts for n in range(len(part))]
    assert values == list(range(rows))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"a": 0.5, "b": 0.4}, "must sum to 1, not 0.9"),
        ({"a": 1.5, "b": -0.5}, "a=1.5 is not a fraction"),
        ({"a": "x", "b": 1}, "a=x is not a fraction"),
        ({"": 1}, "names must be text"),
        ({"a": 0.99, "b": 0.01}, "10 rows leave none for 'b'"),
    ],
)
def test_splits_that_make_no_sense(tmp_path: Path, split: dict[str, Any], message: str) -> None:
    assert message in refused(np.arange(10), tmp_path / "out", split=split)
    assert not (tmp_path / "out").exists()


def test_splits_count_the_rows_that_are_left(sources: dict[str, Any], tmp_path: Path) -> None:
    put(tmp_path / "img/0/00.png", b"broken")
    split = {"train": 0.5, "val": 0.5}
    report = fastload.pack(tmp_path / "img", tmp_path / "out", split=split)
    assert report.splits == {"train": (0, 18), "val": (18, 36)}
    assert "--shuffle SEED" in report.notices[-1]
    report = fastload.pack(tmp_path / "img", tmp_path / "out2", split=split, shuffle=0)
    assert report.notices == ()


# --- Dry runs ---------------------------------------------------------------------------------


def test_a_dry_run_tells_what_a_real_one_does(sources: dict[str, Any], tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    options = {"cast": {"data": "f16"}, "shuffle": 1, "limit": 30, "shard_size": 64}
    options["split"] = {"a": 0.5, "b": 0.5}
    told = fastload.pack(tmp_path / "c.npy", tmp_path / "out", dry_run=True, **options)
    assert sorted(os.listdir(tmp_path)) == before
    assert told == fastload.pack(tmp_path / "c.npy", tmp_path / "out", **options)
    with pytest.raises(FileExistsError, match="--overwrite"):
        fastload.pack(tmp_path / "c.npy", tmp_path / "out", dry_run=True, **options)


def test_everything_is_part_of_the_id(tmp_path: Path) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"shuffle": 0},
        {"shuffle": 1},
        {"limit": 5},
        {"cast": {"x": "f32"}},
        {"fields": ["x"]},
        {"split": {"a": 1}},
        {"shard_size": 16},
    ]
    ids = set()
    for number, options in enumerate(variants):
        fastload.pack({"x": np.arange(9), "y": np.arange(9)}, tmp_path / f"{number}", **options)
        ids.add(json.loads((tmp_path / f"{number}/fastload.json").read_text())["dataset"])
    assert len(ids) == len(variants)


@pytest.mark.parametrize("options", [{"shuffle": -1}, {"shuffle": 2**64}, {"limit": 0}])
def test_numbers_out_of_range(tmp_path: Path, options: dict[str, Any]) -> None:
    assert "ValueError" in refused(np.arange(3), tmp_path / "out", **options)
