"""A source in front of another, which changes what is read of it."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastload.formats.columns import Int64Array
from fastload.packing.inputs.source import Part, Source

PIECE_BYTES = 8 << 20
"""Bytes of samples that are read at once where less of them is kept."""


def like(source: Source) -> dict[str, Any]:
    """What every source has."""
    return {field.name: getattr(source, field.name) for field in dataclasses.fields(Source)}


@dataclass(frozen=True, kw_only=True)
class Wrapper(Source):
    """A source in front of another."""

    inner: Source

    def part(self, start: int, stop: int) -> Part:
        """The samples [start, stop)."""
        return self.inner.part(start, stop)

    def take(self, indices: Int64Array) -> Part:
        """The samples at `indices`."""
        return self.inner.take(indices)

    def names(self, indices: Int64Array) -> Sequence[str] | None:
        """Those of the input."""
        return self.inner.names(indices)

    def random_access(self) -> Source:
        """The same in front of a source that can be read anywhere."""
        return dataclasses.replace(self, inner=self.inner.random_access())

    def is_copied(self) -> bool:
        """As the input."""
        return self.inner.is_copied()

    def paths(self) -> Sequence[str]:
        """Those of the input."""
        return self.inner.paths()

    def inputs(self) -> Any:
        """Those of the input."""
        return self.inner.inputs()

    def options(self) -> dict[str, Any]:
        """Those of the input, and what is selected of it."""
        return {**self.inner.options(), **self.choice()}

    @abc.abstractmethod
    def choice(self) -> dict[str, Any]:
        """What is selected, in JSON's types."""

    def close(self) -> None:
        """Closes the input."""
        self.inner.close()
