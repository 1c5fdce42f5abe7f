"""Extents lie inside their sources, and their fingerprints are of the content."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ragged import ragged_dataset

from fastload import FormatError
from fastload.datasets.file_datasets import Dataset
from fastload.formats import combine, open_extents
from fastload.formats.columns import Bounds, Column, FileSource, Group, MemorySource
from fastload.formats.extents import Extents
from fastload.formats.fields import Field

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


# --- Ragged fields ------------------------------------------------------------------------------

LISTS = [[[0, 1]], [], [[2, 3], [4, 5], [6, 7]], [], [[8, 9]], [[10, 11], [12, 13]], []]


def memory(array: np.ndarray) -> MemorySource:
    return MemorySource(array, array.ctypes.data, array.nbytes)


def ragged_extents(shard_rows: tuple[int, ...] = (3, 0, 4), unaligned: int = 3) -> Extents:
    """LISTS in shards, bounds and values in one memory for each, and a number beside them."""
    sources, bounds, values, totals, numbers, start = [], [], [], [], [], 0
    for rows in shard_rows:
        part = LISTS[start : start + rows]
        ends = np.cumsum([0, *map(len, part)]).astype(np.int64)
        flat = np.array([pair for member in part for pair in member], "i4")
        content = bytes(unaligned) + ends.tobytes() + flat.tobytes()
        content += np.arange(start, start + rows, dtype="u2").tobytes()
        sources.append(memory(np.frombuffer(content, np.uint8)))
        bounds.append(unaligned)
        values.append(unaligned + ends.nbytes)
        totals.append(int(ends[-1]))
        numbers.append(values[-1] + flat.nbytes)
        start += rows
    held = tuple(sources)
    where = Bounds(held, np.array(bounds), np.array(totals))
    lists = Column(Field("t", "int32", (2,), True), 8, held, np.array(values), where)
    number = Column(Field("n", "int64", ()), 2, held, np.array(numbers), stored="uint16")
    return Extents((Group(np.array(shard_rows), (lists, number)),), {"t": 0, "n": 1})


def samples(extents: Extents) -> list[tuple[list[list[int]], int]]:
    got = Dataset(extents).__getitems__(range(extents.rows))
    return [(sample["t"].tolist(), int(sample["n"])) for sample in got]


WANT = list(zip(LISTS, range(7), strict=True))


def test_ragged_samples_lie_between_their_bounds() -> None:
    for shard_rows in ((7,), (3, 0, 4), (1, 1, 1, 1, 1, 1, 1), (0, 7, 0)):
        assert samples(ragged_extents(shard_rows)) == WANT


def test_slices_are_ranges_of_samples_without_an_index_map() -> None:
    extents = ragged_extents()
    for start in range(8):
        for stop in range(start, 8):
            part = extents.slice(start, stop)
            assert samples(part) == WANT[start:stop]
            assert part.groups[0].index_map is None
            for inner in range(stop - start + 1):
                assert samples(part.slice(inner, stop - start)) == WANT[start + inner : stop]
    for bad in ((-1, 3), (3, 2), (0, 8)):
        with pytest.raises(IndexError):
            extents.slice(*bad)


def test_slices_of_selections_and_of_files(tmp_path: Path) -> None:
    order = np.array([6, 0, 2, 2, 5])
    part = ragged_extents().take(order).slice(1, 4)
    assert samples(part) == [WANT[row] for row in order[1:4]]
    whole = make_table(tmp_path)("a.npy")
    assert Dataset(whole.slice(997, 1000))[1].tolist() == [2994, 2995, 2996]
    prints = {whole.slice(*ends).fingerprint() for ends in ((0, 1000), (0, 999), (1, 1000))}
    assert len(prints) == 3
    assert whole.fingerprint() in prints


def test_parts_with_ragged_fields_are_joined() -> None:
    extents = ragged_extents()
    parts = [extents.slice(4, 7), extents.take(np.array([2, 0])), extents.slice(0, 0), extents]
    assert samples(combine.concatenate(parts)) == [*WANT[4:], WANT[2], WANT[0], *WANT]
    stacked = combine.stack({"t": extents.slice(1, 5), "u": extents.slice(2, 6)})
    got = Dataset(stacked).__getitems__(range(4))
    assert [sample["u"]["t"].tolist() for sample in got] == LISTS[2:6]
    other = dataclasses.replace(extents.columns[0], field=Field("t", "int32", (2, 1), True))
    groups = (Group(extents.groups[0].shard_rows, (other, extents.columns[1])),)
    with pytest.raises(ValueError, match=r"int32 \[-1, 2\] and int32 \[-1, 2, 1\]"):
        combine.concatenate([extents, Extents(groups, extents.structure)])


def test_fingerprints_of_ragged_fields() -> None:
    same = ragged_extents((3, 0, 4), unaligned=3).fingerprint()
    assert ragged_extents((3, 0, 4), unaligned=8).fingerprint() == same
    others = [ragged_extents((3, 4)), ragged_extents().slice(0, 6)]
    others += [ragged_extents().take(np.arange(7)), combine.stack((ragged_extents(),))]
    prints = {same, *(extents.fingerprint() for extents in others)}
    LISTS[2][1][0] += 1
    try:
        prints.add(ragged_extents().fingerprint())
    finally:
        LISTS[2][1][0] -= 1
    assert len(prints) == 6


def test_fingerprints_change_with_the_ends_of_ragged_samples() -> None:
    field = Field("t", "int64", (), True)
    made = [ragged_dataset(0, [field], [samples]) for samples in ([[1], [2, 3]], [[1, 2], [3]])]
    assert made[0].fingerprint != made[1].fingerprint


@pytest.mark.parametrize(
    ("changes", "bounds", "reason"),
    [
        ({}, {"totals": np.array([4, 0, 99])}, "99 elements of 8 bytes from byte"),
        ({}, {"totals": np.array([-1, 0, 1])}, "-1 elements"),
        ({}, {"offsets": np.array([3, 3, 999])}, "5 bounds of 8 bytes from byte 999"),
        ({}, {"offsets": np.array([-8, 3, 3])}, "4 bounds of 8 bytes from byte -8"),
        ({}, {"totals": np.array([1, 2])}, "differ in number"),
        ({"row_stride": 4}, {}, "densely"),
        ({"stored": "uint16"}, {}, "cannot be read as int32"),
    ],
)
def test_ragged_columns_lie_inside_their_sources(
    changes: dict[str, Any], bounds: dict[str, Any], reason: str
) -> None:
    extents = ragged_extents()
    column = dataclasses.replace(extents.columns[0], **changes)
    assert column.bounds is not None
    column = dataclasses.replace(column, bounds=dataclasses.replace(column.bounds, **bounds))
    with pytest.raises(ValueError, match=reason):
        Extents((Group(extents.groups[0].shard_rows, (column,)),), 0)


def test_bounds_are_for_ragged_fields() -> None:
    extents = ragged_extents()
    lists, number = extents.columns
    for column in (
        dataclasses.replace(lists, bounds=None),
        dataclasses.replace(number, bounds=lists.bounds),
    ):
        with pytest.raises(ValueError, match="bounds"):
            Extents((Group(extents.groups[0].shard_rows, (column,)),), 0)
