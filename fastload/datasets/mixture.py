"""Several datasets as one, in given proportions: an index is computed, no table is kept."""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from fastload import _core
from fastload.datasets.file_datasets import Dataset
from fastload.datasets.file_datasets import open as open_path
from fastload.datasets.indexing import selected
from fastload.formats.columns import Int64Array
from fastload.order.sample_keys import FetchedSamples

EXHAUSTED = ("stop", "repeat", "drop")
_LIMIT = 2**62  # of indices, and of the sum of the weights


class Mixture:
    """Samples of several datasets, mixed: a map-style dataset that never ends.

    Sample i is a function of i alone, found in O(log of the number of datasets). The datasets are
    interleaved as evenly as integers allow (Bresenham's way, in a balanced tree): any m samples in
    a row hold m * weight / sum of the weights of each dataset, give or take less than log2 of the
    number of datasets, rounded up. The samples of a dataset come in permuted passes, each another
    one, so that none comes twice before all others of that dataset came, also from one epoch to
    the next.

    Epoch e has the indices from `e * len(mixture)` on. `FastLoader(mixture, seed=...)` takes them,
    permuted on top with `shuffle`; other samplers know `range(len(mixture))` only, the first epoch.

    Args:
        datasets: Map-style datasets, or paths for `fastload.open`; none of them empty. One that is
            changed later is still taken to have as many samples as now.
        weights: How often each is read, relative to the others; None: by its size, so that each
            sample comes once an epoch. Numbers count as they are printed: 0.1 is a tenth. What does
            not fit 62 bits is rounded, once. A dataset of weight 0 is never read.
        seed: Seed of the permutations, in [0, 2**64); None: passes are in order.
        exhausted: End of an epoch. "stop": before a dataset would repeat; "repeat": when each
            dataset was read once, while shorter ones repeat; "drop": when each sample was read
            once: exhausted datasets drop out, and the others continue in their proportions.
        samples: Number of samples per epoch, instead of `exhausted`; datasets repeat as needed.

    Attributes:
        datasets: List of the datasets.
        sizes: Number of samples of each dataset.
        weights: Weights as integers without a common divisor.
        seed: See Args.
        exhausted: See Args.
        samples: See Args.

    Raises:
        ValueError: there is no dataset, or one is empty; weights that are negative, not finite, all
            0 or not as many as datasets; fields of different names; an argument is none of these;
            an epoch would have more than 2**62 samples.
        TypeError: `datasets` is one itself, or a path or a dict; a dataset is an IterableDataset or
            has no length; weights are a dict; an argument is no number.

    Example:
        >>> text, code = ArrayDataset(np.arange(0, 60)), ArrayDataset(np.arange(100, 120))
        >>> mixture = Mixture([text, code], weights=[0.75, 0.25])
        >>> len(mixture), [int(sample) for sample in mixture][:8]
        (80, [100, 0, 1, 2, 101, 3, 4, 5])
        >>> [array.tolist() for array in mixture.sources([4, -1])]
        [[1, 0], [1, 59]]
    """

    __module__ = "fastload"

    epochs_follow = True  # for KeyedSampler: the indices of an epoch follow those before

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Any = None,
        *,
        seed: int | None = None,
        exhausted: str = "stop",
        samples: int | None = None,
    ) -> None:
        _check_several(datasets)
        if isinstance(weights, (str, Mapping)):
            raise TypeError(f"weights must be a list, not {weights!r}")
        self.datasets = [
            open_path(each) if isinstance(each, (str, bytes, os.PathLike)) else each
            for each in datasets
        ]
        if exhausted not in EXHAUSTED:
            raise ValueError(f"exhausted must be 'stop', 'repeat' or 'drop', not {exhausted!r}")
        if samples is not None and exhausted == "drop":
            raise ValueError("samples= cannot be combined with exhausted='drop', which decides it")
        self.sizes = _sizes(self.datasets)
        self.weights = _integer_weights(self.sizes if weights is None else weights)
        if len(self.weights) != len(self.datasets):
            counted = f"{len(self.weights)} weights for {len(self.datasets)} datasets"
            raise ValueError(f"weights: one for each dataset is needed, not {counted}")
        self.seed = _checked_int("seed", seed, 0, 2**64)
        self.exhausted = exhausted
        self.samples = _checked_int("samples", samples, 1, _LIMIT)
        _check_names(self.datasets)
        self._build()

    def _build(self) -> None:
        sizes, weights = np.array(self.sizes, np.int64), np.array(self.weights, np.int64)
        self._map = _core.Mixture(sizes, weights, self.seed, self.exhausted, self.samples)
        self._length = len(self._map)

    @property
    def index_map(self) -> _core.Mixture:
        """Map from indices to samples for the core."""
        return self._map

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_map"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._build()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Returns the sample at any index >= 0; -1 is the last sample of the first epoch.

        A slice of the first epoch, a list or an array selects a list of samples, as for datasets.

        Raises:
            TypeError: the index is none of these.
            IndexError: an integer is below `-len(self)`, or 2**62 or more; a mask is not as long as
                the first epoch.
        """
        if (several := selected(index, len(self))) is not None:
            return self._samples(several)
        source, sample = (int(array[0]) for array in self.sources([index]))
        return self.datasets[source][sample]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A list of the samples at `indices`; each dataset is asked once for its own."""
        return FetchedSamples(self._samples(indices), indices)

    def column(self, name: str) -> Any:
        """Returns a copy of one field in the samples of the first epoch; see `Dataset.column`.

        Raises:
            TypeError: a dataset has no columns.
            ValueError: a dataset has no such field, or a ragged one of numbers; or their fields
                differ.
        """
        return self._merged(self._columns("column", name), name)

    def lengths(self, name: str) -> Int64Array:
        """Returns the length of one field in each sample of the first epoch; see `Dataset.lengths`.

        Raises:
            TypeError: a dataset has no columns.
            ValueError: a dataset has no such field, or its samples are single numbers.
        """
        merged: Int64Array = self._merged(self._columns("lengths", name), name)
        return merged

    def _columns(self, method: str, name: str) -> list[Any]:
        for number, dataset in enumerate(self.datasets):
            if not isinstance(dataset, (Dataset, Mixture)):
                kind = type(dataset).__name__
                raise TypeError(f"dataset {number} is a {kind}, which has no method {method!r}")
        return [getattr(dataset, method)(name) for dataset in self.datasets]

    def _merged(self, columns: list[Any], name: str) -> Any:
        """Merges the values of all datasets in the order of the first epoch."""
        sources, samples = self.sources(range(len(self)))
        if all(isinstance(values, list) for values in columns):
            pairs = zip(sources.tolist(), samples.tolist(), strict=True)
            return [columns[source][sample] for source, sample in pairs]
        kinds = [(getattr(c, "dtype", "text"), getattr(c, "shape", (0,))[1:]) for c in columns]
        for number, kind in enumerate(kinds):
            if kind != kinds[0]:
                described = " and ".join(
                    f"{dtype} {list(shape)}" for dtype, shape in (kinds[0], kind)
                )
                raise ValueError(f"field {name!r} is {described} in datasets 0 and {number}")
        shape = (len(self), *kinds[0][1])
        first = columns[0]
        merged = np.empty(shape, first.dtype) if hasattr(first, "flags") else first.new_empty(shape)
        for source, values in enumerate(columns):
            places = np.flatnonzero(sources == source)
            merged[places] = values[samples[places]]
        return merged

    def _samples(self, indices: Sequence[int]) -> list[Any]:
        sources, samples = self.sources(indices)
        found: list[Any] = [None] * len(sources)
        for source in np.unique(sources).tolist():
            places = np.flatnonzero(sources == source).tolist()
            dataset, own = self.datasets[source], samples[places].tolist()
            many = getattr(dataset, "__getitems__", None)
            read = [dataset[sample] for sample in own] if many is None else many(own)
            for place, item in zip(places, read, strict=True):
                found[place] = item
        return found

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the samples of the first epoch."""
        return map(self.__getitem__, range(len(self)))

    def sources(self, indices: Sequence[int]) -> tuple[Int64Array, Int64Array]:
        """Returns the dataset of each sample, and its index there.

        Args:
            indices: Indices of samples, (n,), as for `mixture[index]`.

        Returns:
            The numbers of their datasets, and their indices there: int64, (n,), both.

        Raises:
            TypeError: an index is no integer.
            IndexError: an index is out of range.
        """
        return self._map.locate(self._checked(indices))

    def counts(self, epoch: int = 0) -> Int64Array:
        """Returns the number of samples of each dataset in an epoch: int64, (number of datasets,).

        Raises:
            IndexError: the epoch reaches beyond index 2**62.
        """
        if not 0 <= operator.index(epoch) < _LIMIT // len(self):
            raise IndexError(f"epoch {epoch} of {len(self)} samples is out of range")
        return self._map.counts(epoch)

    def _checked(self, indices: Sequence[int]) -> Int64Array:
        length, found = len(self), [operator.index(index) for index in indices]
        for index in found:
            if not -length <= index < _LIMIT:
                raise IndexError(f"index {index} is out of range for a mixture of {length} samples")
        return np.array([index + length if index < 0 else index for index in found], np.int64)

    def __repr__(self) -> str:
        mixed = ", ".join(
            f"{weight} x {type(dataset).__name__} of {size}"
            for weight, dataset, size in zip(self.weights, self.datasets, self.sizes, strict=True)
        )
        return f"{type(self).__name__}({len(self)} samples an epoch: {mixed})"


def _check_several(datasets: Any) -> None:
    """Raises TypeError for one dataset, whose samples would be taken for datasets."""
    torch_data = sys.modules.get("torch.utils.data")
    kinds = (str, os.PathLike, dict, Dataset, Mixture)
    if isinstance(datasets, kinds) or (
        torch_data is not None and isinstance(datasets, torch_data.Dataset)
    ):
        raise TypeError(f"datasets must be a list of datasets, not one {type(datasets).__name__}")


def _sizes(datasets: list[Any]) -> list[int]:
    if not datasets:
        raise ValueError("a mixture needs at least one dataset")
    sizes = []
    for number, dataset in enumerate(datasets):
        torch_data = sys.modules.get("torch.utils.data")  # who has such a dataset has imported it
        if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
            raise TypeError(
                f"dataset {number} is an IterableDataset, which has no sample at an index"
            )
        if not hasattr(dataset, "__len__"):
            raise TypeError(f"dataset {number} has no length: {type(dataset).__name__}")
        sizes.append(len(dataset))
        if not sizes[-1]:
            raise ValueError(f"dataset {number} is empty")
    if sum(sizes) > _LIMIT:
        raise ValueError("the datasets have more than 2**62 samples together")
    return sizes


def _integer_weights(weights: Any) -> list[int]:
    """Returns the weights as integers in the same proportions, with a sum of at most 2**62.

    If it had to be more, each is rounded, those above 0 to no less than 1.
    """
    shares = [_fraction(number, weight) for number, weight in enumerate(weights)]
    total = sum(shares)
    if not total:
        raise ValueError("weights: all are 0" if shares else "weights: there is none")
    scale = math.lcm(*(share.denominator for share in shares))
    whole = [int(share * scale) for share in shares]
    divisor = math.gcd(*whole)
    whole = [weight // divisor for weight in whole]
    if sum(whole) <= _LIMIT:
        return whole
    room = _LIMIT - len(whole)  # rounding up may add as much
    return [max(1, round(share / total * room)) if share else 0 for share in shares]


def _fraction(number: int, weight: Any) -> Fraction:
    if hasattr(weight, "detach"):  # a tensor of torch's
        weight = weight.detach().cpu().numpy()[()]
    if isinstance(weight, Fraction) or hasattr(weight, "__index__"):
        share = Fraction(weight if isinstance(weight, Fraction) else operator.index(weight))
    elif not math.isfinite(weight):
        raise ValueError(f"weights: number {number} is {weight}, which is not finite")
    else:
        share = Fraction(str(weight))  # as it is printed: 0.1 is no binary fraction
    if share < 0:
        raise ValueError(f"weights: number {number} is negative: {weight}")
    return share


def _checked_int(name: str, value: Any, least: int, end: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if not least <= operator.index(value) < end:
        raise ValueError(f"{name} must be in [{least}, 2**{end.bit_length() - 1}), not {value}")
    return operator.index(value)


def _check_names(datasets: list[Any]) -> None:
    """Raises ValueError for fields that default_collate certainly cannot batch."""
    names: dict[int, list[str]] = {}
    for number, dataset in enumerate(datasets):
        reads = getattr(type(dataset), "__getitem__", None) is Dataset.__getitem__
        if reads and isinstance(dataset.structure, dict):
            names[number] = sorted(map(str, dataset.structure))
    first = next(iter(names), 0)
    for number, own in names.items():
        if own != names[first]:
            raise ValueError(
                f"the samples have different fields: {', '.join(names[first])} in dataset {first}, "
                f"{', '.join(own)} in dataset {number}"
            )
