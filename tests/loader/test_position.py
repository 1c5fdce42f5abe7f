"""`loader.position` counts the batches of an epoch that were handed out, also after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

from fastload import ArrayDataset, FastLoader, WeightedSampler

DATA = ArrayDataset(np.arange(23))


class Plain(torch.utils.data.Dataset[int]):
    """A dataset that only torch's iterators load."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """A stream of numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(23))


CASES: list[tuple[Any, dict[str, Any]]] = [
    (DATA, {"batch_size": 4, "seed": 0, "shuffle": True}),
    (DATA, {"batch_size": 4, "seed": 0, "tail": "drop"}),
    (DATA, {"batch_size": 4, "seed": 0, "shard": (1, 2), "tail": "pad"}),
    (DATA, {"batch_size": 4, "seed": 0, "shard": (0, 3), "tail": "short"}),
    (DATA, {"batch_size": 4, "shuffle": True}),
    (DATA, {"batch_size": 4, "drop_last": True}),
    (DATA, {"batch_size": 4, "sampler": DistributedSampler(DATA, 2, 1)}),  # type: ignore[arg-type]
    (DATA, {"batch_size": 5, "sampler": WeightedSampler(np.ones(23), num_samples=30, seed=0)}),
    (DATA, {"batch_sampler": [[0, 1], [2], [3, 4, 5]]}),
    (DATA, {"batch_sampler": BatchSampler(SequentialSampler(range(23)), 4, drop_last=False)}),
    (DATA, {"batch_size": None}),
    (TensorDataset(torch.arange(23)), {"batch_size": 4, "num_workers": 2}),
    (Plain(), {"batch_size": 4, "shuffle": True}),
    (Plain(), {"batch_size": 4, "seed": 1, "shard": (1, 2), "tail": "pad"}),
    (Stream(), {"batch_size": 4}),
]


@pytest.mark.parametrize("prefetched", [0, 1, 2])
@pytest.mark.parametrize(("dataset", "arguments"), CASES, ids=map(str, range(len(CASES))))
def test_position_counts_batches_and_is_equal_after_a_resume(
    dataset: Any, arguments: dict[str, Any], prefetched: int
) -> None:
    loader: Any = FastLoader(dataset, **arguments)
    assert loader.position == 0
    total = sum(1 for _ in loader)
    assert loader.position == 0  # of the next epoch
    batches = iter(loader)
    for count in range(1, total):
        next(batches)
        assert loader.position == count
        if count == min(prefetched + 1, total - 1):
            resumed: Any = FastLoader(dataset, **arguments)
            resumed.load_state_dict(loader.state_dict())
            assert resumed.position == count
            if not isinstance(dataset, Stream):
                assert len(resumed) == total
            rest = iter(resumed)
            next(rest)
            assert resumed.position == count + 1
            assert sum(1 for _ in rest) == total - count - 1
    next(batches)
    assert loader.position == total
    assert next(batches, None) is None
    assert loader.position == 0


def test_another_batch_size_rounds_up() -> None:
    loader = FastLoader(DATA, 6, seed=0)
    next(iter(loader))
    resumed = FastLoader(DATA, 4, seed=0)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.position == 2
    assert [resumed.position for _ in resumed] == [3, 4, 5, 6, 6]
    assert len(resumed) == 6
