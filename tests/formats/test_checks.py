"""verify="open" reads the bounds of ragged fields: in order, from 0 to the total, in each shard."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Subset

import fastload
from fastload import FastLoader, FormatError
from fastload.formats.damage import ShardCheck
from fastload.formats.verify import _shards


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((2, 2, 3), value, "u1")).save(file, "png")
    return file.getvalue()


SAMPLES: list[dict[str, Any]] = [
    {"t": "a" * n, "r": np.arange(n + 1), "i": png(n), "b": bytes(n + 2)} for n in range(4)
]


def change_bound(path: Path, field: int, row: int, by: int) -> None:
    """Adds to a bound in the shard at `path`, and leaves its checksums as they are."""
    check = next(check for check in _shards(str(path.parent)) or [] if check.path == str(path))
    assert isinstance(check, ShardCheck)
    at = check.layout.bounds[field] + 8 * (row % (check.layout.rows + 1))
    content = bytearray(path.read_bytes())
    value = int.from_bytes(content[at : at + 8], "little", signed=True) + by
    content[at : at + 8] = value.to_bytes(8, "little", signed=True)
    path.write_bytes(content)


def plain(folder: Path) -> None:
    fastload.pack(SAMPLES, folder, workers=1)


def merged(folder: Path) -> None:
    parts = [folder.parent / name for name in "ab"]
    for part in parts:
        fastload.pack(SAMPLES, part, workers=1)
    fastload.merge(folder, parts)


def appended(folder: Path) -> None:
    fastload.pack(SAMPLES, folder, workers=1)
    fastload.append(SAMPLES, folder)


@pytest.mark.parametrize("made", [plain, merged, appended])
@pytest.mark.parametrize("field", range(4))
@pytest.mark.parametrize(("row", "by"), [(-1, -1), (0, 1)])
def test_outer_bounds_are_0_and_the_total_in_each_shard(
    tmp_path: Path, made: Callable[[Path], None], field: int, row: int, by: int
) -> None:
    made(tmp_path / "out")
    shard = sorted((tmp_path / "out").glob("shard-*"))[-1]
    fastload.open(tmp_path / "out", verify="open")
    if (row, field) == (0, 0):
        change_bound(shard, 0, 1, 1)  # the first text is empty: its end is its begin
    change_bound(shard, field, row, by)
    name = "trib"[field]
    with pytest.raises(FormatError, match=rf"{shard.name}: field '{name}': the first and the last"):
        fastload.open(tmp_path / "out", verify="open")
    problems = fastload.verify(tmp_path / "out").problems
    assert any(f"the bounds of field '{name}': the first" in str(each) for each in problems)


def test_a_part_of_a_shard_is_checked_by_the_bounds_of_all_of_it(tmp_path: Path) -> None:
    fastload.pack(SAMPLES, tmp_path / "out", split={"a": 0.5, "b": 0.5}, workers=1)
    for name in "ab":
        assert len(fastload.open(tmp_path / "out", split=name, verify="open")) == 2
    whole = fastload.open(tmp_path / "out")
    FastLoader(Subset(whole, [1, 2]), 2, verify="open")  # type: ignore[arg-type]
    change_bound(tmp_path / "out/shard-000000.safetensors", 0, -1, -1)
    for name in "ab":
        with pytest.raises(
            FormatError, match="field 't': the first and the last bound are 0 and 5"
        ):
            fastload.open(tmp_path / "out", split=name, verify="open")
    for dataset in (whole, Subset(whole, [1, 2])):  # type: ignore[arg-type]
        with pytest.raises(
            FormatError, match="field 't': the first and the last bound are 0 and 5"
        ):
            FastLoader(dataset, 2, verify="open")


@pytest.mark.parametrize(("row", "by"), [(-1, -1), (0, 1)])
def test_a_shard_alone_has_the_same_bounds(tmp_path: Path, row: int, by: int) -> None:
    plain(tmp_path / "out")
    shard = tmp_path / "out/shard-000000.safetensors"
    change_bound(shard, 1, row, by)
    with pytest.raises(FormatError, match="field 'r': its offsets go from"):
        fastload.open(shard)
