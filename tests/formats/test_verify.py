"""`fastload.verify` and the command: every kind of damage is found, and named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload
from fastload import FormatError, PackedDataset
from fastload.cli import main
from fastload.formats import packed
from fastload.formats.shard import CRC_BLOCK_BYTES, Layout, shard_layout

ROWS = 700
FLIPS = 1000


def samples() -> dict[str, Any]:
    """Fixed, large, tiny and ragged fields; more than one block in the first of two shards."""
    random = np.random.default_rng(0)
    return {
        "image": random.integers(0, 255, (ROWS, 3, 1000), "uint8"),
        "label": np.arange(ROWS),
        "text": ["é" * (row % 50) + str(row) for row in range(ROWS)],
        "path": [random.normal(size=(row % 7, 3)).astype("float32") for row in range(ROWS)],
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verify") / "whole"
    fastload.pack(samples(), out, shard_size=2 << 20)
    return out


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def shard_layouts(folder: Path) -> list[Layout]:
    (group,) = packed.read_manifest(folder).groups
    return [
        shard_layout(group.fields, rows, [each[n] for each in group.totals.values()])
        for n, rows in enumerate(group.rows)
    ]


def flip(path: Path, at: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        value = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([value ^ 1 << bit]), at)


def test_a_sound_dataset_is_sound(whole: Path) -> None:
    for full in (False, True):
        report = fastload.verify(whole, full=full)
        assert report.ok
        assert report.problems == ()
        assert report.level == ("full" if full else "quick")
        assert report.files == 2
        assert report.bytes == sum(f.stat().st_size for f in whole.glob("*.safetensors"))
    assert fastload.verify(whole / "shard-000001.safetensors", full=True).ok
    assert fastload.verify(list(whole.glob("*.safetensors")), full=True).level == "full"


# --- One flipped bit --------------------------------------------------------------------------


def where(layout: Layout, at: int) -> str:
    """What lies at a byte of a shard."""
    if at < layout.data_start:
        return "header"
    for tensor in layout.tensors:
        if tensor.begin <= at - layout.data_start < tensor.begin + tensor.size_bytes:
            return tensor.name
    raise AssertionError(at)


def expected_row(layout: Layout, name: str, at: int, bounds: dict[str, np.ndarray]) -> int:
    """The row of the shard that a byte of a column belongs to."""
    begin = next(t.begin for t in layout.tensors if t.name == name)
    inside = at - layout.data_start - begin
    field = next(f for f in layout.fields if f.name == name.split("::")[0])
    if not field.ragged:
        return inside // field.row_bytes
    if name.endswith("::offsets"):
        return max(0, inside // 8 - 1)
    return int(np.searchsorted(bounds[field.name][1:], inside // field.row_bytes, "right"))


def places_to_flip(layout: Layout, random: np.random.Generator, count: int) -> list[int]:
    """Bytes all over the shard: half of them anywhere, the others in each part of it."""
    parts = [(0, layout.data_start)]
    parts += [(layout.data_start + t.begin, t.size_bytes) for t in layout.tensors]
    anywhere = random.integers(0, layout.file_bytes, count // 2).tolist()
    of_parts = [parts[n % len(parts)] for n in range(count - count // 2)]
    return anywhere + [begin + int(random.integers(0, size)) for begin, size in of_parts]


def test_each_flipped_bit_is_found_and_named(folder: Path) -> None:
    path = folder / "shard-000000.safetensors"
    layout = shard_layouts(folder)[0]
    assert layout.crc.shape[0] - 1 == 2
    dataset = PackedDataset(folder)
    bounds = {
        f.name: np.cumsum([0, *dataset.table.lengths(n, np.arange(layout.rows))])
        for n, f in enumerate(dataset.fields)
        if f.ragged
    }
    random = np.random.default_rng(1)
    for at in places_to_flip(layout, random, FLIPS):
        bit = int(random.integers(0, 8))
        flip(path, at, bit)
        report = fastload.verify(folder, full=True, threads=1)
        flip(path, at, bit)
        what, part = " ".join(map(str, report.problems)), where(layout, at)
        assert report.problems, (at, part)
        assert {problem.file for problem in report.problems} == {str(path)}
        if part == "header":
            assert "the header (bytes 0 to " in what
            continue
        if part == "__crc__":
            entry = (at - layout.data_start - layout.crc.begin) // 4
            assert ("header" if entry == 0 else f"checksum of block {entry - 1} ") in what
            assert "not the" in what
            continue
        if part.startswith("__pad__"):
            assert f"{part!r}" in what
        if at < layout.data_start + layout.crc.begin:
            block = (at - layout.data_start) // CRC_BLOCK_BYTES
            (problem,) = (p for p in report.problems if p.block is not None)
            assert problem.block == block
            begin, end = problem.span or (0, 0)
            assert begin <= at <= end
            if not part.startswith("__"):
                first, last = problem.rows[part.split("::")[0]]
                row = expected_row(layout, part, at, bounds)
                assert first <= row <= last, (part, at)
    assert fastload.verify(folder, full=True).ok


def test_rows_of_a_block_are_exactly_those_that_reach_into_it(folder: Path) -> None:
    """Every byte of each block is compared with the rows that are named."""
    data = samples()
    for number, layout in enumerate(shard_layouts(folder)):
        path = folder / f"shard-{number:06d}.safetensors"
        first_row = 0 if number == 0 else shard_layouts(folder)[0].rows
        for block in range(layout.crc.shape[0] - 1):
            begin = layout.data_start + block * CRC_BLOCK_BYTES
            end = min(begin + CRC_BLOCK_BYTES, layout.data_start + layout.crc.begin)
            flip(path, begin)
            report = fastload.verify(folder, full=True)
            flip(path, begin)
            rows = next(p.rows for p in report.problems if p.block == block)
            expected: dict[str, list[int]] = {}
            for n, f in enumerate(layout.fields):
                at = layout.columns[n]
                for row in range(first_row, first_row + layout.rows):
                    size = f.row_bytes
                    if f.ragged:
                        value = data[f.name][row]
                        size *= len(value.encode()) if isinstance(value, str) else len(value)
                        bound = layout.bounds[n] + 8 * (row - first_row)
                        if bound < end and bound + 16 > begin:
                            expected.setdefault(f.name, []).append(row)
                    if at < end and at + size > begin and size:
                        expected.setdefault(f.name, []).append(row)
                    at += size
            assert rows == {name: (min(r), max(r)) for name, r in expected.items()}


# --- Other damage -----------------------------------------------------------------------------


def problems(path: Any, **options: Any) -> list[str]:
    return [str(problem) for problem in fastload.verify(path, **options).problems]


@pytest.mark.parametrize("full", [False, True])
def test_all_problems_are_listed(folder: Path, full: bool) -> None:
    first, second = (folder / f"shard-{n:06d}.safetensors" for n in range(2))
    second.write_bytes(second.read_bytes()[:-5000])
    flip(first, 50)
    flip(first, 1_500_000)
    flip(first, 400_000)
    found = problems(folder, full=full)
    assert len(found) == (4 if full else 2)
    assert found[0].startswith(f"{first}: the header")
    assert found[-1].startswith(f"{second}: truncated: ")
    second.unlink()
    assert problems(folder)[-1] == f"{second}: is missing"


def test_quick_finds_a_shard_of_another_dataset(folder: Path, tmp_path: Path) -> None:
    data = samples()
    data["image"][5, 0, 0] ^= 1
    fastload.pack(data, tmp_path / "other", shard_size=2 << 20)
    shutil.copy(tmp_path / "other/shard-000000.safetensors", folder)
    (found,) = problems(folder)
    assert "another file than the manifest says" in found
    assert fastload.verify(tmp_path / "other", full=True).ok


def test_quick_checks_the_bounds(folder: Path) -> None:
    path = folder / "shard-000000.safetensors"
    layout = shard_layouts(folder)[0]
    number = [field.name for field in layout.fields].index("path")
    for row in (0, 3, layout.rows):
        flip(path, layout.bounds[number] + 8 * row + 2, 5)
        (found,) = problems(folder)
        assert f"{path}: the bounds of field 'path': " in found
        with pytest.raises(FormatError, match="field 'path'"):
            PackedDataset(folder, verify="open")
        flip(path, layout.bounds[number] + 8 * row + 2, 5)
    PackedDataset(folder, verify="open")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda text: text[:-10], "damaged manifest"),
        (lambda text: text.replace('"rows": 700', '"rows": 701'), "damaged manifest"),
        (lambda text: text.replace('"fastload": 1', '"fastload": 9'), "newer"),
    ],
)
def test_a_damaged_manifest_is_a_problem(folder: Path, change: Any, what: str) -> None:
    manifest = folder / "fastload.json"
    manifest.write_text(change(manifest.read_text()))
    report = fastload.verify(folder, full=True)
    (problem,) = report.problems
    assert problem.file == str(manifest)
    assert what in problem.what


def test_an_incomplete_pack_is_a_problem(folder: Path) -> None:
    (folder / ".fastload").mkdir()
    (folder / "fastload.json").unlink()
    assert "incomplete pack" in problems(folder)[0]


# --- Files without checksums ------------------------------------------------------------------


def test_plain_files_are_opened_each_by_itself(tmp_path: Path) -> None:
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.zeros((3, 2)))
    report = fastload.verify(tmp_path, full=True)
    assert (report.ok, report.level, report.files) == (True, "sizes", 4)
    for number in (1, 2):
        file = tmp_path / f"{number}.npy"
        file.write_bytes(file.read_bytes()[:-1])
    assert [p.file for p in fastload.verify(tmp_path).problems] == [
        str(tmp_path / f"{number}.npy") for number in (1, 2)
    ]
    np.save(tmp_path / "1.npy", np.zeros(3))
    np.save(tmp_path / "2.npy", np.zeros(3))
    assert len(problems(tmp_path)) == 1  # together they are no dataset


def test_raw_files_need_dtype_and_shape(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(24))
    assert fastload.verify(tmp_path / "x.bin", dtype="uint16", shape=(3,)).ok
    assert problems(tmp_path / "x.bin", dtype="uint16", shape=(5,))
    with pytest.raises(ValueError, match="needs dtype= and shape="):
        fastload.verify(tmp_path / "x.bin")


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fastload.verify(tmp_path / "none")
    with pytest.raises(ValueError, match="threads"):
        fastload.verify(tmp_path, threads=0)


# --- The command ------------------------------------------------------------------------------


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    assert "no damage found in 2 files" in capsys.readouterr().out
    assert main(["verify", "--full", str(folder)]) == 0
    assert "every byte" in capsys.readouterr().out
    flip(folder / "shard-000000.safetensors", 1_000_000)
    assert main(["verify", "--quick", str(folder)]) == 0
    assert main(["verify", "--full", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "shard-000000.safetensors: block 0 (bytes " in out
    assert "of field 'image'" in out
    assert "1 problem in 2 files" in out
    with pytest.raises(SystemExit):
        main(["verify", "--quick", "--full", str(folder)])
    assert main(["verify", str(folder / "none")]) == 1


def test_the_command_in_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(folder / "shard-000000.safetensors", 1_000_000)
    assert main(["verify", "--full", "--json", "--threads", "3", str(folder)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["level"], report["files"]) == (False, "full", 2)
    (problem,) = report["problems"]
    assert problem["file"] == str(folder / "shard-000000.safetensors")
    assert problem["block"] == 0
    assert problem["bytes"][1] - problem["bytes"][0] == CRC_BLOCK_BYTES - 1
    assert problem["rows"]["image"][0] == 0


def test_verify_leaves_torch_alone(folder: Path, run_python: Any) -> None:
    run_python(
        "import sys, fastload\n"
        "assert fastload.verify(sys.argv[1], full=True).ok\n"
        "assert 'torch' not in sys.modules",
        str(folder),
    )
