"""Detects numbers in text that float64 cannot represent."""

from __future__ import annotations

import math
import re

_INTEGER = re.compile(r"[+-]?[0-9]+(?:\.0*)?")


def changed(text: str) -> str | None:
    """Returns how float64 changes a number beyond rounding its decimals; None if it does not.

    Example:
        >>> changed("0.1"), changed("9007199254740993")
        (None, 'is an integer that float64 cannot represent')
    """
    mantissa = text.lower().partition("e")[0]
    if not any(digit in mantissa for digit in "123456789"):
        return None  # 0, or not a number
    try:
        value = float(text)
    except ValueError:
        return None
    if math.isinf(value):
        return "is too large for float64"
    if value == 0:
        return "is too small for float64"
    if _INTEGER.fullmatch(text) and int(value) != int(text.partition(".")[0]):
        return "is an integer that float64 cannot represent"
    return None


class ChangedNumber(float):
    """A float that differs from its source `text`, for `reason`."""

    text = ""
    reason = ""

    @classmethod
    def parsed(cls, text: str) -> float:
        """Returns the number of a text, as a ChangedNumber if float64 changes it."""
        reason = changed(text)
        if reason is None:
            return float(text)
        made = cls(text)
        made.text, made.reason = text, reason
        return made
