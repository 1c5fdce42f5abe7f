"""Indices that carry the key of random transforms, and samples that carry their indices."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fastload import ArrayDataset, KeyedSampler, Mixture, WeightedSampler, _core
from fastload.order.sample_keys import FetchedSamples, KeyedIndex, indices_of, keyed_indices


def keys(indices: Any) -> list[tuple[int, int, int, int, bool]]:
    return [(int(i), i.seed, i.epoch, i.draw, i.is_real) for i in indices]


def test_a_keyed_index_is_an_integer_and_loses_its_key_in_arithmetic() -> None:
    index = KeyedIndex(5, seed=1, epoch=2, draw=3, is_real=False)
    assert (index, hash(index), repr(index), [10, 11, 12, 13, 14, 15][index]) == (5, 5, "5", 15)
    assert torch.tensor([index]).tolist() == np.array([index]).tolist() == [5]
    assert type(index + 0) is type(int(index)) is int
    for copied in (pickle.loads(pickle.dumps(index)), copy.deepcopy(index), copy.copy(index)):
        assert type(copied) is KeyedIndex
        assert keys([copied]) == [(5, 1, 2, 3, False)]


def test_only_lists_of_keyed_indices_have_keys() -> None:
    index = KeyedIndex(5, 1, 2, 3)
    assert keyed_indices([index, index]) == keyed_indices((index, index)) == [5, 5]
    for items in ([], [index, 5], [5], None, np.array([5]), 5):
        assert keyed_indices(items) is None


def test_samplers_give_keys_where_they_are_needed() -> None:
    plain = KeyedSampler(range(5), seed=7, batch_size=2)
    assert {type(index) for index in plain} == {int}
    plain.carry_keys()
    order = _core.Permutation(5, 7, 1).indices(0, 5).tolist()
    assert keys(plain) == [(index, 7, 1, index, True) for index in order]
    masked = KeyedSampler(range(5), seed=7, batch_size=2, tail="mask", shard=(1, 2))
    assert [real for *_, real in keys(masked)] == [True, True, False]


def test_the_draws_of_a_weighted_order_are_its_positions() -> None:
    sampler = WeightedSampler([0.0, 1.0], 3, seed=7, batch_size=2, tail="mask", shard=(1, 2))
    # The last one fills up the step.
    assert keys(sampler) == [(1, 7, 0, 2, True), (1, 7, 0, 0, False)]


def test_datasets_pass_indices_on_to_the_collate_fn() -> None:
    data = ArrayDataset(np.arange(6))
    for dataset in (data, Mixture([data, data])):
        sampler = KeyedSampler(dataset, seed=1, batch_size=4)
        sampler.carry_keys()
        loader: DataLoader[Any] = DataLoader(
            dataset,  # type: ignore[arg-type]
            4,
            sampler=sampler,
            collate_fn=lambda samples: keys(indices_of(samples)),
        )
        found = [key for batch in loader for key in batch]
        sampler.set_epoch(0)
        assert found == keys(sampler)
    assert indices_of(data.__getitems__([2, 1])) == [2, 1]
    assert indices_of([data[2]]) is None
    changed = data.__getitems__([2, 1])
    del changed[0]
    assert isinstance(changed, FetchedSamples)
    assert indices_of(changed) is None  # nobody could say whose they are


def test_the_indices_of_samples_that_were_moved_are_not_known() -> None:
    for data in (ArrayDataset(np.arange(6)), ArrayDataset({"x": np.arange(6)})):
        samples = data.__getitems__([2, 1, 5])
        samples.reverse()
        assert indices_of(samples) is None
        samples.reverse()
        assert indices_of(samples) == [2, 1, 5]
        samples[0], samples[1] = samples[1], samples[0]
        assert indices_of(samples) is None
    replaced = data.__getitems__([2, 1])
    replaced[0] = {"x": np.array(7)}  # still the sample at index 2
    assert indices_of(replaced) == [2, 1]
    same: Any = ""
    assert indices_of(FetchedSamples([same, same], [0, 1])) == [0, 1]


def test_draws_that_are_pushed_must_fit_the_indices() -> None:
    order = _core.PushedOrder()
    order.push(np.array([1, 2]), np.array([7, 8]))
    with pytest.raises(ValueError, match="one RNG key for each index, got 1 for 2"):
        order.push(np.array([1, 2]), np.array([7]))
    plan = _core.EpochPlan(rows=5, batch=2, seed=1)
    np.testing.assert_array_equal(plan.draws(1), plan.indices(1))
    with pytest.raises(IndexError):
        plan.draws(3)
