"""Samples without a class, which Hugging Face's datasets number -1."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload
from fastload.cli import main

pyarrow = pytest.importorskip("pyarrow")

FEATURES = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}


def labels(values: list[int], dtype: str = "int64") -> Any:
    """A table as Hugging Face's datasets write it."""
    described = {b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()}
    columns = {"x": list(range(len(values))), "label": pyarrow.array(values, dtype)}
    return pyarrow.table(columns).replace_schema_metadata(described)


def write(path: Path, table: Any) -> Path:
    """A Parquet or Feather file."""
    import pyarrow.feather
    import pyarrow.parquet

    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, path)
    return path


def counts(folder: Path) -> dict[str, tuple[int, ...]]:
    """The counts of the classes in a manifest."""
    manifest = fastload.open(folder).manifest
    return {name: of.counts for name, of in manifest.class_fields.items()}


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_minus_1_passes_and_counts_for_no_class(tmp_path: Path, suffix: str, dtype: str) -> None:
    file = write(tmp_path / f"x.{suffix}", labels([1, -1, 0, -1, 1], dtype))
    fastload.pack(file, tmp_path / "out", shuffle=3, workers=2, shard_size=16)
    assert counts(tmp_path / "out") == {"label": (1, 2)}
    values = [int(sample["label"]) for sample in fastload.open(tmp_path / "out")]
    assert sorted(values) == [-1, -1, 0, 1, 1]


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
@pytest.mark.parametrize("bad", [-2, 2, -128])
def test_other_numbers_are_refused(tmp_path: Path, suffix: str, bad: int) -> None:
    file = write(tmp_path / f"x.{suffix}", labels([1, -1, bad]))
    message = rf"x\.{suffix}: row 2: field 'label': {bad} is not a class number .0 to 1"
    with pytest.raises(fastload.FormatError, match=message):
        fastload.pack(file, tmp_path / "out")


def test_unsigned_labels_are_compared_with_the_classes(tmp_path: Path) -> None:
    file = write(tmp_path / "x.parquet", labels([1, 0, 255], "uint8"))
    with pytest.raises(fastload.FormatError, match="255 is not a class number"):
        fastload.pack(file, tmp_path / "out")


def test_append_merge_and_add_column_count_right(tmp_path: Path) -> None:
    one = write(tmp_path / "one.parquet", labels([-1, 0, 1]))
    two = write(tmp_path / "two.parquet", labels([-1, -1, 1]))
    fastload.pack(one, tmp_path / "a")
    fastload.append(two, tmp_path / "a")
    assert counts(tmp_path / "a") == {"label": (1, 2)}
    fastload.pack(two, tmp_path / "b")
    fastload.merge(tmp_path / "c", [tmp_path / "a", tmp_path / "b"])
    assert counts(tmp_path / "c") == {"label": (1, 3)}
    fastload.pack({"y": np.arange(3)}, tmp_path / "d")
    fastload.add_column(tmp_path / "d", one)
    assert counts(tmp_path / "d") == {"label": (1, 1)}
    fastload.pack(fastload.open(tmp_path / "a"), tmp_path / "e")  # a map-style dataset
    assert counts(tmp_path / "e") == {"label": (1, 2)}


def test_info_head_and_export_know_samples_without_a_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fastload.pack(write(tmp_path / "x.parquet", labels([-1, 1])), tmp_path / "out")
    assert main(["head", str(tmp_path / "out"), "2"]) == 0
    shown = capsys.readouterr().out
    assert "label: -1 (no class)" in shown
    assert "label: 1 (yes)" in shown
    assert main(["info", str(tmp_path / "out")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [row for row in rows if "-1" in row and "class" in row]
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "tar"), "--to", "tar"]) == 0
    with tarfile.open(tmp_path / "tar" / "shard-000000.tar") as archive:
        names = [name for name in archive.getnames() if name.endswith(".cls")]
        assert [archive.extractfile(name).read() for name in names] == [b"-1", b"1"]
    fastload.pack(tmp_path / "tar", tmp_path / "again")
    assert [int(sample["label.cls"]) for sample in fastload.open(tmp_path / "again")] == [-1, 1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_labels_that_are_no_integers_lose_their_names_with_a_notice(
    tmp_path: Path, dtype: str
) -> None:
    file = write(tmp_path / "x.parquet", labels([0, 1, 1]))
    report = fastload.pack(file, tmp_path / "out", cast={"label": dtype})
    assert counts(tmp_path / "out") == {}
    assert any("left out the class names" in notice for notice in report.notices)


def test_labels_may_be_cast_to_other_integers(tmp_path: Path) -> None:
    file = write(tmp_path / "x.parquet", labels([0, -1, 1]))
    fastload.pack(file, tmp_path / "out", cast={"label": "int8"})
    assert counts(tmp_path / "out") == {"label": (1, 1)}
    with pytest.raises(ValueError, match="row 1: field 'label': -1 does not fit uint8"):
        fastload.pack(file, tmp_path / "no", cast={"label": "uint8"})
