"""The keyed order: a permutation that is computed, not drawn."""

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
# Rows of a block when the size of a row is unknown.
_BLOCK_ROWS = 1024
_BLOCK_BYTES = 1 << 20
_WINDOW_BLOCKS = 64

_log = logging.getLogger("fastload")


def block_rows(row_bytes: int | None) -> int:
    """Rows of a block of the order "block": about 1 MiB."""
    return max(1, _BLOCK_BYTES // max(1, row_bytes)) if row_bytes is not None else _BLOCK_ROWS


def resolved_tail(tail: str | None, drop_last: bool) -> str:
    """What becomes of the last step of an epoch.

    Args:
        tail: As given; None: as `drop_last` says.
        drop_last: As given.

    Raises:
        ValueError: there is no such tail, or `drop_last` says something else.
    """
    if tail is None:
        return "drop" if drop_last else "pad"
    if tail not in TAILS:
        raise ValueError(f"tail must be one of {', '.join(map(repr, TAILS))} or None, not {tail!r}")
    if drop_last and tail != "drop":
        raise ValueError(f"drop_last=True drops the last step, and tail={tail!r} does not")
    return tail


class KeyedEpoch(NamedTuple):
    """An epoch as it was when it began."""

    epoch: int
    first: int  # position of the first batch
    per_batch: int  # positions in a global batch
    rows: int


class KeyedSampler(DistributedSampler[int]):
    """The order that `FastLoader(seed=...)` uses, as a sampler any DataLoader can iterate.

    The global order is a permutation computed from (seed, epoch), or 0, 1, 2, ... without shuffle.
    Step k takes its next `batch_size * world` positions, rank r the r-th contiguous part of them;
    what becomes of the last step says `tail`. Rank, world size and epoch are read when an iterator
    gives its first index. Each new iterator takes the following epoch, except right after
    `set_epoch`.

    Args:
        dataset: Anything with a length. Of a `Mixture` each epoch has the indices that follow those
            of the epoch before.
        batch_size: Samples of one rank's step. It must be that of the batch sampler.
        shuffle: Permuted, or in order.
        seed: In [0, 2**64).
        drop_last: Drop the last step where it is not full; the same as `tail="drop"`.
        shard: See `fastload.order.ranks.find_place`.
        order: "full", or "block": permuted blocks, then a permutation inside windows of a few
            blocks, for data that is slow to read at random.
        block_rows: Rows of a block, for "block".
        tail: "pad": a last step that is not full wraps to the start until all ranks have equally
            many; "mask": the same, and a FastLoader says in its batches which samples are real;
            "short": nothing is added, so that the ranks may differ by a sample, or by a batch;
            "drop": it is left out. None: "drop" with `drop_last`, else "pad".

    Raises:
        ValueError: `batch_size`, `seed`, `order` or `tail` is not one of these; `drop_last` with
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
        self._epoch_is_new = True  # the next iterator takes `epoch`, not the one after it
        self._restored = False
        self._epochs_before = 0  # that a caller of set_epoch does not count
        self._first = 0
        self._begun: KeyedEpoch | None = None
        self._world_at_len: int | None = None
        self._said_environment = False
        ranks.find_place(shard)  # raises for what is no shard

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Rank of this process, as of now."""
        return ranks.find_place(self.shard).rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """World size, as of now."""
        return ranks.find_place(self.shard).world

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Samples of this rank in an epoch; the same on every rank, unless the tail is "short"."""
        return self._samples(ranks.find_place(self.shard))

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Samples of all ranks in an epoch."""
        if self.tail == "short":
            return self.positions
        place = ranks.find_place(self.shard)
        return self._samples(place) * place.world

    @property
    def repeats(self) -> int:
        """How many of this rank's last samples fill up the last step ("pad", "mask").

        They repeat samples that some rank has already; without them the ranks together have each
        sample once, so that sums over all ranks are exact. It is about the epoch that was begun
        last, before the first about that one.
        """
        place = ranks.find_place(self.shard)
        begun = None if self._restored else self._begun
        first = self._first if begun is None else begun.first
        rest = max(0, self.positions - first) % (self.batch_size * place.world)
        share = -(-rest // place.world) if self.tail in ("pad", "mask") else 0
        return share - min(share, max(0, rest - place.rank * share))

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iterator will take."""
        return self.epoch if self._epoch_is_new else self.epoch + 1

    @property
    def begun(self) -> KeyedEpoch | None:
        """The epoch that was begun last."""
        return self._begun

    @property
    def positions(self) -> int:
        """Samples of an epoch, of all ranks, before anything is dropped or added."""
        return len(self.dataset)  # type: ignore[arg-type]

    def _samples(self, place: ranks.Place) -> int:
        steps, rest = divmod(self.positions, self.batch_size * place.world)
        if self.tail == "short":
            share = rest // place.world + (place.rank < rest % place.world)
        else:
            share = 0 if self.drop_last else -(-rest // place.world)
        return steps * self.batch_size + share

    def __len__(self) -> int:
        place = ranks.find_place(self.shard)
        self._warn_if_changed(place.world)
        self._world_at_len = place.world
        return self._samples(place)

    def set_epoch(self, epoch: int) -> None:
        """The next iterator takes this epoch, and those after it the following ones.

        Between `restore` and the first index it has no effect: the restored place wins, and a
        caller whose count begins anew after a restart is understood so from then on. Only if
        nothing is left of the restored epoch, and `epoch` is the one after it, is that taken.

        Raises:
            ValueError: `epoch` is not in [0, 2**64).
        """
        epoch = checked_int("epoch", epoch)
        if self._restored and not (epoch == self.epoch + 1 and self._is_at_end()):
            self._epochs_before = max(0, self.epoch - epoch)
            if epoch != self.epoch:
                warn(
                    f"set_epoch({epoch}) is ignored: the loaded state says epoch {self.epoch}"
                    + ("; later epochs are counted from there" if self._epochs_before else ""),
                )
            return
        self.epoch, self._first = epoch + self._epochs_before, 0
        self._epoch_is_new, self._restored = True, False

    def _is_at_end(self) -> bool:
        left = self.positions - self._first
        return left < (self.batch_size * self.num_replicas if self.drop_last else 1)

    def restore(self, epoch: int, position: int) -> None:
        """The next iterator takes this epoch from this position of the global order on."""
        self.epoch, self._first = epoch, position
        self._epoch_is_new = self._restored = True
        self._epochs_before = 0

    def begin(self) -> _core.EpochPlan:
        """Takes the next epoch and says which samples it has on this rank."""
        place = self._place_now()
        self._begun = begun = self._foreseen(place.world)
        self.epoch, self._first = begun.epoch, 0
        self._epoch_is_new = self._restored = False
        return self.plan(begun, place.rank, place.world)

    def foreseen(self) -> KeyedEpoch:
        """The epoch that the next iterator will take, if nothing changes until then."""
        return self._foreseen(self.num_replicas)

    def _foreseen(self, world: int) -> KeyedEpoch:
        per_batch = self.batch_size * world
        return KeyedEpoch(self.next_epoch, self._first, per_batch, self.positions)

    def own_plan(self, epoch: KeyedEpoch) -> _core.EpochPlan:
        """Which samples this rank has in an epoch of this sampler."""
        place = ranks.find_place(self.shard)
        return self.plan(epoch, place.rank, place.world)

    def plan(self, epoch: KeyedEpoch, rank: int, world: int) -> _core.EpochPlan:
        """The same of any rank."""
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

    def _place_now(self) -> ranks.Place:
        place = ranks.find_place(self.shard)
        if place.origin == "environment" and place.world > 1 and not self._said_environment:
            self._said_environment = True
            # No warning: a script without torch.distributed is right to run like this.
            _log.warning(
                "rank %d of %d comes from RANK and WORLD_SIZE: torch.distributed is not "
                "initialised; shard=False turns sharding off",
                place.rank,
                place.world,
            )
        self._warn_if_changed(place.world)
        return place

    def _warn_if_changed(self, world: int) -> None:
        if self._world_at_len not in (None, world):
            warn(
                f"the world size was {self._world_at_len} when len() was read and is {world} now: "
                "make the loader after torch.distributed is initialised",
            )
            self._world_at_len = world

    def __iter__(self) -> Iterator[int]:
        plan, begun = self.begin(), self._begun
        assert begun is not None
        for k in range(plan.batch_count):
            indices = plan.indices(k).tolist()
            if not self.carries_keys:
                yield from indices
                continue
            draws, real = plan.draws(k).tolist(), plan.real_count(k)
            for place, (index, draw) in enumerate(zip(indices, draws, strict=True)):
                yield KeyedIndex(index, self.seed, begun.epoch, draw, place < real)

    @property
    def carries_keys(self) -> bool:
        """Whether the indices are `KeyedIndex`: with a mask, or after `carry_keys`."""
        return self._carries_keys or self.tail == "mask"

    def carry_keys(self) -> None:
        """Yields `KeyedIndex` from now on, for random transforms in other loaders."""
        self._carries_keys = True

    def details(self) -> dict[str, Any]:
        """What a state says of the order beside its name, seed and place."""
        if self._weights is not None:
            return {"weights": f"{self._weights.fingerprint:016x}"}
        if self.order == "block" and self.shuffle:
            return {"block_rows": self.block_rows, "window_blocks": self.window_blocks}
        return {}

    def rebatched(self, batch_size: int, drop_last: bool, tail: str | None = None) -> KeyedSampler:
        """This sampler if it is for such batches, else a copy that is.

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
    """Where the indices of an epoch begin: those of a Mixture follow those of the epoch before."""
    if not getattr(type(dataset), "epochs_follow", False):
        return 0
    offset = epoch.epoch * epoch.rows
    if offset + epoch.rows > MAX_INDEX:
        raise ValueError(f"epoch {epoch.epoch} of {epoch.rows} samples lies beyond index 2**62")
    return offset


def checked_int(name: str, value: Any, least: int = 0) -> int:
    """An argument as an int.

    Raises:
        TypeError: it is no integer.
        ValueError: it is not in [least, 2**64).
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    number = operator.index(value)
    if not least <= number < _MAX_SEED:
        raise ValueError(f"{name} must be in [{least}, 2**64), not {number}")
    return number
