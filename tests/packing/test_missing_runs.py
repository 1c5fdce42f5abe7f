"""`missing=`: what is done about missing values, over runs, and what is counted."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import encoded, noise, put, same_bytes

import fastload
from fastload.cli import main
from fastload.formats.packed import read_manifest

pyarrow = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")


# --- Runs -------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """300 lines, of which every seventh lacks x and every tenth y; one is no JSON."""
    made = [
        json.dumps({"x": None if n % 7 == 3 else n, "y": None if n % 10 == 3 else n})
        for n in range(300)
    ]
    made[50] = "{"
    put(tmp_path / "in.jsonl", "\n".join(made).encode())
    return tmp_path / "in.jsonl"


WHOLE = [n for n in range(300) if n % 7 != 3 and n % 10 != 3 and n != 50]


def ys(folder: Path) -> list[int]:
    return [int(sample["y"]) for sample in fastload.open(folder)]


def test_dropped_samples_leave_no_holes_whoever_writes(tmp_path: Path, lines: Path) -> None:
    options: dict[str, Any] = {"missing": "drop", "shard_size": 1 << 10}
    report = fastload.pack(lines, tmp_path / "a", workers=1, **options)
    assert ys(tmp_path / "a") == WHOLE
    xs, ys_ = (sum(n % k == 3 and n != 50 for n in range(300)) for k in (7, 10))
    assert report.dropped == {"x": xs, "y": ys_}
    assert report.dropped_rows == 299 - len(WHOLE)
    assert [skipped.reason[:8] for skipped in report.skipped] == ["not JSON"]
    rows = read_manifest(tmp_path / "a").groups[0].rows
    assert set(rows[:-1]) == {64}
    fastload.pack(lines, tmp_path / "b", workers=3, **options)
    with ThreadPoolExecutor(2) as pool:
        fastload.pack(lines, tmp_path / "c", executor=pool, **options)
    assert same_bytes(tmp_path / "a", tmp_path / "b")
    assert same_bytes(tmp_path / "a", tmp_path / "c")


def test_shuffle_limit_and_splits(tmp_path: Path, lines: Path) -> None:
    options: dict[str, Any] = {"missing": "drop", "shard_size": 1 << 10, "workers": 1}
    fastload.pack(lines, tmp_path / "a", shuffle=4, split={"a": 0.5, "b": 0.5}, **options)
    assert sorted(ys(tmp_path / "a")) == WHOLE
    splits = read_manifest(tmp_path / "a").splits
    assert splits == {"a": (0, (len(WHOLE) + 1) // 2), "b": ((len(WHOLE) + 1) // 2, len(WHOLE))}
    fastload.pack(lines, tmp_path / "b", limit=40, **options)
    assert ys(tmp_path / "b") == [n for n in WHOLE if n < 40]


def test_a_run_is_resumed_with_its_counts(tmp_path: Path, lines: Path) -> None:
    options: dict[str, Any] = {"missing": "drop", "shard_size": 1 << 10, "workers": 1}
    whole = fastload.pack(lines, tmp_path / "a", **options)

    def stop(progress: Any) -> None:
        if progress.rows > 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastload.pack(lines, tmp_path / "b", progress=stop, **options)
    resumed = fastload.pack(lines, tmp_path / "b", resume=True, **options)
    assert same_bytes(tmp_path / "a", tmp_path / "b")
    assert resumed.dropped == whole.dropped
    with pytest.raises(FileExistsError, match="another packed dataset"):
        fastload.pack(lines, tmp_path / "b", resume=True, **options | {"missing": "zero"})


def test_append_and_add_column(tmp_path: Path, lines: Path) -> None:
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(2), "y": np.arange(2)}, out)
    fastload.add_column(out, {"z": np.arange(2)})
    more = [{"x": 1, "y": 7, "z": 1}, {"x": 1, "y": None, "z": 2}, {"x": 3, "y": 9, "z": 3}]
    put(tmp_path / "more.jsonl", b"\n".join(json.dumps(of).encode() for of in more))
    with pytest.raises(ValueError, match=r"line 2.*field 'y': the value is missing"):
        fastload.append(tmp_path / "more.jsonl", out)
    report = fastload.append(tmp_path / "more.jsonl", out, missing="drop")
    assert (report.dropped, report.rows) == ({"y": 1}, 4)
    pairs = [(int(sample["y"]), int(sample["z"])) for sample in fastload.open(out)]
    assert pairs == [(0, 0), (1, 1), (7, 1), (9, 3)]
    report = fastload.append(tmp_path / "more.jsonl", out, missing="zero")
    assert (report.dropped, report.filled) == ({}, {"y": 1})
    put(tmp_path / "w.jsonl", b'{"w":1.5}\n{"w":null}\n' + b'{"w":2.5}\n' * 5)
    with pytest.raises(ValueError, match="'drop' leaves samples out"):
        fastload.add_column(out, tmp_path / "w.jsonl", missing="drop")
    report = fastload.add_column(out, tmp_path / "w.jsonl", missing="nan")
    assert report.filled == {"w": 1}
    assert np.isnan(float(fastload.open(out)[1]["w"]))
    counts = read_manifest(out).missing
    assert (counts.dropped_rows, counts.dropped, counts.filled) == (1, {"y": 1}, {"y": 1, "w": 1})
    merged = fastload.merge(tmp_path / "merged", [out, out])
    assert read_manifest(tmp_path / "merged").missing.dropped == {"y": 2}
    assert merged.dropped == {}


def test_nothing_is_left(tmp_path: Path) -> None:
    put(tmp_path / "v.jsonl", b'{"x":1,"y":null}\n{"x":null,"y":1}\n')
    with pytest.raises(
        fastload.FormatError, match="no sample is left: 2 samples have missing values"
    ):
        fastload.pack(tmp_path / "v.jsonl", tmp_path / "out", missing="drop")


@pytest.mark.parametrize("policy", ["ignore", "", None, True, "NaN"])
def test_other_policies_are_refused(tmp_path: Path, policy: Any) -> None:
    with pytest.raises(ValueError, match="missing must be one of error, nan, zero, drop"):
        fastload.pack({"x": np.arange(2)}, tmp_path / "out", missing=policy)


def test_the_command_line(tmp_path: Path, lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["pack", str(lines), out, "--missing", "error"]) == 1
    assert "--missing nan or zero" in capsys.readouterr().err
    put(tmp_path / "v.csv", b"x,y\n1,1\n,2\n3,\n,\n")
    assert main(["pack", str(tmp_path / "v.csv"), out, "--missing", "drop"]) == 0
    told = capsys.readouterr().err
    assert "left out 3 rows with missing values" in told
    assert "x is missing in 2 rows" in told
    assert "y is missing in 2 rows" in told
    more = ["append", str(tmp_path / "v.csv"), out, "--missing", "zero"]
    assert main(more) == 0
    assert "filled in missing values of x in 2 rows" in capsys.readouterr().err
    assert main(["info", out]) == 0
    shown = capsys.readouterr().out
    assert "left out 3 rows with missing values:\n  x is missing in 2 rows" in shown
    assert main(["info", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"]["dropped_rows"] == 3
    argv = ["pack", str(tmp_path / "v.csv"), out, "--missing", "nan", "--overwrite"]
    assert main(argv) == 1
    assert "--dtypes x=float32" in capsys.readouterr().err
    assert main([*argv, "--dtypes", "x=float32,y=bf16"]) == 0


def test_names_of_images_are_those_of_the_samples_that_are_left(tmp_path: Path) -> None:
    rows = ["file,label"]
    for number in range(8):
        put(tmp_path / f"in/{number}.png", encoded(noise(2, 2), "PNG"))
        rows.append(f"{number}.png,{'' if number % 3 == 1 else number}")
    put(tmp_path / "in/5.png", b"no image")
    put(tmp_path / "l.csv", "\n".join(rows).encode())
    options: dict[str, Any] = {"labels": tmp_path / "l.csv", "encoded": True, "missing": "drop"}
    fastload.pack(tmp_path / "in", tmp_path / "out", shard_size=300, workers=1, **options)
    labels = [int(sample[1]) for sample in fastload.open(tmp_path / "out")]
    assert labels == [0, 2, 3, 6]
    (names,) = read_manifest(tmp_path / "out").names
    lines = (tmp_path / "out" / names.file).read_text().splitlines()
    assert [json.loads(line).partition(".")[0] for line in lines] == ["0", "2", "3", "6"]
