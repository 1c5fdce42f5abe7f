"""FastLoader: torch's DataLoader, with an engine under it where the data allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, IterableDataset, Sampler

from fastload.batch.transforms import Transforms, is_random
from fastload.formats import checks
from fastload.loader.arguments import (
    LoaderArguments,
    mark_shuffled,
    warn_of_threads,
    warn_of_unused,
)
from fastload.loader.collate_fn import inner_of, public_collate_fn
from fastload.loader.epoch_setup import EpochSetup, current_plan, make_setup, plan_of
from fastload.loader.explain import describe, warn_of_slow_data, why_not_native
from fastload.loader.groups import Groups
from fastload.loader.handover import BatchTransform, Handover
from fastload.loader.native_iterator import _NativeIterator
from fastload.loader.resources import AutoDefaults, LoaderResources
from fastload.loader.stateful import StatefulLoader
from fastload.loader.torch_iterator import TrackedSampler, torch_iterator
from fastload.loader.trainer_warnings import warn_of_replacement
from fastload.order.position import Epochs
from fastload.order.samplers import SamplerView, is_own
from fastload.order.state_dict import prepare_samplers

T_co = TypeVar("T_co", covariant=True)

_FIXED = frozenset({"seed", "shard", "order", "tail", "io", "transforms", "verify", "on_error"})


class FastLoader(StatefulLoader[T_co]):
    """A `torch.utils.data.DataLoader` that loads natively what it can.

    It takes DataLoader's arguments in DataLoader's order, with its errors, its order of samples and
    its random draws, and gives its batches, bit for bit. Data that the core can read (see
    `fastload.open`, `ArrayDataset`, `TokenDataset`; also TensorDataset, and Subset, ConcatDataset,
    StackDataset and `Mixture` of these) are gathered by C++ threads when `collate_fn` is the
    default one; everything else is loaded by torch's own iterators. A batch is the caller's: it may
    be kept and written to.

    Args:
        dataset: A path for `fastload.open`, or anything DataLoader takes.
        batch_size: Samples in a batch.
        shuffle: Draw a new permutation for each epoch.
        sampler: As in DataLoader; a `WeightedSampler` is shared out and resumes as `seed` does.
        batch_sampler: As in DataLoader.
        num_workers: None: threads by the number of CPUs and of ranks on this host, at most 4, for
            native data, and 0 else; random numbers are then drawn when DataLoader draws them
            without workers. 0: batches are gathered inside `next()`. n: n threads, or for other
            data n processes.
        collate_fn: As in DataLoader. The attribute also applies transforms, mask, device and
            batch_transform, for loaders that others make from this one's attributes; these are
            taken over from the `collate_fn` of another FastLoader.
        pin_memory: As in DataLoader.
        drop_last: As in DataLoader.
        timeout: Seconds to wait for a batch, 0 for ever.
        worker_init_fn: Not called for native data.
        multiprocessing_context: Not used for native data.
        generator: As in DataLoader.
        prefetch_factor: Batches kept ready for each worker; by default as many as fill 64 MiB.
        persistent_workers: As in DataLoader.
        pin_memory_device: As in DataLoader.
        in_order: As in DataLoader; native data always come in order.
        seed: Selects the keyed order (see `KeyedSampler`): the same in every run, another in each
            epoch, shared out among the ranks, and no random numbers are drawn. `shuffle` says
            whether it is permuted. An explicit sampler wins over it.
        shard: With `seed`: `(rank, world)`, a DeviceMesh or ProcessGroup; False: do not share
            out; None: as torch.distributed says, else RANK and WORLD_SIZE.
        order: With `seed`: "full", or "block" for data that are slow to read at random.
        tail: With `seed`, what becomes of an epoch's last step over the ranks where it is not full.
            "drop": it is left out. "pad": samples from the start of the order fill it up, so that
            all ranks have equally many. "mask": the same, and each batch has one more member, last
            or under the key "real": bool (B,), False for samples that only fill up (of a sampler of
            your own, all are real). "short": each sample comes once; ranks may have a sample, or a
            whole batch, less than others, and must not wait for each other then. None: "drop" with
            `drop_last`, else "pad".
        device: Copy the tensors of each batch there, one batch ahead, beside the stream on which
            the caller computes.
        io: How files are read: "auto", "mmap" or "pread"; None: as the dataset says. "auto" takes
            "pread" on network and user-space file systems, where a thread of the loader reads, also
            with `num_workers=0`, so that Ctrl-C works while a server does not answer.
        transforms: For native data, what becomes of fields, by their names. Of ragged ones
            `PadTo`, `Jagged`, `AsList` or `DecodeImage`; without one, numbers must be of one length
            in a batch, as default_collate demands; text comes as str, bytes as bytes. Of the others
            and of decoded images: one or a sequence of `RandomCrop`, `RandomHorizontalFlip`,
            `Cast` or `Normalize`, and `ToChannelsFirst`.
        verify: What is compared with the checksums of packed data: "open": headers and bounds, now;
            "lazy": each block of 1 MiB, when it is read first; None: as the dataset says.
        on_error: "raise" FormatError for a batch with a sample that lies in a damaged block (with
            `verify="lazy"`), or whose image cannot be decoded; "skip": leave such samples out, and
            warn once. A batch may be empty then, and has one more member, last or under the key
            "missing": int64, the dataset's indices of what was left out.
        batch_transform: A function of the finished batch, on its device, that gives what is handed
            out; it runs in the thread that calls `next()`, on its current stream.
        static_buffers: With `device`: all batches of one shape come in the same tensors, whose
            addresses CUDA graphs can rely on, also from one epoch to the next. A batch lives until
            the following `next()` then; whoever keeps it makes a copy.

    Raises:
        ValueError: as DataLoader; `shard`, `order` or `tail` without `seed`; `drop_last` with
            another `tail`; `seed` with an IterableDataset; `transforms` that do not fit the fields;
            `device` names none; `static_buffers` without a device that batches are copied to, or
            with `on_error="skip"`.
        TypeError: as DataLoader; `seed` is not an integer; `batch_transform` cannot be called.
        RuntimeError: at `iter()`, torch cannot use the `device`.

    Example:
        >>> loader = FastLoader(ArrayDataset({"x": np.arange(8.0)}), batch_size=3, seed=0)
        >>> [batch["x"].tolist() for batch in loader]
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0]]
    """

    __module__ = "fastload"
    shard: Any
    order: str
    tail: str | None
    device: torch.device | str | int | None
    io: str | None
    verify: str | None
    on_error: str
    batch_transform: BatchTransform | None
    static_buffers: bool
    _tracked: TrackedSampler | None

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        shard: Any = None,
        order: str = "full",
        tail: str | None = None,
        device: torch.device | str | int | None = None,
        io: str | None = None,
        transforms: Transforms | None = None,
        verify: str | None = None,
        on_error: str = "raise",
        batch_transform: BatchTransform | None = None,
        static_buffers: bool = False,
    ) -> None:
        arguments = LoaderArguments.named(locals())
        arguments.resolve()
        # DataLoader's constructor reads both.
        self._shuffle, self._has_threads = shuffle, arguments.has_threads
        super().__init__(arguments.dataset, **arguments.for_torch())
        if seed is not None and self._is_iterable:
            raise ValueError("seed= needs a map-style dataset: an IterableDataset has no order")
        self.__dict__.update(arguments.own())
        self._start_up(arguments, collate_fn)

    def _start_up(self, arguments: LoaderArguments, collate_fn: Any) -> None:
        """Checks the arguments against the data, and prepares the first iterator.

        Args:
            arguments: The resolved arguments of the constructor.
            collate_fn: As given to the constructor.
        """
        self._resources, self._tracked = LoaderResources(), None
        self._samplers, self._epochs = SamplerView(self._index_sampler), Epochs()
        self._defaults = AutoDefaults()
        if arguments.has_auto_workers:
            self._defaults.choose_workers(
                self, arguments.prefetch_factor, arguments.persistent_workers
            )
        if arguments.prefetch_factor is None:
            self._defaults.prefetch = self.prefetch_factor
        plan = plan_of(self, self._resources, arguments.extents if self._has_threads else None)
        if plan is not None and getattr(self.dataset, "verify", None) != self.verify:
            checks.checked(plan.extents, self.verify)
        if type(self.batch_sampler) is BatchSampler and hasattr(self.sampler, "set_epoch"):
            # Trainers look for it here.
            self.batch_sampler.set_epoch = self.sampler.set_epoch  # type: ignore[attr-defined]
        mark_shuffled(self)
        if is_random(self.transforms) and is_own(self.sampler):
            self.sampler.carry_keys()
        self._sealed = True
        self.collate_fn = self.collate_fn if collate_fn is None else collate_fn
        if arguments.extents is not None:
            warn_of_replacement(self)
        if self._has_threads:
            warn_of_threads(self.num_workers, self._resources.warned)
        warn_of_slow_data(self, None if plan is None else plan.extents, self._resources.warned)

    def __setattr__(self, attr: str, val: Any) -> None:
        if attr in _FIXED and self.__dict__.get("_sealed"):
            raise ValueError(
                f"{attr} attribute should not be set after {type(self).__name__} is initialized"
            )
        if attr == "collate_fn" and self.__dict__.get("_sealed"):
            val = public_collate_fn(self, val)
        super().__setattr__(attr, val)
        if attr in ("device", "batch_transform") and self.__dict__.get("_sealed"):
            self.collate_fn = inner_of(self.collate_fn)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_iterator": None}

    @property
    def shuffle(self) -> bool | None:
        """As given. Assigning another value is an error: the sampler was made from it."""
        return self.__dict__.get("_shuffle")

    @shuffle.setter
    def shuffle(self, value: bool | None) -> None:
        if self.__dict__.get("_sealed") and bool(value) != bool(self.shuffle):
            raise ValueError(
                f"shuffle attribute should not be set after {type(self).__name__} is initialized"
            )
        self._shuffle = value

    def check_worker_number_rationality(self) -> None:
        """Warns, as torch does, of more worker processes than CPUs; threads are no processes."""
        if not self.__dict__.get("_has_threads"):
            super().check_worker_number_rationality()

    def __repr__(self) -> str:
        return describe(self)

    # --- Iterating -----------------------------------------------------------------------------

    def __iter__(self) -> Any:
        iterator: Any = self._iterator
        if iterator is None or not (self.persistent_workers and self.num_workers > 0):
            return super().__iter__()
        setup = self._native_setup(is_new=False)
        if isinstance(iterator, _NativeIterator) and setup is not None:
            iterator.restart(setup)
        elif isinstance(iterator, _NativeIterator) or setup is not None:
            self._iterator = self._get_iterator()
        else:
            prepare_samplers(self._samplers, self._epochs)
            iterator._reset(self)
            iterator._next_data.restart(self._handover())
        return self._iterator

    def _get_iterator(self) -> Any:
        self._epochs.waiting = True
        setup, resources = self._native_setup(is_new=True), self._resources
        warn_of_slow_data(self, None if setup is None else setup.plan.extents, resources.warned)
        resources.uses_torch, self._has_threads = setup is None, setup is not None
        if setup is None:
            self._defaults.take_back_workers(self)
            return torch_iterator(self, self._handover, resources.stats)
        warn_of_unused(self, resources.warned)
        warn_of_threads(self.num_workers, resources.warned)
        return _NativeIterator(setup)

    @property
    def _is_iterable(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    @property
    def _index_sampler(self) -> Any:
        return super()._index_sampler if self._tracked is None else self._tracked

    def _native_setup(self, *, is_new: bool) -> EpochSetup | None:
        """Returns the setup of the next native iterator; None if it is one of torch's."""
        resources = self._resources
        plan = current_plan(self, resources)
        if plan is None:
            return None
        prepare_samplers(self._samplers, self._epochs)
        return make_setup(self, plan, resources, self._defaults, is_new=is_new)

    def _handover(self) -> Handover:
        return Handover(
            self._resources.target(self.device, static=self.static_buffers), self.batch_transform
        )

    def groups(self, n: int, count: str | None = None) -> Groups[T_co]:
        """An epoch in groups of `n` batches, each for one step of the optimizer; see `Group`.

        How many samples a group has on all ranks is known before its first batch is loaded: from
        the keyed order, or from the lengths of torch's samplers. A group is streamed, not kept. A
        state that is taken inside one counts the batches that were handed out; when that is resumed
        the first group holds the rest, and the gradients of the others are lost: save between two
        groups. Samples that `on_error="skip"` leaves out are counted.

        Args:
            n: Batches of this rank in a group; the last one of an epoch may have fewer.
            count: With `seed`, for native data: the field whose lengths, or integers, are counted
                instead of samples, such as tokens. Reads it for the samples of all ranks.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: `n` is not positive; the sizes of batches, here or on other ranks, cannot be
                known ahead, or with `tail="short"` some ranks have a batch more; `count` cannot be
                counted.
        """
        return Groups(self, n, count)

    @property
    def is_native(self) -> bool:
        """Whether an iterator made now would be native: not torch's own."""
        return self.why_not_native is None

    @property
    def why_not_native(self) -> str | None:
        """Why an iterator made now would be torch's own, in a sentence; None if it is native.

        Example:
            >>> FastLoader(ArrayDataset(np.zeros(3)), batch_size=None).why_not_native
            'batch_size=None: samples are returned one by one, and native data come in batches'
        """
        return why_not_native(self)

    def stats(self) -> dict[str, float]:
        """What this loader has done since it was made, in this process.

        Any thread may ask, at any time; it takes some microseconds, and loading goes on meanwhile.

        Returns:
            Of all iterators together, numbers for any logger:

            - `batches`: handed out or copied ahead to a device.
            - `wait_s`: seconds in which `next()` waited for a batch, or made it.
            - `wait_p50_ms`, `wait_p99_ms`: such waits, batch by batch, in milliseconds: the median
              and the 99th percentile, to within a sixteenth.

            With a CUDA `device`, from the first iterator on, of what its streams have done by now;
            nothing waits for them. Copies that torch makes, as to other devices, are not measured.

            - `h2d_bytes`: copied to it.
            - `h2d_s`: seconds that these copies took, and the kernels behind them.
            - `gpu_stall_s`: seconds in which the stream that computes had done all of its work and
              waited for a batch.

            Of native data also:

            - `samples`, `bytes`: in those batches; of images that are decoded, their files' bytes.
            - `missing`: samples that `on_error="skip"` left out.
            - `worker_wait_s`: seconds in which threads had nothing to do, summed over them.
            - `ready`: batches that wait to be taken, now.
            - `cold_share`: of the batches, those that came while data were not in the page cache;
              from 0 to 1.
            - `slot_bytes`: memory of batches that are being filled, are ready, or are kept by
              somebody, now.
            - `free_slot_bytes`: memory that is kept for the next ones, now.
            - `slot_allocations`: pieces of memory that were ever taken for them. It stays as it is
              once the loader has enough; for a GPU it grows, but all are parts of what is pinned.

        Example:
            >>> loader = FastLoader(ArrayDataset(np.arange(8)), batch_size=3)
            >>> batches = list(loader)
            >>> stats = loader.stats()
            >>> stats["batches"], stats["samples"], stats["bytes"]
            (3, 8, 64)
        """
        return self._resources.figures()
