"""What a process keeps of an input between the parts that it reads."""

from __future__ import annotations

import functools
import os
import secrets
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def latest(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Makes a function keep what it gave last, and give it again for the same arguments.

    Threads wait for the one that makes it, and the old one goes before the new one is made: an
    LMDB environment must not be opened twice in a process.

    Example:
        >>> @latest
        ... def opened(name: str) -> list[str]:
        ...     return [name]
        >>> opened("a") is opened("a"), opened("b")
        (True, ['b'])
    """
    lock = threading.Lock()
    kept: list[tuple[object, _Made]] = []

    def renew() -> None:
        nonlocal lock
        lock = threading.Lock()  # a thread of the parent may hold the other one for ever

    os.register_at_fork(after_in_child=renew)

    @functools.wraps(function)
    def give(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        key = args, kwargs
        with lock:
            if not kept or kept[0][0] != key:
                kept.clear()
                kept.append((key, function(*args, **kwargs)))
            return kept[0][1]

    return give


def new_opening() -> str:
    """A word for one opening of an input, by which a process that lives on tells it from earlier.

    The processes of an executor may have read what was there before.
    """
    return secrets.token_hex(8)
