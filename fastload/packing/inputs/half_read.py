"""What a process keeps of an input between the parts that it reads."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Collection
from typing import Generic, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class latest(Generic[_Given, _Made]):
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

    def __init__(self, function: Callable[_Given, _Made]) -> None:
        self._function = function
        self._kept: list[tuple[object, _Made]] = []
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def __call__(self, *args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        """What the function gives, or gave."""
        key = args, kwargs
        with self._lock:
            if not self._kept or self._kept[0][0] != key:
                self._kept.clear()
                self._kept.append((key, self._function(*args, **kwargs)))
            return self._kept[0][1]

    def forget(self) -> None:
        """Lets it go."""
        with self._lock:
            self._kept.clear()

    def _renew(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may hold the other one for ever


class HalfRead(Generic[_Made]):
    """What each thread has read half of a file, so that it goes on there: one at most.

    Who reads the next part of a file would have to decode it again from its start, for each part.

    Example:
        >>> left: HalfRead[str] = HalfRead()
        >>> left.leave("a.csv", "its version", "what is left")
        >>> left.take("a.csv", "its version"), left.take("a.csv", "its version")
        ('what is left', None)
    """

    def __init__(self) -> None:
        self._left: dict[int, tuple[str, object, _Made]] = {}

    def leave(self, path: str, key: object, made: _Made) -> None:
        """Keeps it for this thread, which must not use it any more."""
        self._left[threading.get_ident()] = path, key, made

    def take(self, path: str, key: object) -> _Made | None:
        """What this thread left, if it left that; nothing is left then."""
        found = self._left.pop(threading.get_ident(), None)
        return found[2] if found is not None and found[:2] == (path, key) else None

    def drop(self, paths: Collection[str]) -> None:
        """Lets go what threads have left of some files."""
        for thread, (path, *_) in list(self._left.items()):
            if path in paths:
                self._left.pop(thread, None)


def version_of(path: str) -> tuple[int, int, int]:
    """What tells a file from another one that has taken its place."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def new_opening() -> str:
    """A word for one opening of an input, by which a process that lives on tells it from earlier.

    The processes of an executor may have read what was there before.
    """
    return secrets.token_hex(8)
