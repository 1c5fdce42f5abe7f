"""The slow truth about an epoch over the ranks: which samples each batch of each rank has."""

from __future__ import annotations

from typing import NamedTuple

TAILS = ("drop", "pad", "mask", "short")


class Sample(NamedTuple):
    """A sample of a batch; it is not real if it only fills up the last step."""

    index: int
    is_real: bool


Batch = list[Sample]


def planned(
    order: list[int], batch: int, world: int, tail: str, first: int = 0
) -> list[list[Batch]]:
    """Returns the batches of each rank, by the definition of a step and of its tail.

    Args:
        order: All indices of the epoch.
        batch: Samples of one rank's batch.
        world: Number of ranks.
        tail: How the last step is handled.
        first: Position of the first step.
    """
    ranks: list[list[Batch]] = [[] for _ in range(world)]
    step = batch * world
    for start in range(first, len(order), step):
        rest = [Sample(index, True) for index in order[start : start + step]]
        if len(rest) < step and tail == "drop":
            break
        while len(rest) % world and tail in ("pad", "mask"):
            rest.append(Sample(order[(start + len(rest)) % len(order)], False))
        sizes = [len(rest) // world + (rank < len(rest) % world) for rank in range(world)]
        for rank, size in enumerate(sizes):
            if size:
                ranks[rank].append(rest[:size])
            rest = rest[size:]
    return ranks
