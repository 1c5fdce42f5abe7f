"""Which samples each rank has, against the definition of steps, shares and tails."""

from __future__ import annotations

import os

from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle import global_order
from plans import TAILS, Batch, planned
from torch.utils.data import BatchSampler

from fastload import KeyedSampler

SEED, EPOCH = 3, 1
EXAMPLES = int(os.environ.get("FASTLOAD_EXAMPLES", "400"))


def made(
    order: str, rows: int, batch: int, shard: tuple[int, int], tail: str, block_rows: int
) -> KeyedSampler:
    sampler = KeyedSampler(
        range(rows),
        batch_size=batch,
        shuffle=order != "sequential",
        seed=SEED,
        shard=shard,
        order="block" if order == "block" else "full",
        block_rows=block_rows,
        tail=tail,
    )
    sampler.window_blocks = 3
    return sampler


def whole(order: str, rows: int, block_rows: int) -> list[int]:
    """The order of an epoch; that of blocks, which has no oracle, as one rank has it."""
    if order != "block":
        return global_order(rows, SEED, EPOCH, order)
    sampler = made(order, rows, 1, (0, 1), "pad", block_rows)
    sampler.set_epoch(EPOCH)
    return list(sampler)


def check_rank(sampler: KeyedSampler, want: list[Batch], first: int) -> None:
    """One rank has these batches, from this position on."""
    sampler.restore(EPOCH, first)
    batches = list(BatchSampler(sampler, sampler.batch_size, sampler.drop_last))
    assert [list(map(int, batch)) for batch in batches] == [
        [sample.index for sample in batch] for batch in want
    ]
    real = [sum(sample.is_real for sample in batch) for batch in want]
    size = sum(map(len, want))
    assert sampler.repeats == size - sum(real)
    assert sampler.begun is not None
    plan = sampler.own_plan(sampler.begun)
    assert [plan.real_count(k) for k in range(plan.batch_count)] == real
    assert [plan.batch_size(k) for k in range(plan.batch_count)] == list(map(len, want))
    if first == 0:
        assert len(sampler) == sampler.num_samples == size


@settings(max_examples=EXAMPLES)
@given(
    rows=st.integers(0, 60),
    batch=st.integers(1, 7),
    world=st.integers(1, 8),
    tail=st.sampled_from(TAILS),
    order=st.sampled_from(["full", "sequential", "block"]),
    first=st.integers(0, 60),
    block_rows=st.integers(1, 12),
)
@example(rows=1, batch=2, world=8, tail="pad", order="full", first=0, block_rows=1)
@example(rows=2, batch=3, world=5, tail="mask", order="full", first=0, block_rows=1)
@example(rows=3, batch=1, world=8, tail="short", order="full", first=0, block_rows=1)
@example(rows=24, batch=3, world=4, tail="drop", order="full", first=12, block_rows=1)
@example(rows=25, batch=3, world=4, tail="pad", order="block", first=24, block_rows=4)
def test_ranks_have_their_contiguous_share_of_each_step(
    rows: int, batch: int, world: int, tail: str, order: str, first: int, block_rows: int
) -> None:
    """From any position; each sample comes once, but for those that fill up the last step."""
    first = min(first, rows)
    indices = whole(order, rows, block_rows)
    assert sorted(indices) == list(range(rows))
    want = planned(indices, batch, world, tail, first)
    real = [sample.index for rank in want for b in rank for sample in b if sample.is_real]
    left = rows - first
    count = left - left % (batch * world) if tail == "drop" else left
    assert len(set(real)) == len(real) == count
    assert tail == "short" or len(set(map(len, want))) == 1
    for rank, batches in enumerate(want):
        sampler = made(order, rows, batch, (rank, world), tail, block_rows)
        check_rank(sampler, batches, first)
        if first == 0:
            assert sampler.total_size == sum(len(b) for rank in want for b in rank)
