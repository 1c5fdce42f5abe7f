"""State that checkpoints take: what is converted, and what is refused with its place."""

from __future__ import annotations

import collections
import datetime
import enum
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload.training.plain_state import decode, encode, find_unloadable, plain_numbers


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(encode(state), file)
    file.seek(0)
    return decode(torch.load(file, weights_only=True))


NUMBERS = [
    np.float64(0.1),
    np.float32(0.1),
    np.float16(0.1),
    np.longdouble(0.5),
    np.int8(-3),
    np.uint64(2**64 - 1),
    np.bool_(True),
    np.complex64(1 + 2j),
    np.float64("nan"),
    np.float64("inf"),
    np.str_("a"),
    np.bytes_(b"a"),
    np.array(0.1),
    np.array(7),
]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_numbers_of_numpy_become_pythons_with_the_same_value(number: Any) -> None:
    for state in (number, [number], {"a": {"b": (number, 1)}}, collections.OrderedDict(a=number)):
        found = through_a_file(state)
        assert type(found) is (type(state) if isinstance(state, (list, dict)) else type(found))
        while isinstance(found, (dict, list, tuple)):
            found = next(iter(found.values())) if isinstance(found, dict) else found[0]
        assert type(found) in (bool, int, float, complex, str, bytes)
        assert found == number or (number != number and found != found)
    assert through_a_file({np.int64(3): {np.str_("k"): 1}}) == {3: {"k": 1}}


def test_arrays_come_back_as_they_were() -> None:
    for dtype in "?bBhHiIlLefdFD":
        array = np.arange(12).reshape(3, 4).astype(dtype)
        for one in (
            array,
            array.T,
            array[::-1],
            array[:0],
            array.astype(array.dtype.newbyteorder()),
        ):
            found = through_a_file({"table": [one]})["table"][0]
            assert type(found) is np.ndarray
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, one)


def test_a_state_without_numpy_is_not_copied() -> None:
    state = {"a": [1, (2.0, None)], "t": torch.ones(2), "o": collections.OrderedDict(x=b"b")}
    assert plain_numbers(state) is state
    assert encode(state) is state
    assert find_unloadable(state) is None


class Point(collections.namedtuple("Point", "x")):
    pass


class Level(enum.IntEnum):
    low = 1


REFUSED = [
    (lambda: 1, "builtins.function"),
    (threading.Lock(), "_thread.lock"),
    (object(), "builtins.object"),
    (Point(1), "test_plain_state.Point"),
    (Level.low, "test_plain_state.Level"),
    (collections.defaultdict(int), "collections.defaultdict"),
    (frozenset({1}), "builtins.frozenset"),
    (Path("a"), "PosixPath"),
    (datetime.date(2024, 1, 1), "datetime.date"),
    (np.datetime64("2024-01-01"), "numpy.datetime64"),
    (np.timedelta64(1, "s"), "numpy.timedelta64"),
    (np.longdouble(1) / 3, "numpy.longdouble"),
    (np.array(["a"]), "numpy.ndarray"),
    (np.array([None]), "numpy.ndarray"),
    (np.ma.array([1]), "numpy.ma.MaskedArray"),
    (np.random.default_rng(0), "Generator"),
    (torch.Generator(), "torch._C.Generator"),
]


@pytest.mark.parametrize(("value", "kind"), REFUSED, ids=[kind for _, kind in REFUSED])
def test_what_cannot_be_loaded_is_found_with_its_place(value: Any, kind: str) -> None:
    state = {"step": {"scheduler": {"parts": [{"last": 1}, {"of": (0.5, value)}]}}}
    found = find_unloadable(encode(state))
    assert found is not None
    assert found[0] == "step.scheduler.parts[1].of[1]"
    assert found[1].split(".")[-1] == kind.split(".")[-1]


def test_keys_are_looked_at_and_places_are_readable() -> None:
    assert find_unloadable({"a": {frozenset(): 1}}) == (
        "the key a[frozenset()]",
        "builtins.frozenset",
    )
    assert find_unloadable({"a": {"b c": {3: object()}}}) == ("a['b c'][3]", "builtins.object")
