"""Inputs of every kind of which a value is missing."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import put
from tfrecord_files import example, field, record

import fastload

pyarrow = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")

XS = [1.5, None, float("nan"), 2.5]
"""The floats of each input: one is missing, and one is NaN, which is a value."""

SOURCES: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {}
"""Inputs of samples {"x": XS[i], "y": i}, by kind, and the options that read them."""


def source(made: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Adds an input."""

    def with_options(folder: Path) -> tuple[Any, dict[str, Any]]:
        found = made(folder)
        return found if isinstance(found, tuple) and len(found) == 2 else (found, {})

    SOURCES[made.__name__] = with_options
    return made


def table() -> Any:
    return pyarrow.table({"x": pyarrow.array(XS, from_pandas=False), "y": range(4)})


def samples() -> list[dict[str, Any]]:
    return [{"x": x, "y": y} for y, x in enumerate(XS)]


def as_json() -> bytes:
    return "".join(json.dumps(sample) + "\n" for sample in samples()).encode()


@source
def parquet(folder: Path) -> Path:
    import pyarrow.parquet

    pyarrow.parquet.write_table(table(), folder / "in.parquet", row_group_size=3)
    return folder / "in.parquet"


@source
def feather(folder: Path) -> Path:
    import pyarrow.feather

    pyarrow.feather.write_feather(table(), folder / "in.feather", chunksize=3)
    return folder / "in.feather"


@source
def arrow_stream(folder: Path) -> Path:
    with pyarrow.OSFile(str(folder / "in.arrow"), "wb") as file:
        with pyarrow.ipc.new_stream(file, table().schema) as writer:
            writer.write_table(table(), max_chunksize=3)
    return folder / "in.arrow"


@source
def csv(folder: Path) -> Path:
    put(folder / "in.csv", b"x,y\n1.5,0\n,1\nnan,2\n2.5,3\n")
    return folder / "in.csv"


@source
def csv_gz(folder: Path) -> Path:
    put(folder / "in.csv.gz", gzip.compress(b"x,y\n1.5,0\n,1\nnan,2\n2.5,3\n"))
    return folder / "in.csv.gz"


@source
def tsv(folder: Path) -> Path:
    put(folder / "in.tsv", b"x\ty\n1.5\t0\n\t1\nnan\t2\n2.5\t3\n")
    return folder / "in.tsv"


@source
def jsonl(folder: Path) -> Path:
    put(folder / "in.jsonl", as_json())
    return folder / "in.jsonl"


@source
def jsonl_gz(folder: Path) -> Path:
    put(folder / "in.jsonl.gz", gzip.compress(as_json()))
    return folder / "in.jsonl.gz"


@source
def jsonl_absent_keys(folder: Path) -> Path:
    put(folder / "in.jsonl", as_json().replace(b'"x": null, ', b""))
    return folder / "in.jsonl"


@source
def tar(folder: Path) -> tuple[Path, dict[str, Any]]:
    with tarfile.open(folder / "in.tar", "w") as archive:
        for number, line in enumerate(as_json().splitlines()):
            member = tarfile.TarInfo(f"{number}.json")
            member.size = len(line)
            archive.addfile(member, io.BytesIO(line))
    return folder / "in.tar", {"fields": ["json"]}


@source
def tfrecord(folder: Path) -> Path:
    features = [{k: [v] for k, v in of.items() if v is not None} for of in samples()]
    put(folder / "in.tfrecord", b"".join(record(example(of)) for of in features))
    return folder / "in.tfrecord"


@source
def tfrecord_without_kind(folder: Path) -> Path:
    content = [record(example({"x": [x], "y": [y]})) for y, x in enumerate(XS) if x is not None]
    empty = field(1, field(1, b"x") + field(2, b""))
    filled = field(1, field(1, b"y") + field(2, field(3, field(1, b"\x01"))))
    content.insert(1, record(field(1, empty + filled)))
    put(folder / "in.tfrecord", b"".join(content))
    return folder / "in.tfrecord"


@source
def lmdb(folder: Path) -> tuple[Path, dict[str, Any]]:
    database = pytest.importorskip("lmdb").open(str(folder / "in"))
    with database.begin(write=True) as transaction:
        for number, line in enumerate(as_json().splitlines()):
            transaction.put(b"%d" % number, line)
    database.close()
    return folder / "in", {"decoder": "lacking_inputs:decoded"}


def decoded(key: bytes, value: bytes) -> Any:
    return json.loads(value)


class Samples:
    """A map-style dataset."""

    def __init__(self, samples: list[Any] | None = None) -> None:
        self.samples = globals()["samples"]() if samples is None else samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


@source
def map_style(folder: Path) -> Samples:
    return Samples()


@source
def map_style_by_name(folder: Path) -> str:
    return "lacking_inputs:Samples"


@source
def map_style_pandas_na(folder: Path) -> Samples:
    return Samples([of | {"x": pandas.NA if of["x"] is None else of["x"]} for of in samples()])


@source
def object_array(folder: Path) -> dict[str, Any]:
    return {"x": np.array(XS, object), "y": np.arange(4)}


@source
def masked_array(folder: Path) -> dict[str, Any]:
    values = np.array([x or 0.0 for x in XS])
    return {"x": np.ma.MaskedArray(values, [x is None for x in XS]), "y": np.arange(4)}


def packed(data: Any, out: Path, **options: Any) -> list[Any]:
    fastload.pack(data, out, overwrite=True, **options)
    return [plain(sample) for sample in fastload.open(out)]


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(of) for key, of in value.items()}
    return value if isinstance(value, (str, bytes)) else np.asarray(value).tolist()


NAN = float("nan")
