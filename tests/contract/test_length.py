"""len() of loaders and iterators."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from oracle import Stream, numbers
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fastload import FastLoader


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("options", [{}, {"seed": 1}])
def test_length_is_the_number_of_batches(native: bool, options: dict[str, Any]) -> None:
    for n, size, drop_last, shuffle in itertools.product(
        range(10), (1, 2, 3, 4, 20, None), (False, True), (False, True)
    ):
        if (size is None and drop_last) or (shuffle and n == 0):
            continue
        data: Any = numbers(n) if native else list(range(n))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the epoch has no batches")
            arguments = {"batch_size": size, "drop_last": drop_last, "shuffle": shuffle}
            loader = FastLoader(data, **arguments, **options)
            want = len(DataLoader(data, **arguments))
            assert len(loader) == len(iter(loader)) == len(list(loader)) == want


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"seed": 1}])
def test_an_iterators_length_is_the_whole_epochs(workers: int, options: dict[str, Any]) -> None:
    for data in (numbers(7), list(range(7))):
        loader = FastLoader(data, 2, num_workers=workers, **options)
        batches = iter(loader)
        lengths = [len(batches)]
        for _ in batches:
            lengths.append(len(batches))
        assert lengths == [4] * 5 == [len(loader)] * 5


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"seed": 1, "shuffle": True}])
def test_length_follows_data_that_grow(options: dict[str, Any]) -> None:
    native, plain = TensorDataset(torch.arange(4)), list(range(4))
    loaders = [FastLoader(native, 2, **options), FastLoader(plain, 2, **options)]
    assert (
        [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders] == [2, 2]
    )
    native.tensors = (torch.arange(9),)
    plain += range(4, 9)
    assert (
        [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders] == [5, 5]
    )
    for (batch,), again in zip(*loaders, strict=True):
        assert batch.tolist() == again.tolist() or options


class Endless:
    """A sampler without a length."""

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(3))


def test_what_has_no_length() -> None:
    for data in (numbers(4), list(range(4))):
        for options in (
            {"sampler": Endless()},
            {"sampler": Endless(), "batch_size": None},
            {"batch_sampler": ([i] for i in range(3))},
        ):
            loader = FastLoader(data, **options)
            for what in (loader, iter(loader)):
                with pytest.raises(TypeError) as theirs:
                    len(DataLoader(data, **options))
                with pytest.raises(TypeError) as ours:
                    len(what)
                assert str(ours.value) == str(theirs.value)
    with pytest.raises(TypeError):
        len(FastLoader(Stream()))
    with pytest.raises(TypeError):
        len(iter(FastLoader(Stream())))


class Claims(IterableDataset[int]):
    """Says it has 5 samples, and has as many as it is told."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


def test_length_of_a_stream_is_what_it_claims() -> None:
    for size, drop_last in itertools.product((1, 2, 3, 5, 6), (False, True)):
        loader = FastLoader(Claims(5), size, drop_last=drop_last)
        assert len(loader) == (5 // size if drop_last else -(-5 // size))
    assert len(FastLoader(Claims(5), None)) == 5


def test_a_stream_that_is_longer_than_it_claims_warns() -> None:
    data = Claims(8)

    def told(kind: Any, ask: bool) -> list[str]:
        loader = kind(data, batch_size=None)
        assert not ask or len(loader) == 5
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert list(loader) == list(range(8))
        return [str(warning.message) for warning in caught]

    assert told(FastLoader, False) == []
    assert len(told(FastLoader, True)) == 3
    assert told(FastLoader, True) == told(DataLoader, True)
