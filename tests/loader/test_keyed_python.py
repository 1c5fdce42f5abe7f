"""`seed=` over datasets that only Python can load: keyed order, ranks, exact resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import global_order, rank_batches
from torch.utils.data import BatchSampler, DataLoader, Dataset

from fastload import FastLoader, KeyedSampler

ROWS = 23


class Items(Dataset[Any]):
    """Gives each index back; `fetches` are the calls of the process that made it."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows = rows
        self.fetches: list[Any] = []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> int:
        assert type(index) is int
        self.fetches.append(index)
        return index


class Batched(Items):
    """Fetches whole batches."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        assert all(type(index) is int for index in indices)
        self.fetches.append(len(indices))
        return list(indices)


class Named(Dataset[Any]):
    """Dicts, texts and tensors."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((2,), index), "name": f"item {index}"}


def plain(batch: Any) -> list[int]:
    if isinstance(batch, dict):
        assert batch["name"] == [f"item {int(row[0])}" for row in batch["x"]]
        return [int(row[0]) for row in batch["x"]]
    return batch.tolist() if isinstance(batch, torch.Tensor) else [batch]


KINDS: dict[str, Callable[[], Any]] = {
    "items": Items,
    "batched": Batched,
    "named": Named,
    "list": lambda: list(range(ROWS)),
}


def loader_of(data: Any, workers: int = 0, **options: Any) -> FastLoader[Any]:
    options = {"batch_size": 4, "shuffle": True, "seed": 5} | options
    loader = FastLoader(data, num_workers=workers, **options)
    assert not loader.is_native
    return loader


def epoch_of(loader: Any) -> list[list[int]]:
    return [plain(batch) for batch in loader]


def expected(epoch: int, first: int = 0, shuffle: bool = True, **rank: Any) -> list[list[int]]:
    order = global_order(ROWS, 5, epoch, "full" if shuffle else "sequential")
    place = {"batch": 4, "rank": 0, "world": 1, "drop_last": False} | rank
    return list(rank_batches(order, first=first, **place))


@pytest.fixture(params=KINDS)
def data(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]()


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_is_the_keyed_order(data: Any, workers: int) -> None:
    for shuffle in (True, False) if workers == 0 else (True,):
        loader = loader_of(data, workers, shuffle=shuffle)
        for epoch in range(2):
            assert epoch_of(loader) == expected(epoch, shuffle=shuffle)
        loader.set_epoch(7)
        assert epoch_of(loader) == expected(7, shuffle=shuffle)
        assert len(loader) == 6


def test_no_random_numbers_are_drawn(data: Any) -> None:
    for workers in (0, 1):
        state = torch.get_rng_state()
        list(loader_of(data, workers))
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_out_each_global_batch(
    data: Any, world: int, drop_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch in range(2):
        for rank in range(world):
            place = {"rank": rank, "world": world, "drop_last": drop_last}
            given = loader_of(data, shard=(rank, world), drop_last=drop_last)
            given.set_epoch(epoch)
            assert epoch_of(given) == expected(epoch, **place)
            assert len(given) == len(expected(epoch, **place))
            with monkeypatch.context() as patch:
                patch.setenv("RANK", str(rank))
                patch.setenv("WORLD_SIZE", str(world))
                found = loader_of(data, drop_last=drop_last)
                found.set_epoch(epoch)
                assert epoch_of(found) == expected(epoch, **place)


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_is_exact_at_every_batch(data: Any, workers: int) -> None:
    for count in range(7) if workers == 0 else (1,):
        loader = loader_of(data, workers)
        list(loader)  # epoch 0
        batches = iter(loader)
        seen = [plain(next(batches)) for _ in range(count)]
        state = loader.state_dict()
        resumed = loader_of(data, 2 - workers if count == 1 else workers)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        rest = epoch_of(resumed)
        assert seen + rest == expected(1)
        assert epoch_of(resumed) == expected(2)
        del batches


def test_resume_fetches_nothing_that_was_seen() -> None:
    for made, fetch in ((Items, None), (Batched, [4, 4, 3])):
        loader = loader_of(made())
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        data = made()
        resumed = loader_of(data)
        resumed.load_state_dict(loader.state_dict())
        list(resumed)
        rest = [index for batch in expected(0)[3:] for index in batch]
        assert data.fetches == (fetch or rest)


def test_resume_with_other_sizes_and_worlds() -> None:
    loader = loader_of(Items(), shard=(0, 1))
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    for world, batch in [(1, 3), (2, 2), (3, 1), (2, 5)]:
        for rank in range(world):
            resumed = loader_of(Items(), batch_size=batch, shard=(rank, world))
            resumed.load_state_dict(state)
            want = expected(0, first=8, batch=batch, rank=rank, world=world)
            assert epoch_of(resumed) == want


def test_state_is_of_these_data() -> None:
    state = loader_of(Items()).state_dict()
    with pytest.raises(ValueError, match="fingerprint"):
        loader_of(Items(ROWS + 1)).load_state_dict(state)
    with pytest.raises(ValueError, match="seed"):
        loader_of(Items(), seed=6).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_without_batches(workers: int) -> None:
    options = {"batch_size": None, "shard": (1, 2)}
    order = [place for [place] in expected(0, batch=1, rank=1, world=2)]
    loader = loader_of(Items(), workers, **options)
    samples = iter(loader)
    assert [next(samples) for _ in range(5)] == order[:5]
    resumed = loader_of(Items(), 2 - workers, **options)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == order[5:]


def test_custom_collate_and_persistent_workers() -> None:
    loader = loader_of(Items(), 1, collate_fn=tuple, persistent_workers=True)
    for epoch in range(3):
        assert [list(batch) for batch in loader] == expected(epoch)
    batches = iter(loader)
    next(batches)
    assert [list(batch) for batch in loader] == expected(4)  # begun anew


def test_an_error_in_the_dataset_costs_its_batch_only() -> None:
    class Picky(Items):
        def __getitem__(self, index: int) -> int:
            if index == expected(0)[1][2]:
                raise LookupError(index)
            return index

    batches = iter(loader_of(Picky()))
    got: list[Any] = []
    for _ in range(6):
        try:
            got.append(plain(next(batches)))
        except LookupError:
            got.append(None)
    want: list[Any] = expected(0)
    want[1] = None
    assert got == want


# --- KeyedSampler with plain DataLoader ---------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_keyed_sampler_in_a_plain_dataloader(data: Any, persistent: bool) -> None:
    sampler = KeyedSampler(data, seed=5, batch_size=4)
    workers = 1 if persistent else 0
    loader: Any = DataLoader(
        data, 4, sampler=sampler, num_workers=workers, persistent_workers=persistent
    )
    for epoch in range(2):
        assert epoch_of(loader) == expected(epoch)
    sampler.set_epoch(9)
    assert epoch_of(loader) == expected(9)
    assert epoch_of(loader) == expected(10)


def test_keyed_sampler_by_ranks() -> None:
    for rank in range(3):
        sampler = KeyedSampler(Items(), seed=5, batch_size=4, shard=(rank, 3))
        loader: Any = DataLoader(Items(), 4, sampler=sampler)
        assert epoch_of(loader) == expected(0, rank=rank, world=3)
        batched: Any = DataLoader(Items(), batch_sampler=BatchSampler(sampler, 4, False))
        assert epoch_of(batched) == expected(1, rank=rank, world=3)


@pytest.mark.parametrize("workers", [0, 1])
def test_keyed_sampler_is_that_of_the_loader(workers: int) -> None:
    """Given to FastLoader it is our own: it keeps its place in the loader's state."""

    def make() -> FastLoader[Any]:
        data = Items()
        sampler = KeyedSampler(data, seed=5, batch_size=4)
        return FastLoader(data, 4, sampler=sampler, num_workers=workers)

    loader = make()
    batches = iter(loader)
    seen = [plain(next(batches)) for _ in range(2)]
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert seen + epoch_of(resumed) == expected(0)
