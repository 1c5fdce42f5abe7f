"""Standard JSON, without NaN and Infinity."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Serializes like `json.dumps`, with null for non-finite floats and numpy scalars as numbers.

    Objects that JSON has no type for are written as their `str`.

    Example:
        >>> dumps({"loss": float("nan"), "step": 3, "range": (0.5, float("inf"))})
        '{"loss": null, "step": 3, "range": [0.5, null]}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if callable(getattr(value, "item", None)) and getattr(value, "size", 0) == 1:  # of numpy
        return _finite(value.item())
    return str(value)
