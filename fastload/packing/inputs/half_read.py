"""State of an input that a process keeps between the parts that it reads."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Collection
from typing import Generic, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class latest(Generic[_Given, _Made]):
    """Decorator that caches the last result of a function, and returns it for the same arguments.

    Only one thread calls the function at a time; the others wait. The old result is dropped before
    the function is called, because an LMDB environment must not be opened twice in a process.

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
        """Returns the cached result, computing it if the arguments differ."""
        key = args, kwargs
        with self._lock:
            if not self._kept or self._kept[0][0] != key:
                self._kept.clear()
                self._kept.append((key, self._function(*args, **kwargs)))
            return self._kept[0][1]

    def forget(self) -> None:
        """Drops the cached result."""
        with self._lock:
            self._kept.clear()

    def _renew(self) -> None:
        self._lock = threading.Lock()  # a fork may copy a lock that is held


class HalfRead(Generic[_Made]):
    """Partly read files, at most one per thread, which the thread continues later.

    Without it, each part of a compressed file would be decoded from the start of the file.

    Example:
        >>> left: HalfRead[str] = HalfRead()
        >>> left.leave("a.csv", "its version", "what is left")
        >>> left.take("a.csv", "its version"), left.take("a.csv", "its version")
        ('what is left', None)
    """

    def __init__(self) -> None:
        self._left: dict[int, tuple[str, object, _Made]] = {}

    def leave(self, path: str, key: object, made: _Made) -> None:
        """Keeps an object for this thread, which must not use it until `take`."""
        self._left[threading.get_ident()] = path, key, made

    def take(self, path: str, key: object) -> _Made | None:
        """Returns and removes the object of this thread if path and key match; otherwise None."""
        found = self._left.pop(threading.get_ident(), None)
        return found[2] if found is not None and found[:2] == (path, key) else None

    def drop(self, paths: Collection[str]) -> None:
        """Drops the objects that all threads keep for some files."""
        for thread, (path, *_) in list(self._left.items()):
            if path in paths:
                self._left.pop(thread, None)


def version_of(path: str) -> tuple[int, int, int]:
    """Returns inode, size in bytes and modification time, which differ if a file was replaced."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def new_opening() -> str:
    """Returns a random id of one opening of an input.

    The processes of an executor may live on and have cached an earlier opening of the same input.
    """
    return secrets.token_hex(8)
