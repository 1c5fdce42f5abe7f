"""`.npy` files are read in place, or refused at open with a message that says why."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import NUMPY_DTYPES, Array, all_samples, numbers

import fastload
from fastload import FormatError
from fastload.formats import npy
from fastload.formats.fields import Field


def write_npy(
    path: Path, array: Array, version: int = 1, pad: int = 0, shape: str = "", descr: str = ""
) -> None:
    """A `.npy` file with a header as numpy would never write it."""
    header = (
        f"{{'descr': '{descr or array.dtype.str}', 'fortran_order': False, "
        f"'shape': {shape or array.shape}, }}{' ' * pad}\n"
    ).encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    path.write_bytes(npy.MAGIC + bytes([version, 0]) + length + header + array.tobytes())


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_npy_samples_are_the_rows_numpy_loads(tmp_path: Path, dtype: str) -> None:
    array = numbers(dtype, 12).reshape(4, 3)
    np.save(tmp_path / "x.npy", array)
    dataset = fastload.open(tmp_path / "x.npy")
    assert len(dataset) == 4
    assert dataset.fields == (Field("data", dtype, (3,)),)
    for row in range(4):
        assert dataset[row].dtype == array.dtype
        np.testing.assert_array_equal(dataset[row], array[row])


@pytest.mark.parametrize("pad", range(9))
def test_npy_data_may_start_at_any_byte(tmp_path: Path, pad: int) -> None:
    array = np.arange(6, dtype="f8").reshape(3, 2)
    write_npy(tmp_path / "x.npy", array, pad=pad)
    assert all_samples(tmp_path / "x.npy") == array.tolist()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_npy_versions_one_to_three_are_read(tmp_path: Path, version: int) -> None:
    array = np.arange(6, dtype="f8").reshape(3, 2)
    write_npy(tmp_path / "x.npy", array, version, pad=9000)
    assert all_samples(tmp_path / "x.npy") == array.tolist()


def test_npy_version_four_is_refused(tmp_path: Path) -> None:
    write_npy(tmp_path / "x.npy", np.arange(3), 4)
    with pytest.raises(FormatError, match=r"x\.npy: \.npy version 4\.0 is not known"):
        fastload.open(tmp_path / "x.npy")


@pytest.mark.filterwarnings("ignore:Reading .* required additional header parsing")
def test_npy_files_that_numpy_ships_are_read_or_refused() -> None:
    folder = Path(np.__file__).parent / "lib" / "tests" / "data"
    for name in ("win64python2.npy", "python3.npy"):
        assert all_samples(folder / name) == np.load(folder / name).tolist()
    for name in ("py2-objarr.npy", "py3-objarr.npy"):
        with pytest.raises(FormatError, match=rf"{name}: descr '\|?O"):
            fastload.open(folder / name)


def test_long_integers_of_python_2_are_read(tmp_path: Path) -> None:
    write_npy(tmp_path / "x.npy", np.arange(6.0).reshape(2, 3), shape="(2L, 3L)")
    assert all_samples(tmp_path / "x.npy") == [[0, 1, 2], [3, 4, 5]]


class Boom:
    def __reduce__(self) -> Any:
        return open, ("OWNED", "w")


REFUSED_ARRAYS: dict[str, Any] = {
    "object": np.array([Boom(), 1], object),
    "string": np.array(["ab", "c"]),
    "bytes": np.array([b"ab", b"c"]),
    "date": np.array(["2024-01-01"], "M8[D]"),
    "duration": np.array([3], "m8[s]"),
    "longdouble": np.zeros(2, "g"),
    "longcomplex": np.zeros(2, "G"),
    "record": np.array([(1, 2.5)], [("k", "i4"), ("v", "f8")]),
    "void": np.zeros(2, "V2"),
}


@pytest.mark.parametrize("kind", REFUSED_ARRAYS)
def test_npy_of_no_plain_numbers_is_refused_and_nothing_is_unpickled(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    array = REFUSED_ARRAYS[kind]
    np.save("x.npy", array, allow_pickle=True)
    descr = re.escape(repr(np.lib.format.dtype_to_descr(array.dtype)))
    with pytest.raises(FormatError, match=rf"x\.npy: descr {descr}"):
        fastload.open("x.npy")
    assert not Path("OWNED").exists()


def test_big_endian_npy_is_refused_with_advice(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([1, 256, -2], ">i4"))
    with pytest.raises(FormatError, match=r"x\.npy: '>i4' is big-endian.*fastload pack"):
        fastload.open(tmp_path / "x.npy")


def test_fortran_npy_is_refused_with_advice(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(np.zeros((4, 3, 2))))
    with pytest.raises(FormatError, match=r"x\.npy: .*Fortran order.*fastload pack"):
        fastload.open(tmp_path / "x.npy")


@pytest.mark.parametrize("shape", [(4,), (4, 1), (1, 4), (1, 4, 1), (0, 3, 2), (3, 0, 2)])
def test_arrays_that_lie_in_both_orders_are_read_whatever_the_flag_says(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    array = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    header = str({"descr": "<i4", "fortran_order": True, "shape": shape}).encode() + b"\n"
    content = npy.MAGIC + b"\1\0" + struct.pack("<H", len(header)) + header + array.tobytes()
    (tmp_path / "x.npy").write_bytes(content)
    assert all_samples(tmp_path / "x.npy") == np.load(tmp_path / "x.npy").tolist()


def test_npy_without_a_sample_axis_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float32(3))
    with pytest.raises(FormatError, match=r"x\.npy: shape \(\) has no sample axis"):
        fastload.open(tmp_path / "x.npy")


def test_truncated_npy_is_refused_with_both_byte_counts(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100.0))
    whole = (tmp_path / "x.npy").read_bytes()
    cut = tmp_path / "cut.npy"
    cut.write_bytes(whole[:-8])
    with pytest.raises(FormatError, match=r"cut\.npy: truncated.*needs 928 bytes.*has 920"):
        fastload.open(cut)
    for length in range(128):
        cut.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"cut\.npy: "):
            fastload.open(cut)
    cut.write_bytes(b"")
    with pytest.raises(FormatError, match=r"empty file \(0 bytes\)"):
        fastload.open(cut)


def test_bytes_behind_the_data_are_ignored_as_numpy_does(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100.0))
    with open(tmp_path / "x.npy", "ab") as file:
        file.write(b"\1" * 7)
    assert all_samples(tmp_path / "x.npy") == np.load(tmp_path / "x.npy").tolist()
    report = fastload.pack(tmp_path / "x.npy", tmp_path / "out")
    assert report.notices == (f"{tmp_path / 'x.npy'}: 7 bytes behind its array are not read",)


def test_a_second_array_in_a_file_is_not_left_out_silently(tmp_path: Path) -> None:
    with open(tmp_path / "x.npy", "wb") as file:
        np.save(file, np.arange(3))
        end = file.tell()
        np.save(file, np.arange(4))
    for act in (fastload.open, lambda path: fastload.pack(path, tmp_path / "out")):
        with pytest.raises(FormatError, match=f"a second array starts at byte {end}"):
            act(tmp_path / "x.npy")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "[]",
        "{}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4,', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': None, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 3, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 8)}",
        "__import__('os').mkdir('OWNED')",
        "(" * 5000,
        "-" * 9000 + "1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}" + " " * 10_000,
        "\xff",
    ],
    ids=lambda header: header[:60],
)
def test_damaged_npy_headers_are_refused(
    tmp_path: Path, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = header.encode("latin-1")
    content = npy.MAGIC + b"\1\0" + struct.pack("<H", len(text)) + text + bytes(64)
    Path("x.npy").write_bytes(content)
    with pytest.raises(FormatError, match=r"x\.npy: "):
        fastload.open("x.npy")
    assert os.listdir() == ["x.npy"]


def test_a_header_length_beyond_the_file_allocates_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(npy.MAGIC + b"\2\0" + b"\xff" * 4 + b"{}")
    with pytest.raises(FormatError, match="truncated"):
        fastload.open(tmp_path / "x.npy")


@given(st.binary(max_size=200))
def test_no_bytes_make_the_npy_reader_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.npy"
    header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (3,)}\n"
    whole = npy.MAGIC + b"\1\0" + struct.pack("<H", len(header)) + header + bytes(12)
    for content in (tail, npy.MAGIC + tail, whole[: len(whole) - len(tail)] + tail):
        path.write_bytes(content)
        try:
            fastload.open(path)
        except FormatError:
            pass
