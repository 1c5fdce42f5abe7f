"""TokenDataset: windows and documents through the dataset, FastLoader and DataLoader."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_files import llmc_file, megatron_index, write_megatron
from torch.utils.data import ConcatDataset, DataLoader, Subset

import fastload
from fastload import FastLoader, FormatError, PadTo, TokenDataset
from fastload.formats.tokens import DTYPES
from fastload.loader.native_iterator import _NativeIterator


def raw(path: Path, count: int, dtype: str = "uint16") -> Path:
    np.arange(count, dtype=dtype).tofile(path)
    return path


def windows(count: int, seq_len: int, stride: int) -> list[tuple[list[int], list[int]]]:
    starts = range(0, max(0, count - seq_len), stride)
    return [([*range(k, k + seq_len)], [*range(k + 1, k + seq_len + 1)]) for k in starts]


def lists(samples: Any) -> Any:
    return [(x.tolist(), y.tolist()) for x, y in samples]


# --- windows


def test_a_sample_is_a_window_and_the_one_behind_it(tmp_path: Path) -> None:
    dataset = TokenDataset(raw(tmp_path / "t.bin", 10), 4)
    x, y = dataset[1]
    assert (x.tolist(), y.tolist()) == ([4, 5, 6, 7], [5, 6, 7, 8])
    assert x.dtype == y.dtype == np.int64
    x += 1  # the caller's own
    assert dataset[1][0].tolist() == [4, 5, 6, 7]
    assert dataset[-1][0].tolist() == [4, 5, 6, 7]
    assert (dataset.seq_len, dataset.stride, dataset.dtype) == (4, 4, "uint16")
    whole = TokenDataset(tmp_path / "t.bin", 4, targets=False)
    assert whole[1].tolist() == [4, 5, 6, 7, 8]
    assert "2 samples of 0: int64 [4], 1: int64 [4]" in repr(dataset)


@pytest.mark.parametrize("stride", [None, 1, 2, 5])
def test_the_last_window_ends_with_the_last_token(tmp_path: Path, stride: int | None) -> None:
    for count in range(14):
        dataset = TokenDataset(raw(tmp_path / "t.bin", count), 4, stride=stride)
        want = windows(count, 4, stride or 4)
        assert len(dataset) == len(want) == max(0, (count - 1 - 4) // (stride or 4) + 1)
        assert lists(dataset) == want
        assert lists(dataset.__getitems__(range(len(want)))) == want


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from(DTYPES),
    st.booleans(),
)
def test_windows_of_several_files(
    tmp_path_factory: Any, counts: list[int], seq_len: int, stride: int, dtype: str, targets: bool
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    want: list[Any] = []
    for number, count in enumerate(counts):
        raw(folder / f"{number}.bin", count, dtype)
        want += windows(count, seq_len, stride)
    dataset = TokenDataset(folder, seq_len, stride=stride, dtype=dtype, targets=targets)
    with contextlib.nullcontext() if want else pytest.warns(UserWarning, match="no batches"):
        got = list(FastLoader(dataset, 3))
    if targets:
        assert lists(s for x, y in got for s in zip(x, y, strict=True)) == want
    else:
        assert [w.tolist() for batch in got for w in batch] == [[*x, y[-1]] for x, y in want]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_as_int64_unchanged(tmp_path: Path, dtype: str) -> None:
    limits = np.iinfo(dtype)
    ids = np.array([limits.min, limits.max, 0, 1, limits.max, limits.min] * 50, dtype)
    ids.tofile(tmp_path / "t.bin")
    np.save(tmp_path / "t.npy", ids)
    for path, given_dtype in ((tmp_path / "t.bin", dtype), (tmp_path / "t.npy", None)):
        dataset = TokenDataset(path, 7, dtype=given_dtype)
        for workers in (0, 2):
            for x, y in FastLoader(dataset, 5, num_workers=workers):
                assert x.dtype is y.dtype is torch.int64
        x = torch.cat([x for x, _ in FastLoader(dataset, 5)])
        assert x.flatten().tolist() == ids[: x.numel()].tolist()


def test_batches_are_those_of_dataloader(tmp_path: Path) -> None:
    dataset = TokenDataset(raw(tmp_path / "t.bin", 200), 8, stride=3)
    for options in ({}, {"shuffle": True}, {"drop_last": True}):
        torch.manual_seed(1)
        loader = FastLoader(dataset, 6, num_workers=2, **options)
        assert type(iter(loader)) is _NativeIterator
        torch.manual_seed(1)
        got = list(loader)
        torch.manual_seed(1)
        want = list(DataLoader(dataset, 6, **options))
        assert [type(batch) for batch in got] == [type(batch) for batch in want]
        assert [lists([batch]) for batch in got] == [lists([batch]) for batch in want]
        for x, y in got:
            for tensor in (x, y):
                assert tensor.is_contiguous()
                assert tensor.untyped_storage().nbytes() == tensor.numel() * 8


def test_the_switch_from_nanogpt(tmp_path: Path) -> None:
    dataset = TokenDataset(raw(tmp_path / "train.bin", 200), 16)
    loader = FastLoader(dataset, batch_size=4, shuffle=True, seed=0)
    seen = []
    for x, y in loader:
        assert torch.equal(x[:, 1:], y[:, :-1])
        seen += x.flatten().tolist()
    assert sorted(seen) == list(range(12 * 16))
    every = TokenDataset(tmp_path / "train.bin", 16, stride=1)
    assert len(every) == 200 - 16  # where get_batch draws from


def test_subsets_and_concatenations_stay_native(tmp_path: Path) -> None:
    dataset = TokenDataset(raw(tmp_path / "t.bin", 50), 4)
    other = TokenDataset(raw(tmp_path / "u.bin", 9), 4)
    for joined in (Subset(dataset, [3, -1, 0]), ConcatDataset([dataset, other])):
        loader = FastLoader(joined, 4)
        assert type(iter(loader)) is _NativeIterator
        assert [lists([b]) for b in loader] == [lists([b]) for b in DataLoader(joined, 4)]
    wide = TokenDataset(raw(tmp_path / "w.bin", 9, "uint32"), 4, dtype="uint32")
    mixed = ConcatDataset([dataset, wide])  # only torch joins those
    assert [lists([b]) for b in FastLoader(mixed, 4)] == [lists([b]) for b in DataLoader(mixed, 4)]


def test_other_layouts(tmp_path: Path) -> None:
    tokens = write_megatron(tmp_path / "m", [[[5, 6, 7]], [[8], []], [[9, 10]]], "int32")
    assert lists(TokenDataset(tmp_path / "m", 2)) == [([5, 6], [6, 7]), ([7, 8], [8, 9])]
    (tmp_path / "l.bin").write_bytes(llmc_file(tokens.astype("u2")))
    assert lists(TokenDataset(tmp_path / "l.bin", 2)) == lists(TokenDataset(tmp_path / "m.idx", 2))


def test_files_shorter_than_a_window(tmp_path: Path) -> None:
    for count in (0, 8):
        path = raw(tmp_path / f"{count}.bin", count)
        dataset = TokenDataset(path, 8)
        told = f"{count}.bin: file has {count} tokens, needs at least 9"
        with pytest.warns(UserWarning, match=f"there are no batches: .*{told}"):
            assert len(dataset) == len(list(FastLoader(dataset, 2))) == 0
        for options in ({"shuffle": True}, {"shuffle": True, "seed": 0}):
            with pytest.raises(ValueError, match=f"num_samples should be a positive.*{told}"):
                FastLoader(dataset, **options)
        with pytest.raises(IndexError, match=told):
            dataset[0]
    short = [tmp_path / "0.bin", tmp_path / "8.bin"]
    with pytest.raises(ValueError, match=r"8.bin: file has 8 tokens"):
        FastLoader(TokenDataset(short, 8), shuffle=True)
    fitting = TokenDataset([*short, raw(tmp_path / "9.bin", 9)], 8)
    assert len(list(FastLoader(fitting, shuffle=True))) == 1
    assert fitting.shortage is None


def test_indices(tmp_path: Path) -> None:
    dataset = TokenDataset(raw(tmp_path / "t.bin", 10), 4)
    for index in (2, -3, 2**70):
        with pytest.raises(IndexError, match="out of range for 2 samples"):
            dataset[index]
    with pytest.raises(TypeError):
        dataset["1"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "seq_len is needed"),
        ({"seq_len": 0}, "seq_len must be a positive integer, .*, not 0"),
        ({"seq_len": 4.0}, "seq_len must be a positive integer"),
        ({"seq_len": True}, "seq_len must be a positive integer"),
        ({"seq_len": 4, "stride": 0}, "stride must be a positive integer"),
        ({"seq_len": 4, "stride": -1}, "stride must be a positive integer"),
        ({"seq_len": 4, "dtype": "float32"}, "'float32' is not one of tokens: uint8"),
        ({"seq_len": 4, "io": "read"}, "io must be one of"),
        ({"seq_len": 2**64}, "seq_len must be a positive integer"),
        ({"seq_len": 4, "stride": 2**62}, "stride must be a positive integer"),
        ({"seq_len": 4, "documents": True}, "without seq_len and stride"),
        ({"documents": True}, r"t.bin does not say where documents begin: give their offsets"),
        ({"documents": [0, 3]}, "from 0 to the number of tokens, 10; they go from 0 to 3"),
        ({"documents": [1, 10]}, "they go from 1 to 10"),
        ({"documents": [0, 7, 3, 10]}, "must go upwards"),
        ({"documents": [0.0, 10.0]}, "must be integers from 0 to 10"),
        ({"documents": [[0, 10]]}, "must be integers from 0 to 10"),
        ({"documents": []}, "must be integers from 0 to 10"),
    ],
)
def test_bad_arguments(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TokenDataset(raw(tmp_path / "t.bin", 10), **options)


def test_a_wrong_dtype_for_the_size(tmp_path: Path) -> None:
    path = raw(tmp_path / "t.bin", 3)
    with pytest.raises(FormatError, match=r"6 bytes is not a multiple of 4, .*is dtype= right"):
        TokenDataset(path, 1, dtype="uint32")


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    dataset = TokenDataset(raw(tmp_path / "t.bin", 10_000), 100)
    (tmp_path / "t.bin").write_bytes(b"\0" * 1000)
    with pytest.raises((FormatError, OSError), match=r"t\.bin"):
        list(FastLoader(dataset, 4))


# --- documents


DOCUMENTS = [[1, 2, 3], [], [4], [5, 6, 7, 8], []]


def test_documents_of_a_megatron_index(tmp_path: Path) -> None:
    write_megatron(tmp_path / "m", [[document] for document in DOCUMENTS])
    dataset = TokenDataset(tmp_path / "m", documents=True)
    assert [sample["tokens"].tolist() for sample in dataset] == DOCUMENTS
    assert all(sample["tokens"].dtype == np.int64 for sample in dataset)
    loader = FastLoader(dataset, 5, transforms={"tokens": PadTo(2, -100)})
    [batch] = loader
    assert batch["tokens_lengths"].tolist() == [3, 0, 1, 4, 0]
    assert batch["tokens"][2].tolist() == [4, -100, -100, -100]
    assert (dataset.seq_len, dataset.stride) == (None, None)


def test_documents_by_their_offsets(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.bin", 8, "uint8")
    offsets = np.cumsum([0, *map(len, DOCUMENTS)])
    for documents in (offsets, offsets.tolist(), offsets.astype("u4"), torch.from_numpy(offsets)):
        dataset = TokenDataset(path, dtype="uint8", documents=documents)
        assert [len(sample["tokens"]) for sample in dataset] == [3, 0, 1, 4, 0]
    several = TokenDataset(
        [path, raw(tmp_path / "b.bin", 3, "uint8")], dtype="uint8", documents=[offsets, [0, 3]]
    )
    assert [sample["tokens"].tolist() for sample in several][2:] == [
        [3],
        [4, 5, 6, 7],
        [],
        [0, 1, 2],
    ]
    with pytest.raises(ValueError, match="documents are given for 1 files, but there are 2"):
        TokenDataset(tmp_path, dtype="uint8", documents=[[0, 3]])


def test_documents_are_windows_too(tmp_path: Path) -> None:
    write_megatron(tmp_path / "m", [[document] for document in DOCUMENTS])
    assert len(TokenDataset(tmp_path / "m", 3)) == 2  # windows pass over their ends


# --- pickles


def test_pickles_are_paths_and_options(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    path = raw(tmp_path / "t.bin", 100_000)
    for dataset in (
        TokenDataset(path, 8, stride=3, targets=False),
        TokenDataset([path], documents=[[0, 5, 100_000]]),
    ):
        data = pickle.dumps(dataset)
        assert len(data) < 1000
        again = pickle.loads(data)
        assert again.fingerprint == dataset.fingerprint
        assert repr(again) == repr(dataset)
    (tmp_path / "p").write_bytes(pickle.dumps(TokenDataset(path, 8)))
    run_python("import pickle; assert pickle.load(open('p', 'rb'))[1][0][0] == 8")


def test_workers_of_dataloader_read_it(tmp_path: Path) -> None:
    dataset = TokenDataset(raw(tmp_path / "t.bin", 100), 8)
    alone = list(DataLoader(dataset, 4))
    for method in ("fork", "spawn"):
        batches = list(DataLoader(dataset, 4, num_workers=1, multiprocessing_context=method))
        assert [lists([b]) for b in batches] == [lists([b]) for b in alone]


def test_fingerprints_tell_windows_apart(tmp_path: Path) -> None:
    path = raw(tmp_path / "t.bin", 100)
    made = [
        TokenDataset(path, 8),
        TokenDataset(path, 8, stride=1),
        TokenDataset(path, 9),
        TokenDataset(path, 8, targets=False),
        TokenDataset(path, 8, dtype="int16"),
        TokenDataset(path, documents=[0, 100]),
        TokenDataset(path, documents=[0, 50, 100]),
    ]
    assert len({dataset.fingerprint for dataset in made}) == len(made)


# --- vocabulary


@pytest.mark.parametrize("place", [0, 7, 99])
@pytest.mark.parametrize(("dtype", "bad"), [("u2", 50), ("i4", -1), ("i8", 2**40), ("u1", 50)])
def test_a_token_beyond_the_vocabulary_is_named_by_its_place(
    tmp_path: Path, dtype: str, bad: int, place: int
) -> None:
    tokens = np.arange(100).astype(dtype) % 50
    np.save(tmp_path / "good.npy", tokens)
    tokens[place] = bad
    np.save(tmp_path / "bad.npy", tokens)
    assert len(TokenDataset(tmp_path / "good.npy", 8, vocab_size=50)) == 12
    both = [tmp_path / "good.npy", tmp_path / "bad.npy"]
    said = rf"bad\.npy: token {place} \(byte {128 + place * tokens.itemsize}\) is {bad}, not in"
    with pytest.raises(FormatError, match=said):
        TokenDataset(both, 8, vocab_size=50)
    with pytest.raises(FormatError, match=said):
        TokenDataset(tmp_path / "bad.npy", documents=[0, 100], vocab_size=50)


def test_a_vocabulary_is_checked_once_and_travels_with_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.arange(100, dtype="u2").tofile(tmp_path / "t.bin")
    dataset = TokenDataset(tmp_path / "t.bin", 8, vocab_size=100)
    monkeypatch.setattr("fastload.datasets.token_dataset.check_vocabulary", None)
    assert pickle.loads(pickle.dumps(dataset)).vocab_size == 100
    for wrong in (0, -1, True, 2.5, "9"):
        with pytest.raises(ValueError, match="vocab_size must be a positive integer"):
            TokenDataset(tmp_path / "t.bin", 8, vocab_size=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["<u2", ">u2", "<i4", ">i4"])
def test_pack_compares_tokens_with_the_vocabulary(tmp_path: Path, dtype: str) -> None:
    tokens = (np.arange(100) % 50).astype(dtype)
    tokens.tofile(tmp_path / "good.bin")
    tokens[77] = 50
    tokens.tofile(tmp_path / "bad.bin")
    options = {"dtype": dtype.replace("<", ""), "shape": 10, "vocab_size": 50}
    fastload.pack(tmp_path / "good.bin", tmp_path / "out", workers=1, **options)
    assert len(fastload.open(tmp_path / "out")) == 10
    with pytest.raises(FormatError, match=r"bad\.bin: token 77 \(byte \d+\) is 50, not in"):
        fastload.pack(tmp_path / "bad.bin", tmp_path / "other", workers=1, **options)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ValueError, match="vocab_size is for tokens"):
        fastload.pack(tmp_path / "good.bin", tmp_path / "x", **{**options, "dtype": "float16"})
    with pytest.raises(ValueError, match="vocab_size"):
        fastload.pack(tmp_path / "good.bin", tmp_path / "x", **{**options, "vocab_size": -1})


def test_pack_compares_documents_with_the_vocabulary(tmp_path: Path) -> None:
    np.arange(10, dtype="u2").tofile(tmp_path / "a.bin")
    (tmp_path / "a.idx").write_bytes(megatron_index("uint16", [4, 6], range(3)))
    fastload.pack(tmp_path / "a.bin", tmp_path / "out", vocab_size=10, workers=1)
    with pytest.raises(FormatError, match=r"a\.bin: token 9 \(byte 18\) is 9, not in \[0, 9\)"):
        fastload.pack(tmp_path / "a.bin", tmp_path / "other", vocab_size=9, workers=1)
