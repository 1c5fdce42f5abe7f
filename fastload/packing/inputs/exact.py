"""Which numbers in text float64 does not hold as they are written."""

from __future__ import annotations

import math
import re

_INTEGER = re.compile(r"[+-]?[0-9]+(?:\.0*)?")


def changed(text: str) -> str | None:
    """How float64 changes a number beyond rounding its decimals; None if it does not.

    Example:
        >>> changed("0.1"), changed("9007199254740993")
        (None, 'is an integer that float64 does not hold')
    """
    mantissa = text.lower().partition("e")[0]
    if not any(digit in mantissa for digit in "123456789"):
        return None  # 0, or a word
    try:
        value = float(text)
    except ValueError:
        return None
    if math.isinf(value):
        return "is larger than what float64 holds"
    if value == 0:
        return "is smaller than what float64 holds"
    if _INTEGER.fullmatch(text) and int(value) != int(text.partition(".")[0]):
        return "is an integer that float64 does not hold"
    return None


class ChangedNumber(float):
    """A number that is not what its `text` says, for `reason`."""

    text = ""
    reason = ""

    @classmethod
    def parsed(cls, text: str) -> float:
        """The number of a text, as one of these if it is not what the text says."""
        reason = changed(text)
        if reason is None:
            return float(text)
        made = cls(text)
        made.text, made.reason = text, reason
        return made
