"""Ragged fields through FastLoader, compared with torch's own functions and loader."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import numbers_of_length, ragged_dataset
from samples import NUMPY_DTYPES, TORCH_ONLY
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    default_collate,
)
from torch.utils.data._utils import collate

from fastload import ArrayDataset, AsList, FastLoader, FormatError, Jagged, PadTo
from fastload.batch.transforms import Padded
from fastload.formats.fields import Field
from fastload.loader.native_iterator import _NativeIterator

WORKERS = (None, 0, 1, 2)
LENGTHS = [3, 0, 5, 1, 0, 0, 7, 2, 4, 3, 1]
TEXTS = ["", "a", "héllo", "日本", "", "x" * 300, "b", "c", "\0", "end", ""]


def field(name: str, dtype: str = "int64", shape: Any = (), logical: Any = None) -> Field:
    return Field(name, dtype, shape, ragged=True, logical=logical)


def tokens(lengths: Any = LENGTHS, shards: Any = None, **kind: Any) -> ArrayDataset:
    made = field("t", **kind)
    samples = numbers_of_length(lengths, made.storage.name, made.shape)
    return ragged_dataset({"t": 0}, [made], [samples], shards)


def mixed() -> ArrayDataset:
    """A label, tokens, boxes, text and bytes."""
    texts = [text.encode() for text in TEXTS]
    fields = [
        Field("y", "int32", (2,)),
        field("t"),
        field("boxes", "float32", (4,)),
        field("text", "uint8", (), "utf8"),
        field("raw", "uint8", (), "bytes"),
    ]
    label = [np.full(2, i) for i in range(11)]
    boxes = numbers_of_length(LENGTHS[::-1], "float32", (4,))
    samples = [label, numbers_of_length(LENGTHS), boxes, texts, texts]
    structure = {"y": 0, "t": 1, "boxes": 2, "text": 3, "raw": 4}
    return ragged_dataset(structure, fields, samples, [4, 0, 6, 1])


def own_bytes(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def samples_of(dataset: Any, indices: Any, key: str = "t") -> list[torch.Tensor]:
    return [torch.as_tensor(dataset[int(i)][key]) for i in indices]


# --- without a transform


def test_samples_of_one_length_are_those_of_dataloader() -> None:
    fixed = tokens([4] * 9, [5, 4], dtype="float32", shape=(2,))
    for workers in WORKERS:
        got = list(FastLoader(fixed, 4, num_workers=workers))
        want = list(DataLoader(fixed, 4))
        assert [batch.keys() for batch in got] == [batch.keys() for batch in want]
        assert all(torch.equal(g["t"], w["t"]) for g, w in zip(got, want, strict=True))
        assert all(own_bytes(batch["t"]) for batch in got)


def test_texts_and_bytes_are_those_of_dataloader() -> None:
    data = mixed()
    keep = {"t": AsList(), "boxes": AsList()}
    for batch, want in zip(
        FastLoader(data, 3, transforms=keep), DataLoader(data, 3, collate_fn=list), strict=True
    ):
        assert batch["text"] == [sample["text"] for sample in want]
        assert batch["raw"] == [sample["raw"] for sample in want]
        assert all(type(text) is str for text in batch["text"])
        assert all(type(raw) is bytes for raw in batch["raw"])
    pair = ragged_dataset(
        (0, [0]) if False else (0, 1),
        [field("0", "uint8", (), "utf8")] * 2,
        [[b"a", b"b"], [b"c", b"d"]],
    )
    assert list(FastLoader(pair, 2)) == list(DataLoader(pair, 2)) == [[("a", "b"), ("c", "d")]]


def orders(dataset: Any) -> Iterator[dict[str, Any]]:
    yield {"batch_size": 4}
    yield {"batch_size": 4, "shuffle": True}
    yield {"batch_size": 4, "shuffle": True, "seed": 3}
    yield {"batch_size": 4, "seed": 3}
    yield {"batch_size": 4, "sampler": SubsetRandomSampler([6, 1, 3, -1, 9])}
    yield {"batch_size": 4, "sampler": [6, -8, 3, 10, 9]}
    yield {"batch_sampler": BatchSampler(RandomSampler(dataset), 4, drop_last=True)}
    yield {"batch_sampler": [[6, 1, 3], [0, 9], [7, -1]]}


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("workers", WORKERS)
def test_unequal_samples_raise_and_are_named(number: int, workers: int | None) -> None:
    data = tokens([3, 8, 5, 1, 9, 11, 7, 2, 4, 6, 10])  # no two alike
    options = list(orders(data))[number]
    by_torch = {k: v for k, v in options.items() if k != "seed"}
    if "seed" not in options:
        torch.manual_seed(0)
        with pytest.raises(RuntimeError) as torchs:
            next(iter(DataLoader(data, **by_torch)))
    torch.manual_seed(0)
    named = FastLoader(data, num_workers=workers, transforms={"t": AsList()}, **options)
    batches = [[int(sample[0]) // 1000 for sample in batch["t"]] for batch in named]
    torch.manual_seed(0)
    if options.get("seed") is not None:
        options = dict(options)
    loader = iter(FastLoader(data, num_workers=workers, **options))
    if "seed" not in options:
        torch.manual_seed(0)
        loader = iter(FastLoader(data, num_workers=workers, **options))
    for turn, indices in enumerate(batches):
        if len(indices) == 1:
            assert next(loader)["t"].shape[0] == 1
            continue
        with pytest.raises(RuntimeError) as ours:
            next(loader)
        if turn == 0 and "seed" not in options:
            assert str(ours.value).startswith(str(torchs.value))
        a, b = indices[:2]
        shapes = [(len(data[i]["t"]),) for i in (a, b)]
        told = f"field 't': sample {a} has shape {shapes[0]}, sample {b} has shape {shapes[1]}"
        assert told in str(ours.value)
        assert "PadTo(), Jagged() or AsList()" in str(ours.value)
    assert next(loader, None) is None


def test_a_batch_that_fails_does_not_count() -> None:
    data = tokens([2, 2, 3, 3, 3, 4, 5, 5])
    loader = FastLoader(data, 2, seed=0)
    batches = iter(loader)
    assert next(batches)["t"].shape == (2, 2)
    assert next(batches)["t"].shape == (2, 3)
    at_two = loader.state_dict()
    with pytest.raises(RuntimeError, match=r"sample 4 has shape"):
        next(batches)
    assert loader.state_dict() == at_two
    assert next(batches)["t"].shape == (2, 5)
    assert loader.state_dict()["samples"] == 8


def test_after_a_resume_errors_name_the_right_samples() -> None:
    data = tokens([2, 2, 3, 3, 3, 4, 5, 5])
    for options in ({"seed": 0}, {}, {"batch_sampler": [[0, 1], [2, 3], [4, 5], [6, 7]]}):
        size = {} if "batch_sampler" in options else {"batch_size": 2}
        loader = FastLoader(data, **size, **options)
        again = FastLoader(data, **size, **options)
        batches = iter(loader)
        assert next(batches)["t"].shape == (2, 2)
        again.load_state_dict(loader.state_dict())
        batches = iter(again)
        assert next(batches)["t"].shape == (2, 3)
        with pytest.raises(RuntimeError, match=r"sample 4 has shape .* sample 5 has"):
            next(batches)


# --- transforms


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    multiple=st.integers(1, 5),
    batch=st.integers(1, 5),
    workers=st.sampled_from([0, 2]),
    data=st.data(),
)
def test_padding_is_that_of_pad_sequence(
    lengths: list[int], multiple: int, batch: int, workers: int, data: Any
) -> None:
    kind = data.draw(st.sampled_from([("int64", ()), ("uint8", (3,)), ("float16", (2, 1))]))
    cut = data.draw(st.integers(0, len(lengths)))
    dataset = tokens(lengths, [cut, len(lengths) - cut], dtype=kind[0], shape=kind[1])
    pad = {"t": PadTo(multiple, 7)}
    loader = FastLoader(dataset, batch, num_workers=workers, transforms=pad)
    for number, got in enumerate(loader):
        wants = samples_of(dataset, range(len(lengths))[batch * number : batch * (number + 1)])
        longest = max(map(len, wants))
        width = -(-longest // multiple) * multiple
        filler = torch.full((width, *kind[1]), 7, dtype=wants[0].dtype)
        want = pad_sequence([*wants, filler], batch_first=True, padding_value=7)[:-1]
        assert torch.equal(got["t"], want)
        assert got["t"].dtype is want.dtype
        assert got["t_lengths"].tolist() == list(map(len, wants))
        assert own_bytes(got["t"])
        assert own_bytes(got["t_lengths"])


@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, *TORCH_ONLY])
def test_every_dtype_is_padded_listed_and_nested(dtype: str) -> None:
    data = tokens(dtype=dtype, shape=(2,), shards=[4, 7])
    value = 1
    order = [6, 1, 3, 10, 0]
    wants = samples_of(data, order)
    assert all(want.dtype is getattr(torch, dtype) for want in wants)

    def bits(tensor: torch.Tensor) -> list[int]:
        return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()

    def batch(transform: Any) -> Any:
        return next(iter(FastLoader(data, batch_sampler=[order], transforms={"t": transform})))

    padded = batch(PadTo(4, value))
    assert padded["t"].shape == (5, 8, 2)
    for row, want in zip(padded["t"], wants, strict=True):
        assert bits(row[: len(want)]) == bits(want)
        filler = torch.full((8 - len(want), 2), value).to(want.dtype)
        assert bits(row[len(want) :]) == bits(filler)
    listed = batch(AsList())["t"]
    assert list(map(bits, listed)) == list(map(bits, wants))
    assert all(map(own_bytes, listed))
    apart = batch(Jagged(nested=False))
    assert bits(apart["t"]) == [bit for want in wants for bit in bits(want)]
    assert apart["t_offsets"].tolist() == np.cumsum([0, *map(len, wants)]).tolist()
    nested = batch(Jagged())["t"]
    assert list(map(bits, nested.unbind())) == list(map(bits, wants))


def test_nested_tensors_are_those_of_torch() -> None:
    data = tokens(dtype="float32", shape=(3,))
    batch = next(iter(FastLoader(data, 11, transforms={"t": Jagged()})))["t"]
    want = torch.nested.nested_tensor(samples_of(data, range(11)), layout=torch.jagged)
    assert (batch.layout, batch.dtype, batch.dim()) == (want.layout, want.dtype, want.dim())
    assert torch.equal(batch.values(), want.values())
    assert torch.equal(batch.offsets(), want.offsets())
    try:
        padded = want.to_padded_tensor(0.0)
    except NotImplementedError:  # torch 2.4
        pass
    else:
        assert torch.equal(batch.to_padded_tensor(0.0), padded)
    assert torch.equal((batch * 2).values(), want.values() * 2)


@pytest.mark.parametrize("workers", WORKERS)
def test_all_kinds_side_by_side(workers: int | None) -> None:
    data = mixed()
    chosen = {"t": PadTo(4, -1), "boxes": Jagged(nested=False), "raw": AsList()}
    loader = FastLoader(data, 4, shuffle=True, seed=5, num_workers=workers, transforms=chosen)
    seen = []
    assert type(iter(loader)) is _NativeIterator
    for batch in loader:
        assert list(batch) == ["y", "t", "t_lengths", "boxes", "boxes_offsets", "text", "raw"]
        indices = batch["y"][:, 0].tolist()
        seen += indices
        samples = [data[i] for i in indices]
        assert batch["text"] == [sample["text"] for sample in samples]
        assert batch["raw"] == [sample["raw"] for sample in samples]
        for row, n, sample in zip(batch["t"], batch["t_lengths"], samples, strict=True):
            assert row[:n].tolist() == sample["t"].tolist()
            assert (row[n:] == -1).all()
        assert batch["t"].shape[1] % 4 == 0
        for (a, b), sample in zip(pairwise(batch["boxes_offsets"]), samples, strict=True):
            assert batch["boxes"][a:b].tolist() == sample["boxes"].tolist()
    assert sorted(seen) == list(range(11))


def test_without_keys_a_namedtuple_holds_both() -> None:
    data = ragged_dataset(
        (0, 1), [field("0"), Field("1", "int64", ())], [numbers_of_length(LENGTHS), list(range(11))]
    )
    values, label = next(iter(FastLoader(data, 4, transforms={"0": PadTo()})))
    assert type(values) is Padded
    assert values.values.shape == (4, 5)
    assert values.lengths.tolist() == LENGTHS[:4]
    assert label.tolist() == [0, 1, 2, 3]


def test_subsets_concatenations_and_stacks() -> None:
    data = mixed()
    pad = {"t": PadTo(), "boxes": AsList()}

    def lists(loader: Any) -> list[Any]:
        return [[b["y"].tolist(), b["t"].tolist(), b["text"]] for b in loader]

    subset = Subset(data, [7, -1, 0, 0, 6])
    assert lists(FastLoader(subset, 5, transforms=pad)) == lists(
        FastLoader(data, batch_sampler=[[7, 10, 0, 0, 6]], transforms=pad)
    )
    both = ConcatDataset([subset, data])
    loader = FastLoader(both, 16, transforms=pad)
    assert type(iter(loader)) is _NativeIterator
    [batch] = loader
    assert batch["text"] == [TEXTS[i] for i in (7, 10, 0, 0, 6, *range(11))]
    assert batch["t_lengths"].tolist() == [LENGTHS[i] for i in (7, 10, 0, 0, 6, *range(11))]
    stack = StackDataset(a=data, b=tokens(LENGTHS[::-1]))
    chosen = {"a.t": Jagged(nested=False), "a.boxes": AsList(), "b.t": PadTo()}
    batch = next(iter(FastLoader(stack, 11, transforms=chosen)))
    assert list(batch["a"]) == ["y", "t", "t_offsets", "boxes", "text", "raw"]
    assert batch["b"]["t_lengths"].tolist() == LENGTHS[::-1]
    with pytest.raises(ValueError, match=r"no field 't'; it has 'a\.y', 'a\.t', 'a\.boxes'"):
        FastLoader(stack, transforms={"t": PadTo()})


def test_batches_do_not_depend_on_the_workers() -> None:
    rng = random.Random(0)
    lengths = [rng.choice([0, 1, 2, 50, 3000]) for _ in range(200)]
    data = tokens(lengths, [100, 100])
    seen = []
    for workers in WORKERS:
        loader = FastLoader(
            data, 16, shuffle=True, seed=1, num_workers=workers, transforms={"t": PadTo(8)}
        )
        seen.append([(batch["t"].sum().item(), batch["t"].shape) for batch in loader])
    assert all(batches == seen[0] for batches in seen)


def test_batches_are_the_callers() -> None:
    data = tokens(dtype="float32")
    loader = FastLoader(data, 4, transforms={"t": PadTo()})
    first = [batch["t"].mul_(0) for batch in loader]
    assert all(batch.sum() == 0 for batch in first)
    assert sum(batch["t"].sum().item() for batch in loader) > 0


# --- where transforms cannot be


def test_a_collate_fn_sees_the_datasets_own_samples() -> None:
    data = mixed()
    got = list(FastLoader(data, 4, collate_fn=list))
    want = list(DataLoader(data, 4, collate_fn=list))
    for mine, torchs in zip(got, want, strict=True):
        for a, b in zip(mine, torchs, strict=True):
            assert list(a) == list(b)
            assert all(np.array_equal(a[key], b[key]) for key in a)
    padded = DataLoader(
        data,
        4,
        collate_fn=lambda rows: pad_sequence(
            [torch.from_numpy(row["t"]) for row in rows], batch_first=True
        ),
    )
    ours = FastLoader(data, 4, transforms={"t": PadTo(), "boxes": AsList()})
    assert all(torch.equal(a, b["t"]) for a, b in zip(padded, ours, strict=True))


def test_transforms_need_native_data_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    data = mixed()
    for make in (
        lambda: FastLoader([1, 2, 3], transforms={}),
        lambda: FastLoader(data, collate_fn=list, transforms={"t": PadTo()}),
        lambda: FastLoader(data, batch_size=None, transforms={"t": PadTo()}),
    ):
        with pytest.raises(ValueError, match="transforms= are for native data in batches"):
            make()
    with pytest.raises(ValueError, match="no field 'x'"):
        FastLoader(data, transforms={"x": PadTo()})
    loader = FastLoader(data, transforms={"t": PadTo(), "boxes": AsList()})
    with pytest.raises(ValueError, match="should not be set"):
        loader.transforms = None
    monkeypatch.setitem(collate.default_collate_fn_map, str, lambda batch, **_: batch)
    with pytest.raises(ValueError, match="transforms= are for native data in batches"):
        iter(loader)


def test_a_key_that_is_taken() -> None:
    data = ragged_dataset(
        {"t": 0, "t_lengths": 1},
        [field("t"), Field("t_lengths", "int64", ())],
        [numbers_of_length([1, 2]), [1, 2]],
    )
    with pytest.raises(ValueError, match="two members 't_lengths'"):
        FastLoader(data, transforms={"t": PadTo()})


def test_text_that_is_no_utf8_names_its_sample() -> None:
    data = ragged_dataset({"s": 0}, [field("s", "uint8", (), "utf8")], [[b"a", b"\xff", b"c"]])
    batches = iter(FastLoader(data, 1))
    assert next(batches) == {"s": ["a"]}
    with pytest.raises(FormatError, match="field 's': sample 1: not UTF-8"):
        next(batches)
    assert next(batches) == {"s": ["c"]}


def test_dates_come_as_integers() -> None:
    stamps = Field("when", "int64", (), logical="datetime64[ms]")
    data = ragged_dataset({"when": 0}, [stamps], [[5, -7, 2**62]])
    assert next(iter(FastLoader(data, 3)))["when"].tolist() == [5, -7, 2**62]
    assert default_collate([data[1]])["when"].tolist() == [-7]
