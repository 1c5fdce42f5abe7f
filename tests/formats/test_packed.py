"""Packed folders: layout of shards, manifest, what is said of damaged ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import golden_v1
import numpy as np
import paths
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import crc32c
from paths import ROOT
from waiting import assert_takes_less

import fastload
from fastload import FormatError
from fastload.formats import packed
from fastload.formats.fields import DTYPES, Field
from fastload.formats.manifest import Manifest, Shards
from fastload.formats.shard import CRC_BLOCK_BYTES, MAX_ROWS, check_fields, shard_layout
from fastload.formats.structure import flatten

GOLDEN = paths.GOLDEN / "v1/samples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A packed folder of three shards."""
    out = tmp_path / "packed"
    fastload.pack({"x": np.arange(40).reshape(20, 2), "y": np.arange(20)}, out, shard_size=200)
    return out


def edit(folder: Path, **changes: Any) -> None:
    """Changes keys of the manifest, and makes its fingerprint fit."""
    path = folder / "fastload.json"
    entries = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(entries))


# --- Layout -----------------------------------------------------------------------------------

a_field = st.tuples(
    st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 70), max_size=3).map(tuple)
)


@given(st.lists(a_field, min_size=1, max_size=6), st.integers(0, 5000))
def test_layout_is_aligned_and_tiles_the_file(kinds: list[Any], rows: int) -> None:
    fields = [Field(f"f{n}", dtype, shape) for n, (dtype, shape) in enumerate(kinds)]
    layout = shard_layout(fields, rows)
    assert layout.data_start % 4096 == layout.file_bytes % 4096 == 0
    end = 0
    for tensor in layout.tensors:
        assert tensor.begin == end
        end += tensor.size_bytes
    assert layout.data_start + end == layout.file_bytes
    for field, start in zip(fields, layout.columns, strict=True):
        assert start % (4096 if field.row_bytes * rows >= 65536 else 64) == 0
        tensor = next(t for t in layout.tensors if t.name == field.name)
        assert start == layout.data_start + tensor.begin
        assert tensor.size_bytes == field.row_bytes * rows
    assert layout.crc.begin % 64 == 0
    assert layout.crc.shape == (1 + -(-layout.crc.begin // CRC_BLOCK_BYTES),)


@given(st.integers(0, 10**9), st.text("0123456789abcdef", min_size=64, max_size=64))
def test_header_has_one_length_for_all_shards(shard: int, dataset: str) -> None:
    layout = shard_layout([Field("x", "float32", (3,))], 7)
    assert len(layout.header(dataset, shard)) == layout.data_start


def test_layout_refuses_what_no_file_can_hold() -> None:
    with pytest.raises(ValueError, match="rows in one shard"):
        shard_layout([Field("x", "uint8", ())], MAX_ROWS + 1)
    with pytest.raises(ValueError, match="too many bytes"):
        shard_layout([Field("x", "uint8", (2**40,))], 2**30)


@pytest.mark.parametrize("name", ["a::b", "__x", "__metadata__", "a\0", "\udcff"])
def test_kept_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="field"):
        check_fields([Field(name, "uint8", ())])


def test_two_fields_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two fields"):
        check_fields([Field("a.b", "uint8", ()), Field("a.b", "uint8", ())])


# --- Golden files -----------------------------------------------------------------------------


def as_float_or_int(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        return value.double().numpy()
    return np.asarray(value)


def test_golden_dataset_holds_its_samples() -> None:
    dataset = fastload.open(GOLDEN)
    expected = [as_float_or_int(leaf) for leaf in flatten(golden_v1.arrays())]
    assert len(dataset) == golden_v1.ROWS
    for row in range(golden_v1.ROWS):
        for field, leaf, want in zip(dataset.fields, flatten(dataset[row]), expected, strict=True):
            got = as_float_or_int(leaf)
            assert got.shape == field.shape
            np.testing.assert_array_equal(got, want[row], err_msg=field.name)


def test_packing_the_golden_input_again_gives_the_golden_bytes(tmp_path: Path) -> None:
    fastload.pack(golden_v1.arrays(), tmp_path / "again", shard_size=1600)
    for old in sorted(GOLDEN.iterdir()):
        new = (tmp_path / "again" / old.name).read_bytes()
        if old.name == "fastload.json":  # but for the version of the program
            lines = [line for line in new.splitlines() if not line.startswith(b'"writer"')]
            kept = old.read_bytes().splitlines()
            assert lines == [line for line in kept if not line.startswith(b'"writer"')]
        else:
            assert new == old.read_bytes()


def test_checksums_are_those_of_the_definition() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    manifest = packed.read_manifest(GOLDEN)
    (group,) = manifest.groups
    for shard, (rows, crc) in enumerate(zip(group.rows, group.crc32c, strict=True)):
        content = (GOLDEN / group.file(shard)).read_bytes()
        layout = shard_layout(group.fields, rows)
        assert content.startswith(layout.header(manifest.dataset, shard))
        start = layout.data_start + layout.crc.begin
        stored = np.frombuffer(content, "<u4", 2, start)
        assert stored[0] == crc32c(content[: layout.data_start])
        assert stored[1] == crc32c(content[layout.data_start : start])
        assert crc == f"{crc32c(content):08x}"


def test_blocks_of_a_mebibyte_have_their_checksums(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 1 << 19), dtype=np.uint8)
    fastload.pack({"x": values, "y": np.arange(5)}, tmp_path / "out")
    content = (tmp_path / "out/shard-000000.safetensors").read_bytes()
    layout = shard_layout(packed.read_manifest(tmp_path / "out").fields, 5)
    assert layout.columns[0] % 4096 == 0
    start = layout.data_start + layout.crc.begin
    stored = np.frombuffer(content, "<u4", layout.crc.shape[0], start)
    data = content[layout.data_start : start]
    blocks = [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
    assert len(stored) == 1 + len(blocks) == 4
    from fastload import _core  # checked against the definition above; that one is slow

    assert stored[1:].tolist() == [_core.crc32c(block) for block in blocks]
    manifest = packed.read_manifest(tmp_path / "out")
    assert manifest.groups[0].crc32c == (f"{_core.crc32c(content):08x}",)


def test_worked_example_in_the_docs_is_true(tmp_path: Path) -> None:
    text = (ROOT / "docs/reference/format.md").read_text()
    x, y = np.array([[1, 2, 3], [4, 5, 6]], "uint8"), np.array([7, -1])
    fastload.pack({"x": x, "t": ["fast", "né"], "y": y}, tmp_path / "example")
    for line in (tmp_path / "example/fastload.json").read_text().splitlines():
        assert line in text or line.startswith('"writer"')
    content = (tmp_path / "example/shard-000000.safetensors").read_bytes()
    shown = {}
    for line in text.splitlines():
        at, _, numbers = line.partition("  ")
        if len(at) == 8 and numbers:
            shown[int(at, 16)] = bytes.fromhex(numbers.split("|")[0])
    assert len(shown) > 70
    for at, numbers in shown.items():
        assert content[at : at + 16] == numbers


# --- Other readers ----------------------------------------------------------------------------


def test_shards_load_in_plain_safetensors(folder: Path) -> None:
    for load in (safetensors.numpy.load_file, safetensors.torch.load_file):
        parts = [load(folder / f"shard-{shard:06d}.safetensors") for shard in range(3)]
        x = np.concatenate([np.asarray(part["x"]) for part in parts])
        assert x.tolist() == np.arange(40).reshape(20, 2).tolist()
        assert all(not np.asarray(part["__pad__.0"]).any() for part in parts)


def test_a_lone_shard_is_read_in_place_without_pads_and_checksums(folder: Path) -> None:
    dataset = fastload.open(folder / "shard-000001.safetensors")
    assert {field.name for field in dataset.fields} == {"x", "y"}
    assert dataset[0]["y"] == 8


# --- Opening ----------------------------------------------------------------------------------


def test_manifest_lists_what_was_packed(folder: Path) -> None:
    manifest = packed.read_manifest(folder)
    assert manifest.rows == 20
    assert manifest.groups[0].rows == (8, 8, 4)
    assert manifest.source == {"kind": "arrays"}
    assert manifest.classes is None
    assert packed.read_extents(folder).content == manifest.fingerprint


def test_a_folder_can_be_moved_and_holds_strangers(folder: Path, tmp_path: Path) -> None:
    (folder / "README").write_text("mine")
    (folder / "shard-000009.safetensors").write_text("not listed")
    for name in ("with space", "[a]{b}*?", "naïve-日本", "-dash", "a\\b", "new\nline"):
        moved = tmp_path / name
        shutil.move(folder, moved)
        for path in (moved, str(moved), os.fsencode(moved)):
            assert fastload.open(path)[19]["y"] == 19
        folder = moved


def test_a_link_to_a_folder_or_shard_opens(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / "shard-000002.safetensors", tmp_path / "elsewhere")
    (folder / "shard-000002.safetensors").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(folder)
    assert fastload.open(tmp_path / "link")[19]["y"] == 19


def test_ten_thousand_shards_open_at_once(folder: Path) -> None:
    layout = shard_layout(packed.read_manifest(folder).fields, 8)
    for shard in range(10_000):
        path = folder / f"shard-{shard:06d}.safetensors"
        with open(path, "wb") as file:
            file.truncate(layout.file_bytes)
    count = 10_000
    group = Shards(
        "main",
        layout.fields,
        "shard-{:06d}.safetensors",
        (8,) * count,
        (layout.file_bytes,) * count,
        ("00000000",) * count,
    )
    manifest = Manifest(8 * count, {"x": 0, "y": 1}, (group,), "0" * 64)
    (folder / "fastload.json").write_bytes(manifest.encode("a test"))

    def read() -> None:
        assert packed.read_extents(folder).rows == 80_000

    assert_takes_less(1, read)  # 0.1 s on an idle machine


# --- Damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b'{"fastload": 1, "ro', "damaged manifest"),
        (b"[]", "object"),
        (b"null", "object"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"fastload": 999}', "version 999 is newer than 1"),
        (b'{"fastload": -1}', "no version"),
        (b'{"fastload": true}', "no version"),
        (b'{"version": 1}', "no version"),
        (b'{"fastload": 1}', "'fields' is missing"),
        (b"\xff\xfe\0\0", "damaged manifest"),
        (b"[" * 100_000, "damaged manifest"),
        (b'{"fastload": 1' + b"0" * 10_000 + b"}", "damaged manifest"),
    ],
)
def test_a_damaged_manifest_is_told_by_path_and_reason(
    folder: Path, content: bytes, reason: str
) -> None:
    (folder / "fastload.json").write_bytes(content)
    with pytest.raises(FormatError, match=reason) as raised:
        fastload.open(folder)
    assert str(folder / "fastload.json") in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": -5}, "rows"),
        ({"rows": "20"}, "must be int"),
        ({"rows": True}, "must be int"),
        ({"fields": []}, "'x' is missing"),
        ({"structure": {"kind": "set", "items": []}}, "container"),
        ({"structure": {"kind": "tuple", "items": [0, 1, 2]}}, "does not number 2 fields"),
        ({"groups": {}}, "fields of the groups"),
        ({"fingerprint": "sha256:0"}, "fingerprint"),
        ({"classes": {"label": {"names": [], "counts": []}}}, "classes"),
        ({"skipped": [1]}, "damaged manifest"),
    ],
)
def test_manifest_keys_are_checked(folder: Path, changes: dict[str, Any], reason: str) -> None:
    edit(folder, **changes)
    with pytest.raises(FormatError, match=reason):
        fastload.open(folder)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("file", "../shard-{:06d}.safetensors", "no name for shards"),
        ("file", "/abs/shard-{:06d}.safetensors", "no name for shards"),
        ("file", "{0.__class__}-{:06d}.safetensors", "no name for shards"),
        ("file", "shard.safetensors", "no name for shards"),
        ("rows", [8, 8, -4], "counts"),
        ("rows", [8, 8], "rows"),
        ("rows", [8, 8, 10**30], "rows"),
        ("bytes", [8192, 8192, 1], "not of 1"),
        ("crc32c", ["00000000", "00000000", "zzzzzzzz"], "hexadecimal"),
        ("fields", ["x", "z"], "z"),
        ("fields", ["y", "x"], "fields of the groups"),
        ("root", "elsewhere", "needs a newer fastload"),
    ],
)
def test_groups_are_checked(folder: Path, key: str, value: Any, reason: str) -> None:
    groups = json.loads((folder / "fastload.json").read_text())["groups"]
    groups["main"][key] = value
    edit(folder, groups=groups)
    with pytest.raises(FormatError, match=reason):
        fastload.open(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("kind", "ragged"), ("dtype", "float3"), ("shape", [-1]), ("shape", 3), ("name", 1)],
)
def test_fields_are_checked(folder: Path, key: str, value: Any) -> None:
    fields = json.loads((folder / "fastload.json").read_text())["fields"]
    fields[0][key] = value
    edit(folder, fields=fields)
    with pytest.raises(FormatError, match=r"fastload\.json"):
        fastload.open(folder)


def test_each_changed_byte_of_a_manifest_is_found_or_harmless(folder: Path) -> None:
    path = folder / "fastload.json"
    good = path.read_bytes()
    rows = [int(sample["y"]) for sample in fastload.open(folder)]
    random = np.random.default_rng(0)
    for _ in range(300):
        at, bit = int(random.integers(len(good))), 1 << int(random.integers(8))
        path.write_bytes(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
        try:
            dataset = fastload.open(folder)
        except FormatError:
            continue
        assert [int(sample["y"]) for sample in map(dataset.__getitem__, range(20))] == rows


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "shard-000001.safetensors").unlink()
    with pytest.raises(FormatError, match=r"shard-000001\.safetensors: shard 1 of 3 is missing"):
        fastload.open(folder)


@pytest.mark.parametrize(("change", "what"), [(-1, "truncated"), (7, "too long")])
def test_a_shard_of_another_size_is_named(folder: Path, change: int, what: str) -> None:
    path = folder / "shard-000002.safetensors"
    size = path.stat().st_size
    os.truncate(path, size + change)
    with pytest.raises(FormatError, match=rf"shard-000002.*{what}: {size} .* {size + change}"):
        fastload.open(folder)


def test_incomplete_empty_and_foreign_folders_are_told_apart(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for read in (packed.read_manifest, packed.read_extents):
        with pytest.raises(FormatError, match="no packed dataset"):
            read(tmp_path / "empty")
    (folder / ".fastload").mkdir()
    assert len(fastload.open(folder)) == 20  # the manifest decides
    (folder / "fastload.json").unlink()
    with pytest.raises(FormatError, match="incomplete pack; `fastload pack` with --resume"):
        fastload.open(folder)
    plan = {"shards": 60, "file": "shard-{:06d}.safetensors"}
    (folder / ".fastload/plan.json").write_text(json.dumps(plan))
    with pytest.raises(FormatError, match="incomplete pack: 3 of 60 shards are written"):
        fastload.open(folder)
