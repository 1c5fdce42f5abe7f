"""Measured numbers with their confidence ranges, and their formatting."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
_QUANTILES = (12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36)
_BLOCKS = 8  # at most,
_FEWEST = 4  # and of whole bursts
_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class Range(NamedTuple):
    """A number that lies between two bounds.

    Attributes:
        low: Lower bound.
        high: Upper bound.

    Example:
        >>> Range(1.24, 3.06).text()
        '1.2 to 3.1'
        >>> Range(0.0009, 0.068).duration()
        '0.90 to 68 ms'
    """

    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """Formats both bounds, or one number if both print equally."""
        low, high = number(self.low, digits), number(self.high, digits)
        return low if low == high else f"{low} to {high}"

    def duration(self) -> str:
        """Formats seconds in a unit that fits the larger bound."""
        size, unit = _unit(self.high)
        return f"{Range(self.low / size, self.high / size).text()} {unit}"

    def percent(self) -> str:
        """Formats shares as percentages, without decimals from 1 %."""
        low, high = (
            f"{100 * share:.0f}" if share >= 0.01 or share < 5e-4 else number(100 * share, 1)
            for share in self
        )
        return f"{low} %" if low == high else f"{low} to {high} %"

    def between(self, least: float, most: float) -> Range:
        """Returns the range with both bounds clipped to [least, most]."""
        return Range(*(min(max(bound, least), most) for bound in self))

    def over(self, other: Range) -> Range:
        """Returns the quotient of two positive ranges."""
        tiny = 1e-12
        return Range(self.low / max(tiny, other.high), self.high / max(tiny, other.low))


def mean_range(values: Sequence[float], period: int = 1) -> Range:
    """Returns the 95 % confidence interval of the mean of a series, from up to 8 block means.

    Args:
        values: In the order of measurement; neighbours may be correlated.
        period: Length of bursts in the series, as loaders with workers cause them; blocks hold
            whole bursts.

    Example:
        >>> mean_range([1.0] * 40)
        Range(low=1.0, high=1.0)
        >>> mean_range([0.0, 4.0] * 20, period=2)
        Range(low=2.0, high=2.0)
    """
    mean = statistics.fmean(values)
    size = period * math.ceil(len(values) / (period * _BLOCKS))
    if len(values) // size < min(_FEWEST, len(values)):
        size = math.ceil(len(values) / _BLOCKS)
    count = len(values) // size
    if count < 2:
        return Range(mean, mean)
    means = [statistics.fmean(values[n * size : (n + 1) * size]) for n in range(count)]
    error = _QUANTILES[count - 2] * statistics.stdev(means) / math.sqrt(count)
    return Range(mean - error, mean + error)


def number(value: float, digits: int = 3) -> str:
    """Formats a number with so many significant digits, without exponent if readable.

    Example:
        >>> [number(x) for x in (0, 0.0012345, 51_162.4, 1.0, 1e-9)]
        ['0', '0.00123', '51,200', '1.00', '1e-09']
    """
    if not math.isfinite(value):
        return "not finite"
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded == 0:
        return "0"
    exponent = math.floor(math.log10(abs(rounded)))
    if not -5 < exponent < 12:
        return f"{rounded:.{digits}g}"
    return f"{rounded:,.{max(0, digits - 1 - exponent)}f}"


def duration(seconds: float, digits: int = 2) -> str:
    """Formats seconds in a fitting unit.

    Example:
        >>> duration(0.0678), duration(5400)
        ('68 ms', '1.5 h')
    """
    size, unit = _unit(seconds)
    return f"{number(seconds / size, digits)} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    return next((unit for unit in _UNITS if abs(seconds) >= unit[0]), (1.0, "s"))
