"""Which samples a FastLoader gives: any sampler, and the keyed order."""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Stream, flat, numbers, values
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    SequentialSampler,
)

import fastload
from fastload import FastLoader, KeyedSampler
from fastload.loader.native_iterator import _NativeIterator


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_any_iterable_is_a_sampler(workers: int | None) -> None:
    def load(**options: Any) -> list[list[int]]:
        return values(FastLoader(numbers(5), num_workers=workers, **options))

    assert load(sampler=[4, 4, 0]) == [[4], [4], [0]]
    assert load(sampler=[4, -1, -5], batch_size=2) == [[4, 4], [0]]
    assert load(sampler=range(1, 4), batch_size=2) == [[1, 2], [3]]
    assert load(sampler=(i for i in range(3)), batch_size=2, drop_last=True) == [[0, 1]]
    assert load(batch_sampler=[[1], [], [2, 3, 3]]) == [[1], [], [2, 3, 3]]
    assert load(batch_sampler=[(1, 2), np.array([3]), torch.tensor([4, 0])]) == [
        [1, 2],
        [3],
        [4, 0],
    ]
    assert load(sampler=[np.int64(3), torch.tensor(1), True], batch_size=3) == [[3, 1, 1]]
    assert load(batch_sampler=BatchSampler(SequentialSampler(range(3)), 2, False)) == [[0, 1], [2]]


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (5, IndexError, "5"),
        (-6, IndexError, "-6"),
        (2.0, TypeError, "2.0"),
        ("a", TypeError, "'a'"),
        ((1, 2), TypeError, r"\(1, 2\)"),
        (2**70, IndexError, str(2**70)),
    ],
)
def test_a_bad_index_is_an_error_of_its_batch(
    workers: int | None, bad: Any, error: type[Exception], text: str
) -> None:
    batches = iter(
        FastLoader(numbers(5), batch_sampler=[[0, 1], [2, bad], [3]], num_workers=workers)
    )
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(error, match=text):
        next(batches)
    assert next(batches).tolist() == [3]
    assert list(batches) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_sampler_is_raised(workers: int) -> None:
    def indices() -> Iterator[int]:
        yield from range(3)
        raise KeyError("sampler")

    loader = FastLoader(numbers(5), sampler=indices(), batch_size=1, num_workers=workers)
    with pytest.raises(KeyError, match="sampler"):
        list(loader)


def test_a_sampler_is_iterated_by_the_thread_that_takes() -> None:
    threads: set[int] = set()

    def indices() -> Iterator[int]:
        for i in range(20):
            threads.add(threading.get_ident())
            yield i

    assert len(list(FastLoader(numbers(20), sampler=indices(), num_workers=2))) == 20
    assert threads == {threading.get_ident()}


def test_distributed_sampler_is_obeyed_and_not_shared_out_again() -> None:
    for rank in range(3):
        sampler = DistributedSampler(range(10), 3, rank, seed=4)  # type: ignore[arg-type]
        for options in ({}, {"seed": 0}, {"seed": 0, "shard": (1, 2)}):
            loader = FastLoader(numbers(10), 2, sampler=sampler, **options)
            assert flat(values(loader)) == list(sampler)
            loader.set_epoch(1)
            assert sampler.epoch == 1
            assert flat(values(loader)) == list(sampler)
            loader.batch_sampler.set_epoch(0)  # type: ignore[union-attr]
            assert sampler.epoch == 0


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("order", ["full", "block"])
def test_keyed_order_is_that_of_its_sampler(drop_last: bool, order: str) -> None:
    for n, size, world in itertools.product((1, 7, 30), (1, 4), (1, 2, 3)):
        union = []
        for rank in range(world):
            options: dict[str, Any] = {"shuffle": True, "seed": 5, "order": order}
            options |= {"shard": (rank, world), "drop_last": drop_last}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "the epoch has no batches")
                loader = FastLoader(numbers(n), size, **options)
                native = [values(loader), values(loader)]
            plain = FastLoader(numbers(n), size, **options).batch_sampler
            assert plain is not None
            assert [list(plain), list(plain)] == native
            assert len(loader) == len(native[0])
            assert isinstance(loader.sampler, DistributedSampler)
            assert type(loader.batch_sampler) is BatchSampler
            union += flat(native[0])
        assert drop_last or set(union) == set(range(n))


def test_keyed_epochs() -> None:
    loader = FastLoader(numbers(50), 5, shuffle=True, seed=0)
    first, second = values(loader), values(loader)
    assert first != second
    for set_epoch in (loader.set_epoch, loader.sampler.set_epoch, loader.batch_sampler.set_epoch):  # type: ignore[union-attr]
        set_epoch(0)
        assert values(loader) == first
        assert values(loader) == second
    batches = iter(loader)
    loader.set_epoch(0)  # between iter() and next()
    assert next(batches).tolist() == first[0]
    loader.set_epoch(1)  # of the next iterator
    assert next(batches).tolist() == first[1]
    assert values(loader) == second
    in_order = FastLoader(numbers(4), 2, seed=0)
    assert values(in_order) == values(in_order) == [[0, 1], [2, 3]]


def test_keyed_order_of_data_that_torch_loads() -> None:
    data = list(range(20))
    for size in (3, None):
        for workers in (0, 1):
            loader = FastLoader(data, size, shuffle=True, seed=2, num_workers=workers)
            epochs = [[torch.as_tensor(b).tolist() for b in loader] for _ in range(2)]
            native = FastLoader(numbers(20), size or 1, shuffle=True, seed=2)
            want = [values(native), values(native)]
            assert epochs == (want if size else [flat(epoch) for epoch in want])


@pytest.mark.parametrize("options", [{"seed": 3, "shuffle": True}, {"shuffle": True}, {}])
def test_rebuilt_from_its_attributes(options: dict[str, Any]) -> None:
    loader = FastLoader(numbers(20), 3, drop_last=True, **options)
    known = inspect.signature(FastLoader).parameters
    public = {name: value for name, value in vars(loader).items() if name in known}
    rebuilds = [public]
    rebuilds.append({k: v for k, v in public.items() if k != "batch_sampler"})
    without = ("batch_size", "sampler", "drop_last")
    rebuilds.append({k: v for k, v in public.items() if k not in without})
    for arguments in rebuilds:
        torch.manual_seed(0)
        again = FastLoader(**arguments)
        assert type(iter(again)) is _NativeIterator
        loader.set_epoch(0)
        again.set_epoch(0)
        assert "seed" not in options or "seed" in again.state_dict()
        torch.manual_seed(0)
        want = values(loader)
        torch.manual_seed(0)
        again.set_epoch(0)
        assert values(again) == want
    for special in ({"batch_sampler": [[0, 1]]}, {"batch_size": None}):
        made = FastLoader(numbers(4), **special)
        again = FastLoader(**{k: v for k, v in vars(made).items() if k in known})
        assert len(list(again)) == len(list(made))
    streamed = vars(FastLoader(Stream()))
    assert len(list(FastLoader(**{k: v for k, v in streamed.items() if k in known}))) == 7


def test_rebuilt_for_other_batches_the_order_stays_keyed() -> None:
    sampler = FastLoader(numbers(20), 3, shuffle=True, seed=3, shard=(0, 2)).sampler
    assert isinstance(sampler, KeyedSampler)
    again = FastLoader(numbers(20), 4, sampler=sampler)
    want = FastLoader(numbers(20), 4, shuffle=True, seed=3, shard=(0, 2))
    assert values(again) == values(want)
    foreign = FastLoader(numbers(20), batch_sampler=BatchSampler(sampler, 7, False))
    sampler.set_epoch(0)
    got = flat(values(foreign))
    sampler.set_epoch(0)
    assert got == list(sampler)


class _Repeat:
    """The endless batch sampler by which timm and Ultralytics keep workers between epochs."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


def _endless(base: type[Any]) -> type[Any]:
    class Endless(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            # DataLoader forbids the plain assignment.
            object.__setattr__(self, "batch_sampler", _Repeat(self.batch_sampler))
            self.batches = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.batches)

    return Endless


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_subclass_replaces_the_batch_sampler(workers: int, shuffle: bool) -> None:
    def epochs(base: type[Any]) -> list[list[list[int]]]:
        torch.manual_seed(0)
        loader = _endless(base)(numbers(5), 2, shuffle=shuffle, num_workers=workers)
        return [values(loader) for _ in range(3)]

    assert epochs(FastLoader) == epochs(DataLoader)


def test_accelerate_leaves_a_shared_out_loader_alone() -> None:
    assert FastLoader(numbers(4), seed=0, shard=(0, 2))._is_accelerate_prepared
    assert not FastLoader(numbers(4), seed=0, shard=False)._is_accelerate_prepared
    assert not FastLoader(numbers(4))._is_accelerate_prepared


def test_what_accelerate_costs_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", types.ModuleType("accelerate"))
    loader, shared = FastLoader(numbers(4)), FastLoader(numbers(4), seed=0, shard=(0, 2))
    with pytest.warns(UserWarning, match=r"in the place of.*prepare\(accelerator"):
        assert not loader._is_accelerate_prepared
    with pytest.warns(UserWarning, match="does not see where the epochs of this"):
        assert shared._is_accelerate_prepared
    assert not loader._is_accelerate_prepared  # a second warning would be an error
    assert not FastLoader([1, 2])._is_accelerate_prepared  # torch loads these anyway


def test_a_huge_dataset_starts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(8 * 10**9)
    data = fastload.open(path, dtype="int64", shape=())
    loader = FastLoader(data, 256, shuffle=True, seed=0)
    assert len(loader) == -(-(10**9) // 256)
    assert next(iter(loader)).tolist() == [0] * 256
