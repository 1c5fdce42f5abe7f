"""Raw files are read in place, or refused at open with a message that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import NUMPY_DTYPES, all_samples, numbers

import fastload
from fastload import FormatError


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_raw_samples_are_the_rows_of_numpy_fromfile(tmp_path: Path, dtype: str) -> None:
    array = numbers(dtype, 12).reshape(4, 3)
    array.tofile(tmp_path / "x.bin")
    for spelled in (dtype, np.dtype(dtype), np.dtype(dtype).type, getattr(torch, dtype)):
        assert all_samples(tmp_path / "x.bin", dtype=spelled, shape=(3,)) == array.tolist()


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        ((), (12,)),
        (-1, (12,)),
        ((-1,), (12,)),
        (3, (4, 3)),
        ((-1, 3), (4, 3)),
        ([2, 3], (2, 2, 3)),
        (np.int64(12), (1, 12)),
    ],
    ids=repr,
)
def test_the_shape_of_a_raw_sample_may_lead_with_minus_one(
    tmp_path: Path, shape: Any, want: tuple[int, ...]
) -> None:
    array = np.arange(12, dtype="<u2")
    array.tofile(tmp_path / "x.bin")
    got = all_samples(tmp_path / "x.bin", dtype="uint16", shape=shape)
    assert got == array.reshape(want).tolist()


def test_a_raw_size_that_is_no_whole_number_of_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(np.arange(10, dtype="<f4").tobytes() + b"\1\2\3")
    expected = r"x\.bin: 43 bytes is not a multiple of 16.*float32 \[4\]: 11 bytes are left over"
    with pytest.raises(FormatError, match=expected):
        fastload.open(tmp_path / "x.bin", dtype="float32", shape=4)


def test_an_empty_raw_file_is_an_empty_dataset(tmp_path: Path) -> None:
    (tmp_path / "x.bin").touch()
    assert all_samples(tmp_path / "x.bin", dtype="uint8", shape=(3, 3)) == []


def test_raw_shards_in_a_folder_or_a_sequence(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        np.full(2, number, "u2").tofile(tmp_path / f"t{number}.bin")
    assert all_samples(tmp_path, dtype="uint16", shape=2) == [[1, 1], [2, 2], [10, 10]]
    files = [tmp_path / "t10.bin", tmp_path / "t1.bin"]
    assert all_samples(files, dtype="uint16", shape=()) == [10, 10, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            r"needs dtype= and shape= \(--dtype, --shape\); .*`fastload pack` converts .*, "
            "TokenDataset reads",
        ),
        ({"dtype": "uint8"}, "needs dtype= and shape="),
        ({"shape": 3}, "needs dtype= and shape="),
        ({"dtype": ">i4", "shape": 3}, "big-endian.*fastload pack"),
        ({"dtype": "object", "shape": 3}, "not supported"),
        ({"dtype": "U4", "shape": 3}, "not supported"),
        ({"dtype": "longdouble", "shape": 3}, "not supported"),
        (
            {"dtype": "bfloat17", "shape": 3},
            "'bfloat17' is not supported; the dtypes are bf",
        ),
        ({"dtype": "uint8", "shape": (3, 0)}, "no bytes"),
        ({"dtype": "uint8", "shape": (3, -1)}, "negative"),
        ({"dtype": "uint8", "shape": (2**40, 2**40)}, "too large"),
        ({"dtype": "uint8", "shape": 3.0}, "integers"),
        ({"dtype": "uint8", "shape": (True,)}, "integers"),
        ({"dtype": "uint8", "shape": "3"}, "integers"),
    ],
    ids=repr,
)
def test_raw_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(12))
    with pytest.raises(ValueError, match=message):
        fastload.open(tmp_path / "x.bin", **options)


def test_raw_options_are_refused_for_files_that_describe_themselves(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(ValueError, match=r"x\.npy.* is npy"):
        fastload.open(tmp_path / "x.npy", dtype="int64", shape=())


def test_offsets_beyond_32_bits_are_exact(tmp_path: Path) -> None:
    size = 5 << 30
    places = ((1 << 31) - 2, (1 << 32) - 2, size - 4)
    path = tmp_path / "big.bin"
    with open(path, "wb") as file:
        file.truncate(size)
        for place in places:
            file.seek(place)
            file.write(b"\1\2\3\4")
    single = fastload.open(path, dtype="uint8", shape=())
    assert len(single) == size
    for place in places:
        assert [single[place + k].item() for k in range(-1, 4)][1:] == [1, 2, 3, 4]
    four = fastload.open(path, dtype="uint8", shape=4)
    assert four[(1 << 29) - 1].tolist() == [0, 0, 1, 2]
    assert four[1 << 29].tolist() == [3, 4, 0, 0]
    assert four[(1 << 30) - 1].tolist() == [0, 0, 1, 2]
    assert four[size // 4 - 1].tolist() == four[-1].tolist() == [1, 2, 3, 4]


def test_a_dtype_that_torch_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.arange(6, dtype=np.uint8).tofile(tmp_path / "a.raw")
    data = fastload.open(tmp_path / "a.raw", dtype="float8_e8m0fnu", shape=(3,))
    monkeypatch.delattr(torch, "float8_e8m0fnu", raising=False)  # torch 2.7 brought it
    for use in (
        lambda: data[0],
        lambda: list(fastload.FastLoader(data, 2)),
        lambda: list(fastload.FastLoader(data, None, num_workers=0)),
    ):
        with pytest.raises(ValueError, match=r"torch [0-9.+a-z]* has no float8_e8m0fnu"):
            use()
    assert data.fields[0].dtype == "float8_e8m0fnu"
