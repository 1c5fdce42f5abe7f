"""Lists what differs between two values of JSON types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yields one line for each member in which two values of JSON types differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(before.get(key), now.get(key), inner)
    elif isinstance(before, list) and isinstance(now, list):
        for number, (old, new) in enumerate(zip(before, now, strict=False)):
            yield from differences(old, new, f"{name}[{number}]")
        if len(before) != len(now):
            yield f"{name}: {len(before)} members -> {len(now)}"
    elif before != now:
        yield f"{name}: {_short(before)} -> {_short(now)}"


def _short(value: Any) -> str:
    if value is None:
        return "none"
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
