"""Groups and evaluations where the last step is masked or short."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from oracle import flat, numbers

from fastload import ArrayDataset, FastLoader


def data_of(kind: str, rows: int) -> Any:
    return numbers(rows) if kind == "native" else list(range(rows))


@pytest.mark.parametrize("kind", ["native", "by torch"])
@pytest.mark.parametrize("tail", ["mask", "short"])
def test_groups_count_each_sample_once(kind: str, tail: str) -> None:
    for world, rows, n in itertools.product((1, 2, 3), range(0, 25, 2), (1, 2, 5)):
        options: dict[str, Any] = {"shuffle": True, "seed": 2, "tail": tail}
        loaders = [
            FastLoader(data_of(kind, rows + 1), 3, shard=(rank, world), **options)
            for rank in range(world)
        ]
        if tail == "short" and 0 < (rows + 1) % (3 * world) < world:
            for loader in loaders:
                with pytest.raises(ValueError, match=r"ranks have one batch more.*'mask'"):
                    loader.groups(n)
            continue
        total = 0
        for groups in zip(*(loader.groups(n) for loader in loaders), strict=True):
            held = []
            for group in groups:
                batches = list(group)
                real = [b[1] if tail == "mask" else torch.ones(len(b)) for b in batches]
                assert list(group.sizes) == [int(mask.sum()) for mask in real]
                assert group.samples == sum(group.sizes)
                held.append(group.samples)
            assert {group.total for group in groups} == {sum(held)}
            total += groups[0].total
        assert total == rows + 1


def test_groups_find_out_in_the_epoch_that_some_ranks_would_step_alone() -> None:
    loader = FastLoader(numbers(12), 2, seed=0, shard=(0, 2), tail="short")
    groups = loader.groups(2)
    assert [group.total for group in groups] == [8, 4]
    loader.load_state_dict(loader.state_dict() | {"samples": 3})
    with pytest.raises(ValueError, match="1 of 2 ranks have one batch more"):
        next(iter(groups))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_an_evaluation_over_ranks_is_that_of_one_process(world: int) -> None:
    """The mean loss by weights, the accuracy by counting: exactly."""
    rows = 29
    losses = [Fraction(7 * i % 31, 3) for i in range(rows)]
    right = [i % 3 == 0 for i in range(rows)]
    mean, hits, count = Fraction(0), 0, 0
    for rank in range(world):
        loader = FastLoader(numbers(rows), 3, seed=0, shard=(rank, world), tail="mask")
        for group in loader.groups(50):
            for size, (index, real) in zip(group.sizes, group, strict=True):
                kept = index[real].tolist()
                loss = sum((losses[i] for i in kept), Fraction(0)) / max(1, len(kept))
                mean += loss * Fraction(size * group.shares, group.total) / world
                hits += sum(right[i] for i in kept)
                count += len(kept)
    assert mean == sum(losses, Fraction(0)) / rows
    assert (hits, count) == (sum(right), rows)


def test_counted_fields_of_masked_samples() -> None:
    tokens = np.arange(7) + 1
    data = ArrayDataset({"n": tokens})
    found = []
    for rank in range(3):
        loader = FastLoader(data, 2, seed=0, shard=(rank, 3), tail="mask")
        for group in loader.groups(9, count="n"):
            assert group.total == tokens.sum()
            real = [batch["n"][batch["real"]] for batch in group]
            assert list(group.sizes) == [int(batch.sum()) for batch in real]
            found += flat([batch.tolist() for batch in real])
    assert sorted(found) == tokens.tolist()
