"""pin_memory and device: what is pinned, and what is left as it was."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from oracle import numbers
from torch.utils.data import DataLoader

from fastload import ArrayDataset, FastLoader

WITHOUT = pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")


class Pair(NamedTuple):
    x: Any
    y: Any


class Keyed(OrderedDict[str, Any]):
    """A dict of its own kind."""


def listed(n: int) -> Any:
    return [torch.tensor(i) for i in range(n)]


def messages(run: Callable[[], Any]) -> list[str]:
    """The warnings of a call, but for that about the number of CPUs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    texts = [str(warning.message) for warning in caught]
    return [text for text in texts if "worker processes in total" not in text]


def all_tensors(data: Any) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        return [data]
    members = data.values() if isinstance(data, dict) else data
    if not isinstance(data, (dict, list, tuple)):
        return []
    return [tensor for member in members for tensor in all_tensors(member)]


@WITHOUT
@pytest.mark.parametrize("make", [numbers, listed])
@pytest.mark.parametrize("workers", [0, 1])
def test_without_an_accelerator_each_iterator_warns_once(
    make: Callable[[int], Any], workers: int
) -> None:
    loader = FastLoader(make(7), 2, pin_memory=True, num_workers=workers)
    plain = DataLoader(listed(7), 2, pin_memory=True, num_workers=workers)
    for _ in range(2):
        batches: list[torch.Tensor] = []
        said = messages(lambda into=batches: into.extend(loader))  # type: ignore[misc]
        if make is listed:  # torch 2.4 says nothing
            assert said == messages(lambda: list(plain))
        else:
            assert len(said) == 1
            assert "no accelerator is found" in said[0]
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6]]
        assert not any(batch.is_pinned() for batch in batches)


@WITHOUT
def test_persistent_iterators_warn_once() -> None:
    loader = FastLoader(numbers(4), 2, pin_memory=True, num_workers=1, persistent_workers=True)
    assert len(messages(lambda: [list(loader), list(loader)])) == 1


# --- With an accelerator that is not there ------------------------------------------------------


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Every tensor that is pinned from now on; they are copies, and torch believes in a GPU."""
    made: list[torch.Tensor] = []

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        made.append(tensor.clone())
        return made[-1]

    for place in {torch.cuda, getattr(torch, "accelerator", torch.cuda)}:
        monkeypatch.setattr(place, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    return made


def is_pinned(batch: Any, pinned: list[torch.Tensor]) -> bool:
    return all(any(leaf is one for one in pinned) for leaf in all_tensors(batch))


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_native_leaves_are_pinned_and_containers_stay(
    workers: int | None, pinned: list[torch.Tensor]
) -> None:
    x, y = np.arange(6.0), np.arange(6)
    for data in ({"x": x, "y": (y, x)}, (x, y), [x, y], x, Pair(x, y)):
        dataset = ArrayDataset(data)
        want = next(iter(FastLoader(dataset, 3)))
        pinned.clear()
        batches = list(FastLoader(dataset, 3, pin_memory=True, num_workers=workers))
        assert len(batches) == 2
        assert all(is_pinned(batch, pinned) for batch in batches)
        assert len(pinned) == sum(len(all_tensors(batch)) for batch in batches) > 0
        assert type(batches[0]) is type(want)
        assert str(batches[0]) == str(want)


def test_leaves_of_other_data_are_pinned_and_the_rest_stays(pinned: list[torch.Tensor]) -> None:
    def collate(samples: list[Any]) -> Any:
        both = torch.stack(samples), torch.zeros(2)
        return Keyed(a=both, b=Pair(*both), c=["text", b"bytes", 3, None], d=[both[0]])

    [batch] = FastLoader(listed(3), 3, pin_memory=True, collate_fn=collate)
    assert is_pinned(batch, pinned)
    assert len(all_tensors(batch)) == 5
    [want] = DataLoader(listed(3), 3, pin_memory=True, collate_fn=collate)
    # torch 2.4 makes lists of tuples
    assert list(map(type, batch.values())) == list(map(type, want.values()))
    assert [type(batch), type(batch["b"]), type(batch["d"])] == [Keyed, Pair, list]
    assert batch["c"] == ["text", b"bytes", 3, None]


@pytest.mark.usefixtures("pinned")
def test_a_batch_that_pins_itself_does_so_once() -> None:
    class Box:
        pins = 0

        def __init__(self, samples: list[Any]) -> None:
            self.x = torch.stack(samples)

        def pin_memory(self) -> Any:
            Box.pins += 1
            return "pinned", self.x

    batches = list(FastLoader(listed(4), 2, pin_memory=True, collate_fn=Box))
    assert Box.pins == 2
    assert [word for word, _ in batches] == ["pinned", "pinned"]
    assert [x.tolist() for _, x in batches] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("make", [numbers, listed])
def test_pin_memory_device_only_warns(
    make: Callable[[int], Any], pinned: list[torch.Tensor]
) -> None:
    for options in ({}, {"pin_memory": True}):
        options |= {"pin_memory_device": "cuda"}
        pinned.clear()
        said = messages(lambda given=options: list(FastLoader(make(4), 2, **given)))  # type: ignore[misc]
        assert len(pinned) == (2 if "pin_memory" in options else 0)
        if make is listed:
            plain = messages(lambda given=options: list(DataLoader(listed(4), 2, **given)))  # type: ignore[misc]
            assert said == plain
        else:
            assert len(said) == ("pin_memory" in options)
            assert "pin_memory_device is deprecated" in str(said) or not said


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"shuffle": True, "seed": 0}])
def test_loading_makes_no_context_on_a_gpu(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("this begins a context on the current GPU")

    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    for device in (None, "cpu"):
        assert len(list(FastLoader(numbers(6), 2, device=device, **options))) == 3
        assert len(list(FastLoader(listed(6), 2, device=device))) == 3


@pytest.mark.usefixtures("pinned")
@pytest.mark.parametrize("workers", [None, 0])
def test_without_pinned_memory_batches_come_unpinned_and_it_is_said_once(
    workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.Tensor, "pin_memory", fails)
    data = ArrayDataset({"x": np.arange(6), "y": np.arange(6.0)})
    loader = FastLoader(data, 2, pin_memory=True, num_workers=workers)
    batches: list[Any] = []
    [said] = messages(lambda: batches.extend(loader))
    assert "cannot be pinned" in said
    assert "CUDA error: out of memory" in said
    assert [batch["x"].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert len(messages(lambda: list(loader))) == 1  # the next iterator tries again
