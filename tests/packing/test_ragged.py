"""`fastload.pack` of text, bytes, dates and arrays of varying length, and who reads the shards."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packing import encoded, noise, put, refused, same_bytes
from samples import NUMPY_DTYPES, TORCH_ONLY

import fastload
from fastload import FormatError
from fastload.formats import packed
from fastload.formats.fields import Field
from fastload.packing.columns import Ragged

Samples = list[dict[str, Any]]


def every_sample(path: Path, **options: Any) -> list[Any]:
    dataset = fastload.open(path, **options)
    one_by_one = [dataset[row] for row in range(len(dataset))]
    assert repr(dataset.__getitems__(range(len(dataset)))) == repr(one_by_one)
    return one_by_one


def bits(value: Any) -> bytes:
    """The bytes of an array or tensor of any dtype."""
    if isinstance(value, torch.Tensor):
        if not value.numel():
            return b""
        return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return np.ascontiguousarray(value).tobytes()


# --- Every dtype and kind, through every reader -------------------------------------------------


def made(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    """An array, or a tensor where numpy has no dtype, of any bits at all."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    kind = getattr(torch, dtype) if dtype in TORCH_ONLY else np.dtype(dtype)
    raw = random.integers(0, 256, (*shape, kind.itemsize), np.uint8)
    if dtype in TORCH_ONLY:
        if not raw.size:  # numpy 1.24 gives it strides that torch does not take
            return torch.empty(shape, dtype=kind)
        return torch.from_numpy(raw).view(kind).reshape(shape)
    return raw.view(kind).reshape(shape)


@st.composite
def datasets(draw: st.DrawFn) -> tuple[Samples, dict[str, tuple[str, bool]]]:
    rows = draw(st.integers(1, 9))
    columns, kinds = {}, {}
    for number in range(draw(st.integers(1, 4))):
        dtype = draw(st.sampled_from([*NUMPY_DTYPES, *TORCH_ONLY]))
        shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
        lengths = draw(st.none() | st.lists(st.integers(0, 5), min_size=rows, max_size=rows))
        seed = draw(st.integers(0, 2**32))
        shapes = [shape if lengths is None else (lengths[row], *shape) for row in range(rows)]
        columns[f"f{number}"] = [made(dtype, own, seed + row) for row, own in enumerate(shapes)]
        ragged = lengths is not None and len(set(lengths)) > 1
        kinds[f"f{number}"] = dtype, ragged
    return [{name: c[row] for name, c in columns.items()} for row in range(rows)], kinds


@given(datasets(), st.integers(1, 300))
@settings(max_examples=40, derandomize=True)
def test_what_any_reader_reads_is_what_was_packed(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any, shard_size: int
) -> None:
    samples, kinds = drawn
    out = tmp_path_factory.mktemp("any") / "out"
    fastload.pack(samples, out, shard_size=shard_size, workers=1)
    fields = {field.name: field for field in fastload.open(out).fields}
    assert {name: (f.dtype, f.ragged) for name, f in fields.items()} == kinds
    got = every_sample(out)
    shards = sorted(out.glob("shard-*"))
    alone = [sample for shard in shards for sample in every_sample(shard)]
    readers = [safetensors.torch.load_file]
    if not {dtype for dtype, _ in kinds.values()} & set(TORCH_ONLY):
        readers.append(safetensors.numpy.load_file)
    for name, (_, ragged) in kinds.items():
        want = [bits(sample[name]) for sample in samples]
        shapes = [tuple(sample[name].shape) for sample in samples]
        for read in (got, alone):
            assert [bits(sample[name]) for sample in read] == want
            assert [tuple(sample[name].shape) for sample in read] == shapes
            assert all(type(a[name]) is type(b[name]) for a, b in zip(read, samples, strict=True))
        for load in readers:
            assert [
                piece for shard in shards for piece in pieces(load(shard), name, ragged)
            ] == want


def pieces(tensors: dict[str, Any], name: str, ragged: bool) -> list[bytes]:
    """The samples of a field in what safetensors loaded."""
    if not ragged:
        return [bits(row) for row in tensors[name]]
    values, offsets = tensors[f"{name}::values"], tensors[f"{name}::offsets"].tolist()
    return [bits(values[a:b]) for a, b in itertools.pairwise(offsets)]


# --- Text, bytes, dates, lists ----------------------------------------------------------------

TEXTS = ["", "a", "häß", "\0", "日本\u0301\U0001f600", "\ufeffx", "line\nline", "x" * 5000]


def test_text_and_bytes_come_back_as_they_were(tmp_path: Path) -> None:
    samples = [{"t": text, "b": text.encode("utf-16"), "m": bytearray(b"\0\1")} for text in TEXTS]
    fastload.pack(samples, tmp_path / "out", shard_size=100)
    got = every_sample(tmp_path / "out")
    assert [sample["t"] for sample in got] == TEXTS
    assert [sample["b"] for sample in got] == [sample["b"] for sample in samples]
    assert got[0]["m"] == b"\0\1"
    fields = fastload.open(tmp_path / "out").fields
    assert [str(field) for field in fields[:2]] == ["uint8 [-1] (utf8)", "uint8 [-1] (bytes)"]


def test_bare_texts_are_samples(tmp_path: Path) -> None:
    fastload.pack(TEXTS, tmp_path / "out")
    assert every_sample(tmp_path / "out") == TEXTS


def test_text_that_is_no_unicode_is_refused_naming_the_sample(tmp_path: Path) -> None:
    texts = ["fine"] * 500
    texts[321] = "caf\udce9"
    text = refused([{"t": t} for t in texts], tmp_path / "a", workers=1)
    assert "sample 321: field 't': the text is not valid Unicode" in text
    assert "sample 321: field 't'" in refused({"t": texts}, tmp_path / "b")


def test_damaged_text_names_the_sample(tmp_path: Path) -> None:
    fastload.pack({"t": ["one", "twö"]}, tmp_path / "out")
    path = tmp_path / "out/shard-000000.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace("twö".encode(), b"tw\xff\xff"))
    dataset = fastload.open(tmp_path / "out")
    assert dataset[0]["t"] == "one"
    with pytest.raises(FormatError, match="sample 1: field 't' is no valid UTF-8"):
        dataset[1]


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "25s"])
def test_dates_and_times_are_int64_with_their_unit(tmp_path: Path, unit: str) -> None:
    numbers = np.array([-5, 0, 10**4, np.iinfo(np.int64).max])
    sources: dict[str, Any] = {}
    for code in ("M8", "m8"):
        for order in "<>":
            sources[code + order] = numbers.view(f"{code}[{unit}]").astype(f"{order}{code}[{unit}]")
    np.save(tmp_path / "x.npy", sources["M8>"])
    sources["samples"] = list(sources["M8<"])
    sources["file"] = tmp_path / "x.npy"
    for number, (name, source) in enumerate(sources.items()):
        fastload.pack(source, tmp_path / f"{number}")
        (field,) = fastload.open(tmp_path / f"{number}").fields
        kind = "timedelta64" if name[0] == "m" else "datetime64"
        assert field == Field("data", "int64", (), logical=f"{kind}[{unit}]")
        assert [int(value) for value in every_sample(tmp_path / f"{number}")] == numbers.tolist()


def test_ragged_dates(tmp_path: Path) -> None:
    days = [np.arange(n).astype("M8[D]") for n in (2, 0, 3)]
    fastload.pack([{"d": own} for own in days], tmp_path / "out")
    (field,) = fastload.open(tmp_path / "out").fields
    assert (field.ragged, field.logical) == (True, "datetime64[D]")
    got = [sample["d"].view("M8[D]").tolist() for sample in every_sample(tmp_path / "out")]
    assert got == [own.tolist() for own in days]
    assert "datetime64[D]" in refused([days[0], days[1].astype("M8[s]")], tmp_path / "no")


def test_lists_of_numbers_may_vary_in_length(tmp_path: Path) -> None:
    samples = [
        {"n": [i] * (i % 4), "box": [[i, 0.5]] * (i % 3), "pair": [i, float(i)]} for i in range(20)
    ]
    fastload.pack(samples, tmp_path / "out", shard_size=100)
    dataset = fastload.open(tmp_path / "out")
    assert [str(field) for field in dataset.fields[:2]] == ["int64 [-1]", "float64 [-1, 2]"]
    for sample, want in zip(every_sample(tmp_path / "out"), samples, strict=True):
        assert sample["n"].tolist() == want["n"]
        assert sample["box"].tolist() == want["box"]
        assert sample["pair"] == want["pair"]  # a list of two fields, as default_collate has it


def test_arrays_in_memory_that_are_lists_of_samples(tmp_path: Path) -> None:
    arrays = [np.arange(n, dtype="f4") for n in (2, 0, 3)]
    objects = np.empty(3, object)
    objects[:] = [np.zeros((2, 2)), np.zeros((2, 2)), np.ones((2, 2))]
    nested = torch.nested.nested_tensor([torch.arange(n) for n in (1, 2, 0)], layout=torch.jagged)
    source = {
        "text": ["a", "", "c"],
        "bytes": (np.array([b"1", b"22", b""]),),
        "u": np.array(["x", "yy", ""]),
        "list": arrays,
        "objects": objects,
        "nested": nested,
        "plain": np.arange(3),
    }
    fastload.pack(source, tmp_path / "out", shard_size=1)
    got = every_sample(tmp_path / "out")
    assert [sample["text"] for sample in got] == source["text"]
    assert [sample["bytes"] for sample in got] == [(b"1",), (b"22",), (b"",)]
    assert [sample["u"] for sample in got] == ["x", "yy", ""]
    assert [sample["list"].tolist() for sample in got] == [a.tolist() for a in arrays]
    assert [sample["objects"].tolist() for sample in got] == [a.tolist() for a in objects]
    assert [sample["nested"].tolist() for sample in got] == [[0], [0, 1], []]
    ragged = {field.name for field in fastload.open(tmp_path / "out").fields if field.ragged}
    assert ragged == {"text", "bytes.0", "u", "list", "objects", "nested"}


def test_lists_that_are_no_samples(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = refused({"t": ["a", "b"], "x": np.zeros(3)}, out)
    assert "'t' has 2 samples, 'x' has 3" in text
    assert "no samples" in refused({"x": np.zeros(0, object)}, out)
    assert "the value is missing" in refused({"t": ["a", None]}, out)
    assert "sample 1" in refused({"t": np.array(["a", b"b"], object)}, out)


# --- One length at first ------------------------------------------------------------------------


class Late:
    """Samples of one length, but for one that nobody looks at before it is packed."""

    def __init__(self, odd: Any) -> None:
        self.odd = odd

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        return {"x": self.odd if index == 500 else np.zeros(3)}


@pytest.mark.parametrize(
    ("odd", "parts"),
    [
        (np.zeros(4), ("[4]", "[3]", "dtype object")),
        (np.zeros((3, 1)), ("[3, 1]", "[3]", "must agree")),
        (np.zeros(3, "f4"), ("float32", "float64")),
        ("text", ("utf8", "float64")),
    ],
)
def test_a_late_misfit_names_the_sample(tmp_path: Path, odd: Any, parts: tuple[str, ...]) -> None:
    text = refused(Late(odd), tmp_path / "out", workers=1)
    for part in ("sample 500: field 'x'", *parts):
        assert part in text


# --- Shards -----------------------------------------------------------------------------------


def test_rows_of_a_shard_follow_from_the_mean_size(tmp_path: Path) -> None:
    samples = [b"x" * (100 if i % 2 else 300) for i in range(64)]
    fastload.pack(samples, tmp_path / "out", shard_size=2100)
    (group,) = packed.read_manifest(tmp_path / "out").groups
    assert group.rows == (8,) * 8  # 200 and an offset of 8 bytes each
    assert group.totals == {"data": (1600,) * 8}


def test_a_huge_sample_and_empty_ones(tmp_path: Path) -> None:
    samples = [np.zeros(0, "u2")] * 30 + [np.arange(3_000_000) % 65_000] + [np.zeros(0, "u2")] * 33
    samples = [sample.astype("u2") for sample in samples]
    fastload.pack(samples, tmp_path / "out", shard_size=1 << 20)
    got = every_sample(tmp_path / "out")
    assert [len(sample) for sample in got] == [len(sample) for sample in samples]
    np.testing.assert_array_equal(got[30], samples[30])


def test_bools_of_varying_length_are_stored_as_zero_and_one(tmp_path: Path) -> None:
    odd = np.array([0, 1, 2, 255], np.uint8).view(bool)
    fastload.pack([odd, odd[:1]], tmp_path / "out")
    loaded = safetensors.numpy.load_file(tmp_path / "out/shard-000000.safetensors")
    assert loaded["data::values"].view(np.uint8).tolist() == [0, 1, 1, 1, 0]


def test_columns_are_cut_taken_and_joined() -> None:
    random = np.random.default_rng(0)
    lists = [random.random((n, 2)) for n in (3, 0, 1, 4, 0)]
    offsets = np.cumsum([0] + [len(member) for member in lists])
    column = Ragged(np.concatenate(lists), offsets)

    def members(ragged: Ragged) -> list[Any]:
        assert ragged.offsets[0] == 0
        bounds = itertools.pairwise(ragged.offsets)
        return [ragged.values[a:b].tolist() for a, b in bounds]

    want = [member.tolist() for member in lists]
    assert members(column) == want
    for start in range(6):
        for stop in range(6):
            assert members(column[start:stop]) == want[start:stop]
            parts = [column[start:stop], column[:start], column[stop:]]
            assert (
                members(Ragged.concatenate(parts)) == want[start:stop] + want[:start] + want[stop:]
            )
    rows = np.array([4, 3, 3, 0])
    assert members(column.take(rows)) == [want[row] for row in rows]
    assert members(column.take(rows[:0])) == []


# --- Encoded images -----------------------------------------------------------------------------


def test_images_are_kept_as_their_files(tmp_path: Path) -> None:
    files = {
        "a/1.png": encoded(noise(4, 5), "PNG"),
        "a/2.jpg": encoded(noise(90, 7), "JPEG"),
        "b/3.webp": encoded(noise(3, 3), "WEBP"),
    }
    for name, content in files.items():
        put(tmp_path / "in" / name, content)
    put(tmp_path / "in/a/broken.png", b"no image")
    put(tmp_path / "in/b/empty.png", b"")
    for workers in (1, 3):
        report = fastload.pack(
            tmp_path / "in", tmp_path / f"{workers}", encoded=True, shard_size=300, workers=workers
        )
    assert [skipped.path for skipped in report.skipped] == ["a/broken.png", "b/empty.png"]
    assert every_sample(tmp_path / "1") == list(zip(files.values(), (0, 0, 1), strict=True))
    assert same_bytes(tmp_path / "1", tmp_path / "3")
    dataset = fastload.open(tmp_path / "1")
    assert dataset.fields[0] == Field("image", "uint8", (), True, "image")
    assert dataset.manifest.classes == ["a", "b"]
    assert dataset.manifest.source == {"kind": "imagefolder", "encoded": True}
    text = refused(tmp_path / "in", tmp_path / "out", encoded=True, resize=8)
    assert "cannot be resized" in text
    assert "encoded has no meaning" in refused([1], tmp_path / "out", encoded=True)
    assert "broken.png" in refused(tmp_path / "in", tmp_path / "out", encoded=True, strict=True)
