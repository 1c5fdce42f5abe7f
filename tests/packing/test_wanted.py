"""`fields=` comes first: nothing else of an input is opened, decoded or checked."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import put
from tfrecord_files import example, record

import fastload
from fastload.packing.inputs.wanted import ALL, Wanted

X = np.arange(6, dtype=np.int64)


def rows(source: Any, out: Path, **options: Any) -> list[Any]:
    fastload.pack(source, out, overwrite=True, **options)
    dataset = fastload.open(out)
    return [dataset[index] for index in range(len(dataset))]


def parquet(folder: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    bad = pa.array([[("k", 1)]] * 6, pa.map_(pa.string(), pa.int64()))
    inner = pa.StructArray.from_arrays([pa.array(X), bad], ["id", "bad"])
    columns = [pa.array(X), bad, pa.array([None] * 6, pa.int64()), inner]
    pq.write_table(pa.table(columns, names=["x", "bad", "none", "meta"]), folder / "a.parquet")
    return folder / "a.parquet"


def arrow(folder: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    bad = pa.array([[("k", 1)]] * 6, pa.map_(pa.string(), pa.int64()))
    inner = pa.StructArray.from_arrays([pa.array(X), bad], ["id", "bad"])
    words = pa.array(list("aabbcc")).dictionary_encode()
    table = pa.table([words, bad, pa.array(X), inner], names=["words", "bad", "x", "meta"])
    with pa.ipc.new_stream(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    return folder / "a.arrow"


def csv(folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    lines = [f"{n},,9007199254740993,caf\xe9,{n}" for n in X] + [""]
    put(folder / "a.csv", "\n".join(["x,none,y,y,meta.id", *lines]).encode("latin-1"))
    return folder / "a.csv"


def jsonl(folder: Path) -> Path:
    lines = [
        f'{{"x": {n}, "none": null, "meta": {{"id": {n}, "bad": [[1], [2, 3]]}}, "m{n}": [{{}}]}}\n'
        for n in X
    ]
    put(folder / "a.jsonl", "".join(lines).encode())
    return folder / "a.jsonl"


def tar(folder: Path) -> Path:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for n in X.tolist():
            meta = json.dumps({"id": n, "bad": None}).encode()
            members = {"x": b"%d" % n, "png": b"no image", "npy": b"\x93", "meta.json": meta}
            if n % 2:
                members["extra"] = b""
            members["x.id"] = members.pop("x")
            for name, content in members.items():
                member = tarfile.TarInfo(f"{n}.{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return folder / "a.tar"


def tfrecord(folder: Path) -> Path:
    features = [{"x": [int(n)], "meta.id": [int(n)]} | {f"m{n}": b"a"} for n in X]
    put(folder / "a.tfrecord", b"".join(record(example(of)) for of in features))
    return folder / "a.tfrecord"


def mds(folder: Path) -> Path:
    samples = []
    for n in X.tolist():
        meta = json.dumps({"id": n, "bad": None}).encode()
        sizes = np.array([len(meta), 3], "<u4").tobytes()
        samples.append(sizes + meta + b"\x80.." + int(n).to_bytes(8, "little"))
    head = 4 + 4 * (len(samples) + 1)
    ends = head + np.cumsum([0, *map(len, samples)])
    counts = np.array([len(samples), *ends], "<u4").tobytes()
    content = counts + b"".join(samples)
    put(folder / "m" / "shard.00000.mds", content)
    described = {
        "format": "mds",
        "column_names": ["meta", "bad", "x"],
        "column_encodings": ["json", "pkl", "int64"],
        "column_sizes": [None, None, 8],
        "compression": None,
        "samples": len(samples),
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(content), "hashes": {}},
    }
    put(folder / "m" / "index.json", json.dumps({"version": 2, "shards": [described]}).encode())
    return folder / "m"


def hdf5(folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"], file["version"], file["short"] = X, 1, X[:2]
        file["meta/id"], file["meta/bad"] = X, np.zeros(6, [("a", "i4")])
        file["gone"] = h5py.ExternalLink("missing.h5", "x")
    return folder / "a.h5"


def npz(folder: Path) -> Path:
    bad = np.array([{}], object)
    np.savez(folder / "a.npz", x=X, scalar=1, short=X[:2], bad=bad, **{"meta.id": X})
    return folder / "a.npz"


def safetensors(folder: Path) -> Path:
    entries = {
        "scalar": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]},
        "strange": {"dtype": "F4", "shape": [16], "data_offsets": [8, 16]},
        "x": {"dtype": "I64", "shape": [6], "data_offsets": [16, 64]},
        "meta.id": {"dtype": "I64", "shape": [6], "data_offsets": [64, 112]},
    }
    header = json.dumps(entries).encode()
    data = bytes(16) + X.tobytes() * 2
    put(folder / "a.safetensors", len(header).to_bytes(8, "little") + header + data)
    return folder / "a.safetensors"


def memory(folder: Path) -> Any:
    return {"x": X, "scalar": np.array(1), "none": [None], "meta": {"id": X, "bad": X[:2]}}


class Samples:
    """Samples with members that cannot be packed."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, n: int) -> Any:
        return {"x": int(X[n]), "none": None, f"m{n}": {}, "meta": {"id": int(X[n]), "b": object}}


def lmdb(folder: Path) -> Path:
    module = pytest.importorskip("lmdb")
    with module.open(str(folder / "l")) as environment, environment.begin(write=True) as writing:
        for n in X.tolist():
            writing.put(b"%d" % n, b"%d" % n)
    return folder / "l"


def decoded(key: bytes, value: bytes) -> dict[str, Any]:
    """A decoder of LMDB's entries."""
    return {"x": int(value), "none": None, "meta": {"id": int(value), "bad": {}}}


KINDS: list[Callable[[Path], Any]] = [parquet, arrow, csv, jsonl, tar, tfrecord, mds, hdf5]
KINDS += [npz, safetensors, memory, lambda _: Samples(), lmdb]
NAMES = ["parquet", "arrow", "csv", "jsonl", "tar", "tfrecord", "mds", "hdf5"]
NAMES += ["npz", "safetensors", "memory", "map-style", "lmdb"]


@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_nothing_but_the_fields_asked_for_is_judged(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    source, out = make(tmp_path), tmp_path / "out"
    options = {"decoder": f"{__name__}:decoded"} if make is lmdb else {}
    number = "x.id" if make is tar else "x"
    inner = "meta.json.id" if make is tar else "meta.id"
    with pytest.raises((ValueError, TypeError)):  # there is something that cannot be packed
        fastload.pack(source, out, overwrite=True, strict=True, workers=1, **options)
    for fields in ([number], [number, inner]):
        found = rows(source, out, fields=fields, workers=1, **options)
        dataset = fastload.open(out)
        assert {field.name for field in dataset.fields} == set(fields)
        for name in fields:
            column = dataset.column(name)
            np.testing.assert_array_equal(column, X)
        assert len(found) == 6
    with pytest.raises((ValueError, KeyError), match=r"there is no field .y\.z."):
        fastload.pack(source, out, overwrite=True, fields=[number, "y.z"], **options)


def test_labels_alone_need_no_images(tmp_path: Path) -> None:
    for name in ("a/0.png", "b/1.png", "b/2.png"):
        put(tmp_path / "c" / name, b"no image")
    assert rows(tmp_path / "c", tmp_path / "out", fields=["label"]) == [(0,), (1,), (1,)]
    classes = fastload.open(tmp_path / "out").manifest.class_fields["label"]
    assert (classes.names, classes.counts) == (("a", "b"), (1, 2))
    for name in ("a/0.png", "a/1.png", "b/2.png"):
        put(tmp_path / "d" / name, b"no image")
    put(tmp_path / "l.csv", b"name,y\n0.png,5\n1.png,6\n")
    found = rows(
        tmp_path / "d" / "a", tmp_path / "out", fields=["label"], labels=tmp_path / "l.csv"
    )
    assert found == [(5,), (6,)]


def test_members_of_tuples_keep_their_names() -> None:
    sample = {"pair": (None, 1), "list": [object, {"a": 2, "b": None}]}
    wanted = Wanted(("pair.1", "list.1.a"))
    assert wanted.prune(sample) == {"pair": (0, 1), "list": [0, {"a": 2}]}
    assert ALL.prune(sample) is sample


def test_a_field_that_a_sample_lacks_is_named() -> None:
    with pytest.raises(KeyError, match="there is no field 'y'; the fields are x"):
        Wanted(("y",)).prune({"x": 1})
    with pytest.raises(KeyError, match=r"there is no field 'x\.y'"):
        Wanted(("x.y",)).prune({"x": 1})


@pytest.mark.parametrize(("fields", "error"), [("label", TypeError), ([], ValueError)])
def test_fields_are_a_list_of_names(tmp_path: Path, fields: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        fastload.pack({"label": X}, tmp_path / "out", fields=fields)
