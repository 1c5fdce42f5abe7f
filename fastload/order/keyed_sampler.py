"""The seeded order: a permutation that is a function of seed, epoch and position."""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Iterator, Sized
from typing import Any, NamedTuple

from torch.utils.data import DistributedSampler

from fastload import _core
from fastload.errors import warn
from fastload.order import ranks
from fastload.order.sample_keys import KeyedIndex

ORDERS = ("full", "block")
TAILS = ("drop", "pad", "mask", "short")
_MAX_SEED = 2**64
MAX_INDEX = 2**62
# Rows of an order block if the size of a row is unknown.
_BLOCK_ROWS = 1024
_BLOCK_BYTES = 1 << 20
_WINDOW_BLOCKS = 64

_log = logging.getLogger("fastload")


def block_rows(row_bytes: int | None) -> int:
    """Returns the number of rows of an order block, which has about 1 MiB."""
    return max(1, _BLOCK_BYTES // max(1, row_bytes)) if row_bytes is not None else _BLOCK_ROWS


def resolved_tail(tail: str | None, drop_last: bool) -> str:
    """Returns how the last step of an epoch is handled.

    Args:
        tail: As given; None: determined by `drop_last`.
        drop_last: See Args.

    Raises:
        ValueError: there is no such tail, or it contradicts `drop_last`.
    """
    if tail is None:
        return "drop" if drop_last else "pad"
    if tail not in TAILS:
        raise ValueError(f"tail must be one of {', '.join(map(repr, TAILS))} or None, not {tail!r}")
    if drop_last and tail != "drop":
        raise ValueError(f"drop_last=True drops the last step, and tail={tail!r} does not")
    return tail


class KeyedEpoch(NamedTuple):
    """Snapshot of an epoch at its start."""

    epoch: int
    first: int  # position of the first batch
    per_batch: int  # positions in a global batch
    rows: int


class KeyedSampler(DistributedSampler[int]):
    """Sampler with the order of `FastLoader(seed=...)`, for any DataLoader.

    The global order is a permutation computed from (seed, epoch), or 0, 1, 2, ... without shuffle.
    Step k takes its next `batch_size * world` positions, rank r the r-th contiguous part of them;
    `tail` determines how the last step is handled. Rank, world size and epoch are read when an
    iterator yields its first index. Each new iterator takes the following epoch, except right after
    `set_epoch`.

    Args:
        dataset: Anything with a length. With a `Mixture`, the indices of an epoch follow those of
            the epoch before.
        batch_size: Number of samples of one rank in a step; equal to that of the batch sampler.
        shuffle: True: permuted. False: 0, 1, 2, ...
        seed: In [0, 2**64).
        drop_last: Drop the last step if it is not full; equal to `tail="drop"`.
        shard: See `fastload.order.ranks.find_rank`.
        order: "full", or "block": permuted blocks, then a permutation inside windows of a few
            blocks, for data that is slow to read at random.
        block_rows: Rows of a block, for "block".
        tail: "pad": a last step that is not full is filled up from the start of the order, until
            all ranks have equally many samples; "mask": like "pad", and batches of a FastLoader
            report which samples are real; "short": nothing is added, so that the ranks may differ
            by a sample or a batch; "drop": the step is left out. None: "drop" with `drop_last`,
            else "pad".

    Raises:
        ValueError: `batch_size`, `seed`, `order` or `tail` is out of range; `drop_last` with
            another tail than "drop".
        TypeError: `batch_size` or `seed` is not an integer.

    Example:
        >>> sampler = KeyedSampler(range(6), seed=1, shard=(0, 2), batch_size=2)
        >>> len(sampler), sorted(list(sampler) + list(KeyedSampler(
        ...     range(6), seed=1, shard=(1, 2), batch_size=2)))
        (3, [0, 1, 2, 3, 4, 5])
    """

    __module__ = "fastload"

    _weights: _core.WeightTable | None = None
    _carries_keys = False

    def __init__(
        self,
        dataset: Sized,
        *,
        batch_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        shard: Any = None,
        order: str = "full",
        block_rows: int = _BLOCK_ROWS,
        tail: str | None = None,
    ) -> None:
        # The parent's __init__ would fix rank and world size now.
        if order not in ORDERS:
            raise ValueError(f"order must be 'full' or 'block', not {order!r}")
        self.dataset = dataset  # type: ignore[assignment]
        self.batch_size = checked_int("batch_size", batch_size, least=1)
        self.shuffle = shuffle
        self.seed = checked_int("seed", seed)
        self.tail = resolved_tail(tail, drop_last)
        self.drop_last = self.tail == "drop"
        self.shard = shard
        self.order = order
        self.block_rows = block_rows
        self.window_blocks = _WINDOW_BLOCKS
        self.epoch = 0
        self._epoch_is_new = True  # the next iterator takes `epoch`, not `epoch + 1`
        self._restored = False
        self._epochs_before = 0  # added to the argument of set_epoch
        self._first = 0
        self._started: KeyedEpoch | None = None
        self._world_at_len: int | None = None
        self._logged_environment = False
        ranks.find_rank(shard)  # raises for an invalid shard

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Current rank of this process."""
        return self._rank_now().rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Current world size."""
        return self._rank_now().world

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Samples of this rank in an epoch; equal on all ranks unless the tail is "short"."""
        return self._samples(self._rank_now())

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Samples of all ranks in an epoch."""
        if self.tail == "short":
            return self.positions
        now = self._rank_now()
        return self._samples(now) * now.world

    @property
    def repeats(self) -> int:
        """Number of this rank's last samples that fill up the last step ("pad", "mask").

        They repeat samples of the epoch. Without them the ranks together have each sample once, so
        that sums over all ranks are exact. The number is that of the epoch that started last, or of
        the first one.
        """
        now = self._rank_now()
        started = None if self._restored else self._started
        first = self._first if started is None else started.first
        rest = max(0, self.positions - first) % (self.batch_size * now.world)
        share = -(-rest // now.world) if self.tail in ("pad", "mask") else 0
        return share - min(share, max(0, rest - now.rank * share))

    @property
    def next_epoch(self) -> int:
        """Epoch of the next iterator."""
        return self.epoch if self._epoch_is_new else self.epoch + 1

    @property
    def begun(self) -> KeyedEpoch | None:
        """Epoch that started last; None before the first one."""
        return self._started

    @property
    def positions(self) -> int:
        """Samples of all ranks in an epoch, before the last step is dropped or filled up."""
        return len(self.dataset)  # type: ignore[arg-type]

    def _rank_now(self) -> ranks.ProcessRank:
        return ranks.find_rank(self.shard)

    def _samples(self, now: ranks.ProcessRank) -> int:
        steps, rest = divmod(self.positions, self.batch_size * now.world)
        if self.tail == "short":
            share = rest // now.world + (now.rank < rest % now.world)
        else:
            share = 0 if self.drop_last else -(-rest // now.world)
        return steps * self.batch_size + share

    def __len__(self) -> int:
        now = self._rank_now()
        self._warn_if_changed(now.world)
        self._world_at_len = now.world
        return self._samples(now)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iterator take this epoch, and those after it the following ones.

        Between `restore` and the first index this has no effect: the restored position wins, and a
        caller that counts from 0 after a restart is offset by the restored epoch from then on. Only
        if the restored epoch is exhausted, and `epoch` is the one after it, is `epoch` taken.

        Raises:
            ValueError: `epoch` is not in [0, 2**64).
        """
        epoch = checked_int("epoch", epoch)
        if self._restored and not (epoch == self.epoch + 1 and self._is_at_end()):
            self._epochs_before = max(0, self.epoch - epoch)
            if epoch != self.epoch:
                warn(
                    f"set_epoch({epoch}) is ignored: the loaded state is in epoch {self.epoch}"
                    + ("; later epochs are counted from there" if self._epochs_before else ""),
                )
            return
        self.epoch, self._first = epoch + self._epochs_before, 0
        self._epoch_is_new, self._restored = True, False

    def _is_at_end(self) -> bool:
        left = self.positions - self._first
        return left < (self.batch_size * self.num_replicas if self.drop_last else 1)

    def restore(self, epoch: int, position: int) -> None:
        """Makes the next iterator start at a position of the global order of an epoch."""
        self.epoch, self._first = epoch, position
        self._epoch_is_new = self._restored = True
        self._epochs_before = 0

    def begin(self) -> _core.EpochPlan:
        """Starts the next epoch and returns the plan of this rank."""
        now = self._checked_rank()
        self._started = started = self._predicted(now.world)
        self.epoch, self._first = started.epoch, 0
        self._epoch_is_new = self._restored = False
        return self.plan(started, now.rank, now.world)

    def foreseen(self) -> KeyedEpoch:
        """Returns the epoch of the next iterator, if nothing changes before it starts."""
        return self._predicted(self.num_replicas)

    def _predicted(self, world: int) -> KeyedEpoch:
        per_batch = self.batch_size * world
        return KeyedEpoch(self.next_epoch, self._first, per_batch, self.positions)

    def own_plan(self, epoch: KeyedEpoch) -> _core.EpochPlan:
        """Returns the plan of this rank for an epoch."""
        now = self._rank_now()
        return self.plan(epoch, now.rank, now.world)

    def plan(self, epoch: KeyedEpoch, rank: int, world: int) -> _core.EpochPlan:
        """Returns the plan of any rank for an epoch: which samples its batches have."""
        return _core.EpochPlan(
            rows=epoch.rows,
            batch=min(self.batch_size, epoch.rows + 1),  # the core's sizes have limits
            rank=rank,
            world=world,
            seed=self.seed,
            epoch=epoch.epoch,
            first_position=epoch.first,
            tail="pad" if self.tail == "mask" else self.tail,
            order=self.order if self.shuffle else "sequential",
            block_rows=self.block_rows,
            window_blocks=self.window_blocks,
            weights=self._weights,
            index_offset=_index_offset(self.dataset, epoch),
        )

    def _checked_rank(self) -> ranks.ProcessRank:
        now = self._rank_now()
        if now.origin == "environment" and now.world > 1 and not self._logged_environment:
            self._logged_environment = True
            # Logged, not warned: scripts without torch.distributed may run like this.
            _log.warning(
                "rank %d of %d comes from RANK and WORLD_SIZE: torch.distributed is not "
                "initialised; shard=False turns sharding off",
                now.rank,
                now.world,
            )
        self._warn_if_changed(now.world)
        return now

    def _warn_if_changed(self, world: int) -> None:
        if self._world_at_len not in (None, world):
            warn(
                f"the world size was {self._world_at_len} when len() was read and is {world} now: "
                "make the loader after torch.distributed is initialised",
            )
            self._world_at_len = world

    def __iter__(self) -> Iterator[int]:
        plan, started = self.begin(), self._started
        assert started is not None
        for k in range(plan.batch_count):
            indices = plan.indices(k).tolist()
            if not self.carries_keys:
                yield from indices
                continue
            keys, real = plan.draws(k).tolist(), plan.real_count(k)
            for number, (index, key) in enumerate(zip(indices, keys, strict=True)):
                yield KeyedIndex(index, self.seed, started.epoch, key, number < real)

    @property
    def carries_keys(self) -> bool:
        """True if the indices are `KeyedIndex`: with a mask, or after `carry_keys`."""
        return self._carries_keys or self.tail == "mask"

    def carry_keys(self) -> None:
        """Makes the sampler yield `KeyedIndex`, for random transforms in other loaders."""
        self._carries_keys = True

    def details(self) -> dict[str, Any]:
        """Returns the entries of a state that describe the order, in addition to name and seed."""
        if self._weights is not None:
            return {"weights": f"{self._weights.fingerprint:016x}"}
        if self.order == "block" and self.shuffle:
            return {"block_rows": self.block_rows, "window_blocks": self.window_blocks}
        return {}

    def rebatched(self, batch_size: int, drop_last: bool, tail: str | None = None) -> KeyedSampler:
        """Returns this sampler if its batches are such, else a copy with such batches.

        Raises:
            ValueError: `drop_last` with a tail that does not drop.
        """
        if tail is None and self.tail in ("mask", "short"):
            tail = self.tail
        tail = resolved_tail(tail, drop_last)
        if batch_size == self.batch_size and tail == self.tail:
            return self
        clone = copy.copy(self)
        clone.batch_size, clone.tail, clone.drop_last = batch_size, tail, tail == "drop"
        return clone


def _index_offset(dataset: Any, epoch: KeyedEpoch) -> int:
    """Returns the first index of an epoch: indices of a Mixture continue across epochs."""
    if not getattr(type(dataset), "epochs_follow", False):
        return 0
    offset = epoch.epoch * epoch.rows
    if offset + epoch.rows > MAX_INDEX:
        raise ValueError(f"epoch {epoch.epoch} of {epoch.rows} samples lies beyond index 2**62")
    return offset


def checked_int(name: str, value: Any, least: int = 0) -> int:
    """Returns an argument as an int.

    Raises:
        TypeError: the argument is not an integer.
        ValueError: the argument is not in [least, 2**64).
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    number = operator.index(value)
    if not least <= number < _MAX_SEED:
        raise ValueError(f"{name} must be in [{least}, 2**64), not {number}")
    return number
