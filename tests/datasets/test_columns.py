"""Columns and rows of datasets are what numpy would index, whatever holds the samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

import fastload
from fastload import ArrayDataset, FormatError, Mixture, TokenDataset

X = np.arange(24.0, dtype="f4").reshape(8, 3)
Y = np.arange(8) % 3
TEXTS = ["a", "bé", "", "dd", "e", "f", "g", "日本"]
BLOBS = [bytes([n] * n) for n in range(8)]
MASK = Y == 1


@pytest.fixture
def packed(tmp_path: Path) -> str:
    """A packed dataset of one shard, with fields of each kind."""
    ragged = [np.arange(n, dtype="i4") for n in range(8)]
    samples = [
        {
            "x": X[n],
            "t": TEXTS[n],
            "b": BLOBS[n],
            "r": ragged[n],
            "m": MASK[n],
            "meta": (Y[n], X[n]),
        }
        for n in range(8)
    ]
    fastload.pack(samples, tmp_path / "packed", workers=1)
    return os.fspath(tmp_path / "packed")


def several_shards(folder: Path) -> str:
    fastload.pack({"x": X, "y": Y}, folder / "first", workers=1)
    fastload.pack({"x": X, "y": Y}, folder / "second", workers=1)
    fastload.merge(folder / "merged", [folder / "first", folder / "second"])
    return os.fspath(folder / "merged")


# --- columns


@pytest.mark.parametrize("options", [{}, {"io": "pread"}, {"verify": "lazy"}, {"verify": "open"}])
def test_a_column_of_packed_data_holds_what_its_samples_hold(
    packed: str, options: dict[str, Any]
) -> None:
    dataset = fastload.open(packed, **options)
    np.testing.assert_array_equal(dataset.column("x"), X)
    np.testing.assert_array_equal(dataset.column("m"), MASK)
    np.testing.assert_array_equal(dataset.column("meta.0"), Y)
    assert dataset.column("t") == TEXTS
    assert dataset.column("b") == BLOBS
    assert dataset.column("x").dtype == np.float32


def test_a_column_of_one_file_is_a_read_only_view_of_it(tmp_path: Path, packed: str) -> None:
    np.save(tmp_path / "x.npy", X)
    X.tofile(tmp_path / "x.bin")
    files: list[tuple[Any, str]] = [
        (fastload.open(tmp_path / "x.npy"), "data"),
        (fastload.open(tmp_path / "x.bin", dtype="f4", shape=3), "data"),
        (fastload.open(packed), "x"),
        (fastload.open(os.path.join(packed, "shard-000000.safetensors")), "x"),
        (ArrayDataset(tmp_path / "x.npy"), "data"),
    ]
    for dataset, name in files:
        first, second = dataset.column(name), dataset.column(name)
        del dataset
        np.testing.assert_array_equal(first, X)
        assert not first.flags.writeable
        assert not first.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            second[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            first.setflags(write=True)


def test_a_column_of_an_array_in_memory_is_a_read_only_view_of_it() -> None:
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(10), 3)
    for array in (X, X[::2], X[:, :2], windows, MASK, torch.from_numpy(X)):
        column = ArrayDataset({"x": array}).column("x")
        np.testing.assert_array_equal(column, np.asarray(array))
        assert np.shares_memory(column, np.asarray(array))
        assert not column.flags.writeable


def test_columns_of_several_shards_and_of_splits_are_whole(tmp_path: Path) -> None:
    dataset = fastload.open(several_shards(tmp_path))
    np.testing.assert_array_equal(dataset.column("x"), np.concatenate([X, X]))
    fastload.pack({"y": Y}, tmp_path / "split", split={"a": 0.75, "b": 0.25}, workers=1)
    part = fastload.open(tmp_path / "split", split="b")
    np.testing.assert_array_equal(part.column("y"), Y[6:])
    added = np.arange(8) * 2
    fastload.append({"y": added}, tmp_path / "split")
    fastload.add_column(tmp_path / "split", {"z": np.concatenate([Y, added])})
    grown = fastload.open(tmp_path / "split")
    np.testing.assert_array_equal(grown.column("z"), grown.column("y"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_dtypes_that_numpy_lacks_are_tensors_of_their_own(tmp_path: Path, dtype: Any) -> None:
    values = torch.arange(6.0).reshape(3, 2).to(dtype)
    fastload.pack({"x": values}, tmp_path / "p", workers=1)
    for dataset in (fastload.open(tmp_path / "p"), ArrayDataset({"x": values})):
        column = dataset.column("x")
        assert column.dtype == dtype
        assert torch.equal(column.float(), values.float())
        column.zero_()
        assert torch.equal(dataset.column("x").float(), values.float())


def test_tokens_have_columns_as_windows_and_documents(tmp_path: Path) -> None:
    np.arange(20, dtype="u2").tofile(tmp_path / "t.bin")
    tokens = TokenDataset(tmp_path / "t.bin", 4)
    for name, at in (("0", 0), ("1", 1)):
        want = np.stack([sample[at] for sample in tokens])  # type: ignore[attr-defined]
        np.testing.assert_array_equal(tokens.column(name), want)
        assert tokens.lengths(name).tolist() == [4] * len(tokens)
    assert tokens.column("0").dtype == np.int64
    documents = TokenDataset(tmp_path / "t.bin", documents=[0, 3, 3, 20])
    assert documents.lengths("tokens").tolist() == [3, 0, 17]
    with pytest.raises(ValueError, match=r"different lengths.*lengths\('tokens'\)"):
        documents.column("tokens")


def test_empty_datasets_have_empty_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((0, 3), "i2"))
    for dataset in (fastload.open(tmp_path / "x.npy"), ArrayDataset(np.zeros((0, 3), "i2"))):
        assert dataset.column("data").shape == (0, 3)
        assert dataset.column("data").dtype == np.int16
        assert dataset.lengths("data").shape == (0,)
    assert ArrayDataset(np.zeros((4, 0))).column("data").shape == (4, 0)


def test_unknown_fields_and_ragged_numbers_are_refused_by_name(packed: str) -> None:
    dataset = fastload.open(packed)
    for read in (dataset.column, dataset.lengths):
        for name in ("nope", 0, None):
            with pytest.raises(ValueError, match=r"the fields are 'x', 't', .*'meta\.1'"):
                read(name)  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"field 'r'.*lengths\('r'\)"):
        dataset.column("r")
    with pytest.raises(ValueError, match="field 'm' has no lengths"):
        dataset.lengths("m")


def test_lengths_count_elements_and_bytes(packed: str) -> None:
    dataset = fastload.open(packed)
    assert dataset.lengths("r").tolist() == list(range(8))
    assert dataset.lengths("b").tolist() == list(range(8))
    assert dataset.lengths("t").tolist() == [len(text.encode()) for text in TEXTS]
    assert dataset.lengths("x").tolist() == [3] * 8
    assert dataset.lengths("r").dtype == np.int64


def test_a_column_reads_no_other_field(tmp_path: Path) -> None:
    fastload.pack({"x": X}, tmp_path / "p", workers=1)
    fastload.add_column(tmp_path / "p", {"y": Y})
    dataset = fastload.open(tmp_path / "p")
    next(tmp_path.glob("p/shard-*")).unlink()
    np.testing.assert_array_equal(dataset.column("y"), Y)
    with pytest.raises(FileNotFoundError):
        dataset.column("x")


# --- damage


def test_a_file_that_was_cut_short_is_an_error_and_no_crash(tmp_path: Path) -> None:
    large = np.zeros((4096, 8))
    np.save(tmp_path / "x.npy", large)
    for io in ("mmap", "pread"):
        dataset = fastload.open(tmp_path / "x.npy", io=io)
        assert dataset.column("data").shape == large.shape
        os.truncate(tmp_path / "x.npy", 4096)
        with pytest.raises((FormatError, OSError), match=r"x\.npy"):
            dataset.column("data")
        np.save(tmp_path / "x.npy", large)


def test_damaged_blocks_are_found_where_verify_asks_for_it(packed: str) -> None:
    shard = os.path.join(packed, "shard-000000.safetensors")
    content = bytearray(Path(shard).read_bytes())
    at = content.index(X.tobytes())
    content[at] ^= 1
    Path(shard).write_bytes(content)
    dataset = fastload.open(packed, verify="lazy")
    for name in ("x", "t"):  # one block holds both
        with pytest.raises(FormatError, match="shard-000000"):
            dataset.column(name)
    assert fastload.open(packed).column("t") == TEXTS


# --- rows

ROWS: list[Any] = [
    slice(None),
    slice(2, 5),
    slice(-3, None),
    slice(None, None, -2),
    slice(5, 2),
    [0, 3, -1, 3],
    [],
    range(2, 4),
    np.array([1, -8]),
    np.array([7], "u1"),
    torch.tensor([2, 1]),
    torch.tensor([2]),
    MASK,
    MASK.tolist(),
    torch.from_numpy(MASK),
]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_rows_are_those_that_numpy_selects(tmp_path: Path, packed: str, rows: Any) -> None:
    np.save(tmp_path / "x.npy", X)
    want = (
        []
        if isinstance(rows, list) and not rows
        else X[np.asarray(rows)]
        if not isinstance(rows, slice)
        else X[rows]
    )
    for dataset in (fastload.open(packed), ArrayDataset({"x": X})):
        got = dataset[rows]
        assert type(got) is list
        assert [sample["x"].tolist() for sample in got] == [row.tolist() for row in want]
    bare = fastload.open(tmp_path / "x.npy")[rows]
    assert [sample.tolist() for sample in bare] == [row.tolist() for row in want]
    subset = Subset(fastload.open(packed), range(8))  # type: ignore[arg-type]
    if isinstance(rows, list) and MASK.tolist() != rows:
        assert [s["x"].tolist() for s in subset[rows]] == [row.tolist() for row in want]  # type: ignore[index]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([8], IndexError),
        ([-9], IndexError),
        (np.array([0, 8]), IndexError),
        ([True, False], IndexError),
        (np.ones(9, bool), IndexError),
        ([True, 1], TypeError),
        (np.zeros((2, 2), int), TypeError),
        (np.zeros(2), TypeError),
        (["0"], TypeError),
        (slice("a"), TypeError),
        ((0, 1), TypeError),
    ],
    ids=str,
)
def test_rows_that_do_not_exist_are_refused(rows: Any, error: type[Exception]) -> None:
    datasets: list[Any] = [ArrayDataset(X), Mixture([ArrayDataset(X)])]
    for dataset in datasets:
        if isinstance(dataset, Mixture) and error is IndexError and not np.any(np.array(rows) < 0):
            continue  # indices beyond its end are those of the next epochs
        with pytest.raises(error):
            dataset[rows]


def test_a_mixture_has_the_rows_and_columns_of_its_first_epoch(packed: str) -> None:
    other = fastload.open(packed)
    mixture = Mixture([other, fastload.open(packed)], [1, 2], seed=3)
    samples = list(mixture)
    assert [s["t"] for s in mixture[2:9:3]] == [s["t"] for s in samples[2:9:3]]
    assert mixture.column("t") == [sample["t"] for sample in samples]
    assert mixture.lengths("r").tolist() == [len(sample["r"]) for sample in samples]
    np.testing.assert_array_equal(mixture.column("x"), np.stack([s["x"] for s in samples]))
    halves = torch.arange(3).bfloat16()
    tensors = Mixture([ArrayDataset(halves), ArrayDataset(halves)])
    assert tensors.column("data").tolist() == [float(sample) for sample in tensors]
    with pytest.raises(TypeError, match="dataset 1 is a list"):
        Mixture([ArrayDataset(Y), list(Y)]).column("data")
    with pytest.raises(ValueError, match="field 'data' is"):
        Mixture([ArrayDataset(Y), ArrayDataset(X)]).column("data")
