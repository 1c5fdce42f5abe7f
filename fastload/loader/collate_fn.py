"""The `collate_fn` of a FastLoader for loaders that others rebuild from its attributes.

Trainers put a DataLoader of their own over `loader.dataset`, with `loader.collate_fn`. All that a
FastLoader does to its batches beyond `default_collate` is therefore in that `collate_fn`: a rebuilt
loader yields the same batches, or raises `RuntimeError`. A FastLoader, which applies these steps
itself, takes the `collate_fn` apart again, so that no step is applied twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils import collate

from fastload.batch.parts import moved, take_apart
from fastload.batch.plan import BatchPlan
from fastload.batch.sample_arrays import BatchSamples, Layout, sample_arrays
from fastload.batch.transforms import Transforms
from fastload.datasets.file_datasets import Dataset
from fastload.datasets.mixture import Mixture
from fastload.datasets.native import native_extents
from fastload.device.prefetcher import device_with_index
from fastload.errors import FormatError, add_note
from fastload.formats import checks
from fastload.formats.extents import Extents
from fastload.formats.structure import REAL, with_added
from fastload.order.masks import Mask

_HELPERS = (
    "iterate the FastLoader itself; with Accelerate and transformers use prepare and "
    "skip_first_batches of fastload.integrations.accelerate"
)


# As shipped with torch, unless the map was changed before this import: then the modules of its
# functions differ.
_COLLATE_MAP = dict(collate.default_collate_fn_map)


@dataclass(frozen=True)
class Steps:
    """The steps that a FastLoader applies to its batches; the attributes are its arguments.

    Attributes:
        transforms: Transforms of the fields.
        device: Device of the batches.
        batch_transform: Function of the finished batch.
        on_error: How damaged samples are handled.
        verify: How checksums are compared.
    """

    transforms: Transforms | None = None
    device: Any = None
    batch_transform: Callable[[Any], Any] | None = None
    on_error: str = "raise"
    verify: str | None = None

    def merged(self, other: Steps) -> Steps:
        """Returns the union of both; if both have a device, this one's.

        Raises:
            ValueError: both have another step, and they differ.
        """
        made = {}
        for each in fields(self):
            own, others = getattr(self, each.name), getattr(other, each.name)
            both = own != each.default and others != each.default
            if both and each.name != "device" and own != others:
                raise ValueError(
                    f"{each.name}={own!r} differs from {others!r}, which the collate_fn of another "
                    "FastLoader brings with it: give one of them"
                )
            made[each.name] = others if own == each.default else own
        return Steps(**made)


@dataclass(frozen=True, eq=False)
class BatchCollate:
    """Builds the batches of the FastLoader that it comes from, of lists of samples.

    It can be pickled, so that worker processes of any start method can use it.

    Attributes:
        inner: The `collate_fn` that the FastLoader was given, or torch's default.
        steps: The steps that the FastLoader applies to its batches.
        layout: Layout of native data, which `inner` does not collate; else None.
        real: None: batches have no mask. "keys": the indices report which samples are real, as
            those of a `KeyedSampler` do. "all": all samples are real.
        refusal: Reason why only the FastLoader itself can build these batches; None: there is none.
        passes_keys: True if the dataset returns the indices with the samples, as the datasets of
            fastload do. Indices behind a wrapper may carry keys of another order.

    Raises:
        RuntimeError: when it is called: there is a `refusal`; a random transform or a mask needs
            the indices of the samples, which are missing; or the caller is a worker process, and
            batches are copied to a device.
        ValueError: when it is called: the samples are of another dataset.

    Example:
        >>> data = ArrayDataset({"x": np.arange(4, dtype=np.uint8)})
        >>> loader = FastLoader(data, batch_size=2, transforms={"x": Cast("float32")})
        >>> rebuilt = torch.utils.data.DataLoader(
        ...     loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
        >>> [batch["x"].tolist() for batch in rebuilt]
        [[0.0, 1.0], [2.0, 3.0]]
    """

    inner: Callable[[Any], Any]
    steps: Steps
    layout: Layout | None = None
    real: str | None = None
    refusal: str | None = None
    passes_keys: bool = True

    def __call__(self, samples: Any) -> Any:
        """Returns the batch of these samples, as the FastLoader yields it."""
        if self.refusal is not None:
            raise RuntimeError(f"{self.refusal}: {_HELPERS}")
        self._check_worker()
        batch = self.collate(samples)
        if self.real is not None:
            batch = with_added(batch, REAL, torch.from_numpy(self._mask(samples)))
        device = device_with_index(self.steps.device)
        if device is not None:
            batch = _copied(batch, device)
        if self.steps.batch_transform is None:
            return batch
        try:
            return self.steps.batch_transform(batch)
        except StopIteration as stop:  # which would end the epoch
            raise RuntimeError("batch_transform raised StopIteration") from stop

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchCollate, tuple(getattr(self, each.name) for each in fields(self))

    def collate(self, samples: Any) -> Any:
        """Returns the batch on the CPU, without its mask."""
        if self.layout is None or not (self.steps.transforms or collates_as_shipped()):
            return self.inner(samples)
        ids = self._ids(samples)
        if ids.keyed is None and self._plan.is_random and len(samples):
            raise RuntimeError(
                "random transforms depend on the seed, the epoch and the index of each sample, "
                f"which this loader does not pass on{_missing(ids)}: {_HELPERS}"
            )
        try:
            return self._plan.collate()(sample_arrays(samples, self._plan, ids), ids)
        except (FormatError, RuntimeError) as error:
            if not ids.has_indices:
                add_note(error, "samples are counted within the batch: it came without indices")
            raise

    def on_host(self) -> BatchCollate:
        """Returns the function for a caller that copies the batches to the device itself."""
        if self.steps.device is None or self.steps.batch_transform is not None:
            return self
        return replace(self, steps=replace(self.steps, device=None))

    @cached_property
    def _plan(self) -> BatchPlan:
        assert self.layout is not None
        return BatchPlan.compile(self.layout, self.steps.transforms)

    def _mask(self, samples: Sequence[Any]) -> Mask:
        if self.real == "all":
            return np.ones(len(samples), np.bool_)
        ids = self._ids(samples)
        if ids.keyed is None and len(samples):
            raise RuntimeError(
                "tail='mask': which samples are real is known from the sampler's indices, which "
                f"this loader does not pass on{_missing(ids)}: {_HELPERS}"
            )
        return np.array([index.is_real for index in ids.keyed or ()], np.bool_)

    def _ids(self, samples: Sequence[Any]) -> BatchSamples:
        return BatchSamples(samples if self.passes_keys else list(samples))

    def _check_worker(self) -> None:
        device = self.steps.device
        if get_worker_info() is None or not device_is_another(device):
            return
        raise RuntimeError(
            f"device={str(device)!r}: a worker process cannot copy batches to a device: give "
            "FastLoader num_workers=0, which loaders made from its attributes take over, or leave "
            "out device= where the trainer copies the batches"
        )


def collates_as_shipped() -> bool:
    """Returns whether `default_collate` treats each type as torch ships it."""
    functions = collate.default_collate_fn_map
    return functions == _COLLATE_MAP and all(
        function.__module__ == collate.__name__ for function in functions.values()
    )


def inner_of(collate_fn: Any) -> Any:
    """Returns the inner `collate_fn`, for a loader that applies the other steps itself."""
    return collate_fn.inner if isinstance(collate_fn, BatchCollate) else collate_fn


def is_default(collate_fn: Any) -> bool:
    """Returns True if `default_collate` builds the batches."""
    return inner_of(collate_fn) is default_collate


def split_collate_fn(collate_fn: Any, steps: Steps) -> tuple[Any, Steps]:
    """Splits a `collate_fn` into its inner function and the steps, merged with those given.

    Raises:
        ValueError: the steps contradict each other.
    """
    if not isinstance(collate_fn, BatchCollate):
        return collate_fn, steps
    return collate_fn.inner, steps.merged(collate_fn.steps)


def public_collate_fn(loader: Any, collate_fn: Any) -> Any:
    """Returns the value of the attribute `collate_fn` of a FastLoader.

    Args:
        loader: The loader, whose other attributes are set.
        collate_fn: The function as given, or an earlier value of the attribute.

    Returns:
        The inner function if there are no other steps; else a `BatchCollate`.

    Raises:
        ValueError: `collate_fn` comes from a loader with other steps.
    """
    own = Steps(
        loader.transforms, loader.device, loader.batch_transform, loader.on_error, loader.verify
    )
    inner, merged = split_collate_fn(collate_fn, own)
    real = None if loader._is_iterable else _real(loader)
    if merged != own:
        raise ValueError(
            "this collate_fn comes from a FastLoader with other transforms= or batch_transform=: "
            "make a FastLoader with the ones that are wanted"
        )
    if real is None and isinstance(collate_fn, BatchCollate) and collate_fn.real is not None:
        raise ValueError(
            "this collate_fn comes from a FastLoader with tail='mask': give its sampler or "
            "batch_sampler as well, or seed= and tail='mask'"
        )
    acts = bool(own.transforms or own.batch_transform or real) or device_is_another(own.device)
    if not acts and own.on_error == "raise" and own.verify != "lazy":
        return inner
    extents = None
    if loader._auto_collation and inner is default_collate:
        extents = native_extents(loader.dataset)
    layout = None if extents is None else Layout(extents.fields, extents.structure)
    refusal = _refusal(loader, extents)
    if not acts and refusal is None:
        return inner
    passes_keys = isinstance(loader.dataset, (Dataset, Mixture))
    return BatchCollate(inner, own, layout, real, refusal, passes_keys)


def device_is_another(device: Any) -> bool:
    """Returns True if batches are copied to this device."""
    if device is None:
        return False
    return isinstance(device, int) or torch.device(device).type != "cpu"


def _real(loader: Any) -> str | None:
    samplers = loader._samplers
    if not samplers.adds_mask(loader.tail):
        return None
    return "all" if samplers.own is None else "keys"


def _refusal(loader: Any, extents: Extents | None) -> str | None:
    """Returns why a loader rebuilt from this one's attributes cannot yield the same batches."""
    if loader.on_error == "skip":
        return (
            "on_error='skip' leaves out samples while the FastLoader reads and decodes them, which "
            "a loader over its dataset cannot do"
        )
    if loader.static_buffers:
        return "static_buffers=True puts the batches of a FastLoader in the same tensors"
    if loader.verify != "lazy" or extents is None or checks.lazily(extents) is extents:
        return None
    return (
        "verify='lazy' was given to the FastLoader only, and a loader over its dataset checks "
        "nothing; open the dataset with fastload.open(..., verify='lazy'), or"
    )


def _missing(ids: BatchSamples) -> str:
    """Returns the probable reason why the indices carry no RNG keys."""
    if ids.has_indices:
        return " (it has no sampler of a FastLoader with seed=, or a wrapper maps the indices)"
    return " (the dataset is not one of fastload's, or a wrapper hides it or reorders its samples)"


def _copied(batch: Any, device: torch.device) -> Any:
    parts = take_apart(batch, device)
    copies = [torch.as_tensor(leaf).to(device) for leaf in parts.leaves]
    return parts.build([*copies, *(moved(other, device) for other in parts.others)])
