"""A batch is taken apart and put together again around the copies of its tensors."""

from __future__ import annotations

import collections
import types
from typing import Any

import numpy as np
import pytest
import torch
from ragged import numbers_of_length, ragged_dataset

from fastload import AsList, FastLoader, Jagged
from fastload.batch.parts import Parts, moved, take_apart
from fastload.formats.fields import Field

META = torch.device("meta")
Pair = collections.namedtuple("Pair", "a b")


class Mine(dict[str, Any]):
    """A dict with something of its own."""

    note = ""


class Movable:
    where: Any = None

    def to(self, device: torch.device) -> Movable:
        moved = Movable()
        moved.where = device
        return moved


def on_meta(parts: Parts) -> Any:
    others = [moved(other, META) for other in parts.others]
    return parts.build([*(leaf.to(META) for leaf in parts.leaves), *others])


def test_a_batch_that_was_taken_apart_is_no_longer_looked_at() -> None:
    mine, inner, array = Mine(x=torch.ones(2)), [1, "two"], np.arange(3)
    mine |= {"inner": inner, "array": array}
    mine.note = "first"
    parts = take_apart(mine, META)
    mine["x"] = mine["more"] = 0
    mine.note = "second"
    inner.append(3)
    array += 1
    got = on_meta(parts)
    assert type(got) is Mine
    assert list(got) == ["x", "inner", "array"]
    assert got["x"].is_meta
    assert got.note == "first"
    assert got["inner"] == [1, "two"]
    assert got["array"].tolist() == [0, 1, 2]


def test_containers_keep_their_types() -> None:
    x = torch.ones(2)
    mine = Mine(x=x)
    mine.note = "kept"
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    frozen = types.MappingProxyType({"x": x})
    batch = [mine, Pair(x, "s"), (x, 3), [x], Movable(), None, packed, frozen]
    parts = take_apart(batch, META)
    assert all(leaf is x for leaf in parts.leaves)
    assert [type(other) for other in parts.others] == [Movable, type(packed)]
    got = on_meta(parts)
    assert type(got) is list
    assert type(got[0]) is Mine
    assert got[0].note == "kept"
    assert got[0]["x"].is_meta
    assert type(got[1]) is Pair
    assert got[1].b == "s"
    assert type(got[2]) is tuple
    assert got[2][1] == 3
    assert type(got[3]) is list
    assert got[4].where == META
    assert got[5] is None
    assert got[6].data.is_meta
    assert not got[6].batch_sizes.is_meta
    assert type(got[7]) is types.MappingProxyType
    assert all(part.is_meta for part in (got[1].a, got[2][0], got[3][0], got[7]["x"]))
    assert not mine["x"].is_meta


def test_tensors_that_are_not_plain_move_by_themselves() -> None:
    leaf, turned = torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.complex64).conj()
    parts = take_apart([leaf, torch.eye(2).to_sparse(), turned, turned.imag], META)
    assert parts.leaves == []
    got = on_meta(parts)
    assert got[0].requires_grad
    assert got[1].is_sparse
    assert all(tensor.is_meta for tensor in got)
    here = torch.zeros(2, device="meta")
    assert take_apart(here, META).build([]) is here


@pytest.mark.parametrize("transform", [AsList(), Jagged(nested=False), Jagged()])
def test_ragged_fields_move(transform: Any) -> None:
    field = Field("t", "int64", (), ragged=True)
    data = ragged_dataset({"t": 0}, [field], [numbers_of_length([1, 3, 0, 2])])
    [batch] = FastLoader(data, 4, transforms={"t": transform}, device="meta")
    parts = batch["t"] if isinstance(batch["t"], list) else [batch["t"]]
    assert all(part.device == META for part in parts)
