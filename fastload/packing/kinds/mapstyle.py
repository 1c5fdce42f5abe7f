"""Map-style datasets: anything with `__len__` and `__getitem__`."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastload.datasets.file_datasets import Dataset, PackedDataset
from fastload.formats.columns import FileSource, Int64Array
from fastload.formats.extents import Extents
from fastload.formats.structure import flatten, skeleton
from fastload.packing.cast import parse_casts
from fastload.packing.inputs.half_read import latest, new_opening
from fastload.packing.inputs.kind import DTYPES, Kind
from fastload.packing.inputs.samples import SampleCollector, Schema
from fastload.packing.inputs.source import Advance, Part, Rows, Source, probed
from fastload.packing.inputs.wanted import ALL, AbsentError, Wanted

_DEEPEST = 8  # datasets in datasets


@dataclass(frozen=True)
class Held:
    """Handle of an existing dataset object."""

    dataset: Any
    name = None

    def load(self) -> Any:
        """The dataset."""
        return self.dataset


@dataclass(frozen=True)
class Named:
    """Handle of a dataset `module:object`, created in each process that reads it."""

    name: str
    opening: str = field(default_factory=new_opening)

    def load(self) -> Any:
        """Returns the dataset; a class or function is called once per process."""
        return _load(self.name, self.opening)


@latest
def _load(name: str, opening: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = operator.attrgetter(path)(importlib.import_module(module))
    if isinstance(found, type) or not hasattr(found, "__getitem__"):
        if not callable(found):
            raise TypeError(f"{name} is a {type(found).__name__}: neither a dataset nor callable")
        found = found()
    return found


@dataclass(frozen=True)
class SamplesPart(Part):
    """The samples of a dataset at some indices."""

    source: SamplesSource
    indices: Sequence[int]

    def read(self, advance: Advance) -> Rows:
        """Reads the samples one by one, each checked against the schema."""
        source = self.source
        dataset = source.handle.load()
        samples = SampleCollector(
            source.fields,
            source.structure,
            len(self.indices),
            dtypes=source.dtypes,
            meanings=source.meanings_known,
        )
        for index in self.indices:
            samples.add(_sample(dataset, index, source.wanted), index)
            advance(1)
        return samples.finish()


@dataclass(frozen=True, kw_only=True)
class SamplesSource(Source):
    """A map-style dataset, with the schema of some of its samples.

    Attributes:
        handle: Returns the dataset.
        meanings_known: The dataset says itself what its numbers mean, which samples do not show.
        wanted: The fields that are read.
        dtypes: Names of fields, and the dtypes that their numbers are changed to.
    """

    handle: Held | Named
    meanings_known: bool = False
    wanted: Wanted = ALL
    dtypes: dict[str, str] = field(default_factory=dict)

    def part(self, start: int, stop: int) -> SamplesPart:
        """The samples [start, stop)."""
        return SamplesPart(self, range(start, stop))

    def take(self, indices: Int64Array) -> SamplesPart:
        """The samples at `indices`."""
        return SamplesPart(self, indices.tolist())

    def paths(self) -> Sequence[str]:
        """The files of fastload's own datasets, and the one that defines a dataset by its name."""
        paths = _files_of(self.handle.load())
        if self.handle.name is not None:
            module = sys.modules[self.handle.name.partition(":")[0]]
            file = getattr(module, "__file__", None)
            paths += [] if file is None else [str(file)]
        return paths

    def inputs(self) -> Any:
        """The name of a dataset that was given by name."""
        return self.handle.name

    def options(self) -> dict[str, Any]:
        """Description of the settings that determine the samples."""
        return {"dtypes": self.dtypes} if self.dtypes else {}


def _own(dataset: Any, depth: int = 0) -> Dataset | None:
    """Returns the fastload dataset that holds the samples: the dataset, or that of a Subset."""
    if isinstance(dataset, Dataset) or depth == _DEEPEST:
        return dataset if isinstance(dataset, Dataset) else None
    same = type(dataset).__name__ == "Subset" and type(dataset).__module__.startswith("torch.")
    return _own(dataset.dataset, depth + 1) if same else None


def _files_of(dataset: Any, depth: int = 0) -> list[str]:
    """Returns the files of fastload's datasets, also of those in a Subset or ConcatDataset."""
    extents = getattr(dataset, "extents", None)
    if isinstance(extents, Extents):
        sources = {source for column in extents.columns for source in column.sources}
        return sorted(source.path for source in sources if isinstance(source, FileSource))
    inner = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    parts = list(inner.values() if isinstance(inner, dict) else inner)
    if depth == _DEEPEST or parts == [None]:
        return []
    return [path for part in parts for path in _files_of(part, depth + 1)]


def open_samples(
    handle: Held | Named, wanted: Wanted = ALL, dtypes: Mapping[str, Any] | None = None
) -> SamplesSource:
    """Opens a dataset; its schema is inferred from some of its samples.

    Args:
        handle: Handle of the dataset.
        wanted: The fields that are read.
        dtypes: Dtypes of numbers, by the names of fields.

    Raises:
        TypeError: no map-style dataset, or a leaf of a sample cannot be packed.
        ValueError: the dataset is empty, or samples do not agree.
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
    indices = probed(rows)
    own = _own(dataset)
    if own is not None:  # all of its fields can be packed
        wanted = ALL
    samples = _first_samples(dataset, indices, wanted)
    known = {} if own is not None else parse_casts("dtypes", dtypes)
    schema = Schema.of(samples, indices, known)
    fields, classes = schema.fields, {}
    if own is not None and skeleton(own.structure) == skeleton(schema.structure):
        fields = tuple(own.fields[number] for number in flatten(own.structure))
        classes = own.manifest.class_fields if isinstance(own, PackedDataset) else {}
    else:
        own = None
    return SamplesSource(
        kind="samples",
        fields=fields,
        structure=schema.structure,
        rows=rows,
        classes={name: of.names for name, of in classes.items()},
        ragged_bytes=schema.ragged_bytes,
        nullable=own is None,
        seen={name: f"sample {index}" for name, index in schema.seen.items()},
        unknown=schema.unknown,
        handle=handle,
        meanings_known=own is not None,
        wanted=wanted,
        dtypes=known,
    )


def _first_samples(dataset: Any, indices: Sequence[int], wanted: Wanted) -> list[Any]:
    """Returns some samples; None for samples without any requested field."""
    samples, absent = [], []
    for index in indices:
        try:
            samples.append(wanted.prune(_item(dataset, index)))
        except AbsentError as error:
            samples.append(None)
            absent.append(error)
    if absent and len(absent) == len(samples):
        raise ValueError(f"sample {indices[0]}: {absent[0].args[0]}")
    return samples


def _item(dataset: Any, index: int) -> Any:
    try:
        return dataset[index]
    except Exception as error:
        raise RuntimeError(f"sample {index}: {type(error).__name__}: {error}") from error


def _sample(dataset: Any, index: int, wanted: Wanted) -> Any:
    item = _item(dataset, index)
    try:
        return wanted.prune(item)
    except AbsentError:
        return None


def open_named(
    name: str,
    *,
    dtypes: Mapping[str, Any] | None = None,
    strict: bool = False,
    wanted: Wanted = ALL,
) -> SamplesSource:
    """The dataset `module:object`; arguments and errors are those of `open_samples`."""
    return open_samples(Named(name), wanted, dtypes)


KIND = Kind(
    "dataset",
    "a map-style dataset as module:object; a class or function is called",
    open_named,
    lambda path: False,  # no file: its name tells
    (DTYPES,),
)
