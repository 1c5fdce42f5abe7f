"""Map-style datasets: anything with `__len__` and `__getitem__`."""

from __future__ import annotations

import functools
import importlib
import operator
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.formats.arrays import is_tensor, tensor_array
from fastload.formats.extents import Field
from fastload.pack.sources.base import Advance, Array, Part, Rows, Source, field_of
from fastload.structure import Structure, is_leaf, leaf_names, map_leaves

_SCALARS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_IMAGE_MODES = ("L", "RGB", "RGBA")


@dataclass(frozen=True)
class Held:
    """A dataset that exists already."""

    dataset: Any
    name = None

    def load(self) -> Any:
        """The dataset."""
        return self.dataset


@dataclass(frozen=True)
class Named:
    """A dataset as `module:object`, made in each process that reads it."""

    name: str

    def load(self) -> Any:
        """The dataset; a class or function is called for it, once in each process."""
        return _load(self.name)


@functools.lru_cache(maxsize=1)
def _load(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = operator.attrgetter(path)(importlib.import_module(module))
    if isinstance(found, type) or not hasattr(found, "__getitem__"):
        if not callable(found):
            raise TypeError(f"{name} is a {type(found).__name__}: neither a dataset nor callable")
        found = found()
    return found


@dataclass(frozen=True)
class SamplesPart(Part):
    """The samples [start, stop) of a dataset."""

    source: SamplesSource
    start: int
    stop: int

    def read(self, advance: Advance) -> Rows:
        """Reads the samples one by one, each checked against the schema of the first one."""
        source = self.source
        dataset = source.handle.load()
        count = self.stop - self.start
        columns = [np.empty((count, *field.shape), field.storage) for field in source.fields]
        for row in range(count):
            index = self.start + row
            leaves = _leaves(source.structure, _sample(dataset, index), f"sample {index}")
            for column, field, leaf in zip(columns, source.fields, leaves, strict=True):
                column[row] = _checked(leaf, field, index)
            advance(1)
        return Rows(columns)


@dataclass(frozen=True, kw_only=True)
class SamplesSource(Source):
    """A map-style dataset, with the schema of its first sample."""

    handle: Held | Named

    def part(self, start: int, stop: int) -> SamplesPart:
        """The samples [start, stop)."""
        return SamplesPart(self, start, stop)

    def inputs(self) -> Any:
        """The name of a dataset that was given by name."""
        return self.handle.name


def open_samples(handle: Held | Named) -> SamplesSource:
    """Takes the schema of a dataset from its first sample.

    Raises:
        TypeError: no map-style dataset, or a leaf of the sample is no number or array.
        ValueError: the dataset is empty.
        ImportError, AttributeError: there is no such module or object.
    """
    dataset = handle.load()
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"a dataset with __len__ and __getitem__ is needed, not {type(dataset).__name__}"
        )
    rows = len(dataset)
    if rows == 0:
        raise ValueError("the dataset is empty: there is no first sample to take the schema from")
    first = _sample(dataset, 0)
    names = leaf_names(first)
    if not names:
        raise TypeError(f"sample 0 holds nothing: {first!r}")
    numbers = iter(range(len(names)))
    structure = map_leaves(lambda _: next(numbers), first)
    fields = []
    for name, leaf in zip(names, _leaves(structure, first, "sample 0"), strict=True):
        array, dtype = _row(leaf, name, 0)
        fields.append(Field(name, dtype or field_of(name, array.dtype, ()).dtype, array.shape))
    return SamplesSource(
        kind="samples", fields=tuple(fields), structure=structure, rows=rows, handle=handle
    )


def _sample(dataset: Any, index: int) -> Any:
    try:
        return dataset[index]
    except Exception as error:
        raise RuntimeError(f"sample {index}: {type(error).__name__}: {error}") from error


def _leaves(structure: Structure, sample: Any, where: str) -> list[Any]:
    """The leaves of a sample that must have the containers of `structure`."""
    if is_leaf(structure):
        return [sample]
    if isinstance(structure, dict):
        if not isinstance(sample, dict):
            raise TypeError(f"{where}: a dict is needed, not {type(sample).__name__}")
        for key in structure:
            if key not in sample:
                raise KeyError(f"{where}: the key {key!r} is missing")
        for key in sample:
            if key not in structure:
                raise KeyError(f"{where}: the key {key!r} is not in sample 0")
        pairs = [(structure[key], sample[key], key) for key in structure]
    else:
        if not isinstance(sample, type(structure)) or len(sample) != len(structure):
            expected = f"{type(structure).__name__} of {len(structure)}"
            raise TypeError(f"{where}: a {expected} is needed, not {sample!r:.80}")
        pairs = [(structure[n], sample[n], n) for n in range(len(structure))]
    if all(is_leaf(member) for member, _, _ in pairs):
        return [value for _, value, _ in pairs]
    return [leaf for m, v, key in pairs for leaf in _leaves(m, v, f"{where}, {key!r}")]


def _checked(leaf: Any, field: Field, index: int) -> Array:
    array, dtype = _row(leaf, field.name, index)
    dtype = dtype or array.dtype.newbyteorder("=").name
    if dtype != field.dtype or array.shape != field.shape:
        raise ValueError(
            f"sample {index}: field {field.name!r} is {dtype} {list(array.shape)}, but sample 0 "
            f"has {field}; all samples must agree"
        )
    return array


def _row(leaf: Any, name: str, index: int) -> tuple[Array, str | None]:
    """The leaf as an array, and its dtype where numpy has no name for it."""
    if (scalar := _SCALARS.get(type(leaf))) is not None:
        try:
            return np.array(leaf, scalar), None
        except OverflowError as error:
            raise ValueError(f"sample {index}: field {name!r}: {leaf} exceeds int64") from error
    if isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, np.ma.MaskedArray):
        return np.asarray(leaf), None
    if is_tensor(leaf):
        return tensor_array(leaf.detach().cpu().resolve_conj().resolve_neg().contiguous(), name)
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if image is not None and isinstance(leaf, image):
        if leaf.mode in _IMAGE_MODES:
            return np.asarray(leaf), None
        raise TypeError(
            f"sample {index}: field {name!r} is an image of mode {leaf.mode}; convert it to one "
            f"of {', '.join(_IMAGE_MODES)}"
        )
    raise TypeError(
        f"sample {index}: field {name!r} is {type(leaf).__name__}; numbers, arrays and tensors of "
        "a fixed size can be packed"
    )
