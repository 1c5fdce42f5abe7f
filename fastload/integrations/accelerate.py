"""Keeps fastload's engine under Hugging Face Accelerate, which puts a DataLoader in its place."""

from __future__ import annotations

import inspect
from typing import Any

import accelerate
from accelerate.data_loader import DataLoaderShard, SkipBatchSampler

from fastload.batch.transforms import is_random
from fastload.loader.collate_fn import BatchCollate
from fastload.loader.loader import FastLoader
from fastload.order.keyed_sampler import KeyedSampler
from fastload.order.samplers import is_own

_ARGUMENTS = frozenset(inspect.signature(FastLoader.__init__).parameters) - {"self", "shuffle"}


class Shard(DataLoaderShard):  # type: ignore[misc]
    """Accelerate's wrapper of a loader, with a FastLoader inside instead of a DataLoader.

    Accelerate's optimizer and `gather_for_metrics` learn from it where an epoch ends. Its state is
    that of the FastLoader. `prepare` creates it.

    Args:
        shard: The wrapper that Accelerate created.
        loader: The loader of the batches.

    Example:
        >>> accelerator = accelerate.Accelerator(cpu=True)
        >>> loader = FastLoader(ArrayDataset(np.arange(5)), batch_size=2)
        >>> [batch.tolist() for batch in prepare(accelerator, loader)]
        [[0, 1], [2, 3], [4]]
    """

    _is_accelerate_prepared = True

    def __init__(self, shard: DataLoaderShard, loader: FastLoader[Any]) -> None:
        self.__dict__.update(vars(shard))
        self.base_dataloader = loader
        self._update_state_dict()

    @property
    def collate_fn(self) -> Any:
        """`collate_fn` of the FastLoader, for `accelerate.skip_first_batches`.

        The loader which that function creates copies batches to the device.
        """
        collate_fn = self.base_dataloader.collate_fn
        if self.device is None or not isinstance(collate_fn, BatchCollate):
            return collate_fn
        return collate_fn.on_host()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state of the FastLoader; the next epoch continues there."""
        self.base_dataloader.load_state_dict(state_dict)
        self._update_state_dict()

    def _update_state_dict(self) -> None:
        self.dl_state_dict = self.base_dataloader.state_dict()


class KeyedShard(Shard):
    """A Shard around a FastLoader with `seed=`, which shards itself and counts its epochs."""

    iteration: int  # Accelerate's count of epochs

    @property
    def keyed_sampler(self) -> KeyedSampler:
        """Sampler of the FastLoader."""
        sampler = self.base_dataloader.sampler
        assert isinstance(sampler, KeyedSampler)
        return sampler

    @property
    def total_batch_size(self) -> int:
        """Number of samples per step over all ranks."""
        return self.keyed_sampler.batch_size * self.keyed_sampler.num_replicas

    def begin(self) -> None:
        """Sets the number of real samples of the last step for `gather_for_metrics`."""
        super().begin()
        if not self.keyed_sampler.drop_last:
            # A resumed epoch, or one sampled by weight, has not as many samples as the dataset.
            coming = self.keyed_sampler.foreseen()
            self.remainder = (coming.rows - coming.first) % self.total_batch_size

    def set_epoch(self, epoch: int) -> None:
        """Selects the next epoch, if it is not the one that Accelerate has counted."""
        if epoch != self.iteration:  # otherwise Accelerate may call, which counts from 0
            self.iteration = epoch
            self.base_dataloader.set_epoch(epoch)


def prepare(accelerator: accelerate.Accelerator, loader: FastLoader[Any]) -> DataLoaderShard:
    """Prepares a FastLoader like `accelerator.prepare(loader)`; fastload still loads the batches.

    With `seed=` the loader shards itself across ranks; `even_batches`, `split_batches` and seeds
    of Accelerate have no effect. Without `seed=`, Accelerate shards its batches.

    Args:
        accelerator: The accelerator of the training.
        loader: A FastLoader. If it has no `device` and the accelerator places batches, its
            `device` becomes that of the accelerator.

    Returns:
        A loader for the training, which `accelerator.prepare` returns unchanged.

    Raises:
        TypeError: `loader` is not a FastLoader.
        ValueError: `loader` has `tail="short"`, and there are several ranks.

    Example:
        >>> accelerator = accelerate.Accelerator(cpu=True)
        >>> loader = prepare(accelerator, FastLoader(ArrayDataset(np.arange(4.0)), 2, seed=0))
        >>> [batch.tolist() for batch in loader]
        [[0.0, 1.0], [2.0, 3.0]]
    """
    if not isinstance(loader, FastLoader):
        raise TypeError(
            "this prepares one FastLoader; models, optimizers and other loaders go through "
            f"accelerator.prepare, also a {type(loader).__name__}"
        )
    if accelerator.device_placement and loader.device is None:
        loader.device = accelerator.device
    if is_own(loader.sampler):
        _check_tail(loader.sampler)
        shard = DataLoaderShard(
            loader.dataset,
            device=accelerator.device if accelerator.device_placement else None,
            batch_sampler=loader.batch_sampler,
            _drop_last=loader.drop_last,
            _non_blocking=accelerator.non_blocking,
        )
        shard.use_stateful_dataloader = accelerator.use_stateful_dataloader
        return accelerator.prepare_data_loader(KeyedShard(shard, loader))
    loader._resources.warned.add(
        "accelerate"
    )  # no warning of the replacement, since it is put back
    shard = accelerator.prepare_data_loader(loader)
    if not isinstance(shard, DataLoaderShard) or shard.batch_sampler is None:
        return shard
    accelerator._dataloaders[-1] = made = _with_engine(shard, loader)
    return made


def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
    """Skips batches like `accelerate.skip_first_batches`; fastload still loads the batches.

    Args:
        loader: A FastLoader, or the result of `prepare`.
        num_batches: Number of batches of this rank to skip.

    Returns:
        A loader that starts after these batches. For the result of `prepare` of a loader with
        `seed=` it is `loader` itself, whose next epoch (only that one) starts there, at no cost.
        For a FastLoader it is a new one over the same sampler.

    Raises:
        ValueError: the loader has random transforms, but no seeded order whose epoch is known.
    """
    if isinstance(loader, FastLoader) and not isinstance(loader, DataLoaderShard):
        _check_random(loader)
        return _over(loader, SkipBatchSampler(loader.batch_sampler, num_batches))
    if type(loader) is Shard:
        _check_random(loader.base_dataloader)
    if not isinstance(loader, KeyedShard):
        skipped = accelerate.skip_first_batches(loader, num_batches)
        return _with_engine(skipped, loader.base_dataloader) if type(loader) is Shard else skipped
    state, sampler = loader.base_dataloader.state_dict(), loader.keyed_sampler
    samples = state["samples"] + num_batches * loader.total_batch_size
    loader.load_state_dict(state | {"samples": min(samples, sampler.positions)})
    return loader


def _check_random(loader: FastLoader[Any]) -> None:
    if is_random(loader.transforms) and not is_own(loader.sampler):
        raise ValueError(
            "random transforms depend on the epoch, which this loader does not know after a "
            "restart: give FastLoader seed= and no sampler, or save and load its state"
        )


def _check_tail(sampler: Any) -> None:
    if sampler.tail == "short" and sampler.num_replicas > 1:
        raise ValueError(
            "tail='short': ranks may have unequally many batches, and those of Accelerate step and "
            "gather together: take tail='mask', or 'pad'"
        )


def _with_engine(shard: DataLoaderShard, loader: FastLoader[Any]) -> Shard:
    """The shard with a loader like `loader` in it, over the shard's batch sampler."""
    return Shard(shard, _over(loader, shard.batch_sampler))


def _over(loader: FastLoader[Any], batch_sampler: Any) -> FastLoader[Any]:
    """A loader like `loader` over other batches of its dataset."""
    arguments = {name: getattr(loader, name) for name in _ARGUMENTS}
    arguments |= {"batch_sampler": batch_sampler, "sampler": None}
    return FastLoader(**arguments | {"batch_size": 1, "drop_last": False})
