"""Checks of arguments."""

from __future__ import annotations


def check_counts(**counts: object) -> None:
    """Raises ValueError unless all are positive integers."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} must be a positive integer, not {count!r}")
