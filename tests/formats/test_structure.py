"""Containers of samples: built, collated and stored as torch and JSON would have them."""

from __future__ import annotations

import collections
import pickle
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from fastload.formats.structure import (
    batch_builder,
    flatten,
    from_json,
    leaf_names,
    map_leaves,
    renumber,
    sample_builder,
    skeleton,
    to_json,
)

Pair = namedtuple("Pair", "a b")


class Tagged(dict[str, Any]):
    tag = None


class Numbered(list[Any]):
    pass


class Triple(tuple[Any, ...]):
    pass


STRUCTURES = [
    0,
    {"x": 0},
    {"x": 1, "y": 0},
    (0,),
    (0, 1),
    [1, 0],
    [0],
    Pair(0, 1),
    {"x": (0, [1, {"y": 2}]), "z": Pair(3, (4, 5))},
    (Pair(0, [1, (2, 3)]), OrderedDict(z=4, y=5)),
    {3: 0, "a": 1},
    {"x": 0, "empty": {}, "none": ()},
    OrderedDict(b=0, a=1),
    collections.defaultdict(list, x=0),
    Tagged(x=0, y=1),
    Numbered([0, 1]),
]


def columns_of(structure: Any, rows: int) -> list[torch.Tensor]:
    return [torch.arange(rows) * 10 + column for column in range(len(flatten(structure)))]


def typed(value: Any) -> Any:
    """Containers with their types, tensors as lists: equal only if nothing changed its kind."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return type(value), [(key, typed(member)) for key, member in value.items()]
    return type(value), [typed(member) for member in value]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_a_sample_has_the_very_containers_of_its_structure(structure: Any) -> None:
    columns = columns_of(structure, 3)
    sample = sample_builder(structure)([column[1] for column in columns])
    assert typed(sample) == typed(map_leaves(lambda column: columns[column][1], structure))


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_a_batch_has_the_containers_that_default_collate_makes(structure: Any) -> None:
    columns = columns_of(structure, 3)
    build = sample_builder(structure)
    samples = [build([column[row] for column in columns]) for row in range(3)]
    assert typed(batch_builder(structure)(columns)) == typed(default_collate(samples))


def test_a_tuple_subclass_keeps_its_type_in_samples_and_becomes_a_list_in_batches() -> None:
    assert type(sample_builder(Triple((0, 1)))("ab")) is Triple
    assert batch_builder(Triple((0, 1)))("ab") == ["a", "b"]


def test_attributes_of_a_container_survive_as_in_default_collate() -> None:
    template = Tagged(x=0, y=1)
    template.tag = "kept"
    assert batch_builder(template)([torch.zeros(2), torch.ones(2)]).tag == "kept"


def test_builders_can_be_used_again_without_sharing_containers() -> None:
    build = sample_builder({"x": [0], "y": Tagged(z=1)})
    first, second = build("ab"), build("cd")
    assert first == {"x": ["a"], "y": {"z": "b"}}
    assert second == {"x": ["c"], "y": {"z": "d"}}


def test_leaves_are_met_in_the_order_of_the_containers() -> None:
    structure = {"b": 5, "a": (3, [4])}
    assert flatten(structure) == [5, 3, 4]
    assert leaf_names(structure) == ["b", "a.0", "a.1.0"]
    assert leaf_names(Pair({"x": 0}, 1)) == ["a.x", "b"]
    assert leaf_names(0) == ["data"]
    assert renumber(structure, 2) == {"b": 7, "a": (5, [6])}


def test_skeletons_tell_key_order_and_container_types_apart() -> None:
    base = {"x": 0, "y": (1, 2)}
    assert skeleton(base) == skeleton({"x": 2, "y": (0, 1)})
    for other in ({"y": 0, "x": (1, 2)}, {"x": 0, "y": [1, 2]}, OrderedDict(base), 0):
        assert skeleton(base) != skeleton(other)


@pytest.mark.parametrize("structure", STRUCTURES[:13], ids=repr)
def test_json_keeps_a_structure(structure: Any) -> None:
    back = from_json(to_json(structure))
    assert flatten(back) == flatten(structure)
    assert leaf_names(back) == leaf_names(structure)
    assert to_json(back) == to_json(structure)


def test_json_keeps_plain_containers_exactly() -> None:
    structure = {"x": (0, [1, OrderedDict(y=2)]), 3: 4}
    assert typed(map_leaves(torch.tensor, from_json(to_json(structure)))) == typed(
        map_leaves(torch.tensor, structure)
    )


def test_a_namedtuple_from_json_is_one_type_and_can_be_pickled() -> None:
    json = to_json(Pair(0, 1))
    made = from_json(json)
    assert type(made).__name__ == "Pair"
    assert made._fields == ("a", "b")
    assert type(from_json(json)) is type(made)
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made)
    assert again == made


JSON = st.recursive(
    st.integers(0, 9),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
)


@given(JSON)
def test_any_nesting_survives_json(structure: Any) -> None:
    assert from_json(to_json(structure)) == structure


@pytest.mark.parametrize(
    "value",
    [
        None,
        -1,
        True,
        1.0,
        "x",
        [0, 1],
        {},
        {"kind": "dict"},
        {"kind": "set", "items": []},
        {"kind": ["dict"], "items": []},
        {"kind": "dict", "items": [["x"]]},
        {"kind": "dict", "items": [[None, 0]]},
        {"kind": "dict", "items": [["x", 0], ["x", 1]]},
        {"kind": "tuple", "items": [0, None]},
        {"kind": "namedtuple", "items": [0]},
        {"kind": "namedtuple", "name": "P", "fields": ["a", "b"], "items": [0]},
        {"kind": "namedtuple", "name": "P", "fields": [1], "items": [0]},
        {"kind": "namedtuple", "name": "not a name", "fields": ["a"], "items": [0]},
        {"kind": "namedtuple", "name": "P", "fields": ["class"], "items": [0]},
    ],
    ids=repr,
)
def test_json_that_is_no_structure_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        from_json(value)


def test_keys_that_json_cannot_keep_are_refused() -> None:
    with pytest.raises(TypeError, match="str or int"):
        to_json({(1, 2): 0})
