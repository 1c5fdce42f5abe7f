"""FastLoader: torch's DataLoader, with a C++ engine for data that it can read."""

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
    """A `torch.utils.data.DataLoader` whose batches are gathered by C++ threads.

    It accepts DataLoader's arguments in DataLoader's order, raises the same errors, draws the same
    random numbers, and yields the same batches in the same order, bit for bit. Data that the core
    can read are *native* (see `fastload.open`, `ArrayDataset`, `TokenDataset`; also TensorDataset,
    and Subset, ConcatDataset, StackDataset and `Mixture` of these): C++ threads gather them when
    `collate_fn` is the default one. torch's own iterators load all other data. The caller owns each
    batch, and may keep it and write to it.

    Args:
        dataset: A path for `fastload.open`, or anything DataLoader takes.
        batch_size: Samples in a batch.
        shuffle: Draw a new permutation in each epoch.
        sampler: As in DataLoader; a `WeightedSampler` is sharded and resumes like `seed=`.
        batch_sampler: As in DataLoader.
        num_workers: None: for native data, a number of threads that depends on the CPUs and the
            ranks on this host, at most 4; 0 for other data. Random numbers are then drawn at the
            times of a DataLoader without workers. 0: batches are gathered inside `next()`. n: n
            threads, or n processes for other data.
        collate_fn: As in DataLoader. The attribute also applies transforms, mask, device and
            batch_transform, for loaders that are built from this one's attributes. The `collate_fn`
            of another FastLoader sets these arguments.
        pin_memory: As in DataLoader.
        drop_last: As in DataLoader.
        timeout: Seconds to wait for a batch; 0: no limit.
        worker_init_fn: Not called for native data.
        multiprocessing_context: Not used for native data.
        generator: As in DataLoader.
        prefetch_factor: Batches kept ready for each worker; by default those that fill 64 MiB.
        persistent_workers: As in DataLoader.
        pin_memory_device: As in DataLoader.
        in_order: As in DataLoader; native data always come in order.
        seed: Selects the seeded order (see `KeyedSampler`): equal in every run, different in each
            epoch, and sharded across ranks; no random numbers are drawn. With `shuffle` it is a
            permutation. An explicit sampler takes precedence.
        shard: With `seed`: `(rank, world)`, a DeviceMesh or a ProcessGroup; False: do not shard;
            None: the rank of torch.distributed, else RANK and WORLD_SIZE.
        order: With `seed`: "full", or "block" for data that are slow to read at random.
        tail: With `seed`: how an incomplete last step of an epoch over the ranks is handled.
            "drop": it is dropped. "pad": it is filled with samples from the start of the order, so
            that all ranks have the same number. "mask": like "pad", and each batch has one more
            member, the last one or under the key "real": bool (B,), False for the padding (all True
            for your own sampler). "short": each sample is loaded once; a rank may have a sample, or
            a whole batch, less than others, and ranks must not wait for each other. None: "drop"
            with `drop_last`, else "pad".
        device: Device to which the tensors of each batch are copied, one batch ahead, in parallel
            to the stream on which the caller computes.
        io: How files are read: "auto", "mmap" or "pread"; None: the dataset's setting. "auto" is
            "pread" on network and user-space file systems, where a thread of the loader reads even
            with `num_workers=0`, so that Ctrl-C works while a server does not answer.
        transforms: For native data: transforms by field name. For ragged fields: `PadTo`, `Jagged`,
            `AsList` or `DecodeImage`; without one, the numbers of a batch must have one length, as
            in default_collate; text becomes str, bytes become bytes. For other fields and decoded
            images: one or a sequence of `RandomCrop`, `RandomHorizontalFlip`, `Cast` or
            `Normalize`, and `ToChannelsFirst`.
        verify: Which checksums of packed data are compared: "open": those of headers and bounds, in
            the constructor; "lazy": that of each block of 1 MiB, before it is first read; None: the
            dataset's setting.
        on_error: "raise": raise FormatError for a batch with a sample in a damaged block (with
            `verify="lazy"`), or with an image that cannot be decoded. "skip": leave out such
            samples and warn once. A batch may then be empty, and has one more member, the last one
            or under the key "missing": int64, the dataset's indices of the samples left out.
        batch_transform: A function of the finished batch, on its device; its result is delivered.
            It runs in the thread that calls `next()`, on that thread's current stream.
        static_buffers: With `device`: all batches of one shape, of all epochs, use the same
            tensors, so that CUDA graphs can rely on their addresses. A batch is then valid until
            the following `next()`; copy it to keep it.

    Raises:
        ValueError: like DataLoader; `shard`, `order` or `tail` without `seed`; `drop_last` with
            another `tail`; `seed` with an IterableDataset; `transforms` do not fit the fields;
            `device` is not a device; `static_buffers` without a device to which batches are copied,
            or with `on_error="skip"`.
        TypeError: like DataLoader; `seed` is not an integer; `batch_transform` is not callable.
        RuntimeError: at `iter()`: torch cannot use the `device`.

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
        self._epochs = Epochs()
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
            # Trainers call it here.
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
        """The argument `shuffle`; it cannot be changed, since the sampler was made from it."""
        return self.__dict__.get("_shuffle")

    @shuffle.setter
    def shuffle(self, value: bool | None) -> None:
        if self.__dict__.get("_sealed") and bool(value) != bool(self.shuffle):
            raise ValueError(
                f"shuffle attribute should not be set after {type(self).__name__} is initialized"
            )
        self._shuffle = value

    def check_worker_number_rationality(self) -> None:
        """Warns, as torch does, of more worker processes than CPUs; threads are not counted."""
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

    @property
    def _samplers(self) -> SamplerView:  # type: ignore[override]
        # A new view at each use: subclasses replace the batch sampler after the constructor.
        tracked = self._tracked
        return SamplerView(self._index_sampler if tracked is None else tracked.index_sampler)

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
        """Returns an epoch in groups of `n` batches, each for one optimizer step; see `Group`.

        The number of samples of a group on all ranks is known before its first batch is loaded:
        from the seeded order, or from the lengths of torch's samplers. The batches of a group are
        loaded one by one. A state that is saved inside a group counts the delivered batches; after
        a resume the first group has the remaining ones, and the gradients of the others are lost:
        save between two groups. Samples that `on_error="skip"` leaves out are counted.

        Args:
            n: Batches of this rank in a group; the last group of an epoch may have fewer.
            count: With `seed`, for native data: the field whose lengths or integers are counted
                instead of samples, such as tokens. It is read for the samples of all ranks.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: `n` is not positive; the sizes of batches, here or on other ranks, cannot be
                predicted, or with `tail="short"` some ranks have one batch more; `count` cannot be
                counted.
        """
        return Groups(self, n, count)

    @property
    def is_native(self) -> bool:
        """True if the core loads the data; False if torch's own iterators do."""
        return self.why_not_native is None

    @property
    def why_not_native(self) -> str | None:
        """Reason why torch's own iterators load the data, in a sentence; None if the core does.

        Example:
            >>> FastLoader(ArrayDataset(np.zeros(3)), batch_size=None).why_not_native
            'batch_size=None: samples are returned one by one, and native data come in batches'
        """
        return why_not_native(self)

    def stats(self) -> dict[str, float]:
        """Returns the counters of this loader in this process, over all its iterators.

        Any thread may call it at any time; it takes a few microseconds and does not stop loading.

        Returns:
            Numbers for any logger:

            - `batches`: batches that were delivered, or copied ahead to a device.
            - `wait_s`: seconds in which `next()` waited for a batch or gathered it.
            - `wait_p50_ms`, `wait_p99_ms`: median and 99th percentile of these waits per batch, in
              milliseconds, with a relative error of at most 1/16.

            With a CUDA `device`, after the first `iter()`, for work that the device has completed.
            Copies by torch, as to other devices, are not measured.

            - `h2d_bytes`: bytes copied to the device.
            - `h2d_s`: seconds of these copies, and of the kernels that follow them.
            - `gpu_stall_s`: seconds in which the stream that computes was idle and waited for a
              batch. Both times are estimates: after the first 16 batches of an iterator, one
              batch in 13 is timed and counts for all 13.

            For native data:

            - `samples`, `bytes`: samples and bytes of these batches; encoded bytes for images.
            - `missing`: samples that `on_error="skip"` left out.
            - `worker_wait_s`: idle seconds, summed over the threads.
            - `ready`: batches that are ready now.
            - `cold_share`: fraction of the batches, from 0 to 1, that were loaded while data were
              not in the page cache.
            - `slot_bytes`: bytes of memory of batches that are being filled, are ready, or are in
              use by the caller, now.
            - `free_slot_bytes`: bytes of memory that is reserved for further batches, now.
            - `slot_allocations`: number of allocations of batch memory so far. It is constant once
              the loader has enough; for a GPU it grows, within the pinned memory.

        Example:
            >>> loader = FastLoader(ArrayDataset(np.arange(8)), batch_size=3)
            >>> batches = list(loader)
            >>> stats = loader.stats()
            >>> stats["batches"], stats["samples"], stats["bytes"]
            (3, 8, 64)
        """
        return self._resources.figures()
