"""The epochs of a loader, and its place in them, for those who save it or count for themselves."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from fastload.batch.transforms import Transforms, is_random
from fastload.datasets.native import fingerprint
from fastload.loader.resources import LoaderResources
from fastload.loader.trainer_warnings import warn_of_accelerate
from fastload.order.position import Bookmark
from fastload.order.samplers import bottom, is_keyed, is_own, set_sampler_epoch
from fastload.order.state_dict import check_torch, keyed_state, own_copy, restore_keyed, torch_state

T_co = TypeVar("T_co", covariant=True)


class StatefulLoader(DataLoader[T_co]):
    """A DataLoader that knows where it is; a FastLoader's other half.

    Attributes:
        seed: Of the keyed order.
        transforms: Of the fields of native data.
    """

    seed: int | None
    transforms: Transforms | None
    _resources: LoaderResources
    _mark: Bookmark
    _index_sampler: Any
    _iterator: Any

    @property
    def _is_accelerate_prepared(self) -> bool:
        # Accelerate would share out once more what this loader shares out itself.
        shares = is_own(self.sampler) and self.sampler.num_replicas > 1
        warn_of_accelerate(self, self._resources.warned, shares)
        return shares

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate marks what it has seen; that changes nothing here."""

    def set_epoch(self, epoch: int) -> None:
        """Tells the sampler (or else the dataset) which epoch the next iterator takes.

        With `seed` the loader moves on by itself and needs this only to override; right after
        `load_state_dict` the loaded place wins. A sampler that knows no epochs is left alone.
        """
        sampler = self._index_sampler
        for target in (bottom(sampler), sampler, self.dataset):
            if hasattr(target, "set_epoch"):
                target.set_epoch(epoch)
                return

    @property
    def position(self) -> int:
        """Batches of this rank that were handed out in the epoch; 0 before and after an epoch.

        It counts as `len(loader)` does, which is the whole epoch, also right after
        `load_state_dict`: `tqdm(loader, initial=loader.position, total=len(loader))`. After a
        resume with another batch size or number of ranks it is rounded up.

        Example:
            >>> loader = FastLoader(ArrayDataset(np.arange(8)), batch_size=2, seed=0)
            >>> batches = iter(loader)
            >>> _ = next(batches)
            >>> resumed = FastLoader(ArrayDataset(np.arange(8)), batch_size=2, seed=0)
            >>> resumed.load_state_dict(loader.state_dict())
            >>> resumed.position, len(resumed), len(list(resumed)), resumed.position
            (1, 4, 3, 0)
        """
        loaded, progress = self._mark.loaded, self._mark.progress
        if loaded is not None:
            batches = loaded.get("batches") or -(-(loaded.get("samples") or 0) // self._per_batch)
        elif progress is not None and not progress.finished:
            batches = -(-progress.first // progress.per_batch) + progress.handed
        else:
            return 0
        try:
            return min(batches, len(self))
        except TypeError:  # a stream, or a sampler, without a length
            return batches

    @property
    def _per_batch(self) -> int:
        """Samples, of all ranks where the state counts these, in a batch."""
        index_sampler = self._index_sampler
        sampler = bottom(index_sampler)
        if is_keyed(index_sampler):
            return int(sampler.batch_size * sampler.num_replicas)
        return getattr(index_sampler, "batch_size", None) or 1

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, to be saved with the model: plain numbers and strings.

        It describes the iterator that began last and counts the batches it has handed out, not
        those that are being prepared. With `seed` it is equal on all ranks, and fits loaders with
        any number of workers, batch size or world size. Without, it holds what torch's order was
        drawn from; later epochs are drawn from torch's generator, whose state is the caller's to
        save.

        Example:
            >>> loader = FastLoader(ArrayDataset(np.arange(8)), batch_size=2, shuffle=True, seed=0)
            >>> batches = iter(loader)
            >>> seen = [next(batches), next(batches)]
            >>> resumed = FastLoader(ArrayDataset(np.arange(8)), batch_size=2, shuffle=True, seed=0)
            >>> resumed.load_state_dict(loader.state_dict())
            >>> torch.equal(torch.cat(list(resumed)), torch.cat(list(batches)))
            True
        """
        if self._mark.loaded is not None:
            return copy.deepcopy(self._mark.loaded)
        sampler = self._index_sampler
        if is_keyed(sampler):
            return keyed_state(bottom(sampler), self._mark, fingerprint(self.dataset))
        continues = self._mark.waiting or (self.persistent_workers and self._iterator is not None)
        return torch_state(
            sampler,
            self._mark,
            fingerprint(self.dataset),
            base_seed_drawn=continues,
            generator=self.generator,
            is_random=self.seed is None and is_random(self.transforms),
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iterator goes on where the state was taken; an empty state changes nothing.

        A state taken after the last batch, before the loop ended, gives an epoch without batches;
        one taken after the loop gives the following epoch.

        Raises:
            TypeError: the state is no dict.
            ValueError: it is of other data, another seed or another sampler, or no state at all.
        """
        state, sampler = own_copy(state_dict), self._index_sampler
        if not state:
            return
        if is_keyed(sampler):
            restore_keyed(state, bottom(sampler), fingerprint(self.dataset))
        else:
            check_torch(state, sampler, fingerprint(self.dataset))
            if not state["begun"]:
                set_sampler_epoch(sampler, state)
        self._mark.loaded = state
