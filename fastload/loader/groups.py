"""The batches of one step of the optimizer, and how many samples all ranks have in it.

Nothing is communicated and nothing is loaded ahead for that: the order is a function, so each rank
knows what the others have.
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
from fastload.order.samplers import bottom, is_keyed
from fastload.order.torch_samplers import is_stock

T = TypeVar("T")


class Group(Generic[T]):
    """The batches of one step of the optimizer; iterating loads them one by one, once.

    What is not taken of it is passed over when the next group is asked for.

    Samples that only fill up a batch do not count with `tail="mask"`, where the batches say which
    they are, and count with "pad", where they do not.

    Attributes:
        samples: Of this rank, in all its batches.
        total: Of all ranks; equal on all of them. Samples, or what `count=` counts.
        sizes: The same of this rank's batches, one by one.
        shares: Ranks among which the loader shares out its data.
        last: No other group follows in this epoch.
        epoch: Of the loader, counted from 0.

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
        """By which the mean losses of the batches are multiplied.

        Added up, and then averaged over the ranks (as DDP does with gradients), they give the mean
        over the whole group. With `tail="mask"` the mean loss of a batch is that of its real
        samples, and 0 where it has none: `(losses * real).sum() / real.sum().clamp(min=1)`.
        """
        return [size * self.shares / max(1, self.total) for size in self.sizes]

    def __len__(self) -> int:
        """Batches of this rank; the same on all ranks."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[T]:
        if self._taken >= 0:
            raise RuntimeError("a group can be iterated once: its batches are not kept")
        self._taken = 0
        return self._rest()

    def _rest(self) -> Iterator[T]:
        while self._taken < len(self):
            self._taken += 1  # a batch that fails has had its turn
            try:
                batch = next(self._batches)
            except StopIteration:
                raise RuntimeError(
                    "the epoch has fewer batches than its sampler said when it began"
                ) from None
            yield batch

    def _pass_over(self) -> None:
        self._taken = max(0, self._taken)
        for _batch in self._rest():
            pass


class Groups(Generic[T]):
    """What `FastLoader.groups` returns: iterating it takes an epoch of the loader.

    Args:
        loader: A FastLoader.
        n: Batches of a group; the last one of an epoch may have fewer.
        count: A field that says how much a sample counts: integers, or of any length.

    Raises:
        TypeError: `n` is not an integer.
        ValueError: `n` is not positive; what the batches hold cannot be known ahead; there is no
            such field.
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
        """Groups of a whole epoch."""
        return (len(self._loader) + self._n - 1) // self._n

    def __iter__(self) -> Iterator[Group[T]]:
        ahead, n = _foresee(self._loader), self._n
        counter = None if self._counter is None else self._counter.of_epoch(ahead.keyed)
        # Opened by the first step, which waits for that: workers may have to be started.
        batches = itertools.chain.from_iterable((self._loader,))
        # A resumed epoch goes on in the middle of a group: that one ends where it would have ended.
        begin, end = 0, n - -(-ahead.first // ahead.step) % n
        while begin < ahead.batches:
            end = min(end, ahead.batches)
            own = tuple(map(ahead.samples, range(begin, end)))
            sizes, total = own, ahead.total(begin, end)
            if counter is not None:
                sizes, total = counter(begin, end)
            last = end == ahead.batches
            group = Group[T](batches, sum(own), total, sizes, ahead.ranks, last, ahead.number)
            yield group
            group._pass_over()
            if begin == 0:
                ahead.check_begun(self._loader)
            begin, end = end, end + n
        for _batch in batches:
            raise RuntimeError("the epoch has more batches than its sampler said when it began")


class _Epoch(NamedTuple):
    """The next epoch of a loader, before it begins.

    Attributes:
        number: Of the epoch.
        first: Where it begins, in samples of the order: of all ranks if it is keyed, else of this.
        end: Where it ends.
        batch: Samples of one rank's full batch.
        parts: In which a step of the order is cut for the ranks: 1 unless it is keyed.
        ranks: That have batches like these.
        drop_last: Leave out a step that is not full.
        keyed: The epoch, if it is keyed.
        plan: Of this rank, if it is keyed.
        pads: Samples that fill up the last step count.
    """

    number: int
    first: int
    end: int
    batch: int
    parts: int
    ranks: int
    drop_last: bool
    keyed: KeyedEpoch | None = None
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
        """Of this rank's batch `number`."""
        if self.plan is not None:
            return self.plan.batch_size(number) if self.pads else self.plan.real_count(number)
        return min(self.step, self.end - self.first - number * self.step)

    def total(self, begin: int, end: int) -> int:
        """Of the batches from `begin` on to `end`, of all ranks."""
        if self.pads:  # the ranks have equally many
            return sum(map(self.samples, range(begin, end))) * self.ranks
        return min((end - begin) * self.step, self.end - self.first - begin * self.step)

    def check_begun(self, loader: Any) -> None:
        begun = None if self.keyed is None else loader.batch_sampler.sampler.begun
        if begun != self.keyed:
            raise RuntimeError(
                f"a group was made for {self.keyed}, but {begun} began: do not change epoch, place "
                "or world size between the two"
            )


def _check_known(loader: Any) -> None:
    """Raises ValueError unless the size of each batch is known before it is drawn."""
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError("groups() needs a map-style dataset: the length of a stream is not known")
    if type(loader.batch_sampler) is not BatchSampler:
        what = "batch_size" if loader.batch_sampler is None else "a batch_sampler of torch's"
        raise ValueError(f"groups() needs {what}: it has to know what the coming batches hold")
    if not hasattr(loader.batch_sampler.sampler, "__len__"):
        kind = type(loader.batch_sampler.sampler).__name__
        raise ValueError(f"groups() needs a sampler with a length, which {kind} has not")
    if is_keyed(loader.batch_sampler):
        _check_equal_steps(bottom(loader.batch_sampler))


def _check_equal_steps(sampler: KeyedSampler) -> None:
    """Raises ValueError if the coming epoch has a batch more on some ranks than on others."""
    epoch, world = sampler.foreseen(), sampler.num_replicas
    left = (epoch.rows - epoch.first) % epoch.per_batch
    if sampler.tail == "short" and 0 < left < world:
        raise ValueError(
            f"tail='short': {left} of {world} ranks have one batch more in this epoch, so they "
            "cannot all step together: take tail='mask', or 'pad'"
        )


def _foresee(loader: Any) -> _Epoch:
    batches = loader.batch_sampler
    sampler, batch, drop_last = batches.sampler, batches.batch_size, batches.drop_last
    if is_keyed(batches):
        _check_equal_steps(sampler)
        keyed, world = sampler.foreseen(), sampler.num_replicas
        plan, pads = sampler.own_plan(keyed), sampler.tail == "pad"
        first, end = keyed.first, keyed.rows
        return _Epoch(keyed.epoch, first, end, batch, world, world, drop_last, keyed, plan, pads)
    unit = "samples" if is_stock(sampler) else "batches"
    start = loader._mark.take(unit)
    first = start.first * (1 if unit == "samples" else batch)
    return _Epoch(start.epoch, first, len(sampler), batch, 1, _ranks_of(sampler), drop_last)


def _ranks_of(sampler: Any) -> int:
    replicas = getattr(sampler, "num_replicas", None)
    if isinstance(replicas, int):
        return replicas
    place = ranks.find_place()
    if place.world > 1:
        raise ValueError(
            f"what the other {place.world - 1} ranks load is not known, for "
            f"{type(sampler).__name__} does not share out: give seed=, or a DistributedSampler"
        )
    return 1


class _Counter:
    """Adds up a field over the samples of batches, of this rank and of all.

    Raises:
        ValueError: the order is not keyed, the data are not native, or there is no such field.
    """

    def __init__(self, loader: Any, name: str) -> None:
        extents = native_extents(loader.dataset)
        if not is_keyed(loader.batch_sampler) or extents is None:
            raise ValueError("count= needs seed= and data that fastload reads natively")
        self._sampler: KeyedSampler = loader.batch_sampler.sampler
        self._field, table = _single_column(extents, name)
        self._table: _core.Table = table.build(loader.io or "auto")

    def of_epoch(self, epoch: KeyedEpoch | None) -> Any:
        """A function of the numbers of batches: sizes on this rank, and the total."""
        assert epoch is not None
        place = ranks.find_place(self._sampler.shard)
        plans = [self._sampler.plan(epoch, rank, place.world) for rank in range(place.world)]
        pads = self._sampler.tail == "pad"

        def count(begin: int, end: int) -> tuple[tuple[int, ...], int]:
            found = [
                [int(self._counts(counted(plan, k)).sum()) for k in range(begin, end)]
                for plan in plans
            ]
            return tuple(found[place.rank]), sum(map(sum, found))

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
    raise ValueError(f"count={name!r} is no field; there are {names}")
