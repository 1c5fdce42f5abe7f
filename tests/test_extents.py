"""Extents lie inside their sources, and their fingerprints are of the content."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fastload import FormatError
from fastload.formats import combine, open_extents
from fastload.formats.extents import Column, Extents, Field, FileSource, Group

FIELD = Field("x", "int32", (2,))


def file_extents(size: int, rows: int, offset: int, stride: int) -> Extents:
    column = Column(FIELD, stride, (FileSource("/f", size),), np.array([offset]))
    return Extents((Group(np.array([rows]), (column,)),), 0)


@pytest.mark.parametrize(
    ("size", "rows", "offset", "stride"),
    [(80, 10, 0, 8), (88, 10, 8, 8), (80, 9, 3, 8), (8, 1, 0, 2**60), (44, 10, 0, 4), (8, 9, 0, 0)]
    + [(0, 0, 0, 8), (7, 0, 2**40, 8)],
)
def test_extents_inside_their_source_are_accepted(
    size: int, rows: int, offset: int, stride: int
) -> None:
    assert file_extents(size, rows, offset, stride).rows == rows


@pytest.mark.parametrize(
    ("size", "rows", "offset", "stride"),
    [(79, 10, 0, 8), (80, 10, 1, 8), (80, 10, -8, 8), (7, 1, 0, 8), (80, 2, 0, 2**62)]
    + [(80, 2**61, 0, 2**61), (80, 2, 2**62, 8), (80, 2, -(2**63), 8), (7, 9, 0, 0)],
)
def test_extents_beyond_their_source_are_refused_without_overflow(
    size: int, rows: int, offset: int, stride: int
) -> None:
    with pytest.raises(FormatError, match=rf"/f: field 'x': {rows} samples of 8 bytes"):
        file_extents(size, rows, offset, stride)


def test_extents_that_contradict_themselves_are_refused() -> None:
    good = file_extents(80, 10, 0, 8)
    for structure in (1, (0, 0), {}, (0, 1)):
        with pytest.raises(ValueError, match="structure"):
            Extents(good.groups, structure)
    with pytest.raises(ValueError, match="stride"):
        file_extents(80, 10, 0, -8)
    with pytest.raises(ValueError, match="negative"):
        file_extents(80, -1, 0, 8)
    with pytest.raises(ValueError, match="differ in length"):
        Extents((*good.groups, *file_extents(80, 9, 0, 8).groups), (0, 1))
    with pytest.raises(ValueError, match="differ in number"):
        Extents((Group(np.array([1, 1]), good.columns),), 0)


@pytest.mark.parametrize("dtype", ["object", "float128", "string", "int4", "complex32", ""])
def test_fields_have_supported_dtypes_only(dtype: str) -> None:
    with pytest.raises(ValueError, match="not supported"):
        Field("x", dtype, ())


def make_table(folder: Path) -> Callable[[str], Extents]:
    np.save(folder / "a.npy", np.arange(3000).reshape(1000, 3))

    def opened(name: str) -> Extents:
        return open_extents(folder / name)

    return opened


def test_fingerprints_are_of_the_content_not_of_the_place(tmp_path: Path) -> None:
    opened = make_table(tmp_path)
    before = opened("a.npy").fingerprint()
    (tmp_path / "a.npy").rename(tmp_path / "b.npy")
    os.utime(tmp_path / "b.npy", (1, 1))
    assert opened("b.npy").fingerprint() == before
    assert before.startswith("sha256:")


@pytest.mark.parametrize("row", [0, 999])
def test_fingerprints_change_with_either_end(tmp_path: Path, row: int) -> None:
    opened = make_table(tmp_path)
    before = opened("a.npy").fingerprint()
    array = np.load(tmp_path / "a.npy")
    array[row] += 1
    np.save(tmp_path / "a.npy", array)
    assert opened("a.npy").fingerprint() != before


def test_fingerprints_change_with_schema_rows_and_selection(tmp_path: Path) -> None:
    whole = make_table(tmp_path)("a.npy")
    np.save(tmp_path / "b.npy", np.load(tmp_path / "a.npy")[:999])
    shorter = open_extents(tmp_path / "b.npy")
    parts = [whole, shorter, whole.take(np.arange(1000)), whole.take(np.arange(1000)[::-1])]
    parts += [combine.stack({"x": whole}), combine.stack((whole,)), combine.stack([whole])]
    parts += [combine.stack({"y": whole}), combine.concatenate([whole, shorter])]
    assert len({part.fingerprint() for part in parts}) == len(parts)


def test_taking_samples_composes_and_checks() -> None:
    whole = file_extents(80, 10, 0, 8)
    twice = whole.take(np.arange(10)[::-1]).take(np.array([0, 9, 3]))
    assert twice.groups[0].index_map is not None
    assert twice.groups[0].index_map.tolist() == [9, 0, 6]
    assert twice.rows == 3
    for bad in (-1, 10):
        with pytest.raises(IndexError):
            whole.take(np.array([bad]))
