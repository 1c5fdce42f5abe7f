"""Conditions and times on a machine that may be doing something else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
"""For what takes no time by itself; whoever has waited so long would wait for ever."""


def wait_for(condition: Callable[[], Any]) -> None:
    """Waits until something is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def assert_takes_less(seconds: float, attempt: Callable[[], float | None], tries: int = 20) -> None:
    """At least one of several attempts takes less than so long.

    What is slow by itself is slow in each of them; what other processes do hits some.

    Args:
        seconds: The limit.
        attempt: Is tried again until it keeps to the limit. Gives the seconds that it took, or
            None, and then all of it is meant.
        tries: How often, at most.
    """
    took = []
    for _ in range(tries):
        start = time.monotonic()
        told = attempt()
        took.append(time.monotonic() - start if told is None else told)
        if took[-1] < seconds:
            return
    raise AssertionError(f"never less than {seconds} s: {took}")
