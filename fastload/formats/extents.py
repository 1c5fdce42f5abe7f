"""Where samples lie: the byte ranges of files and memory that hold them.

Every format is read into `Extents`, which is all that the core ever sees of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fastload.formats.columns import (
    Column,
    Group,
    Int64Array,
)
from fastload.formats.core_table import build_table
from fastload.formats.fields import MAX_BYTES, Field
from fastload.formats.fingerprint import fingerprint
from fastload.formats.structure import flatten

if TYPE_CHECKING:
    from fastload import _core


@dataclass(frozen=True, eq=False)
class Extents:
    """A whole dataset as byte ranges.

    Attributes:
        groups: Each with equally many samples.
        structure: The containers of a sample (see `fastload.formats.structure`); its leaves number
            the columns in the order of the groups, then of their columns.
        content: The fingerprint of the content where it is known already, as in a manifest.
        mixed: Which sample of the groups each sample is, where that is computed: of a Mixture. It
            has indices beyond its length, too.

    Raises:
        ValueError: groups of unequal length, or a structure that does not fit the columns.
        FormatError: a shard reaches beyond its source.

    Example:
        >>> from fastload.formats import arrays
        >>> extents = arrays.read_extents(np.zeros((10, 3), "float32"), "x")
        >>> extents.rows, [str(field) for field in extents.fields]
        (10, ['float32 [3]'])
    """

    groups: tuple[Group, ...]
    structure: Any
    content: str | None = None
    mixed: _core.Mixture | None = None

    def __post_init__(self) -> None:
        leaves = flatten(self.structure)
        if not leaves or sorted(leaves) != list(range(len(self.columns))):
            raise ValueError(f"structure {self.structure} does not fit {len(self.columns)} columns")
        for group in self.groups:
            if (group.shard_rows < 0).any() or float(group.shard_rows.sum(dtype=float)) > MAX_BYTES:
                raise ValueError("rows of a shard are negative or too many")
            for column in group.columns:
                column.check(group.shard_rows)
        if any(group.rows != self.groups[0].rows for group in self.groups):
            raise ValueError(f"groups differ in length: {[group.rows for group in self.groups]}")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns, as the structure numbers them."""
        return tuple(column for group in self.groups for column in group.columns)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The field of each column."""
        return tuple(column.field for column in self.columns)

    @cached_property
    def rows(self) -> int:
        """Samples of the dataset."""
        return self.groups[0].rows if self.mixed is None else len(self.mixed)

    def take(self, indices: Int64Array) -> Extents:
        """The samples at `indices`, as int64 in [0, rows), in that order.

        Raises:
            IndexError: an index is out of range.
        """
        indices = np.ascontiguousarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.rows:
            raise IndexError(f"an index is outside the {self.rows} samples")
        if self.mixed is not None:
            indices = self.mixed.rows(indices)
        groups = [
            replace(g, index_map=indices if g.index_map is None else g.index_map[indices])
            for g in self.groups
        ]
        return replace(self, groups=tuple(groups), mixed=None)

    def slice(self, start: int, stop: int) -> Extents:
        """The samples [start, stop), which costs no memory per sample but of a Mixture.

        Raises:
            IndexError: the range is not inside [0, rows].
        """
        if not 0 <= start <= stop <= self.rows:
            raise IndexError(f"[{start}, {stop}) is not inside the {self.rows} samples")
        if self.mixed is not None:
            return self.take(np.arange(start, stop))
        content = self.content
        if content is not None and (start, stop) != (0, self.rows):
            part = hashlib.sha256(f"{content} {start} {stop}".encode())
            content = f"sha256:{part.hexdigest()}"
        groups = tuple(group.slice(start, stop) for group in self.groups)
        return Extents(groups, self.structure, content)

    def build(self, io: str = "auto") -> _core.Table:
        """The core's table over these bytes. `io` is "auto", "mmap" or "pread"."""
        return build_table(self.groups, self.mixed, io)

    def fingerprint(self) -> str:
        """A hash of the content that does not depend on paths, times or the machine.

        It covers schema, lengths, index maps and, of every shard of every field, the size and the
        first and last 4 KiB, at the time of the first call; it is not a checksum of all bytes.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.groups, self.structure, self.rows, self.content)
