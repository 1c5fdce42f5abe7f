"""From the core's arrays to batches: containers, dtypes, memory, errors."""

from __future__ import annotations

import collections
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from fastload import AsList, FormatError, Jagged, PadTo
from fastload.batch.plan import BatchPlan
from fastload.batch.transforms import Padded, Ragged
from fastload.formats.columns import Bounds, Column, Group, MemorySource
from fastload.formats.extents import Extents
from fastload.formats.fields import Field

INDICES = np.array([7, 3, 9])


class Pair(NamedTuple):
    a: Any
    b: Any


def extents_of(structure: Any, *fields: Field) -> Extents:
    """Extents that promise such fields; nothing is read from them."""
    nothing = MemorySource(np.zeros(0), 0, 0)
    zero = np.zeros(1, np.int64)
    columns = [
        Column(
            f, f.row_bytes, (nothing,), zero, Bounds((nothing,), zero, zero) if f.ragged else None
        )
        for f in fields
    ]
    return Extents((Group(zero, tuple(columns)),), structure)


def field(name: str = "t", dtype: str = "int64", shape: Any = (), logical: Any = None) -> Field:
    return Field(name, dtype, shape, ragged=True, logical=logical)


def delivered(samples: list[Any], dtype: Any, shape: Any = ()) -> list[np.ndarray]:
    """Values and offsets as the core delivers them."""
    arrays = [np.asarray(sample, dtype).reshape(-1, *shape) for sample in samples]
    offsets = np.cumsum([0, *map(len, arrays)])
    return [np.concatenate([np.empty((0, *shape), dtype), *arrays]), offsets]


def collated(field: Field, samples: list[Any], transform: Any = None) -> Any:
    arrays = delivered(samples, field.storage, field.shape)
    if isinstance(transform, PadTo):
        parts = [torch.from_numpy(arrays[0][a:b]) for a, b in pairwise(arrays[1])]
        padded = pad_sequence(parts, batch_first=True, padding_value=transform.value)
        arrays = [padded.numpy(), np.diff(arrays[1])]
    chosen = {} if transform is None else {field.name: transform}
    plan = BatchPlan.compile(extents_of({field.name: 0}, field), chosen)
    return plan.collate()(arrays, lambda: INDICES)


def own_bytes(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


# --- without a transform


def test_equal_lengths_are_stacked_as_default_collate_does() -> None:
    for shape, length in (((), 2), ((3,), 4), ((3, 2), 1), ((), 0)):
        samples = [np.arange(length * int(np.prod(shape))).reshape(length, *shape)] * 3
        got = collated(field(shape=shape), samples)["t"]
        want = default_collate([torch.from_numpy(sample) for sample in samples])
        assert torch.equal(got, want)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert own_bytes(got)


def test_unequal_lengths_raise_as_default_collate_does() -> None:
    samples = [np.zeros((2, 4)), np.zeros((2, 4)), np.zeros((5, 4))]
    with pytest.raises(RuntimeError) as torchs:
        default_collate([torch.from_numpy(sample) for sample in samples])
    with pytest.raises(RuntimeError) as ours:
        collated(field(dtype="float64", shape=(4,)), samples)
    assert type(ours.value) is type(torchs.value)
    assert str(ours.value).startswith(str(torchs.value))
    told = "field 't': sample 7 has shape (2, 4), sample 9 has shape (5, 4)"
    assert told in str(ours.value)
    for choice in ("PadTo()", "Jagged()", "AsList()", "transforms={'t': ...}"):
        assert choice in str(ours.value)


def test_texts_and_bytes() -> None:
    words = ["héllo", "", "日本"]
    raw = [list(word.encode()) for word in words]
    assert collated(field(dtype="uint8", logical="utf8"), raw) == {"t": words}
    for logical in ("bytes", "image", "audio"):
        want = {"t": [word.encode() for word in words]}
        assert collated(field(dtype="uint8", logical=logical), raw) == want


def test_text_that_is_no_utf8() -> None:
    with pytest.raises(FormatError, match="field 't': sample 3: not UTF-8"):
        collated(field(dtype="uint8", logical="utf8"), [[65], [255], [66]])


def test_dates_stay_integers() -> None:
    got = collated(field(logical="datetime64[ns]"), [[1, 2], [3, 4], [5, -6]])["t"]
    assert got.tolist() == [[1, 2], [3, 4], [5, -6]]
    assert got.dtype is torch.int64


# --- transforms


SAMPLES = [[1, 2], [], [3, 4, 5]]


@pytest.mark.parametrize("dtype", ["int64", "float32", "bfloat16", "uint8", "complex128", "bool"])
def test_jagged_lists_and_padded_hold_the_samples(dtype: str) -> None:
    kind = field(dtype=dtype)
    arrays = delivered(SAMPLES, kind.storage)
    wants = [
        torch.from_numpy(arrays[0][a:b]).view(getattr(torch, dtype)) for a, b in pairwise(arrays[1])
    ]

    def same(got: Any) -> None:
        assert [t.dtype for t in got] == [t.dtype for t in wants]
        assert [t.shape for t in got] == [t.shape for t in wants]
        assert all(torch.equal(g, w) for g, w in zip(got, wants, strict=True))

    listed = collated(kind, SAMPLES, AsList())["t"]
    assert type(listed) is list
    assert all(map(own_bytes, listed))
    same(listed)
    nested = collated(kind, SAMPLES, Jagged())["t"]
    assert nested.layout is torch.jagged
    same(nested.unbind())
    assert nested.offsets().tolist() == [0, 2, 2, 5]
    apart = collated(kind, SAMPLES, Jagged(nested=False))
    assert list(apart) == ["t", "t_offsets"]
    assert apart["t_offsets"].dtype is torch.int64
    same([apart["t"][a:b] for a, b in pairwise(apart["t_offsets"].tolist())])
    padded = collated(kind, SAMPLES, PadTo())
    assert list(padded) == ["t", "t_lengths"]
    assert padded["t_lengths"].tolist() == [2, 0, 3]
    assert padded["t_lengths"].dtype is torch.int64
    same([row[:n] for row, n in zip(padded["t"], padded["t_lengths"], strict=True)])


def test_no_samples() -> None:
    empty = field(shape=(2,))
    assert collated(empty, [])["t"].shape == (0, 0, 2)
    assert collated(empty, [], AsList())["t"] == []
    assert collated(empty, [], Jagged())["t"].shape[0] == 0
    assert collated(empty, [], Jagged(nested=False))["t_offsets"].tolist() == [0]
    assert collated(field(dtype="uint8", logical="utf8"), []) == {"t": []}


def test_a_list_of_texts_is_the_default() -> None:
    text = field(dtype="uint8", logical="utf8")
    assert collated(text, [[65], [66]], AsList()) == {"t": ["A", "B"]}


# --- containers


LABEL = Field("y", "int32", ())


def maker_of(structure: Any, transform: Any, *, text: bool = False) -> Any:
    kind = field(dtype="uint8", logical="utf8") if text else field()
    chosen = {} if transform is None else {"t": transform}
    make = BatchPlan.compile(extents_of(structure, kind, LABEL), chosen).collate()
    arrays = [*delivered([[65, 66], [67, 68]], kind.storage), np.arange(2, dtype="i4")]
    return make(arrays, lambda: INDICES)


def test_lengths_stand_right_behind_their_field() -> None:
    for structure in (
        {"t": 0, "y": 1},
        collections.OrderedDict(t=0, y=1),
        collections.defaultdict(int, {"t": 0, "y": 1}),
    ):
        for transform, keys in (
            (PadTo(), ["t", "t_lengths", "y"]),
            (Jagged(nested=False), ["t", "t_offsets", "y"]),
            (Jagged(), ["t", "y"]),
            (AsList(), ["t", "y"]),
            (None, ["t", "y"]),
        ):
            batch = maker_of(structure, transform)
            assert type(batch) is type(structure)
            assert list(batch) == keys
    assert list(structure) == ["t", "y"]
    assert list(maker_of({"y": 1, 5: {"t": 0}}, PadTo())[5]) == ["t", "t_lengths"]
    assert list(maker_of({"y": 1, 5: 0}, PadTo())) == ["y", 5, "5_lengths"]


def test_without_keys_values_and_lengths_are_one_member() -> None:
    padded = maker_of((0, 1), PadTo())
    assert type(padded) is list
    assert type(padded[0]) is Padded
    assert padded[0].values.tolist() == [65, 66, 67, 68]  # as delivered: the core pads
    apart = maker_of(Pair(1, 0), Jagged(nested=False))
    assert (type(apart), type(apart.b)) == (Pair, Ragged)
    assert apart.b.offsets.tolist() == [0, 2, 4]
    assert type(maker_of([1, [0]], PadTo())[1][0]) is Padded


def test_a_key_that_is_taken() -> None:
    with pytest.raises(ValueError, match="two members 't_lengths'"):
        maker_of({"t": 0, "t_lengths": 1}, PadTo())
    assert len(maker_of({"t": 0, "t_lengths": 1}, AsList())) == 2


@pytest.mark.parametrize(
    "structure",
    [{"t": 0, "y": 1}, (0, 1), [1, 0], Pair(0, 1), {"y": 1, "d": [0]}, [{"t": 0}, 1]],
    ids=str,
)
def test_containers_of_texts_are_those_of_default_collate(structure: Any) -> None:
    from fastload.formats.structure import sample_builder

    build = sample_builder(structure)
    samples = [build(["AB", np.int32(0)]), build(["CD", np.int32(1)])]
    want = default_collate(samples)
    got = maker_of(structure, None, text=True)
    assert str(got) == str(want)  # tuples are told from lists
    assert "['AB', 'CD']" in str(maker_of(structure, AsList(), text=True))


def test_other_fields_are_left_as_they_were() -> None:
    make = BatchPlan.compile(extents_of({"y": 0}, LABEL)).collate()
    array = np.arange(3, dtype="i4")
    batch = make([array], lambda: INDICES)
    assert batch["y"].data_ptr() == array.ctypes.data
