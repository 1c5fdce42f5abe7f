"""The seeded order against a slow oracle; ranks and threads."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import types
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
)

from fastload import KeyedSampler, _core
from fastload.order import ranks
from fastload.order.keyed_sampler import block_rows


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


# --- The permutation and the plan --------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 257])
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (1, 0), (2**64 - 1, 5)])
def test_permutation_is_the_oracles(n: int, seed: int, epoch: int) -> None:
    permutation = _core.Permutation(n, seed, epoch)
    want = [oracle.permuted(position, n, seed, epoch) for position in range(n)]
    assert permutation.indices(0, n).tolist() == want
    assert sorted(want) == list(range(n))


@pytest.mark.parametrize("n", [65535, 65536, 65537, 10**6])
def test_permutation_is_a_bijection(n: int) -> None:
    indices = _core.Permutation(n, 3, 1).indices(0, n)
    assert np.array_equal(np.sort(indices), np.arange(n))


def test_permutation_of_many_costs_nothing() -> None:
    permutation = _core.Permutation(10**12, 0, 0)
    for position in (0, 1, 10**12 - 1):
        assert permutation.at(position) == oracle.permuted(position, 10**12, 0, 0)


def test_neighbouring_seeds_and_epochs_have_nothing_in_common() -> None:
    n = 10_000
    orders = [_core.Permutation(n, s, e).indices(0, n) for s in range(3) for e in range(3)]
    for a, b in itertools.combinations(orders, 2):
        assert (a == b).sum() < 20  # one place is expected to agree by chance


def sampler(rows: int, **options: Any) -> KeyedSampler:
    return KeyedSampler(range(rows), **options)


def test_block_order_stays_in_windows() -> None:
    keyed = sampler(10_000, seed=0, order="block", block_rows=10)
    keyed.window_blocks = 4
    order = np.array(list(keyed))
    blocks = [set((order[start : start + 40] // 10).tolist()) for start in range(0, 10_000, 40)]
    assert all(len(window) == 4 for window in blocks)
    assert order[:40].tolist() != sorted(order[:40].tolist())


def test_epochs_advance_at_the_first_index_of_each_iterator() -> None:
    keyed = sampler(50, seed=0)
    orders = [list(keyed) for _ in range(3)]
    assert [oracle.global_order(50, 0, epoch, "full") for epoch in range(3)] == orders
    iter(keyed)  # never asked for an index
    keyed.set_epoch(1)
    assert list(keyed) == orders[1]
    assert list(keyed) == orders[2]
    assert keyed.epoch == 2
    assert keyed.next_epoch == 3


def test_set_epoch_between_iter_and_the_first_index_counts() -> None:
    keyed = sampler(50, seed=0)
    indices = iter(keyed)
    keyed.set_epoch(7)
    assert list(indices) == oracle.global_order(50, 0, 7, "full")


def test_a_restored_place_wins_over_set_epoch() -> None:
    keyed = sampler(50, seed=0)
    keyed.restore(3, 20)
    keyed.set_epoch(3)
    with pytest.warns(UserWarning, match=r"set_epoch\(0\) is ignored.*epoch 3"):
        keyed.set_epoch(0)
    assert list(keyed) == oracle.global_order(50, 0, 3, "full")[20:]
    assert list(keyed) == oracle.global_order(50, 0, 4, "full")


def test_a_count_that_began_anew_after_a_restart_goes_on_from_the_restored_epoch() -> None:
    keyed = sampler(10)
    keyed.restore(3, 4)
    with pytest.warns(UserWarning, match="later epochs are counted from there"):
        keyed.set_epoch(0)
    assert len(list(keyed)) == 6
    keyed.set_epoch(1)
    assert keyed.next_epoch == 4
    keyed.restore(5, 0)  # a state that was loaded counts alone
    keyed.set_epoch(5)
    assert (len(list(keyed)), keyed.begun.epoch) == (10, 5)  # type: ignore[union-attr]
    keyed.set_epoch(2)
    assert keyed.next_epoch == 2


@pytest.mark.parametrize(
    ("drop_last", "position", "left"), [(False, 10, 0), (True, 8, 0), (False, 8, 2)]
)
def test_set_epoch_of_the_next_epoch_passes_over_the_end_of_a_restored_one(
    drop_last: bool, position: int, left: int
) -> None:
    keyed = sampler(10, batch_size=4, drop_last=drop_last)
    keyed.restore(3, position)
    if left:
        with pytest.warns(UserWarning, match="is ignored"):
            keyed.set_epoch(4)
        assert len(list(keyed)) == left
        return
    keyed.set_epoch(4)
    assert len(list(keyed)) == (8 if drop_last else 10)
    assert keyed.begun.epoch == 4  # type: ignore[union-attr]
    keyed.restore(3, position)
    assert list(keyed) == []  # as the state says, without set_epoch


def test_stock_loader_over_the_sampler_gives_the_same_order() -> None:
    keyed = sampler(20, seed=4, batch_size=3, shard=(1, 2))
    loader = DataLoader(range(20), batch_size=3, sampler=keyed)  # type: ignore[arg-type]
    want = list(oracle.rank_batches(oracle.global_order(20, 4, 0, "full"), 3, 1, 2, False))
    assert [batch.tolist() for batch in loader] == want


def test_keyed_sampler_is_a_distributed_sampler_that_pickles() -> None:
    keyed = pickle.loads(pickle.dumps(sampler(10, seed=1, shard=(0, 2))))
    assert isinstance(keyed, DistributedSampler)
    assert (keyed.rank, keyed.num_replicas, keyed.seed, keyed.epoch) == (0, 2, 1, 0)


def test_rebatched() -> None:
    keyed = sampler(10, batch_size=2, drop_last=True)
    assert keyed.rebatched(2, True) is keyed
    other = keyed.rebatched(3, False)
    assert (other.batch_size, other.drop_last, keyed.batch_size) == (3, False, 2)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"seed": -1}, ValueError),
        ({"seed": 2**64}, ValueError),
        ({"seed": 1.5}, TypeError),
        ({"seed": True}, TypeError),
        ({"order": "random"}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"batch_size": "4"}, TypeError),
        ({"shard": (2, 2)}, ValueError),
        ({"shard": (-1, 2)}, ValueError),
        ({"shard": (0, 0)}, ValueError),
        ({"shard": "auto"}, TypeError),
        ({"shard": True}, TypeError),
        ({"shard": (0.0, 2)}, TypeError),
        ({"shard": (0, 1, 2)}, TypeError),
    ],
)
def test_what_a_keyed_sampler_refuses(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        sampler(10, **options)
    with pytest.raises(ValueError):
        sampler(10).set_epoch(-1)


def test_numpy_seeds_count() -> None:
    assert list(sampler(9, seed=np.int64(3))) == list(sampler(9, seed=3))


# --- Ranks and threads -------------------------------------------------------------------------


def test_place_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert ranks.find_rank() == (0, 1, "alone")
    monkeypatch.setenv("RANK", "1")
    assert ranks.find_rank() == (0, 1, "alone")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert ranks.find_rank() == (1, 3, "environment")
    assert ranks.find_rank(False) == (0, 1, "shard")
    keyed = sampler(9, shuffle=False)
    with caplog.at_level(logging.WARNING, "fastload"):
        assert [list(keyed), list(keyed)] == [[1, 4, 7]] * 2
    assert caplog.text.count("comes from RANK and WORLD_SIZE") == 1
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(ValueError, match=r"rank 3 of 3 \(from RANK and WORLD_SIZE\) is not"):
        ranks.find_rank()
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ValueError, match="RANK='one'"):
        ranks.find_rank()


def test_torch_distributed_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    assert ranks.find_rank() == (2, 4, "torch.distributed")
    assert len(list(sampler(8))) == 2
    assert not caplog.text


def test_meshes_and_groups() -> None:
    mesh = types.SimpleNamespace(get_local_rank=lambda: 1, size=lambda: 2)
    group = types.SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    assert ranks.find_rank(mesh)[:2] == (1, 2)
    assert ranks.find_rank(group)[:2] == (0, 2)


def test_a_world_that_changes_after_len_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = sampler(8)
    assert len(keyed) == 8
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match=r"was 1 when len\(\) was read and is 2 now"):
        assert len(list(keyed)) == 4
    list(keyed)


def test_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, local, want in [(1, 1, 1), (2, 1, 2), (64, 1, 4), (64, 8, 4), (8, 4, 2), (2, 8, 1)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cpus=cpus: set(range(cpus)))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
        assert ranks.thread_count() == want


def test_block_rows() -> None:
    assert [block_rows(n) for n in (1, 1 << 20, 1 << 30, 0)] == [1 << 20, 1, 1, 1 << 20]
    assert block_rows(None) > 1
