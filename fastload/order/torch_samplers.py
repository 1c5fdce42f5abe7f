"""torch's own orders, computed as int64 arrays with the very same random draws."""

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
# What it takes to draw an order again: nothing, {"seed": int} or {"generator": state tensor}.
Draw = dict[str, Any]


def generator_of(sampler: Any) -> torch.Generator:
    """The generator from which the sampler draws."""
    own = getattr(sampler, "generator", None)
    return own if own is not None else torch.default_generator


def _sequential(sampler: SequentialSampler, saved: Draw | None) -> tuple[range, Draw]:
    return range(len(sampler.data_source)), {}


def _random(sampler: RandomSampler, saved: Draw | None) -> tuple[Indices, Draw]:
    n, count = len(sampler.data_source), sampler.num_samples
    if sampler.generator is None:
        seed = saved["seed"] if saved else draw_seed(None)
        generator = torch.Generator()
        generator.manual_seed(seed)
        draw = {"seed": seed}
    else:
        generator, draw = _prepared(sampler, saved)
    if sampler.replacement:
        return torch.randint(high=n, size=(count,), generator=generator).numpy(), draw
    parts = [torch.randperm(n, generator=generator) for _ in range(count // n)]
    if count % n:
        parts.append(torch.randperm(n, generator=generator)[: count % n])
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).numpy(), draw


def _subset(sampler: SubsetRandomSampler, saved: Draw | None) -> tuple[Indices, Draw]:
    generator, draw = _prepared(sampler, saved)
    return torch.randperm(len(sampler.indices), generator=generator).numpy(), draw


def _weighted(sampler: WeightedRandomSampler, saved: Draw | None) -> tuple[Indices, Draw]:
    generator, draw = _prepared(sampler, saved)
    chosen = torch.multinomial(
        sampler.weights, sampler.num_samples, sampler.replacement, generator=generator
    )
    return chosen.numpy(), draw


def _distributed(sampler: DistributedSampler[Any], saved: Draw | None) -> tuple[Indices, Draw]:
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


def _prepared(sampler: Any, saved: Draw | None) -> tuple[torch.Generator, Draw]:
    """The generator to draw from, put back to where it was if `saved`, and its state now."""
    generator = generator_of(sampler)
    if saved:
        # Nobody's random numbers change, except those of a generator that was given for this.
        if generator is torch.default_generator:
            generator = torch.Generator()
        generator.set_state(saved["generator"])
    return generator, {"generator": generator.get_state()}


_STOCK: dict[type, Callable[[Any, Draw | None], tuple[Any, Draw]]] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    SubsetRandomSampler: _subset,
    WeightedRandomSampler: _weighted,
    DistributedSampler: _distributed,
}

_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def is_stock(sampler: Any) -> bool:
    """Whether `draw_order` knows this very sampler: one of torch's, of the exact type.

    One that draws on another device than the CPU is left to itself: its numbers come from there.
    """
    if type(sampler) in _DRAWING and not _draws_on_cpu(sampler):
        return False
    if type(sampler) is RandomSampler:
        whole = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
        # A given generator is drawn from as the sampler goes along, unless it is one permutation.
        return len(sampler.data_source) > 0 and (sampler.generator is None or whole)
    return type(sampler) in _STOCK


def _draws_on_cpu(sampler: Any) -> bool:
    involved = [sampler.generator, getattr(sampler, "weights", None), torch.empty(0)]
    return all(thing is None or thing.device.type == "cpu" for thing in involved)


def may_repeat(sampler: Any) -> bool:
    """Whether a stock sampler may give an index several times in an epoch on this rank."""
    if type(sampler) is RandomSampler:
        return sampler.replacement or sampler.num_samples > len(sampler.data_source)
    if type(sampler) is WeightedRandomSampler:
        return bool(sampler.replacement)
    if type(sampler) is DistributedSampler:
        # What it pads with less than one for each rank, other ranks have; data may have shrunk.
        n = len(sampler.dataset)  # type: ignore[arg-type]
        return sampler.total_size >= n + sampler.num_replicas
    return type(sampler) is SubsetRandomSampler  # its indices are the user's


def draw_order(sampler: Any, saved: Draw | None = None) -> tuple[Indices | range, Draw]:
    """The whole order of a stock sampler, drawing what torch draws before its first index.

    For a SubsetRandomSampler these are places in its `indices`.

    Args:
        sampler: One for which `is_stock` holds.
        saved: What an earlier call returned second; the same order is drawn again, and nothing
            from torch's default generator.

    Raises:
        AssertionError, RuntimeError, TypeError: as the sampler raises.

    Example:
        >>> draw_order(RandomSampler(range(4)), {"seed": 7})[0].tolist() == list(
        ...     torch.randperm(4, generator=torch.Generator().manual_seed(7)))
        True
    """
    return _STOCK[type(sampler)](sampler, saved)


def foreseen_draw(sampler: Any, base_seed_is_due: bool) -> Draw:
    """What a stock sampler without a generator will draw next, if nobody draws before it.

    Args:
        sampler: Any sampler.
        base_seed_is_due: torch will draw the seed of the workers before.
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
    """Draws a seed as torch does; None: from its default generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def draw_at_exhaustion(sampler: Any) -> Callable[[], object] | None:
    """The draws that a stock sampler makes after its last index; None where there are none to see.

    RandomSampler draws one more permutation, of which it uses nothing.
    """
    if type(sampler) is RandomSampler and sampler.generator is not None:
        return lambda: torch.randperm(len(sampler.data_source), generator=sampler.generator)
    return None


def as_indices(items: Any) -> Indices:
    """Integers as a contiguous int64 array; bools count as 0 and 1.

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
    except (ValueError, TypeError, OverflowError):  # of unequal shapes, or what numpy cannot take
        array = np.empty(0, object)
    if array.ndim == 1 and np.can_cast(array.dtype, np.int64):
        return np.ascontiguousarray(array, np.int64)
    try:
        return np.array([operator.index(item) for item in items], np.int64)
    except OverflowError:
        raise IndexError("an index does not fit 64 bits") from None


def _is_foreign(kind: type) -> bool:
    """Whether these are arrays of another library, which numpy 1.24 warns of in a list."""
    return hasattr(kind, "__array__") and not issubclass(kind, (np.ndarray, np.generic))


def wrap_negative(indices: Indices, rows: int) -> Indices:
    """Counts -1 ... -rows from the end, as `dataset[-1]` does; leaves what is out of range."""
    if len(indices) and indices.min() < 0:
        return np.where((indices < 0) & (indices >= -rows), indices + rows, indices)
    return indices
