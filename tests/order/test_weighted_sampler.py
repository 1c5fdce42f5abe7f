"""WeightedSampler: what is drawn, by whom, and where it goes on."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import GOLDEN, MASK, _key, _mix, flat, numbers, values
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

import fastload
from fastload import FastLoader, WeightedSampler
from fastload.loader.native_iterator import _NativeIterator

WEIGHTS = [0.0, 1.0, 5.0, 0.25, 0.0, 3.0, 0.75]


def drawn(weights: list[float], seed: int, epoch: int, position: int) -> int:
    """What a position draws; the sum of the weights is a power of two, so sums are exact."""
    total = sum(weights)
    bits = _mix((_key(seed, epoch, 0) + GOLDEN * (position + 1)) & MASK)
    place = bits * int(total * 2**20)  # of 2**84
    for index, _ in enumerate(weights):
        if place < int(sum(weights[: index + 1]) * 2**20) << 64:
            return index
    raise AssertionError


def test_each_position_draws_what_its_number_says() -> None:
    weights = [*WEIGHTS, 6.0]
    for seed, epoch in ((0, 0), (0, 1), (7, 3), (2**64 - 1, 5)):
        sampler = WeightedSampler(weights, 300, seed=seed)
        sampler.set_epoch(epoch)
        assert list(sampler) == [drawn(weights, seed, epoch, p) for p in range(300)]


def test_draws_never_change() -> None:
    assert list(WeightedSampler(WEIGHTS, 12, seed=1)) == [2, 2, 5, 5, 2, 5, 2, 2, 6, 5, 2, 5]


@pytest.mark.parametrize("count", [2, 7, 100, 1000])
def test_samples_come_as_often_as_their_weights_say(count: int) -> None:
    """Chi-square, within four standard deviations; and so do pairs of neighbours."""
    random = np.random.default_rng(count)
    weights = random.random(count) + 0.05
    draws = 200 * count
    found = np.array(list(WeightedSampler(weights, draws, seed=3)))
    want = weights / weights.sum() * draws
    chi_square = ((np.bincount(found, minlength=count) - want) ** 2 / want).sum()
    assert abs(chi_square - (count - 1)) < 4 * np.sqrt(2 * (count - 1))
    if count > 7:
        return
    pairs = np.bincount(found[:-1] * count + found[1:], minlength=count * count)
    want = np.outer(weights, weights).ravel() / weights.sum() ** 2 * (draws - 1)
    chi_square = ((pairs - want) ** 2 / want).sum()
    freedom = count * count - 1
    assert abs(chi_square - freedom) < 6 * np.sqrt(2 * freedom)


def test_extreme_weights() -> None:
    assert set(WeightedSampler([1e-300, 1e300, 5e-324], 2000)) == {1}
    for scale in (5e-324, 1e-300, 1.0, 1e307):
        counts = Counter(WeightedSampler([scale, 0, 3 * scale], 8000, seed=2))
        assert set(counts) == {0, 2}
        assert abs(counts[0] - 2000) < 160
    assert Counter(WeightedSampler([1.7e308] * 3, 3000)).keys() == {0, 1, 2}


def test_more_weights_than_torch_takes_one_of_them_heavy() -> None:
    count, heavy = 2**25, 20_000_000
    weights = np.full(count, 2.0**-30, np.float32)
    weights[heavy] = 2.0**-5  # as much as all others
    tracemalloc.start()
    sampler = WeightedSampler(weights, 4000, seed=0)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20  # no copy by numpy
    tracemalloc.stop()
    found = list(sampler)
    assert abs(found.count(heavy) - 2000) < 130
    others = np.array([index for index in found if index != heavy])
    assert len(set(others.tolist())) == len(others)
    assert abs(others.mean() / count - 0.5) < 0.03
    del weights
    with pytest.raises(RuntimeError, match=r"2\^24|16777216"):
        torch.multinomial(torch.ones(2**24 + 1, dtype=torch.uint8).float(), 1)


@pytest.mark.parametrize("tail", [None, "mask", "short", "drop"])
def test_ranks_together_draw_the_single_stream(tail: str | None) -> None:
    for draws in (0, 1, 5, 24, 29):
        whole = list(WeightedSampler(WEIGHTS, draws + 1, seed=5))
        for world in (1, 2, 4):
            steps: dict[int, list[int]] = {}
            for rank in range(world):
                sampler = WeightedSampler(
                    WEIGHTS, draws + 1, seed=5, shard=(rank, world), batch_size=3, tail=tail
                )
                batches = list(BatchSampler(sampler, 3, sampler.drop_last))
                assert sum(map(len, batches)) == len(sampler)
                if sampler.repeats:
                    batches[-1] = batches[-1][: -sampler.repeats]
                for step, batch in enumerate(batches):
                    steps[step] = steps.get(step, []) + batch
            union = flat(list(steps.values()))
            kept = (draws + 1) // (3 * world) * 3 * world if tail == "drop" else draws + 1
            assert union == whole[:kept]


@pytest.mark.parametrize("kind", ["native", "by torch"])
def test_a_loader_takes_it_in_one_line_and_resumes_exactly(kind: str) -> None:
    data: Any = numbers(7) if kind == "native" else list(range(7))

    def made(**options: Any) -> FastLoader[Any]:
        options = {"batch_size": 8} | options
        return FastLoader(data, sampler=WeightedSampler(WEIGHTS, 50, seed=0), **options)

    whole = [values(loader) for loader in [made()] for _ in range(2)]
    sampler = WeightedSampler(WEIGHTS, 50, seed=0)
    assert [flat(epoch) for epoch in whole] == [list(sampler), list(sampler)]
    loader = made()
    assert len(loader) == 7
    assert type(iter(loader)) is (_NativeIterator if kind == "native" else type(iter(loader)))
    loader, batches = made(), []
    for batch in loader:
        batches.append(batch)
        state = loader.state_dict()
        resumed = made(num_workers=1)
        resumed.load_state_dict(state)
        assert values(resumed) == whole[0][len(batches) :]
        assert values(resumed) == whole[1]
    smaller = made(batch_size=3)
    smaller.load_state_dict({**state, "samples": 8})
    assert flat(values(smaller)) == flat(whole[0])[8:]
    stock = DataLoader(data, 8, sampler=WeightedSampler(WEIGHTS, 50, seed=0, batch_size=8))
    assert values(stock) == whole[0]


def test_a_state_is_of_these_weights() -> None:
    def made(weights: Any, **options: Any) -> FastLoader[Any]:
        return FastLoader(numbers(7), 8, sampler=WeightedSampler(weights, 50, seed=0, **options))

    loader = made(WEIGHTS)
    next(iter(loader))
    state = loader.state_dict()
    assert state["order"] == "weighted"
    made(np.array(WEIGHTS) * 4).load_state_dict(state)  # draws the same
    made(torch.tensor(WEIGHTS)).load_state_dict(state)
    for other in (WEIGHTS[::-1], np.array(WEIGHTS) + 1e-9):
        with pytest.raises(ValueError, match="another fingerprint of the weights"):
            made(other).load_state_dict(state)
    with pytest.raises(ValueError, match="another order: 'weighted', here it is 'full'"):
        FastLoader(numbers(7), 8, seed=0, shuffle=True).load_state_dict(state)
    fewer = WeightedSampler(WEIGHTS, 7, seed=0)
    with pytest.raises(ValueError, match=r"8 samples of an epoch.*only 7 here.*num_samples"):
        FastLoader(numbers(7), 8, sampler=fewer).load_state_dict(state)
    del state["weights"]
    with pytest.raises(ValueError, match="damaged"):
        made(WEIGHTS).load_state_dict(state)


def test_shard_is_the_samplers() -> None:
    with pytest.raises(ValueError, match=r"WeightedSampler\(\.\.\., shard=\)"):
        FastLoader(numbers(7), 8, sampler=WeightedSampler(WEIGHTS), shard=(0, 2))


def test_groups_masks_and_random_transforms_follow() -> None:
    loaders = [
        FastLoader(
            numbers(7), 4, sampler=WeightedSampler(WEIGHTS, 25, seed=1, shard=(r, 2)), tail="mask"
        )
        for r in range(2)
    ]
    real: list[int] = []
    for groups in zip(*(loader.groups(2) for loader in loaders), strict=True):
        samples = [index[mask].tolist() for group in groups for index, mask in group]
        assert {group.total for group in groups} == {len(flat(samples))}
        real += flat(samples)
    assert Counter(real) == Counter(WeightedSampler(WEIGHTS, 25, seed=1))


@pytest.mark.parametrize(
    "weights",
    [
        np.array(WEIGHTS),
        np.array(WEIGHTS, np.float16),
        np.array(WEIGHTS, ">f8"),
        np.repeat(WEIGHTS, 2)[::2],
        torch.tensor(WEIGHTS, requires_grad=True),
        torch.tensor(WEIGHTS, dtype=torch.bfloat16),
        (np.array(WEIGHTS) * 4).astype("int16"),
        tuple(WEIGHTS),
    ],
)
def test_weights_of_any_kind(weights: Any) -> None:
    assert list(WeightedSampler(weights, 99)) == list(WeightedSampler(WEIGHTS, 99))


def test_weights_in_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", WEIGHTS)
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    assert list(WeightedSampler(mapped, 99)) == list(WeightedSampler(WEIGHTS, 99))
    assert set(WeightedSampler([False, True, True], 50)) == {1, 2}


@pytest.mark.parametrize(
    ("weights", "options", "error", "text"),
    [
        ([1, -2, float("nan")], {}, ValueError, r"weights\[1\] is -2"),
        ([1, 2, float("nan")], {}, ValueError, r"weights\[2\] is nan"),
        ([1, float("inf")], {}, ValueError, r"weights\[1\] is inf"),
        ([0, 0], {}, ValueError, "at least one weight must be above 0"),
        ([], {}, ValueError, "at least one weight must be above 0"),
        ([[1.0]], {}, ValueError, "one dimension"),
        (1.0, {}, ValueError, "one dimension"),
        (["a"], {}, TypeError, "must be numbers"),
        ([1j], {}, TypeError, "must be numbers"),
        ([1], {"num_samples": 0}, ValueError, "num_samples must be in"),
        ([1], {"num_samples": 2**62 + 1}, ValueError, r"num_samples must be at most 2\*\*62"),
        ([1], {"num_samples": 2.0}, TypeError, "num_samples must be an integer"),
        ([1], {"seed": -1}, ValueError, "seed must be in"),
        ([1], {"tail": "mask", "drop_last": True}, ValueError, "drop_last=True"),
    ],
)
def test_what_it_refuses(weights: Any, options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        WeightedSampler(weights, **options)


def test_there_is_a_weight_for_each_sample() -> None:
    for data in (numbers(6), list(range(8))):
        with pytest.raises(ValueError, match=f"there are 7 weights for {len(data)} samples"):
            FastLoader(data, sampler=WeightedSampler(WEIGHTS))
    assert len(FastLoader(numbers(7), sampler=WeightedSampler(WEIGHTS))) == 7


def test_it_is_a_distributed_sampler_that_is_copied_and_pickled() -> None:
    def made() -> WeightedSampler:
        return WeightedSampler(WEIGHTS, 20, seed=1, shard=(1, 2), batch_size=10)

    sampler, want = made(), list(made())
    assert isinstance(sampler, DistributedSampler)
    for again in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler), copy.copy(sampler)):
        assert list(again) == want
    loader = FastLoader(numbers(7), 10, sampler=sampler)
    assert values(pickle.loads(pickle.dumps(loader))) == values(loader) == [want]
    assert fastload.WeightedSampler is WeightedSampler
