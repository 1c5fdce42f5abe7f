"""Datasets are complete map-style datasets, whose samples collate as torch's own would."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import NUMPY_DTYPES, TORCH_ONLY, values
from torch.utils.data import DataLoader, default_collate, default_convert

import fastload
from fastload import ArrayDataset, FormatError
from fastload.datasets.file_datasets import FileDataset

Pair = namedtuple("Pair", "a b")


# --- indexing


def test_indices_mean_what_they_mean_for_a_list(tmp_path: Path) -> None:
    for number, rows in enumerate((3, 2)):
        np.save(tmp_path / f"s{number}.npy", np.arange(rows) + 10 * number)
    dataset = fastload.open(tmp_path)
    want = [0, 1, 2, 10, 11]
    for index in range(-5, 5):
        assert dataset[index] == want[index]
    for same in (np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)):
        assert dataset[same] == 10  # type: ignore[index]
    assert dataset[True] == 1
    for index in (5, -6, 2**63, -(2**63) - 1, 2**200):
        with pytest.raises(IndexError, match=f"index {index} is out of range for 5 samples"):
            dataset[index]
        with pytest.raises(IndexError):
            dataset.__getitems__([0, index])
    for wrong in (2.0, "1", None, (0, 1), np.zeros(2), [0.0], {0}):
        with pytest.raises(TypeError, match="integers or booleans"):
            dataset[wrong]  # type: ignore[index]
    assert [int(sample) for sample in dataset] == want  # type: ignore[attr-defined]


def test_many_samples_at_once_are_a_list_of_the_same_samples() -> None:
    dataset = ArrayDataset({"x": np.arange(12.0).reshape(4, 3), "y": np.arange(4)})
    indices = [3, 0, 0, -1, 2]
    got = dataset.__getitems__(indices)
    assert isinstance(got, list)
    for sample, index in zip(got, indices, strict=True):
        assert sample.keys() == {"x", "y"}
        assert sample["x"].tolist() == dataset[index]["x"].tolist()
        assert sample["y"].shape == ()
        assert sample["y"] == dataset[index]["y"]
    assert dataset.__getitems__([]) == []
    assert len(dataset.__getitems__(np.array([1, 2]))) == 2  # type: ignore[arg-type]


def test_samples_are_the_callers_own() -> None:
    array = np.zeros((4, 3))
    dataset = ArrayDataset(array)
    for sample in (dataset[1], dataset.__getitems__([1])[0]):
        assert sample.flags.writeable
        sample += 1
    assert dataset[1].flags.owndata
    assert array.sum() == 0
    assert dataset[1].sum() == 0


def test_empty_datasets_have_no_samples() -> None:
    dataset = ArrayDataset(np.zeros((0, 3)))
    assert len(dataset) == 0
    assert list(DataLoader(dataset, batch_size=2)) == []  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="0 samples"):
        dataset[0]


def test_fields_without_bytes_are_delivered(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 0), "f4"))
    dataset = fastload.open(tmp_path / "x.npy")
    assert len(dataset) == 4
    assert dataset[3].shape == (0,)
    assert default_collate(dataset.__getitems__([0, 1])).shape == (2, 0)


# --- what the samples collate to


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (1,), (2, 0), (2, 3)], ids=str)
def test_numpy_samples_collate_to_the_dtype_of_the_array(
    dtype: str, shape: tuple[int, ...]
) -> None:
    array = np.arange(4 * np.prod(shape, dtype=int)).astype(dtype).reshape(4, *shape)
    dataset = ArrayDataset(array)
    for samples in ([dataset[1], dataset[-1]], dataset.__getitems__([1, -1])):
        batch = default_collate(samples)
        assert batch.dtype == getattr(torch, dtype)
        assert batch.shape == (2, *shape)
        np.testing.assert_array_equal(batch.numpy(), array[[1, -1]])
        assert all(type(sample) is np.ndarray for sample in samples)
    assert default_convert(dataset[2]).dtype == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, *TORCH_ONLY])
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_samples_of_tensors_collate_as_the_tensors_rows(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(12).reshape(4, 3)[:, : 3 if shape else 1].to(getattr(torch, dtype))
    tensor = tensor.reshape(4, *shape).contiguous()
    dataset = ArrayDataset(tensor)
    got = default_collate([dataset[3], dataset[0]])
    want = default_collate([tensor[3], tensor[0]])
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.reshape(-1).view(torch.uint8).tolist() == want.reshape(-1).view(torch.uint8).tolist()


def test_stored_booleans_are_zero_or_one_whatever_the_bytes(tmp_path: Path) -> None:
    odd = np.array([[0, 1], [2, 255]], np.uint8).view(bool)
    np.save(tmp_path / "x.npy", odd)
    for dataset in (ArrayDataset(odd), fastload.open(tmp_path / "x.npy")):
        assert dataset[1].view(np.uint8).tolist() == [1, 1]
        assert dataset.__getitems__([0])[0].view(np.uint8).tolist() == [0, 1]


def test_labels_are_exact_and_have_no_axis_of_their_own(tmp_path: Path) -> None:
    labels = np.array([-100, 2**53 + 1, -(2**63), 2**63 - 1])
    np.save(tmp_path / "y.npy", labels)
    dataset = fastload.open(tmp_path / "y.npy")
    batch = default_collate(dataset.__getitems__(range(4)))
    assert batch.dtype == torch.int64
    assert batch.tolist() == labels.tolist()


def test_samples_keep_their_containers() -> None:
    arrays = Pair(np.arange(3), OrderedDict(z=[np.arange(3) * 2], y=(np.arange(3) * 3,)))
    sample = ArrayDataset(arrays)[1]
    assert type(sample) is Pair
    assert type(sample.b) is OrderedDict
    assert list(sample.b) == ["z", "y"]
    assert type(sample.b["z"]) is list
    assert type(sample.b["y"]) is tuple
    assert (sample.a, sample.b["z"][0], sample.b["y"][0]) == (1, 2, 3)
    names = [field.name for field in ArrayDataset(arrays).fields]
    assert names == ["a", "b.z.0", "b.y.0"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_takes_them(tmp_path: Path, workers: int) -> None:
    np.save(tmp_path / "x.npy", np.arange(40.0).reshape(10, 4))
    data = ArrayDataset((tmp_path / "x.npy", np.arange(10, dtype="u8")))
    batches = list(DataLoader(data, batch_size=4, num_workers=workers))  # type: ignore[arg-type]
    assert [type(batch) for batch in batches] == [list] * 3
    assert torch.cat([batch[0] for batch in batches]).tolist() == np.load(data.arrays[0]).tolist()
    assert torch.cat([batch[1] for batch in batches]).tolist() == list(range(10))


# --- pickling and processes


def test_files_are_pickled_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((1 << 20, 4), "f4"))
    np.arange(6, dtype="u2").tofile("x.bin")
    datasets = [
        fastload.open("x.npy", io="pread"),
        fastload.open(["x.npy", "x.npy"]),
        fastload.open("x.bin", dtype=torch.uint16, shape=(-1, 2)),
        ArrayDataset(("x.npy", np.load("x.npy", mmap_mode="r"))),
        ArrayDataset(np.asarray(np.load("x.npy", mmap_mode="r"))[::2, 1:3], io="mmap"),
    ]
    monkeypatch.chdir("/")
    for dataset in datasets:
        pickled = pickle.dumps(dataset)
        assert len(pickled) < 10_000
        again = pickle.loads(pickled)
        assert type(again) is type(dataset)
        assert (len(again), again.io) == (len(dataset), dataset.io)
        assert again.fingerprint == dataset.fingerprint
        assert len(pickle.dumps(again)) < 10_000


def test_subclasses_are_unpickled_as_themselves(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    assert type(pickle.loads(pickle.dumps(Sub(tmp_path / "x.npy")))) is Sub
    assert type(copy.deepcopy(SubArray(np.arange(3)))) is SubArray


class Sub(FileDataset):
    pass


class SubArray(ArrayDataset):
    pass


def test_a_dataset_works_in_a_forked_child_after_use_here(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(8))
    context = multiprocessing.get_context("fork")
    for dataset in (fastload.open(tmp_path / "x.npy"), ArrayDataset(np.arange(8))):
        assert dataset[3] == 3
        here, there = context.Pipe()
        process = context.Process(target=lambda d=dataset, end=there: end.send(values(d)))
        process.start()
        assert here.poll(60)
        assert here.recv() == list(range(8))
        process.join(60)
        assert process.exitcode == 0
        assert dataset[4] == 4


def test_a_dataset_works_in_a_fresh_process(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    np.save(tmp_path / "x.npy", np.arange(8))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for data in (
        fastload.open(tmp_path / "x.npy"),
        ArrayDataset(np.arange(8)),
        ArrayDataset(mapped),
    ):
        (tmp_path / "pickled").write_bytes(pickle.dumps(data))
        code = """
import pickle
dataset = pickle.load(open("pickled", "rb"))
assert [int(sample) for sample in dataset] == list(range(8))
"""
        run_python(code)


def test_threads_share_a_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))
    dataset = fastload.open(tmp_path / "x.npy")
    wrong: list[int] = []

    def read(start: int) -> None:
        wrong.extend(i for i in range(start, 1000, 4) if dataset[i] != i)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- files that change, and limits of the machine


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_file_that_was_cut_after_opening_is_an_error_that_names_it(
    tmp_path: Path, io: str
) -> None:
    np.save(tmp_path / "x.npy", np.arange(1 << 16))
    dataset = fastload.open(tmp_path / "x.npy", io=io)
    os.truncate(tmp_path / "x.npy", 4096)
    with pytest.raises((FormatError, OSError), match=r"x\.npy"):
        dataset[60_000]


@pytest.mark.parametrize("how", ["in place", "by another"])
def test_a_file_that_was_replaced_after_opening_is_an_error_that_names_it(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((1000, 4), "float32"))
    dataset = fastload.open(path)
    if how == "by another":
        path.unlink()
    np.save(path, np.ones((2000, 1), "int64"))
    with pytest.raises(OSError, match=r"replaced after the dataset was opened.*x\.npy"):
        dataset[0]
    assert fastload.open(path)[0] == 1


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(10))
    dataset = fastload.open(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        dataset[0]


def test_a_file_that_vanished_is_an_error_that_names_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    dataset = fastload.open(tmp_path / "x.npy")
    (tmp_path / "x.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"x\.npy"):
        dataset[0]


def test_many_shards_need_few_file_descriptors(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    for number in range(300):
        np.save(tmp_path / f"s{number:03d}.npy", np.array([number]))
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import fastload
dataset = fastload.open(sys.argv[1])
assert [int(dataset[i]) for i in range(300)] == list(range(300))
assert [int(s) for s in dataset.__getitems__(range(300))] == list(range(300))
"""
    run_python(code, str(tmp_path))


def test_a_file_larger_than_the_memory_allowed_is_read(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(512 << 20)
    code = """
import resource, sys
import fastload, numpy
dataset = fastload.open(sys.argv[1], dtype="uint8", shape=1 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 300 << 20))
assert sum(int(dataset[i].sum()) for i in range(len(dataset))) == 0
"""
    run_python(code, str(tmp_path / "x.bin"))


def test_datasets_work_without_torch(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    code = """
import sys
import fastload
assert fastload.ArrayDataset({"x": "x.npy"})[2]["x"] == 2
assert fastload.open("x.npy").fingerprint
assert "torch" not in sys.modules
"""
    run_python(code)


def test_descriptions_show_place_length_and_fields(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2), "f4"))
    shown = repr(fastload.open(tmp_path / "x.npy"))
    assert shown == f"FileDataset({str(tmp_path / 'x.npy')!r}: 3 samples of data: float32 [2])"
    shown = repr(ArrayDataset({"x": np.zeros((3, 2), "f4"), "y": np.arange(3)}))
    assert shown == "ArrayDataset(3 samples of x: float32 [2], y: int64 [])"
