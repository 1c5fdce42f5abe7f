"""A mixture is what a simulation of its tree gives, one position after the other."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Stream, _key, numbers, permuted
from torch.utils.data import DataLoader, TensorDataset

from fastload import ArrayDataset, Mixture

POLICIES = ("stop", "repeat", "drop")


# --- The slow truth ----------------------------------------------------------------------------


class Node:
    """A node that remembers how often it was visited."""

    def __init__(self, weights: list[int], first: int = 0) -> None:
        self.first, self.visits = first, 0
        self.sides: list[Node] = []
        if len(weights) > 1:
            half = len(weights) // 2
            parts = weights[:half], weights[half:]
            self.sides = [Node(parts[0], first), Node(parts[1], first + half)]
            self.share = Fraction(sum(parts[0]), sum(weights) or 1)

    def visit(self) -> int:
        """The source that comes next."""
        n = self.visits
        self.visits += 1
        if not self.sides:
            return self.first
        goes_left = math.floor((n + 1) * self.share) > math.floor(n * self.share)
        return self.sides[0 if goes_left else 1].visit()


def simulated(
    sizes: list[int], weights: list[int], exhausted: str, seed: int | None
) -> Iterator[tuple[int, int]]:
    """Source and sample of each position, for ever."""
    node, visits = Node(weights), [0] * len(sizes)
    alive, epoch = list(weights), 0
    while True:
        source = node.visit()
        if exhausted == "drop" and visits[source] == (epoch + 1) * sizes[source]:
            alive = [
                w if v < (epoch + 1) * n else 0
                for w, v, n in zip(alive, visits, sizes, strict=True)
            ]
            if not any(alive):
                epoch, alive = epoch + 1, list(weights)
            node = Node(alive)
            continue
        cycle, place = divmod(visits[source], sizes[source])
        visits[source] += 1
        if seed is not None:
            place = permuted(place, sizes[source], _key(seed, source, 0), cycle)
        yield source, place


def epoch_length(sizes: list[int], weights: list[int], exhausted: str) -> int:
    """How many positions pass until the epoch ends."""
    read = [d for d, weight in enumerate(weights) if weight]
    if exhausted == "drop":
        return sum(sizes[d] for d in read)
    visits = [0] * len(sizes)
    for position, (source, _) in enumerate(simulated(sizes, weights, "stop", None)):
        if exhausted == "stop" and visits[source] == sizes[source]:
            return position
        visits[source] += 1
        if exhausted == "repeat" and all(visits[d] >= sizes[d] for d in read):
            return position + 1
    raise AssertionError


def pairs(mixture: Mixture, indices: Any) -> list[tuple[int, int]]:
    sources, samples = mixture.sources(indices)
    return list(zip(sources.tolist(), samples.tolist(), strict=True))


def check(sizes: list[int], weights: list[int], exhausted: str, seed: int | None) -> None:
    datasets = [range(1000 * d, 1000 * d + n) for d, n in enumerate(sizes)]
    mixture = Mixture(datasets, weights, seed=seed, exhausted=exhausted)
    length = epoch_length(sizes, weights, exhausted)
    assert len(mixture) == length
    count = 3 * length
    want = list(itertools.islice(simulated(sizes, weights, exhausted, seed), count))
    assert pairs(mixture, range(count)) == want
    values = [1000 * d + i for d, i in want]
    assert mixture.__getitems__(range(count)) == values
    assert list(mixture) == values[:length]
    for epoch in range(3):
        own = [d for d, _ in want[epoch * length : (epoch + 1) * length]]
        assert mixture.counts(epoch).tolist() == [own.count(d) for d in range(len(sizes))]


# --- Equality ----------------------------------------------------------------------------------


@pytest.mark.parametrize("exhausted", POLICIES)
def test_all_small_mixtures(exhausted: str) -> None:
    for count, largest in ((1, 4), (2, 4), (3, 3), (4, 2)):
        for sizes in itertools.product(range(1, largest + 1), repeat=count):
            for weights in itertools.product(range(4), repeat=count):
                if any(weights) and math.gcd(*weights) == 1:
                    check(list(sizes), list(weights), exhausted, None)


@pytest.mark.parametrize("exhausted", POLICIES)
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_permuted_passes(exhausted: str, seed: int) -> None:
    check([5, 3, 8], [2, 3, 1], exhausted, seed)
    check([4, 9, 1, 6, 7], [1, 0, 2, 3, 1], exhausted, seed)


def test_samples_decide_the_length() -> None:
    mixture = Mixture([range(3), range(10, 12)], [1, 2], samples=11)
    assert len(mixture) == 11
    want = [i + 10 * d for d, i in itertools.islice(simulated([3, 2], [1, 2], "stop", None), 22)]
    assert [mixture[i] for i in range(22)] == want
    assert mixture.counts().sum() == 11


def test_by_size_each_sample_comes_once_an_epoch() -> None:
    sizes = [7, 1, 12, 3]
    for exhausted in POLICIES:
        mixture = Mixture([range(n) for n in sizes], exhausted=exhausted)
        assert len(mixture) == sum(sizes)
        for epoch in range(3):
            seen = pairs(mixture, range(epoch * 23, (epoch + 1) * 23))
            assert sorted(seen) == [(d, i) for d, n in enumerate(sizes) for i in range(n)]


# --- What is promised of it --------------------------------------------------------------------


@pytest.mark.parametrize("weights", [[1, 1], [5, 1, 3], [9, 1, 1, 4, 2], [*range(1, 14)]])
def test_any_stretch_has_each_source_in_proportion(weights: list[int]) -> None:
    mixture = Mixture([range(5)] * len(weights), weights, samples=2000)
    sources = mixture.sources(range(2000))[0]
    bound = math.ceil(math.log2(len(weights)))
    for source, weight in enumerate(weights):
        seen = np.concatenate([[0], np.cumsum(sources == source)])
        for length in (1, 2, 3, 7, 50, 333, 1000, 1999):
            held = seen[length:] - seen[:-length]
            assert np.abs(held - length * weight / sum(weights)).max() < bound


@pytest.mark.parametrize("exhausted", POLICIES)
def test_no_sample_comes_twice_before_the_others_came(exhausted: str) -> None:
    sizes = [30, 7, 50]
    mixture = Mixture([range(n) for n in sizes], [1, 1, 3], seed=3, exhausted=exhausted)
    sources, samples = mixture.sources(range(5 * len(mixture)))
    passes = []
    for source, size in enumerate(sizes):
        own = samples[sources == source]
        for start in range(0, len(own) - size + 1, size):
            passes.append(own[start : start + size].tolist())
            assert sorted(passes[-1]) == list(range(size))
    assert len(set(map(tuple, passes))) == len(passes), "each pass has an order of its own"


class Endless:
    """A dataset of 10**12 samples."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, index: int) -> int:
        return self.start + index


@pytest.mark.parametrize("exhausted", POLICIES)
def test_datasets_of_any_size(exhausted: str) -> None:
    mixture = Mixture([Endless(0), Endless(10**12)], [0.3, 0.7], seed=0, exhausted=exhausted)
    last = len(mixture) - 1
    sources, samples = mixture.sources([0, last, 10 * last])
    assert [mixture[0], mixture[last]] == (samples + 10**12 * sources)[:2].tolist()
    assert all(0 <= sample < 10**12 for sample in samples)
    lengths = {"stop": 10**13 // 7, "repeat": 10**13 // 3, "drop": 2 * 10**12}
    assert abs(len(mixture) - lengths[exhausted]) <= 1


def test_the_last_index() -> None:
    mixture = Mixture([Endless(0), Endless(0), Endless(0)], [1, 2, 3])
    whole = [2**62 * share // 6 for share in (1, 2, 3)]
    sources, samples = mixture.sources(range(2**62 - 6, 2**62))
    for source in range(3):
        own = samples[sources == source]
        assert np.all(np.abs(own - whole[source] % 10**12) <= 5)
    with pytest.raises(IndexError, match="out of range"):
        mixture[2**62]
    for epoch in (2**62 // len(mixture), 2**64, -1):
        with pytest.raises(IndexError, match=f"epoch {epoch} of .* is out of range"):
            mixture.counts(epoch)


# --- Weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "integers"),
    [
        ([0.7, 0.2, 0.1], [7, 2, 1]),
        ([1e-3, 1.0, 2], [1, 1000, 2000]),
        (np.array([0.7, 0.2, 0.1], "f4"), [7, 2, 1]),
        (torch.tensor([0.7, 0.2, 0.1]), [7, 2, 1]),
        ([torch.tensor(0.5), np.float64(0.25), np.int8(2)], [2, 1, 8]),
        ([Fraction(1, 3), Fraction(2, 3), 0], [1, 2, 0]),
        ([2**70, 2**71, 0], [1, 2, 0]),
        ([10.0, 20.0, 30.0], [1, 2, 3]),
    ],
)
def test_weights_count_as_they_are_printed(weights: Any, integers: list[int]) -> None:
    assert Mixture([range(3)] * 3, weights).weights == integers


def test_weights_beyond_integers_are_rounded() -> None:
    mixture = Mixture([range(3)] * 3, [1e-300, 1 / 7, 1e300], samples=4)
    assert sum(mixture.weights) <= 2**62
    assert mixture.weights[:2] == [1, 1]
    thirds = Mixture([range(3)] * 2, [1 / 3, 2 / 3 * (1 + 1e-15)], samples=4).weights
    assert abs(Fraction(thirds[0], sum(thirds)) - Fraction(1, 3)) < Fraction(1, 10**15)
    irrational = Mixture([range(3)] * 2, [Fraction(10**30 + 1, 10**30), 1], samples=4).weights
    assert abs(irrational[0] - irrational[1]) <= 1


def test_a_dataset_without_weight_is_never_read() -> None:
    for exhausted in POLICIES:
        mixture = Mixture([range(4), range(2), range(3)], [1, 0, 1], exhausted=exhausted)
        assert 1 not in mixture.sources(range(3 * len(mixture)))[0]
        assert mixture.counts()[1] == 0


# --- As a dataset ------------------------------------------------------------------------------


def test_a_stock_loader_takes_the_first_epoch() -> None:
    mixture = Mixture([numbers(6), numbers(4)], [2, 1], seed=1)
    loader = DataLoader(mixture, batch_size=4)
    want = [int(sample) for sample in mixture]
    assert torch.cat(list(loader)).tolist() == want
    shuffled = torch.cat(list(DataLoader(mixture, batch_size=4, shuffle=True)))
    assert sorted(shuffled.tolist()) == sorted(want)


def test_workers_and_copies_see_the_same() -> None:
    mixture = Mixture([numbers(6), numbers(4)], [2, 1], seed=1, exhausted="repeat")
    want = torch.tensor([int(sample) for sample in mixture])
    loader = DataLoader(mixture, batch_size=3, num_workers=1, multiprocessing_context="fork")
    assert torch.cat(list(loader)).equal(want)
    again = pickle.loads(pickle.dumps(mixture))
    assert [int(sample) for sample in again] == want.tolist()
    assert (again.weights, len(again), repr(again)) == (
        mixture.weights,
        len(mixture),
        repr(mixture),
    )


def test_a_mixture_of_mixtures() -> None:
    inner = Mixture([range(2), range(10, 12)])
    mixture = Mixture([inner, range(20, 24)], [1, 2], exhausted="repeat")
    assert list(inner) == [10, 0, 11, 1]
    assert list(mixture) == [20, 21, 10, 22, 23, 0, 20, 21, 11, 22, 23, 1]


def test_each_dataset_is_asked_once_for_many() -> None:
    class Counted(list[int]):
        asked = 0

        def __getitems__(self, indices: list[int]) -> list[int]:
            self.asked += 1
            return [self[i] for i in indices]

    many, one = Counted(range(10)), range(100, 110)
    mixture = Mixture([many, one], [1, 1])
    indices = [5, 0, 3, 3, -1, 12]
    assert mixture.__getitems__(indices) == [mixture[i] for i in indices]
    assert many.asked == 1


def test_negative_indices_count_from_the_end_of_the_first_epoch() -> None:
    mixture = Mixture([range(5), range(10, 13)], seed=2)
    assert [mixture[i] for i in range(-8, 0)] == list(mixture)
    for wrong in (-9, 2**62):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range"):
            mixture[wrong]
    with pytest.raises(TypeError):
        mixture[1.0]  # type: ignore[index]


# --- What is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datasets", "options", "error", "message"),
    [
        ([], {}, ValueError, "at least one dataset"),
        ("ab", {}, TypeError, "must be a list of datasets, not one str"),
        ({"a": range(2)}, {}, TypeError, "not one dict"),
        (ArrayDataset(np.arange(3)), {}, TypeError, "not one ArrayDataset"),
        (TensorDataset(torch.zeros(3, 2)), {}, TypeError, "not one TensorDataset"),
        ([range(2), range(0)], {}, ValueError, "dataset 1 is empty"),
        ([range(2), Stream()], {}, TypeError, "dataset 1 is an IterableDataset"),
        ([range(2), iter("ab")], {}, TypeError, "dataset 1 has no length: str_"),
        ([range(2)], {"weights": []}, ValueError, "there is none"),
        ([range(2)], {"weights": [1, 2]}, ValueError, "2 weights for 1 datasets"),
        ([range(2)] * 2, {"weights": [1, -0.5]}, ValueError, "number 1 is negative: -0.5"),
        ([range(2)] * 2, {"weights": [float("nan"), 1]}, ValueError, "number 0 is nan"),
        ([range(2)] * 2, {"weights": [1, float("inf")]}, ValueError, "number 1 is inf"),
        ([range(2)] * 2, {"weights": [0, 0.0]}, ValueError, "all are 0"),
        ([range(2)], {"weights": ["much"]}, TypeError, "real number"),
        ([range(2)], {"weights": {"web": 1.0}}, TypeError, "weights must be a list"),
        ([range(2)], {"exhausted": "cycle"}, ValueError, "exhausted must be"),
        ([range(2)], {"exhausted": "drop", "samples": 3}, ValueError, "cannot be combined"),
        ([range(2)], {"samples": 0}, ValueError, "samples must be in"),
        ([range(2)], {"samples": 2.5}, TypeError, "samples must be an integer"),
        ([range(2)], {"seed": -1}, ValueError, "seed must be in"),
        ([range(2)], {"seed": 2**64}, ValueError, r"seed must be in \[0, 2\*\*64\)"),
        ([Endless(0)] * 2, {"weights": [1, 2**61], "exhausted": "repeat"}, ValueError, "epoch"),
        ([range(2**61)] * 3, {}, ValueError, "more than 2"),
    ],
)
def test_what_is_refused(
    datasets: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Mixture(datasets, **options)


def test_fields_of_different_names() -> None:
    one = ArrayDataset({"x": np.arange(3), "y": np.arange(3)})
    other = ArrayDataset({"y": np.arange(3), "x": np.arange(3.0)})
    assert len(Mixture([one, other])) == 6, "torch says what it makes of the dtypes"
    with pytest.raises(ValueError, match="x, y in dataset 0, x, z in dataset 2"):
        Mixture([one, other, ArrayDataset({"x": np.arange(3), "z": np.arange(3)})])


def test_many_datasets_that_leave_one_by_one() -> None:
    mixture = Mixture([range(n + 1) for n in range(300)], [1] * 300, exhausted="drop")
    assert len(mixture) == sum(range(301))
    seen = set(pairs(mixture, range(len(mixture))))
    assert len(seen) == len(mixture)
    with pytest.raises(ValueError, match="too many sources leave"):
        Mixture([range(n + 1) for n in range(6000)], [1] * 6000, exhausted="drop")
