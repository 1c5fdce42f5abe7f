"""Numbers of missing values that packing dropped or replaced, stored in the manifest."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class MissingCounts:
    """Numbers of samples with missing values.

    Attributes:
        dropped_rows: Samples that were left out.
        dropped: Number of them in which a field was missing, by the name of the field.
        filled: Samples of which missing values were replaced, by the field's name.

    Example:
        >>> MissingCounts(2, {"x": 2}) + MissingCounts(1, {"x": 1, "y": 1})
        MissingCounts(dropped_rows=3, dropped={'x': 3, 'y': 1}, filled={})
    """

    dropped_rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    filled: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: MissingCounts) -> MissingCounts:
        """Returns the sums of the counts."""
        return MissingCounts(
            self.dropped_rows + other.dropped_rows,
            _sums(self.dropped, other.dropped),
            _sums(self.filled, other.filled),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as manifest entries, without those that are 0."""
        return {key: count for key, count in asdict(self).items() if count}

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> MissingCounts:
        """Reads the counts from the entries of a manifest.

        Raises:
            ValueError: they are no counts.
        """
        found = asdict(cls())
        for key, none in found.items():
            value = entries.get(key, none)
            counts = value.values() if isinstance(value, dict) else [value]
            whole = all(type(count) is int and count >= 0 for count in counts)
            if type(value) is not type(none) or not whole:
                raise ValueError(f"{key!r} must hold counts, not {value!r:.50}")
            found[key] = value
        return cls(**found)


NOTHING_MISSING = MissingCounts()
"""Counts of nothing."""


def _sums(one: dict[str, int], two: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + two.get(name, 0) for name in (*one, *two)}
