"""A file layer that counts changes to the disk, and fails or dies at a chosen one."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

# The functions of `os` that change files or make changes permanent.
CHANGES = (
    "fdatasync",
    "fsync",
    "link",
    "mkdir",
    "rename",
    "replace",
    "rmdir",
    "truncate",
    "unlink",
    "write",
)
SYNCS = ("fdatasync", "fsync")


class Killed(BaseException):
    """Stands for SIGKILL: no later change reaches the disk, cleanup included."""


class Disk:
    """Replaces the functions of `os` that change files.

    Args:
        monkeypatch: Restores the functions.
        moment: Number of the change at which the disk fails; None: never.
        kill: Every change from `moment` on raises `Killed`, and a write at `moment` is torn.
            Otherwise the change at `moment`, and writes after it, raise OSError(ENOSPC).

    Attributes:
        changes: Names of the functions called so far, in order.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, moment: int | None = None, *, kill: bool = False
    ) -> None:
        self.changes: list[str] = []
        self._moment, self._kill = moment, kill
        self._unsynced: set[int] = set()  # inodes of files that were written and not synced
        for name in CHANGES:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        monkeypatch.setattr(os, "open", self._opens(os.open))

    def _wrapped(self, name: str, function: Any) -> Any:
        def change(*arguments: Any, **options: Any) -> Any:
            if self._is_dead():
                raise Killed
            self.changes.append(name)
            if len(self.changes) == self._moment:
                if not self._kill:
                    raise _full(arguments[0])
                if name == "write":
                    descriptor, data = arguments
                    function(descriptor, data[: len(data) // 2])
                raise Killed
            if name == "write" and self._is_full():
                raise _full(arguments[0])
            self._check_order(name, arguments)
            if name in SYNCS:  # no power is cut here: the real disk would only take time
                return None
            return function(*arguments, **options)

        return change

    def _opens(self, function: Any) -> Any:
        def opens(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if self._is_dead() and flags & os.O_CREAT:
                raise Killed
            descriptor: int = function(path, flags, *arguments, **options)
            return descriptor

        return opens

    def _is_dead(self) -> bool:
        return self._kill and self._moment is not None and len(self.changes) >= self._moment

    def _is_full(self) -> bool:
        return not self._kill and self._moment is not None and len(self.changes) > self._moment

    def _check_order(self, name: str, arguments: tuple[Any, ...]) -> None:
        """A file is synced after its last write and before it gets its final name."""
        if name == "write":
            self._unsynced.add(os.fstat(arguments[0]).st_ino)
        elif name in SYNCS:
            self._unsynced.discard(os.fstat(arguments[0]).st_ino)
        elif name in ("replace", "rename", "link"):
            inode = os.stat(arguments[0]).st_ino
            assert inode not in self._unsynced, f"{name} of {arguments[0]} before it is synced"


def _full(path_or_descriptor: Any) -> OSError:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if not isinstance(path_or_descriptor, int):
        error.filename = path_or_descriptor
    return error
