"""Ragged fields, splits, generations and column groups in shards, manifests and foreign files."""

from __future__ import annotations

import json
import pickle
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
from hypothesis import given, settings
from hypothesis import strategies as st

import fastload
from fastload import FormatError
from fastload.formats import packed
from fastload.formats.fields import DTYPES, Field, read_schema, schema
from fastload.formats.manifest import Manifest, Shards, decode
from fastload.formats.shard import Layout, place_shards, shard_layout
from fastload.formats.structure import flatten

GOLDEN = paths.GOLDEN / "v1"


def equal(got: Any, want: Any) -> bool:
    """Whether two samples are the same; dates are int64 in `got`."""
    for a, b in zip(flatten(got), flatten(want), strict=True):
        if isinstance(b, (str, bytes)):
            same = type(a) is type(b) and a == b
        elif isinstance(b, torch.Tensor):
            same = a.dtype == b.dtype and torch.equal(a, b)
        else:
            array = np.asarray(b)
            array = array.view(np.int64) if array.dtype.kind in "mM" else array
            same = a.dtype == array.dtype and np.array_equal(a, array)
        if not same:
            return False
    return True


# --- Layout -----------------------------------------------------------------------------------

a_field = st.builds(
    lambda dtype, shape, ragged: (dtype, shape, ragged),
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.booleans(),
)
counts = st.one_of(st.integers(0, 200), st.integers(0, 10**6), st.integers(0, 2**45))


@given(st.lists(a_field, min_size=1, max_size=5), st.integers(0, 10**6), st.data())
@settings(max_examples=100, derandomize=True)
def test_layout_of_ragged_fields(kinds: list[Any], rows: int, data: st.DataObject) -> None:
    fields = [Field(f"f{n}", *kind) for n, kind in enumerate(kinds)]
    totals = [data.draw(counts) for field in fields if field.ragged]
    layout = shard_layout(fields, rows, totals)
    assert layout.data_start % 4096 == layout.file_bytes % 4096 == 0
    end = 0
    for tensor in layout.tensors:
        assert tensor.begin == end
        end += tensor.size_bytes
    assert layout.data_start + end == layout.file_bytes
    named = {tensor.name: tensor for tensor in layout.tensors}
    remaining = iter(totals)
    for field, start, bounds in zip(fields, layout.columns, layout.bounds, strict=True):
        count = next(remaining) if field.ragged else rows
        tensor = named[field.name + "::values" * field.ragged]
        assert start == layout.data_start + tensor.begin
        assert tensor.size_bytes == count * field.row_bytes
        assert start % (4096 if tensor.size_bytes >= 65536 else 64) == 0
        if field.ragged:
            assert bounds == layout.data_start + named[f"{field.name}::offsets"].begin
            assert named[f"{field.name}::offsets"].shape == (rows + 1,)
    check_header(layout)


def check_header(layout: Layout) -> None:
    """The header is no longer than its text needs, and says what the layout does."""
    header = layout.header("0" * 64, 7)
    assert len(header) == layout.data_start
    text = header[8:].rstrip(b" ")
    assert layout.data_start == -(-(8 + len(text)) // 4096) * 4096
    entries = json.loads(text)
    assert list(entries)[1:] == [tensor.name for tensor in layout.tensors]
    assert read_schema(json.loads(entries["__metadata__"]["fastload.schema"])) == layout.fields


def test_header_fills_its_pages_to_the_last_byte() -> None:
    lengths = set()
    for extra in range(900, 1300):
        layout = shard_layout([Field("x" * extra, "uint8", (), True)], 12, [345])
        check_header(layout)
        lengths.add(layout.data_start)
    assert lengths == {4096, 8192}


def test_many_shards_are_laid_out_as_each_of_them() -> None:
    random = np.random.default_rng(0)
    fields = [Field("t", "uint8", (), True, "utf8"), Field("y", "int64", ())]
    fields += [Field("b", "float32", (4,), True), Field("z", "complex128", (3,))]
    rows = (10 ** random.uniform(0, 6, 300)).astype(int).tolist() + [0]
    totals = [(10 ** random.uniform(0, 9, 301)).astype(int).tolist() for _ in range(2)]
    places = place_shards(fields, rows, totals)
    for shard, own in enumerate(zip(rows, *totals, strict=True)):
        layout = shard_layout(fields, own[0], own[1:])
        assert layout.file_bytes == places.file_bytes[shard]
        assert layout.columns == tuple(places.column(field)[shard] for field in fields)
        assert layout.bounds[0] == places.bounds(fields[0])[shard]


def test_totals_that_cannot_be() -> None:
    field = Field("t", "float64", (2**20,), True)
    for totals, reason in (((-1,), "elements"), ((2**62 + 1,), "elements"), ((2**40,), "too many")):
        with pytest.raises(ValueError, match=reason):
            shard_layout([field], 1, totals)
    for totals in ((), (1, 2)):
        with pytest.raises(ValueError, match="totals"):
            shard_layout([field], 1, totals)


@pytest.mark.parametrize(
    ("dtype", "shape", "ragged", "logical"),
    [
        ("uint8", (), False, "utf8"),
        ("uint8", (3,), True, "bytes"),
        ("int8", (), True, "image"),
        ("int32", (), False, "datetime64[s]"),
        ("int64", (), False, "datetime64"),
        ("int64", (), False, "datetime64[parsec]"),
        ("int64", (), False, "datetime64[0s]"),
        ("uint8", (), True, "video"),
    ],
)
def test_meanings_fit_their_numbers(
    dtype: str, shape: tuple[int, ...], ragged: bool, logical: str
) -> None:
    with pytest.raises(ValueError, match="meaning"):
        Field("x", dtype, shape, ragged, logical)


def test_schema_comes_back() -> None:
    fields = (Field("a", "uint8", (), True, "utf8"), Field("b", "bfloat16", (2, 3), True))
    fields += (Field("c", "int64", (4,), False, "timedelta64[25us]"), Field("d", "bool", ()))
    assert read_schema(json.loads(json.dumps(schema(fields)))) == fields
    assert [str(field) for field in fields] == [
        "uint8 [-1] (utf8)",
        "bfloat16 [-1, 2, 3]",
        "int64 [4] (timedelta64[25us])",
        "bool []",
    ]


# --- Golden files -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ragged", "groups"])
def test_golden_datasets_hold_their_samples(name: str) -> None:
    dataset = fastload.open(GOLDEN / name)
    samples = getattr(golden_v1, name)()
    assert len(dataset) == len(samples)
    for row, want in enumerate(samples):
        want = want if name == "ragged" else want | {"x": np.array(want["x"], "i4")}
        assert equal(dataset[row], want)
        assert equal(dataset.__getitems__([0, row])[1], want)


def test_golden_ragged_input_gives_the_golden_bytes_again(tmp_path: Path) -> None:
    size = golden_v1.RAGGED_SHARD_SIZE
    fastload.pack(golden_v1.ragged(), tmp_path / "ragged", shard_size=size, workers=1)
    (tmp_path / "groups").mkdir()
    golden_v1.write_groups(tmp_path / "groups")
    for name in ("ragged", "groups"):
        assert {p.name for p in (GOLDEN / name).iterdir()} == {
            p.name for p in (tmp_path / name).iterdir()
        }
        for old in (GOLDEN / name).glob("*.safetensors"):
            assert (tmp_path / name / old.name).read_bytes() == old.read_bytes()
        manifests = [
            json.loads((folder / name / "fastload.json").read_text()) | {"writer": ""}
            for folder in (GOLDEN, tmp_path)
        ]
        assert manifests[0] == manifests[1]


def test_golden_shards_load_in_plain_safetensors() -> None:
    samples = golden_v1.ragged()
    start = 0
    for path in sorted((GOLDEN / "ragged").glob("shard-*")):
        loaded = safetensors.torch.load_file(path)
        texts, bounds = loaded["text::values"].numpy().tobytes(), loaded["text::offsets"]
        for row in range(len(bounds) - 1):
            assert texts[bounds[row] : bounds[row + 1]].decode() == samples[start + row]["text"]
        start += len(bounds) - 1
    assert start == golden_v1.ROWS


# --- Splits, generations, groups ----------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the golden dataset with splits and groups."""
    return Path(shutil.copytree(GOLDEN / "groups", tmp_path / "groups"))


def edit(folder: Path, **changes: Any) -> None:
    entries = json.loads((folder / "fastload.json").read_text())
    (folder / "fastload.json").write_text(json.dumps(entries | changes))


def test_splits_are_ranges_of_samples(folder: Path) -> None:
    whole = fastload.open(folder)
    train, val = (fastload.open(folder, split=name) for name in ("train", "val"))
    assert (len(train), len(val)) == (5, 2)
    assert [sample["t"] for sample in [*train, *val]] == [f"sample {row}" for row in range(7)]
    assert len({whole.fingerprint, train.fingerprint, val.fingerprint}) == 3
    with pytest.raises(ValueError, match="no split 'test'; this dataset has: train, val"):
        fastload.open(folder, split="test")
    with pytest.raises(ValueError, match="only folders that"):
        fastload.open(folder / "shard-000000.safetensors", split="train")
    assert whole.manifest.generation == 3
    assert whole.classes == ["even", "odd"]


def test_a_split_is_pickled_by_its_name(folder: Path) -> None:
    val = fastload.open(folder, split="val")
    again = pickle.loads(pickle.dumps(val))
    assert (len(again), again[1]["t"]) == (2, "sample 6")
    assert len(pickle.dumps(val)) < 1000


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"splits": {"a": [0, 8]}}, "split 'a'"),
        ({"splits": {"a": [3, 2]}}, "split 'a'"),
        ({"splits": {"a": [0]}}, "damaged manifest"),
        ({"splits": {"a": [0, 1.5]}}, "counts"),
        ({"splits": {"a": [-1, 2]}}, "counts"),
        ({"splits": [[0, 1]]}, "'splits' must be dict"),
        ({"generation": 0}, "generation"),
        ({"generation": "1"}, "generation"),
    ],
)
def test_splits_and_generations_are_checked(
    folder: Path, changes: dict[str, Any], reason: str
) -> None:
    edit(folder, **changes)
    with pytest.raises(FormatError, match=reason):
        fastload.open(folder)


@pytest.mark.parametrize(
    ("group", "key", "value", "reason"),
    [
        ("text", "totals", {"t": [32, 25]}, "fingerprint"),
        ("text", "totals", {"t": [32]}, "differ in length"),
        ("text", "totals", {"t": [32, -1]}, "counts"),
        ("text", "totals", {"t": [32, 10**40]}, "elements"),
        ("text", "totals", {"t": [32, 10**6]}, "are a file of"),
        ("text", "totals", {}, "ragged fields"),
        ("text", "totals", [], "must be dict"),
        ("main", "totals", {"x": [1, 2]}, "ragged fields"),
        ("text", "rows", [4, 4], "rows"),
        ("text", "file", "shard-{:06d}.safetensors", "same files"),
    ],
)
def test_totals_and_groups_are_checked(
    folder: Path, group: str, key: str, value: Any, reason: str
) -> None:
    groups = json.loads((folder / "fastload.json").read_text())["groups"]
    groups[group][key] = value
    edit(folder, groups=groups)
    with pytest.raises(FormatError, match=reason):
        fastload.open(folder)


def test_a_missing_shard_of_a_later_group_is_named(folder: Path) -> None:
    (folder / "text-000001.safetensors").unlink()
    with pytest.raises(FormatError, match=r"text-000001\.safetensors: shard 1 of 2 is missing"):
        fastload.open(folder)


def test_the_manifest_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(packed, "decode", lambda text: calls.append(1) or decode(text))
    fastload.open(folder)
    assert len(calls) == 1


def test_totals_beyond_32_bits(tmp_path: Path) -> None:
    field = Field("t", "uint8", (), True, "bytes")
    ends = np.array([0, 3, 2**32 + 5, 2**32 + 9])  # sparse, so that it costs nothing
    layout = shard_layout([field], 3, [int(ends[-1])])
    with (tmp_path / "shard-000000.safetensors").open("wb") as file:
        for at, content in (
            (layout.bounds[0], ends.tobytes()),
            (layout.columns[0], b"abc"),
            (layout.columns[0] + 2**32 + 5, b"wxyz"),
        ):
            file.seek(at)
            file.write(content)
        file.truncate(layout.file_bytes)
    shards = Shards(
        "main",
        (field,),
        "shard-{:06d}.safetensors",
        (3,),
        (layout.file_bytes,),
        ("00000000",),
        {"t": layout.totals},
    )
    manifest = Manifest(3, 0, (shards,), "0" * 64)
    (tmp_path / "fastload.json").write_bytes(manifest.encode("a test"))
    dataset = fastload.open(tmp_path)
    assert dataset.__getitems__([2, 0]) == [b"wxyz", b"abc"]
    assert dataset.table.lengths(0, np.arange(3)).tolist() == [3, 2**32 + 2, 4]


# --- Foreign files ------------------------------------------------------------------------------


def save(path: Path, **tensors: Any) -> None:
    arrays = {name.replace("__", "::"): np.asarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(arrays, path)


def test_values_and_offsets_of_any_safetensors_file_are_a_ragged_field(tmp_path: Path) -> None:
    for number, lengths in enumerate(([2, 0, 3], [1], [0, 0])):
        total = sum(lengths)
        save(
            tmp_path / f"{number}.safetensors",
            t__values=np.arange(2.0 * total).reshape(total, 2) + number,
            t__offsets=np.cumsum([0, *lengths]),
            y=np.arange(len(lengths), dtype="u1"),
        )
    dataset = fastload.open(tmp_path)
    assert {(field.name, str(field)) for field in dataset.fields} == {
        ("t", "float64 [-1, 2]"),
        ("y", "uint8 []"),
    }
    assert [len(sample["t"]) for sample in dataset] == [2, 0, 3, 1, 0, 0]
    assert dataset[2]["t"].tolist() == [[4, 5], [6, 7], [8, 9]]
    assert dataset[3]["t"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        (np.array([0, 2, 5], "i4"), "must be I64"),
        (np.array([[0, 5]]), "must be I64"),
        (np.zeros(0, "i8"), "must be I64"),
        (np.array([1, 2, 5]), "go from 1 to 5, but there are 5"),
        (np.array([0, 2, 4]), "go from 0 to 4, but there are 5"),
        (np.array([0, 2, 2**62]), "but there are 5"),
        (np.array([0, 2, 3, 5]), "'y' have 3 and 2 samples|'t' have 2 and 3 samples"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(tmp_path: Path, offsets: Any, reason: str) -> None:
    path = tmp_path / "x.safetensors"
    save(path, t__values=np.arange(5), t__offsets=offsets, y=np.arange(2))
    with pytest.raises(FormatError, match=rf"x\.safetensors: .*({reason})"):
        fastload.open(path)


def test_offsets_that_fall_are_found_when_samples_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save(path, t__values=np.arange(5), t__offsets=np.array([0, 4, 1, 9, 5]))
    dataset = fastload.open(path)
    assert len(dataset[0]["t"]) == 4
    for row in (1, 2, 3):
        with pytest.raises(FormatError, match=rf"field 't' of sample {row}: .*x\.safetensors"):
            dataset[row]


def test_a_name_without_its_partner_is_an_ordinary_tensor(tmp_path: Path) -> None:
    save(tmp_path / "x.safetensors", a__values=np.arange(3), b__offsets=np.arange(3))
    dataset = fastload.open(tmp_path / "x.safetensors")
    assert sorted(field.name for field in dataset.fields) == ["a::values", "b::offsets"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "[1]",
        '[{"name": "x"}]',
        '[{"name": "x", "kind": "fixed", "dtype": "int64", "shape": [2]}]',
        '[{"name": "x", "kind": "ragged", "dtype": "int64", "shape": []}]',
        '[{"name": "z", "kind": "fixed", "dtype": "int64", "shape": []}]',
        '[{"name": "x", "kind": "fixed", "dtype": "int64", "shape": [], "logical": "time"}]',
    ],
)
def test_a_schema_that_does_not_fit_its_shard_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.safetensors"
    metadata = {"fastload": "1", "fastload.schema": text}
    safetensors.numpy.save_file({"x": np.arange(3)}, path, metadata)
    with pytest.raises(FormatError, match=r"x\.safetensors: "):
        fastload.open(path)
