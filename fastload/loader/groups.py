"""Groups of batches, one per optimizer step, with the number of samples of all ranks.

The ranks do not communicate and nothing is loaded in advance for the numbers: the order is a
function, so each rank computes what the others load.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from torch.utils.data import BatchSampler, IterableDataset

from fastload import _core
from fastload.datasets.native import native_extents
from fastload.formats.columns import Int64Array
from fastload.formats.extents import Extents
from fastload.order import ranks
from fastload.order.keyed_sampler import KeyedEpoch, KeyedSampler
from fastload.order.position import Unit

T = TypeVar("T")


class Group(Generic[T]):
    """Batches of one optimizer step; iterating the group loads them one by one, once.

    Batches that were not taken are skipped when the next group is requested.

    Samples that only fill up a batch are counted with `tail="pad"`. With `tail="mask"`, where the
    batches report which samples these are, they are not.

    Attributes:
        samples: Number of samples of this rank in the group.
        total: Number of samples of all ranks, or the sum of `count=`; equal on all ranks.
        sizes: This rank's part of `total`, batch by batch.
        shares: Number of ranks that the loader shards its data across.
        last: True for the last group of the epoch.
        epoch: Epoch of the loader, from 0.

    Example:
        >>> loader = FastLoader(ArrayDataset(np.arange(10)), batch_size=2)
        >>> [(group.samples, group.last, torch.cat(list(group)).tolist())
        ...     for group in loader.groups(3)]
        [(6, False, [0, 1, 2, 3, 4, 5]), (4, True, [6, 7, 8, 9])]
    """

    def __init__(
        self,
        batches: Iterator[T],
        samples: int,
        total: int,
        sizes: tuple[int, ...],
        shares: int,
        last: bool,
        epoch: int,
    ) -> None:
        self.samples = samples
        self.total = total
        self.sizes = sizes
        self.shares = shares
        self.last = last
        self.epoch = epoch
        self._batches = batches
        self._taken = -1

    @property
    def weights(self) -> list[float]:
        """Factors for the mean losses of the batches.

        The weighted losses, added up and then averaged over the ranks (as DDP does with gradients),
        are the mean over the whole group. With `tail="mask"` the mean loss of a batch is that of
        its real samples, and 0 if it has none: `(losses * real).sum() / real.sum().clamp(min=1)`.
        """
        return [size * self.shares / max(1, self.total) for size in self.sizes]

    def __len__(self) -> int:
        """Number of batches of this rank; equal on all ranks."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[T]:
        if self._taken >= 0:
            raise RuntimeError("a group can be iterated once: its batches are not stored")
        self._taken = 0
        return self._rest()

    def _rest(self) -> Iterator[T]:
        while self._taken < len(self):
            self._taken += 1  # a batch that fails is not loaded again
            try:
                batch = next(self._batches)
            except StopIteration:
                raise RuntimeError(
                    "the epoch has fewer batches than its sampler reported at its start"
                ) from None
            yield batch

    def _skip_rest(self) -> None:
        self._taken = max(0, self._taken)
        for _batch in self._rest():
            pass


class Groups(Generic[T]):
    """Result of `FastLoader.groups`: iterating it iterates one epoch of the loader.

    Args:
        loader: A FastLoader.
        n: Number of batches in a group; the last group of an epoch may have fewer.
        count: Field with the count of a sample: integers, or the length of a ragged field.

    Raises:
        TypeError: `n` is not an integer.
        ValueError: `n` is not positive; the sizes of the batches cannot be computed in advance;
            there is no such field.
    """

    def __init__(self, loader: Any, n: int, count: str | None = None) -> None:
        if isinstance(n, bool) or not hasattr(n, "__index__"):
            raise TypeError(f"groups(n) needs an integer, not {n!r}")
        self._n = operator.index(n)
        if self._n < 1:
            raise ValueError(f"groups(n) needs at least one batch, not {n}")
        self._loader = loader
        _check_known(loader)
        self._counter = None if count is None else _Counter(loader, count)

    def __len__(self) -> int:
        """Number of groups in a whole epoch."""
        return (len(self._loader) + self._n - 1) // self._n

    def __iter__(self) -> Iterator[Group[T]]:
        ahead, n = _predicted(self._loader), self._n
        counter = None if self._counter is None else self._counter.of_epoch(ahead.seeded)
        # The first step starts the iterator and waits for its workers.
        batches = itertools.chain.from_iterable((self._loader,))
        # A resumed epoch continues inside a group, which ends where it would have ended.
        start, end = 0, n - -(-ahead.first // ahead.step) % n
        while start < ahead.batches:
            end = min(end, ahead.batches)
            own = tuple(map(ahead.samples, range(start, end)))
            sizes, total = own, ahead.total(start, end)
            if counter is not None:
                sizes, total = counter(start, end)
            last = end == ahead.batches
            group = Group[T](batches, sum(own), total, sizes, ahead.ranks, last, ahead.number)
            yield group
            group._skip_rest()
            if start == 0:
                ahead.check_started(self._loader)
            start, end = end, end + n
        for _batch in batches:
            raise RuntimeError(
                "the epoch has more batches than its sampler reported when it started"
            )


class _Epoch(NamedTuple):
    """Prediction of the next epoch of a loader.

    Attributes:
        number: Number of the epoch.
        first: Samples before its first batch: of all ranks in a seeded order, else of this rank.
        end: Samples in the epoch, counted alike.
        batch: Samples of one rank in a full batch.
        parts: Number of ranks that a step of the order is sharded across: 1 unless it is seeded.
        ranks: Number of ranks that have batches of these sizes.
        drop_last: True if a step that is not full is left out.
        seeded: Snapshot of the epoch, if the order is seeded.
        plan: Plan of this rank, if the order is seeded.
        pads: True if samples that fill up the last step are counted.
    """

    number: int
    first: int
    end: int
    batch: int
    parts: int
    ranks: int
    drop_last: bool
    seeded: KeyedEpoch | None = None
    plan: _core.EpochPlan | None = None
    pads: bool = True

    @property
    def step(self) -> int:
        return self.batch * self.parts

    @property
    def batches(self) -> int:
        if self.plan is not None:
            return self.plan.batch_count
        left = max(0, self.end - self.first)
        return left // self.step if self.drop_last else -(-left // self.step)

    def samples(self, number: int) -> int:
        """Returns the number of samples of this rank in batch `number`."""
        if self.plan is not None:
            return self.plan.batch_size(number) if self.pads else self.plan.real_count(number)
        return min(self.step, self.end - self.first - number * self.step)

    def total(self, start: int, end: int) -> int:
        """Returns the number of samples of all ranks in batches `start` to `end - 1`."""
        if self.pads:  # the ranks have equally many
            return sum(map(self.samples, range(start, end))) * self.ranks
        return min((end - start) * self.step, self.end - self.first - start * self.step)

    def check_started(self, loader: Any) -> None:
        """Raises RuntimeError unless this epoch has started."""
        started = None if self.seeded is None else loader.batch_sampler.sampler.begun
        if started != self.seeded:
            raise RuntimeError(
                f"a group was made for {self.seeded}, but {started} has started: do not change "
                "epoch, position or world size between the two"
            )


def _check_known(loader: Any) -> None:
    """Raises ValueError unless the size of each batch is known before it is loaded."""
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "groups() needs a map-style dataset: the length of an IterableDataset is not known"
        )
    if type(loader.batch_sampler) is not BatchSampler:
        what = "batch_size" if loader.batch_sampler is None else "a batch_sampler of torch's"
        raise ValueError(f"groups() needs {what}, from which it computes the sizes of the batches")
    if not hasattr(loader.batch_sampler.sampler, "__len__"):
        kind = type(loader.batch_sampler.sampler).__name__
        raise ValueError(f"groups() needs a sampler with a length, and {kind} has none")
    if loader._samplers.seeded is not None:
        _check_equal_steps(loader._samplers.seeded)


def _check_equal_steps(sampler: KeyedSampler) -> None:
    """Raises ValueError if the next epoch has one batch more on some ranks than on others."""
    epoch, world = sampler.foreseen(), sampler.num_replicas
    left = (epoch.rows - epoch.first) % epoch.per_batch
    if sampler.tail == "short" and 0 < left < world:
        raise ValueError(
            f"tail='short': {left} of {world} ranks have one batch more in this epoch, so they "
            "cannot all step together: use tail='mask' or 'pad'"
        )


def _predicted(loader: Any) -> _Epoch:
    samplers, batch = loader._samplers, loader.batch_sampler.batch_size
    drop_last, seeded = samplers.drop_last, samplers.seeded
    if seeded is not None:
        _check_equal_steps(seeded)
        epoch, world = seeded.foreseen(), seeded.num_replicas
        plan, pads = seeded.own_plan(epoch), seeded.tail == "pad"
        first, end = epoch.first, epoch.rows
        return _Epoch(epoch.epoch, first, end, batch, world, world, drop_last, epoch, plan, pads)
    sampler = samplers.base
    unit: Unit = "samples" if samplers.kind == "stock" else "batches"
    position = loader._epochs.next(unit)
    first = position.first * (1 if unit == "samples" else batch)
    return _Epoch(position.epoch, first, len(sampler), batch, 1, _ranks_of(sampler), drop_last)


def _ranks_of(sampler: Any) -> int:
    replicas = getattr(sampler, "num_replicas", None)
    if isinstance(replicas, int):
        return replicas
    world = ranks.find_rank().world
    if world > 1:
        raise ValueError(
            f"the batches of the other {world - 1} ranks are not known, because "
            f"{type(sampler).__name__} does not shard: give seed=, or a DistributedSampler"
        )
    return 1


class _Counter:
    """Sums of a field over the samples of batches, of this rank and of all ranks.

    Raises:
        ValueError: the order is not seeded, the data are not native, or there is no such field.
    """

    def __init__(self, loader: Any, name: str) -> None:
        extents = native_extents(loader.dataset)
        seeded: KeyedSampler | None = loader._samplers.seeded
        if seeded is None or extents is None:
            raise ValueError("count= needs seed= and data that fastload reads natively")
        self._sampler = seeded
        self._field, table = _single_column(extents, name)
        self._table: _core.Table = table.build(loader.io or "auto")

    def of_epoch(self, epoch: KeyedEpoch | None) -> Any:
        """Returns a function from a range of batches to the sums on this rank, and the total."""
        assert epoch is not None
        rank, world = self._sampler.rank, self._sampler.num_replicas
        plans = [self._sampler.plan(epoch, other, world) for other in range(world)]
        pads = self._sampler.tail == "pad"

        def count(start: int, end: int) -> tuple[tuple[int, ...], int]:
            found = [
                [int(self._counts(counted(plan, k)).sum()) for k in range(start, end)]
                for plan in plans
            ]
            return tuple(found[rank]), sum(map(sum, found))

        def counted(plan: _core.EpochPlan, k: int) -> Int64Array:
            return plan.indices(k) if pads else plan.indices(k)[: plan.real_count(k)]

        return count

    def _counts(self, indices: Int64Array) -> Int64Array:
        if self._field.ragged:
            return self._table.lengths(0, indices)
        counts = np.empty(len(indices), self._field.storage)
        self._table.gather(indices, [counts])
        return counts.astype(np.int64)


def _single_column(extents: Extents, name: str) -> tuple[Any, Extents]:
    for group in extents.groups:
        for column in group.columns:
            if column.field.name != name:
                continue
            field = column.field
            if not field.ragged and (field.shape or np.dtype(field.storage).kind not in "iu"):
                raise ValueError(f"count={name!r} must be integers or of any length, not {field}")
            one = (dataclasses.replace(group, columns=(column,)),)
            return field, dataclasses.replace(extents, groups=one, structure=0, content=None)
    names = ", ".join(repr(field.name) for field in extents.fields)
    raise ValueError(f"count={name!r} is not a field; the fields are {names}")
