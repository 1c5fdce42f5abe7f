"""Arrays and tensors in memory are read in place, whatever their strides."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import values

from fastload import ArrayDataset, FastLoader, FormatError


def strided(kind: str) -> np.ndarray[Any, Any]:
    base = np.arange(240, dtype="i4")
    plain = base.reshape(10, 24)
    return {
        "plain": plain,
        "every other row": plain[::2],
        "left columns": plain[:, :5],
        "one column": plain[:, 3],
        "one row, odd stride": plain[:, ::2][:1],
        "sliding windows": np.lib.stride_tricks.sliding_window_view(base, 8),
        "broadcast": np.broadcast_to(base[:8], (5, 8)),
        "rows backwards": plain[::-1],
        "columns backwards": plain[:, ::-1],
        "every other column": plain[:, ::2],
        "Fortran": np.asfortranarray(plain),
        "transposed": base.reshape(4, 6, 10).transpose(2, 0, 1),
        "inner transposed": base.reshape(10, 4, 6).transpose(0, 2, 1),
        "big-endian": plain.astype(">i4"),
        "read-only": np.frombuffer(base.tobytes(), "i4").reshape(10, 24),
        "unaligned": np.frombuffer(b"\0" + base.tobytes(), "u1")[1:].view("i4").reshape(10, 24),
    }[kind]


IN_PLACE = ["plain", "every other row", "left columns", "one column", "sliding windows"]
IN_PLACE += ["broadcast", "read-only", "unaligned", "inner transposed", "one row, odd stride"]
IN_PLACE += ["rows backwards", "columns backwards", "every other column", "Fortran", "transposed"]
COPIED = ["big-endian"]


@pytest.mark.parametrize("kind", [*IN_PLACE, *COPIED])
def test_arrays_are_read_whatever_their_strides(kind: str) -> None:
    array = strided(kind)
    want = np.asarray(array).tolist()
    dataset = ArrayDataset(array)
    assert values(dataset) == want
    assert [sample.tolist() for sample in dataset.__getitems__(range(len(array)))] == want
    assert dataset[0].dtype == np.int32
    assert values(pickle.loads(pickle.dumps(dataset))) == want


@pytest.mark.parametrize("kind", [*IN_PLACE, *COPIED])
def test_only_big_endian_arrays_are_copied(kind: str) -> None:
    array = strided(kind)
    assert np.shares_memory(ArrayDataset(array).arrays, array) == (kind in IN_PLACE)


def test_later_writes_to_an_array_are_seen() -> None:
    array, tensor = np.zeros((4, 2)), torch.zeros(4, 2)
    dataset = ArrayDataset((array, tensor))
    array[1] = 7
    tensor[1] = 8
    assert [column.tolist() for column in dataset[1]] == [[7, 7], [8, 8]]


def test_arrays_stay_alive_with_the_dataset() -> None:
    dataset = ArrayDataset(np.arange(1 << 16).reshape(-1, 2) + 0)
    junk = [np.zeros(1 << 16) for _ in range(20)]
    assert dataset[-1].tolist() == [65534, 65535]
    assert len(junk) == 20


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24).reshape(4, 6)[:, ::2],
        torch.arange(24).reshape(6, 4).T,
        torch.arange(24, dtype=torch.bfloat16).reshape(6, 4).T,
        torch.arange(4).expand(3, 4),
        torch.zeros(0, 3),
    ],
    ids=["columns", "transposed", "bfloat16", "expanded", "empty"],
)
def test_tensors_are_read_whatever_their_strides(tensor: torch.Tensor) -> None:
    assert values(ArrayDataset(tensor)) == tensor.tolist()


REFUSED_TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "gradient": lambda: torch.zeros(3, requires_grad=True),
    "sparse": lambda: torch.zeros(3, 3).to_sparse(),
    "meta": lambda: torch.zeros(3, device="meta"),
    "conjugated": lambda: torch.zeros(3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8),
    "complex32": lambda: torch.zeros(3, dtype=torch.complex32),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED_TENSORS)
def test_tensors_that_are_not_plain_are_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="field 'x': only plain CPU tensors"):
        ArrayDataset({"x": REFUSED_TENSORS[kind]()})


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a"], object),
        np.array(["ab"]),
        np.array(["2024-01-01"], "M8[D]"),
        np.zeros(2, "g"),
        np.zeros(2, [("k", "i4")]),
        np.ma.masked_array(np.arange(2), [0, 1]),
        3,
        None,
        [1, 2],
        {"a": 1.5},
        torch.float32,
    ],
    ids=str,
)
def test_what_is_no_array_of_plain_numbers_is_refused(array: Any) -> None:
    with pytest.raises(TypeError, match="field '"):
        ArrayDataset({"x": array})


def test_arrays_without_a_sample_axis_or_of_unequal_length_are_refused() -> None:
    for scalar in (np.array(3), torch.tensor(3)):
        with pytest.raises(ValueError, match=r"field 'x': .*no sample axis"):
            ArrayDataset({"x": scalar})
    with pytest.raises(ValueError, match=r"'x' has 3 samples, 'y\.0' has 4"):
        ArrayDataset({"x": np.zeros(3), "y": (np.zeros(4),)})
    for nothing in ({}, (), [], {"x": []}):
        with pytest.raises(ValueError, match="at least one array"):
            ArrayDataset(nothing)
    with pytest.raises(ValueError, match="io must be one of auto, mmap, pread, not 'direct'"):
        ArrayDataset(np.zeros(3), io="direct")


def test_paths_of_npy_files_and_folders_stand_for_their_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(10.0).reshape(5, 2))
    os.mkdir("y")
    np.save("y/1.npy", np.arange(3))
    np.save("y/2.npy", np.arange(3, 5))
    dataset = ArrayDataset({"x": "x.npy", "y": Path("y"), "z": np.arange(5), "b": b"x.npy"})
    assert [field.name for field in dataset.fields] == ["x", "z", "b", "y"]
    assert dataset.arrays["x"] == str(tmp_path / "x.npy")
    monkeypatch.chdir("/")
    for row in range(5):
        sample = dataset[row]
        assert list(sample) == ["x", "y", "z", "b"]
        assert (sample["y"], sample["z"]) == (row, row)
        assert sample["x"].tolist() == sample["b"].tolist() == [2.0 * row, 2.0 * row + 1]
    with pytest.raises(FormatError, match=r"x\.bin"):
        (tmp_path / "x.bin").write_bytes(bytes(200))
        ArrayDataset(tmp_path / "x.bin")


def test_arrays_are_pickled_by_value() -> None:
    array = np.arange(12).reshape(4, 3)
    again = pickle.loads(pickle.dumps(ArrayDataset({"x": array, "t": torch.arange(4)})))
    array[:] = 0
    assert again[1]["x"].tolist() == [3, 4, 5]
    assert again[1]["t"] == 1


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("view", ["whole", "rows", "column", "reversed", "later"])
def test_memmaps_are_pickled_with_the_values_they_show(
    tmp_path: Path, mode: str, view: str
) -> None:
    np.save(tmp_path / "x.npy", np.arange(24_000, dtype="i4").reshape(6000, 4))
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    if mode != "r":
        mapped[5] = -1
    shown = {
        "whole": mapped,
        "rows": mapped[3:5000:7],
        "column": mapped[:, 2],
        "reversed": mapped[::-1],
        "later": mapped[5000:],
    }[view]
    pickled = pickle.dumps(ArrayDataset(shown))
    by_path = mode != "c"
    assert (len(pickled) < 1000) == by_path
    assert values(pickle.loads(pickled)) == shown.tolist()


def test_memmaps_without_their_file_are_pickled_by_value(tmp_path: Path) -> None:
    np.arange(100).tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", "i8", "r", offset=8, shape=(9, 11))
    dataset = ArrayDataset(mapped)
    assert values(pickle.loads(pickle.dumps(dataset))) == mapped.tolist()
    (tmp_path / "x.bin").unlink()
    assert values(pickle.loads(pickle.dumps(dataset))) == mapped.tolist()
    assert len(pickle.loads(pickle.dumps(ArrayDataset(mapped[:0])))) == 0


@pytest.mark.parametrize("how", ["share_memory_", "pickle"])
def test_tensors_that_move_to_shared_memory_are_followed(how: str) -> None:
    tensor = torch.arange(1_000_000)
    dataset = ArrayDataset({"x": tensor, "y": tensor.to(torch.bfloat16)})
    assert dataset[999_999]["x"] == 999_999
    if how == "share_memory_":
        tensor.share_memory_()
    else:  # as torch's worker processes are sent their dataset
        clone = pickle.loads(ForkingPickler.dumps(dataset))
        assert clone[7]["x"] == 7
        assert clone.arrays["y"].dtype is torch.bfloat16
        assert not tensor.is_shared()
    assert dataset[999_999]["x"] == 999_999
    assert next(iter(FastLoader(dataset, 3)))["x"].tolist() == [0, 1, 2]
    assert dataset.fingerprint == ArrayDataset(dataset.arrays).fingerprint


class Scaled(ArrayDataset):
    """A dataset of a user, with arguments and attributes of its own."""

    def __init__(self, rows: int, scale: int) -> None:
        super().__init__(np.arange(rows))
        self.scale = scale


def test_subclasses_are_pickled_with_their_attributes() -> None:
    clone = pickle.loads(pickle.dumps(Scaled(5, 2)))
    assert (type(clone), clone.scale, len(clone), clone[4]) == (Scaled, 2, 5, 4)


@pytest.mark.parametrize("key", [("a", "b"), None, 1.5, True, np.str_("x")])
def test_any_key_has_a_fingerprint(key: Any) -> None:
    dataset = ArrayDataset({key: np.arange(4)})
    assert dataset.fingerprint == ArrayDataset({key: np.arange(4)}).fingerprint
    assert dataset.fingerprint != ArrayDataset({"other": np.arange(4)}).fingerprint
    assert FastLoader(dataset, 2).state_dict()["fingerprint"] == dataset.fingerprint
