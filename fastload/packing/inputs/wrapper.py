"""Sources that select from or change another source."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastload.formats.columns import Int64Array
from fastload.packing.inputs.source import Part, Source

PIECE_BYTES = 8 << 20
"""Maximum bytes of samples read at a time if only a part of them is kept."""


def attributes_of(source: Source) -> dict[str, Any]:
    """Returns the attributes that every source has."""
    return {field.name: getattr(source, field.name) for field in dataclasses.fields(Source)}


@dataclass(frozen=True, kw_only=True)
class Wrapper(Source):
    """A source that reads another one."""

    inner: Source

    def part(self, start: int, stop: int) -> Part:
        """Returns the samples [start, stop)."""
        return self.inner.part(start, stop)

    def take(self, indices: Int64Array) -> Part:
        """Returns the samples at `indices`."""
        return self.inner.take(indices)

    def names(self, indices: Int64Array) -> Sequence[str] | None:
        """Returns the names of the inner source."""
        return self.inner.names(indices)

    def random_access(self) -> Source:
        """Returns the wrapper of a source with random access."""
        return dataclasses.replace(self, inner=self.inner.random_access())

    def is_copied(self) -> bool:
        """Returns the value of the inner source."""
        return self.inner.is_copied()

    def paths(self) -> Sequence[str]:
        """Returns the files of the inner source."""
        return self.inner.paths()

    def inputs(self) -> Any:
        """Returns the inputs of the inner source."""
        return self.inner.inputs()

    def options(self) -> dict[str, Any]:
        """Returns the options of the inner source and the selection."""
        return {**self.inner.options(), **self.choice()}

    @abc.abstractmethod
    def choice(self) -> dict[str, Any]:
        """Returns the selection in JSON types."""

    def close(self) -> None:
        """Closes the inner source."""
        self.inner.close()
