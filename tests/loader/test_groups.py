"""Groups of batches: what they hold, what all ranks hold, and where they go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Stream, flat, global_order, numbers, rank_batches, values
from ragged import numbers_of_length, ragged_dataset
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import fastload
from fastload import ArrayDataset, FastLoader
from fastload.formats.fields import Field

N, SIZE = 23, 4


def taken(loader: FastLoader[Any], n: int) -> list[list[Any]]:
    """The batches of each group of an epoch, as lists."""
    return [values(group) for group in loader.groups(n)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 3, 50])
@pytest.mark.parametrize("data", [numbers(N), list(range(N))], ids=["native", "by torch"])
def test_keyed_groups(data: Any, n: int, world: int, drop_last: bool) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "drop_last": drop_last}
    loaders = [FastLoader(data, SIZE, shard=(r, world), **options) for r in range(world)]
    order = global_order(N, 5, 0, "full")
    steps = [list(rank_batches(order, SIZE, r, world, drop_last)) for r in range(world)]
    for number, groups in enumerate(zip(*(loader.groups(n) for loader in loaders), strict=True)):
        wanted = [batches[number * n : number * n + n] for batches in steps]
        for group, batches in zip(groups, wanted, strict=True):
            assert group.samples == sum(map(len, batches))
            assert group.sizes == tuple(map(len, batches))
            assert group.total == len(flat(flat(wanted)))
            assert group.shares == world
            assert group.last == (number * n + n >= len(steps[0]))
            assert len(group) == len(batches)
            assert values(group) == batches
        # Averaged over the ranks, as DDP averages gradients, all samples count alike.
        assert sum(sum(group.weights) for group in groups) == pytest.approx(world)
    assert number == len(loaders[0].groups(n)) - 1
    assert {loader.state_dict()["epoch"] for loader in loaders} == {1}


TORCHS: dict[str, Any] = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "weighted": {"sampler": WeightedRandomSampler([1.0] * N, 19)},
    "replaced": {"sampler": RandomSampler(range(N), True, num_samples=30)},
    "distributed": {"sampler": DistributedSampler(range(N), 3, 1)},
    "foreign": {"sampler": list(range(N - 1, -1, -1))},
    "batch sampler": {
        "batch_size": 1,
        "batch_sampler": BatchSampler(SequentialSampler(range(N)), SIZE, False),
    },
}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize("data", [numbers(N), list(range(N))], ids=["native", "by torch"])
def test_groups_of_torchs_orders(data: Any, name: str, drop_last: bool) -> None:
    def made() -> FastLoader[Any]:
        options = {"batch_size": SIZE, "drop_last": drop_last} | TORCHS[name]
        if "batch_sampler" in options:
            options["drop_last"] = False
        return FastLoader(data, **options)

    torch.manual_seed(1)
    whole = [values(loader) for loader in [made()] for _ in range(2)]
    torch.manual_seed(1)
    loader = made()
    ranks = 3 if name == "distributed" else 1
    for batches in whole:
        found = []
        for group in loader.groups(4):
            found += (got := values(group))
            assert group.sizes == tuple(map(len, got))
            assert (group.samples, group.total) == (len(flat(got)), ranks * len(flat(got)))
            assert group.last == (len(found) == len(batches))
        assert found == batches


@pytest.mark.parametrize("options", [{"seed": 1, "shuffle": True}, {}, TORCHS["foreign"]])
@pytest.mark.parametrize("data", [numbers(45), list(range(45))], ids=["native", "by torch"])
def test_a_state_inside_or_between_groups_is_exact(data: Any, options: dict[str, Any]) -> None:
    def made() -> FastLoader[Any]:
        return FastLoader(data, SIZE, **options)

    whole = [taken(loader, 3) for loader in [made()] for _ in range(2)]
    for stop in range(len(flat(whole[0])) + 1):
        loader, seen = made(), 0
        groups = iter(loader.groups(3))
        while seen < stop:
            for _batch in next(groups):
                seen += 1
                if seen == stop:
                    break
        resumed = made()
        resumed.load_state_dict(loader.state_dict())
        rest = taken(resumed, 3)
        if stop:
            # Groups end where they would have ended.
            inside = [whole[0][stop // 3][stop % 3 :]] if stop % 3 and stop < 12 else []
            assert rest == [group for group in inside if group] + whole[0][-(-stop // 3) :]
            assert taken(resumed, 3) == whole[1]
        else:
            assert rest == whole[0]


def test_a_resumed_group_knows_what_is_left_of_it() -> None:
    loaders = [FastLoader(numbers(40), 2, seed=1, shard=(r, 2)) for r in range(2)]
    for loader in loaders:
        next(iter(next(iter(loader.groups(4)))))
    resumed = FastLoader(numbers(40), 1, seed=1, shard=(2, 4))  # 8 positions a group as before
    resumed.load_state_dict(loaders[0].state_dict())
    group = next(iter(resumed.groups(4)))
    assert (group.samples, group.total, group.shares) == (3, 12, 4)
    assert values(group) == [[6], [10], [14]]


def test_every_batch_of_a_group_can_be_kept() -> None:
    """Many groups at once, too: no memory is used again under a batch."""
    for n in (1, 2, 7, 32):
        loader = FastLoader(numbers(64), 2, seed=1, shuffle=True, num_workers=2, prefetch_factor=1)
        kept = [batch for group in loader.groups(n) for batch in group]
        assert flat([batch.tolist() for batch in kept]) == global_order(64, 1, 0, "full")


def test_what_is_not_taken_is_passed_over() -> None:
    loader = FastLoader(numbers(N), SIZE)
    groups = loader.groups(2)
    found = [next(iter(group)).tolist() for group in groups]
    assert found == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]
    assert [group.samples for group in groups] == [8, 8, 7]
    for group in groups:
        iter(group)
        with pytest.raises(RuntimeError, match="a group can be iterated once"):
            iter(group)


def test_a_batch_that_fails_has_had_its_turn() -> None:
    class Fragile(list[int]):
        def __getitem__(self, index: Any) -> Any:
            if index == 2:
                raise OSError("bad sample")
            return index

    loader = FastLoader(Fragile(range(8)), 1, seed=0)
    found = []
    for group in loader.groups(4):
        with pytest.raises(OSError) if not group.last else pytest.MonkeyPatch.context():
            for batch in group:
                found.append(batch.item())
    assert found == [0, 1, 4, 5, 6, 7]


@pytest.mark.parametrize("field", ["text", "n"])
def test_counts_of_a_field(field: str) -> None:
    lengths = np.arange(N) % 5 + 1
    data = ArrayDataset({"n": lengths.astype("int16"), "x": np.arange(N)})
    if field == "text":
        fields = [Field("text", "int64", (), ragged=True), Field("x", "int64", ())]
        data = ragged_dataset(
            {"text": 0, "x": 1}, fields, [numbers_of_length(lengths.tolist()), list(range(N))]
        )
    options: dict[str, Any] = {"seed": 5, "shuffle": True}
    if field == "text":
        options["transforms"] = {"text": fastload.AsList()}
    loaders = [FastLoader(data, SIZE, shard=(r, 3), **options) for r in range(3)]
    for _epoch in range(2):
        for groups in zip(*(loader.groups(2, count=field) for loader in loaders), strict=True):
            held = [[int(lengths[batch["x"].numpy()].sum()) for batch in group] for group in groups]
            assert [list(group.sizes) for group in groups] == held
            assert {group.total for group in groups} == {sum(map(sum, held))}


def test_what_groups_need() -> None:
    class Unsized:
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    data = numbers(8)
    bad: list[tuple[FastLoader[Any], str]] = [
        (FastLoader(Stream(), 2), "the length of an IterableDataset is not known"),
        (FastLoader(data, batch_size=None), "needs batch_size"),
        (FastLoader(data, batch_sampler=[[0, 1], [2]]), "a batch_sampler of torch's"),
        (FastLoader(data, 2, sampler=Unsized()), "a sampler with a length, and Unsized has none"),
    ]
    for loader, message in bad:
        with pytest.raises(ValueError, match=message):
            loader.groups(2)
    loader = FastLoader(data, 2, seed=1)
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match=r"groups\(n\) needs"):
            loader.groups(wrong)  # type: ignore[arg-type]
    named = ArrayDataset({"x": np.zeros((8, 2), "int64"), "y": np.zeros(8, "float32")})
    for field, message in (("x", "must be integers"), ("y", "must be int"), ("z", "are 'x', 'y'")):
        with pytest.raises(ValueError, match=message):
            FastLoader(named, 2, seed=1).groups(2, count=field)
    for loader in (FastLoader(named, 2), FastLoader(list(range(8)), 2, seed=1)):
        with pytest.raises(ValueError, match="count= needs seed="):
            loader.groups(2, count="x")


def test_other_ranks_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    for options in ({}, {"shuffle": True}, {"sampler": list(range(8))}):
        with pytest.raises(ValueError, match="the batches of the other 2 ranks are not known"):
            next(iter(FastLoader(numbers(8), 2, **options).groups(2)))
    group = next(iter(FastLoader(numbers(8), 2, seed=1, shard=False).groups(2)))
    assert (group.total, group.shares) == (4, 1)


def test_an_epoch_of_another_length_is_an_error() -> None:
    class Lying(list[int]):
        def __len__(self) -> int:
            return 8

    for given, message in ((6, "fewer batches"), (10, "more batches")):
        with pytest.raises(RuntimeError, match=f"{message} than its sampler reported"):
            taken(FastLoader(numbers(12), 2, sampler=Lying(range(given))), 2)
    loader = FastLoader(numbers(8), 2, seed=1)
    with pytest.raises(RuntimeError, match="do not change epoch"):
        for _group in loader.groups(2):
            loader.set_epoch(7)
