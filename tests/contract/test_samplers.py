"""Anything may say which samples come, and nothing is done to what it says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from oracle import flat, numbers, random_states, values
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fastload import FastLoader, KeyedSampler
from fastload.loader.native_iterator import _NativeIterator


class Echo:
    """Gives back what it is asked for, and the type."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, key: Any) -> Any:
        return key, type(key).__name__


KEYS: list[Any] = [3, True, "a", (1, "b"), None, 2.5, [4, 5], {"k": 1}, slice(1, 3)]


@pytest.mark.parametrize("workers", [0, 1])
def test_keys_of_any_kind_reach_the_dataset_as_they_are(workers: int) -> None:
    want = [(key, type(key).__name__) for key in KEYS]
    options: dict[str, Any] = {"num_workers": workers, "collate_fn": list}
    assert flat(list(FastLoader(Echo(), 2, sampler=KEYS, **options))) == want
    assert flat(list(FastLoader(Echo(), batch_sampler=[KEYS], **options))) == want
    one_by_one = FastLoader(Echo(), None, sampler=KEYS, num_workers=workers, collate_fn=tuple)
    assert list(one_by_one) == want
    once = FastLoader(Echo(), 2, sampler=iter(KEYS), **options)
    assert (flat(list(once)), list(once)) == (want, [])


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"seed": 1}, {"num_workers": 1}])
@pytest.mark.parametrize("size", [2, None])
def test_stock_samplers_give_python_ints(options: dict[str, Any], size: int | None) -> None:
    seen = list(FastLoader(Echo(), size, collate_fn=lambda samples: samples, **options))
    kinds = [sample[1] for sample in (flat(seen) if size else seen)]
    assert kinds == ["int"] * 9


class Backwards(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source) - 1, -1, -1))


class Twice(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter([i for index in super().__iter__() for i in (index, index)])

    def __len__(self) -> int:
        return 2 * super().__len__()


class Odd(DistributedSampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([index for index in super().__iter__() if index % 2])


class OddKeys(KeyedSampler):
    def __iter__(self) -> Iterator[int]:
        return iter([index for index in super().__iter__() if index % 2])


class Last(SubsetRandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(self.indices[-2:])


class Heaviest(WeightedRandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter([int(self.weights.argmax())] * self.num_samples)


class Pairs(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 8], [1, 7]])


class Own(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([5, 5])


def own_samplers() -> dict[str, Any]:
    data: Any = range(9)
    return {
        "sequential": {"sampler": Backwards(data)},
        "random": {"sampler": Twice(data)},
        "distributed": {"sampler": Odd(data, 2, 1)},
        "keyed": {"sampler": OddKeys(data, seed=3)},
        "subset": {"sampler": Last([1, 2, 3])},
        "weighted": {"sampler": Heaviest([0.1] * 8 + [0.9], 3)},
        "sampler": {"sampler": Own()},
        "batch sampler": {"batch_sampler": Pairs(SequentialSampler(data), 2, False)},
        "own in batches": {"batch_sampler": BatchSampler(Twice(data), 4, True)},
    }


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("name", own_samplers())
def test_a_subclass_is_iterated_and_not_replaced(name: str, workers: int | None) -> None:
    torch.manual_seed(2)
    loader = FastLoader(numbers(9), num_workers=workers, **own_samplers()[name])
    batches = iter(loader)
    assert type(batches) is _NativeIterator
    got = values(batches)
    torch.manual_seed(2)
    assert got == values(DataLoader(numbers(9), **own_samplers()[name]))  # type: ignore[arg-type]
    stock = {"keyed": range(9), "random": range(9), "sequential": range(9)}
    assert flat(got) != list(stock.get(name, []))


ROWS = TensorDataset(torch.arange(12).reshape(6, 2), torch.arange(6))
# What tensors take for an index, or refuse in their own words.
ODD: dict[str, Any] = {
    "lists": {"sampler": [[0, 1], [2, 3]]},
    "a batch sampler as the sampler": {
        "sampler": BatchSampler(SequentialSampler(range(6)), 4, False)
    },
    "slices": {"sampler": [slice(0, 2), slice(4, 6), 3], "batch_size": 1},
    "mixed with integers": {"batch_sampler": [[0, 5], [slice(1, 3)], [2]]},
    "tensors": {"sampler": [torch.tensor([0, 1]), torch.tensor([4, 5])], "batch_size": 2},
    "rows of a tensor": {"batch_sampler": [torch.tensor([[0, 1], [2, 3]])]},
    "floats": {"sampler": [1.0, 2]},
    "texts": {"batch_sampler": ["ab", [3]]},
    "none": {"sampler": [None, ...]},
    "lists in a stock sampler": {"sampler": SubsetRandomSampler([[0, 1], [2, 3], [4, 5]])},
    "a tail of lists": {
        "sampler": SubsetRandomSampler([[0, 1], [2, 3], [4, 5]]),
        "batch_size": 2,
        "drop_last": True,
    },
}


def outcomes(kind: Any, data: Any, **options: Any) -> list[Any]:
    torch.manual_seed(1)
    batches, seen = iter(kind(data, **options)), []
    while True:
        try:
            seen.append(repr(next(batches)))
        except StopIteration:
            return [*seen, random_states(None)]
        except Exception as error:
            seen.append((type(error), str(error)))


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_integer_is_left_to_the_dataset(name: str) -> None:
    for data in (ROWS, StackDataset(ROWS, ROWS)):
        want = outcomes(DataLoader, data, **ODD[name])
        for workers in (None, 0):
            assert outcomes(FastLoader, data, num_workers=workers, **ODD[name]) == want
        assert type(iter(FastLoader(data, **ODD[name]))) is _NativeIterator


def test_odd_indices_read_once_with_workers_and_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = [[slice(0, 2)], [1, 2], [[3, 4]], [5]]
    want = [repr(batch) for batch in DataLoader(ROWS, batch_sampler=batches)]
    once = (iter(batch) for batch in batches)
    assert [repr(batch) for batch in FastLoader(ROWS, batch_sampler=once)] == want
    loader = FastLoader(ROWS, batch_sampler=batches, num_workers=2)
    assert [repr(batch) for batch in loader] == want
    loader = FastLoader(ROWS, sampler=SubsetRandomSampler([[0, 1], [2, 3], [4, 5]]))
    rest = iter(loader)
    next(rest)
    resumed = FastLoader(ROWS, sampler=SubsetRandomSampler([[0, 1], [2, 3], [4, 5]]))
    resumed.load_state_dict(loader.state_dict())
    assert [repr(batch) for batch in resumed] == [repr(batch) for batch in rest]
    monkeypatch.setattr("fastload.loader.epoch_setup.pins", lambda *_, **__: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 100)
    pinned = FastLoader(ROWS, batch_sampler=batches, pin_memory=True)
    assert [batch[1].tolist() for batch in pinned] == [
        [[100, 101]],
        [101, 102],
        [[103, 104]],
        [105],
    ]
    moved = FastLoader(ROWS, batch_sampler=batches, device="meta")
    assert all(tensor.is_meta for batch in moved for tensor in batch)


@pytest.mark.parametrize("native", [True, False])
def test_distributed_sampler_without_set_epoch_repeats_itself(native: bool) -> None:
    data: Any = numbers(10) if native else list(range(10))
    sampler: Any = DistributedSampler(data, 2, 0, seed=4)
    loader = FastLoader(data, 2, sampler=sampler)
    first = values(loader)
    assert values(loader) == first
    sampler.set_epoch(1)
    second = values(loader)
    assert second == values(loader) != first
    by_itself = FastLoader(data, 2, shuffle=True, seed=4, shard=(0, 2))
    assert values(by_itself) != values(by_itself)


class Counted:
    """A sampler that tells how many indices were asked for."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            self.given += 1
            yield index


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("native", [True, False])
def test_a_dropped_tail_is_taken_from_the_sampler(native: bool, workers: int) -> None:
    def given(kind: Any) -> list[int]:
        sampler = Counted()
        data: Any = numbers(8) if native else list(range(8))
        options = {"batch_size": 3, "drop_last": True, "num_workers": workers}
        batches = iter(kind(data, sampler=sampler, **options))
        counts = [sampler.given]
        for _ in batches:
            counts.append(sampler.given)
        return [*counts, sampler.given]

    assert given(FastLoader) == given(DataLoader)
    assert given(FastLoader)[-1] == 8


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("first", [0, 4])
def test_padded_samples_are_told(first: int, drop_last: bool) -> None:
    """Without as many as `repeats` says, the ranks have each sample once; also after a resume."""
    for n, world, size in itertools.product(range(5, 14), (1, 2, 3, 4, 16), (1, 2, 3)):
        kept = []
        for rank in range(world):
            sampler = KeyedSampler(
                range(n), batch_size=size, seed=1, shard=(rank, world), drop_last=drop_last
            )
            sampler.restore(0, first)
            before = sampler.repeats
            indices = list(sampler)
            assert sampler.repeats == before
            kept += indices[: len(indices) - before]
        step = size * world
        assert len(set(kept)) == len(kept)
        assert len(kept) == ((n - first) // step * step if drop_last else n - first)


def test_repeats_are_the_end_of_the_loaders_last_batch() -> None:
    total = 0
    for rank in range(4):
        loader = FastLoader(numbers(9), 2, seed=0, shard=(rank, 4))
        assert isinstance(loader.sampler, KeyedSampler)
        samples = flat(values(loader))
        total += sum(samples[: len(samples) - loader.sampler.repeats])
    assert total == sum(range(9))
