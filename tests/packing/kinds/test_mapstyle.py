"""`fastload.pack` of map-style datasets, live or by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packing import column, refused, same_bytes
from torch.utils.data import default_collate

import fastload
from fastload.formats.structure import flatten


def test_samples_come_back_as_default_collate_has_them(tmp_path: Path) -> None:
    samples = [
        {
            "a": np.float32(i),
            "b": bool(i % 2),
            "c": np.array(i, "i2"),
            "d": float(i),
            "e": (i, [torch.tensor([i, -i]), np.complex128(1j * i)]),
            "f": torch.tensor(i, dtype=torch.bfloat16),
            "g": np.full((2, 2), i, ">u2"),
        }
        for i in range(10)
    ]
    fastload.pack(samples, tmp_path / "out", shard_size=400)
    dataset = fastload.open(tmp_path / "out")
    for sample in samples:  # torch refuses big-endian arrays
        sample["g"] = sample["g"].astype("u2")
    got = default_collate([dataset[i] for i in range(10)])
    want = default_collate(samples)
    assert list(got) == list(want)
    for a, b in zip(flatten(got), flatten(want), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_integers_are_exact(tmp_path: Path) -> None:
    values = [-100, 2**53 + 1, -(2**63), 2**63 - 1]
    fastload.pack(values, tmp_path / "a")
    fastload.pack(np.array(values), tmp_path / "b")
    assert column(tmp_path / "a").tolist() == column(tmp_path / "b").tolist() == values
    assert "9223372036854775808" in refused([0, 2**63], tmp_path / "c")


def test_keys_in_another_order_are_the_same_sample(tmp_path: Path) -> None:
    fastload.pack([{"a": 1, "b": 2}, {"b": 4, "a": 3}], tmp_path / "out")
    assert column(tmp_path / "out", "a").tolist() == [1, 3]


@pytest.mark.parametrize(
    ("samples", "parts"),
    [
        ([{"a": 1, "b": None}], ("sample 0", "'b'", "no value was seen")),
        ([{"a": 1, "b": 2}, {"a": 3}], ("sample 1", "'b'", "the value is missing")),
        ([{"a": 1}, {"a": 3, "b": 2}], ("sample 0", "'b'", "the value is missing")),
        ([{"a": {"b": 1}}, {"a": {"c": 1}}], ("sample 1", "'a.b'", "the value is missing")),
        ([1, 2.0], ("ValueError", "sample 1", "float64", "int64")),
        ([np.zeros((2, 3)), np.zeros((2, 4))], ("ValueError", "sample 1", "[2, 4]", "[2, 3]")),
        ([np.zeros(3), np.zeros((4, 1))], ("ValueError", "sample 1", "[4, 1]", "[-1]")),
        ([np.zeros(3), np.zeros(())], ("ValueError", "sample 1", "[]", "[3]")),
        (["text", b"bytes"], ("ValueError", "sample 1", "bytes", "utf8")),
        (["text", 3], ("ValueError", "sample 1", "int64", "utf8")),
        (["a", "b", "c\ud800"], ("ValueError", "sample 2", "surrogate at character 1")),
        ([[1], [1, 2], ["a", "b"]], ("TypeError", "sample 2", "list of str")),
        ([[[1], [2]], [[1, 2]], [[1, 2], [3]]], ("ValueError", "sample 2", "differ in shape")),
        ([(1, 2), (1, 2, 3)], ("TypeError", "sample 1", "tuple of 2")),
        ([{"a": 1}, 2], ("TypeError", "sample 1", "dict")),
        ([np.array(["text"])], ("TypeError", "'data'", "dtype")),
        ([{}], ("ValueError", "sample 0: the sample is empty")),
        ([], ("ValueError", "the dataset is empty")),
        (5, ("TypeError", "__len__ and __getitem__")),
        (iter([1]), ("TypeError", "__len__ and __getitem__")),
    ],
)
def test_samples_that_cannot_be_packed(
    tmp_path: Path, samples: Any, parts: tuple[str, ...]
) -> None:
    text = refused(samples, tmp_path / "out")
    for part in parts:
        assert part in text


def test_an_exception_of_the_dataset_names_the_sample(tmp_path: Path) -> None:
    class Broken:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise StopIteration("boom")
            return index

    with pytest.raises(RuntimeError, match="sample 3: StopIteration: boom"):
        fastload.pack(Broken(), tmp_path / "out")


MODULE = """
import os, time, numpy as np
class Squares:
    classes = ["even", "odd"]
    def __len__(self): return 100
    def __getitem__(self, i):
        print("loading", i)
        if i == 71 and os.path.exists("break"): raise Special(1, 2)
        if i == 69 and os.path.exists("once"): time.sleep(0.15)
        if i == 71 and os.path.exists("once"): os.unlink("once"); os.kill(os.getpid(), 9)
        if i == 71 and os.path.exists("die"): os.kill(os.getpid(), 9)
        return np.full(3, i * i), i % 2
class Special(Exception):
    def __init__(self, a, b): super().__init__(f"{a}{b}")
def make(): return Squares()
held = Squares()
class holder: inner = held
number = 5
"""


def test_datasets_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "squares.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for workers in (1, 2):
        for name in ("Squares", "make", "held", "holder.inner"):
            out = tmp_path / f"{name}-{workers}"
            fastload.pack(f"squares:{name}", out, workers=workers, shard_size=640)
            assert column(out, "0")[:, 1].tolist() == [i * i for i in range(100)]
        assert same_bytes(tmp_path / f"make-{workers}", tmp_path / "make-1")
    out = tmp_path / "out"
    assert "squares:number is a int" in refused("squares:number", out)
    assert "nothing" in refused("nothing:x", out)
    with pytest.raises(AttributeError, match="nothing"):
        fastload.pack("squares:nothing", out)
    Path("break").touch()
    with pytest.raises(RuntimeError, match="sample 71: Special: 12"):
        fastload.pack("squares:Squares", out, workers=2, shard_size=640)
    Path("break").unlink()
    Path("once").touch()
    seen: list[int] = []
    options: dict[str, Any] = {"workers": 2, "shard_size": 640, "overwrite": True}
    fastload.pack("squares:Squares", out, **options, progress=lambda now: seen.append(now.rows))
    assert same_bytes(out, tmp_path / "Squares-1")
    assert seen[-1] == 100
    assert seen != sorted(seen)  # what the dead had read counted no longer
    Path("die").touch()
    with pytest.raises(RuntimeError, match=r"shard-0000\d\d.safetensors: 3 worker processes died"):
        fastload.pack("squares:Squares", out, **options)
    assert len(fastload.open(out)) == 100  # the one before
    sys.modules.pop("squares")
    capfd.readouterr()


def test_a_dataset_by_name_is_made_once_for_each_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counted.py").write_text(
        "made = []\ndef dataset():\n    made.append(len(made))\n    return [len(made)] * 100\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for number in (1, 2):
        out = tmp_path / f"{number}"
        fastload.pack("counted:dataset", out, workers=1, shard_size=160)
        assert column(out).tolist() == [number] * 100
    del sys.modules["counted"]


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))
    for workers in (1, 2):
        seen: list[Any] = []
        out = tmp_path / f"{workers}"
        fastload.pack(
            tmp_path / "x.npy", out, workers=workers, shard_size=2000, progress=seen.append
        )
        assert [p.rows for p in seen] == sorted(p.rows for p in seen)
        assert (seen[-1].rows, seen[-1].rows_total, seen[-1].row_bytes) == (1000, 1000, 8)
