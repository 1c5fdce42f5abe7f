"""Orders of torch's samplers, computed as int64 arrays with the same random draws."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

Indices = npt.NDArray[np.int64]
OrderKey = dict[str, Any]
"""What is needed to compute an order again: a "seed", or the state of a "generator" as a tensor;
and what the sampler reports itself ("sampler_epoch", "sampler_state", "world")."""


def generator_of(sampler: Any) -> torch.Generator:
    """Returns the generator that the sampler draws from."""
    own = getattr(sampler, "generator", None)
    return own if own is not None else torch.default_generator


def _sequential(sampler: SequentialSampler, saved: OrderKey | None) -> tuple[range, OrderKey]:
    return range(len(sampler.data_source)), {}


def _random(sampler: RandomSampler, saved: OrderKey | None) -> tuple[Indices, OrderKey]:
    n, count = len(sampler.data_source), sampler.num_samples
    if sampler.generator is None:
        seed = saved["seed"] if saved else draw_seed(None)
        generator = torch.Generator()
        generator.manual_seed(seed)
        key = {"seed": seed}
    else:
        generator, key = _prepared(sampler, saved)
    if sampler.replacement:
        return torch.randint(high=n, size=(count,), generator=generator).numpy(), key
    parts = [torch.randperm(n, generator=generator) for _ in range(count // n)]
    if count % n:
        parts.append(torch.randperm(n, generator=generator)[: count % n])
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).numpy(), key


def _subset(sampler: SubsetRandomSampler, saved: OrderKey | None) -> tuple[Indices, OrderKey]:
    generator, key = _prepared(sampler, saved)
    return torch.randperm(len(sampler.indices), generator=generator).numpy(), key


def _weighted(sampler: WeightedRandomSampler, saved: OrderKey | None) -> tuple[Indices, OrderKey]:
    generator, key = _prepared(sampler, saved)
    chosen = torch.multinomial(
        sampler.weights, sampler.num_samples, sampler.replacement, generator=generator
    )
    return chosen.numpy(), key


def _distributed(
    sampler: DistributedSampler[Any], saved: OrderKey | None
) -> tuple[Indices, OrderKey]:
    n, total = len(sampler.dataset), sampler.total_size  # type: ignore[arg-type]
    if sampler.shuffle:
        generator = torch.Generator()
        generator.manual_seed(sampler.seed + sampler.epoch)
        indices = torch.randperm(n, generator=generator).numpy()
    else:
        indices = np.arange(n)
    if not sampler.drop_last and total > n > 0:
        indices = np.tile(indices, math.ceil(total / n))
    indices = indices[:total] if sampler.drop_last or total > n else indices
    if len(indices) != total:
        raise AssertionError(
            f"Number of indices ({len(indices)}) does not match total_size ({total})"
        )
    return np.ascontiguousarray(indices[sampler.rank : total : sampler.num_replicas]), {}


def _prepared(sampler: Any, saved: OrderKey | None) -> tuple[torch.Generator, OrderKey]:
    """Returns the generator to draw from, restored from `saved` if given, and its state."""
    generator = generator_of(sampler)
    if saved:
        # torch's default generator does not advance; a generator that was given for this does.
        if generator is torch.default_generator:
            generator = torch.Generator()
        generator.set_state(saved["generator"])
    return generator, {"generator": generator.get_state()}


_STOCK: dict[type, Callable[[Any, OrderKey | None], tuple[Any, OrderKey]]] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    SubsetRandomSampler: _subset,
    WeightedRandomSampler: _weighted,
    DistributedSampler: _distributed,
}

_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def is_stock(sampler: Any) -> bool:
    """Returns whether `draw_order` can compute the order: the type is exactly one of torch's.

    A sampler that draws on another device than the CPU is only iterated: its random numbers come
    from that device.
    """
    if type(sampler) in _DRAWING and not _draws_on_cpu(sampler):
        return False
    if type(sampler) is RandomSampler:
        whole = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
        # Only a single permutation is drawn from a given generator before the first index.
        return len(sampler.data_source) > 0 and (sampler.generator is None or whole)
    return type(sampler) in _STOCK


def _draws_on_cpu(sampler: Any) -> bool:
    involved = [sampler.generator, getattr(sampler, "weights", None), torch.empty(0)]
    return all(thing is None or thing.device.type == "cpu" for thing in involved)


def may_repeat(sampler: Any) -> bool:
    """Returns whether a stock sampler may yield an index twice in an epoch on this rank."""
    if type(sampler) is RandomSampler:
        return sampler.replacement or sampler.num_samples > len(sampler.data_source)
    if type(sampler) is WeightedRandomSampler:
        return bool(sampler.replacement)
    if type(sampler) is DistributedSampler:
        # Padding of less than one index per rank repeats other ranks' only; data may shrink.
        n = len(sampler.dataset)  # type: ignore[arg-type]
        return sampler.total_size >= n + sampler.num_replicas
    return type(sampler) is SubsetRandomSampler  # its indices are the user's


def draw_order(sampler: Any, saved: OrderKey | None = None) -> tuple[Indices | range, OrderKey]:
    """Returns the whole order of a stock sampler, drawing what torch draws before its first index.

    The order of a SubsetRandomSampler is one of positions in its `indices`.

    Args:
        sampler: A sampler for which `is_stock` returns True.
        saved: Key of an earlier order, which is drawn again; torch's default generator does not
            advance.

    Returns:
        The order, and its key.

    Raises:
        AssertionError, RuntimeError, TypeError: as the sampler itself.

    Example:
        >>> draw_order(RandomSampler(range(4)), {"seed": 7})[0].tolist() == list(
        ...     torch.randperm(4, generator=torch.Generator().manual_seed(7)))
        True
    """
    return _STOCK[type(sampler)](sampler, saved)


def predicted_key(sampler: Any, base_seed_is_due: bool) -> OrderKey:
    """Returns the key of the next order of a stock sampler without a generator; else {}.

    The prediction fails if torch's default generator is used in between.

    Args:
        sampler: Any sampler.
        base_seed_is_due: True if torch will draw the workers' seed before.
    """
    if type(sampler) not in _DRAWING or sampler.generator is not None or not is_stock(sampler):
        return {}
    copied = torch.Generator()
    copied.set_state(torch.get_rng_state())
    if base_seed_is_due:
        draw_seed(copied)
    if type(sampler) is RandomSampler:
        return {"seed": draw_seed(copied)}
    return {"generator": copied.get_state()}


def draw_seed(generator: torch.Generator | None) -> int:
    """Draws a seed as torch does; generator None: from the default generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def draw_at_exhaustion(sampler: Any) -> Callable[[], object] | None:
    """Returns a function that draws what a stock sampler draws after its last index; None: nothing.

    RandomSampler draws one more permutation, which it does not use.
    """
    if type(sampler) is RandomSampler and sampler.generator is not None:
        return lambda: torch.randperm(len(sampler.data_source), generator=sampler.generator)
    return None


def as_indices(items: Any) -> Indices:
    """Returns integers as a contiguous int64 array; bools are 0 and 1.

    Raises:
        TypeError: an item is not an integer.
        IndexError: an item does not fit 64 bits.

    Example:
        >>> as_indices([1, np.int32(2), torch.tensor(3)])
        array([1, 2, 3])
    """
    if isinstance(items, torch.Tensor):
        items = items.numpy(force=True)
    elif not isinstance(items, (list, tuple, range, np.ndarray)):
        items = list(items)
    if len(items) == 0:
        return np.empty(0, np.int64)
    one_by_one = isinstance(items, (list, tuple)) and any(map(_is_foreign, set(map(type, items))))
    try:
        array = np.empty(0, object) if one_by_one else np.asarray(items)
    except (ValueError, TypeError, OverflowError):  # unequal shapes, or types unknown to numpy
        array = np.empty(0, object)
    if array.ndim == 1 and np.can_cast(array.dtype, np.int64):
        return np.ascontiguousarray(array, np.int64)
    try:
        return np.array([operator.index(item) for item in items], np.int64)
    except OverflowError:
        raise IndexError("an index does not fit 64 bits") from None


def _is_foreign(kind: type) -> bool:
    """True for arrays of another library: numpy 1.24 warns if a list contains them."""
    return hasattr(kind, "__array__") and not issubclass(kind, (np.ndarray, np.generic))


def wrap_negative(indices: Indices, rows: int) -> Indices:
    """Returns indices with -1 ... -rows counted from the end; those out of range are unchanged."""
    if len(indices) and indices.min() < 0:
        return np.where((indices < 0) & (indices >= -rows), indices + rows, indices)
    return indices
