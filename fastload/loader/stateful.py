"""Epochs, position and state of a loader."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from fastload.batch.transforms import Transforms, is_random
from fastload.datasets.native import fingerprint
from fastload.loader.resources import LoaderResources
from fastload.loader.trainer_warnings import warn_of_accelerate
from fastload.order.position import Epochs
from fastload.order.samplers import SamplerView, is_own
from fastload.order.state_dict import (
    check_torch,
    own_copy,
    restore_seeded,
    seeded_state,
    torch_state,
)

T_co = TypeVar("T_co", covariant=True)


class StatefulLoader(DataLoader[T_co]):
    """Base of FastLoader: a DataLoader with a position that can be saved and restored.

    Attributes:
        seed: Seed of the order.
        transforms: Transforms of the fields of native data.
    """

    seed: int | None
    transforms: Transforms | None
    _resources: LoaderResources
    _samplers: SamplerView
    _epochs: Epochs
    _iterator: Any

    @property
    def _is_accelerate_prepared(self) -> bool:
        # Accelerate would shard again what this loader shards itself.
        shares = is_own(self.sampler) and self.sampler.num_replicas > 1
        warn_of_accelerate(self, self._resources.warned, shares)
        return shares

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Ignores the assignment: Accelerate marks loaders that it has prepared."""

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iterator, in the sampler or else in the dataset.

        With `seed` the loader counts its epochs and needs this only to override the count; right
        after `load_state_dict` the loaded position wins. Without a `set_epoch` method in sampler,
        batch sampler or dataset nothing changes.
        """
        samplers = self._samplers
        for target in (samplers.base, samplers.index_sampler, self.dataset):
            if hasattr(target, "set_epoch"):
                target.set_epoch(epoch)
                return

    @property
    def position(self) -> int:
        """Number of this rank's batches that were delivered in the epoch; 0 between epochs.

        The unit is that of `len(loader)`, which is the whole epoch, also right after
        `load_state_dict`: `tqdm(loader, initial=loader.position, total=len(loader))`. After a
        resume with another batch size or number of ranks the number is rounded up.

        Example:
            >>> loader = FastLoader(ArrayDataset(np.arange(8)), batch_size=2, seed=0)
            >>> batches = iter(loader)
            >>> _ = next(batches)
            >>> resumed = FastLoader(ArrayDataset(np.arange(8)), batch_size=2, seed=0)
            >>> resumed.load_state_dict(loader.state_dict())
            >>> resumed.position, len(resumed), len(list(resumed)), resumed.position
            (1, 4, 3, 0)
        """
        loaded, running = self._epochs.loaded, self._epochs.running
        if loaded is not None:
            step = self._samplers.step
            batches = loaded.get("batches") or -(-(loaded.get("samples") or 0) // step)
        elif running is not None:
            batches = running.batches
        else:
            return 0
        try:
            return min(batches, len(self))
        except TypeError:  # an IterableDataset, or a sampler, without a length
            return batches

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the loader, to be saved with the model: numbers and strings.

        The state describes the iterator that started last and counts the batches that it has
        delivered, not those that are being prepared. With `seed` the state is equal on all ranks,
        and fits loaders with any number of workers, batch size or world size. Without `seed` the
        state contains what torch's order was drawn from; later epochs are drawn from torch's
        generator, whose state the caller must save.

        Example:
            >>> loader = FastLoader(ArrayDataset(np.arange(8)), batch_size=2, shuffle=True, seed=0)
            >>> batches = iter(loader)
            >>> seen = [next(batches), next(batches)]
            >>> resumed = FastLoader(ArrayDataset(np.arange(8)), batch_size=2, shuffle=True, seed=0)
            >>> resumed.load_state_dict(loader.state_dict())
            >>> torch.equal(torch.cat(list(resumed)), torch.cat(list(batches)))
            True
        """
        epochs, seeded = self._epochs, self._samplers.seeded
        if epochs.loaded is not None:
            return copy.deepcopy(epochs.loaded)
        if seeded is not None:
            return seeded_state(seeded, epochs, fingerprint(self.dataset))
        return torch_state(
            self._samplers,
            epochs,
            fingerprint(self.dataset),
            base_seed_drawn=epochs.waiting
            or (self.persistent_workers and self._iterator is not None),
            generator=self.generator,
            is_random=self.seed is None and is_random(self.transforms),
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iterator resume from a state; an empty state changes nothing.

        A state that was taken after the last batch, before the loop ended, resumes with an epoch
        without batches; one taken after the loop with the following epoch.

        Raises:
            TypeError: the state is not a dict.
            ValueError: the state has other data, another seed or another sampler, or is not one of
                a FastLoader.
        """
        state, samplers = own_copy(state_dict), self._samplers
        if not state:
            return
        if samplers.seeded is not None:
            restore_seeded(state, samplers.seeded, fingerprint(self.dataset))
        else:
            check_torch(state, samplers, fingerprint(self.dataset))
            if not state["begun"]:
                samplers.restore_epoch(state)
        self._epochs.loaded = state
