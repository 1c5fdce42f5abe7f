"""The folder that is written: empty, incomplete or a complete dataset, and nothing in between."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import time
from typing import Any

from fastload.formats import is_packed
from fastload.formats.files import AnyPath, absolute
from fastload.formats.packed import MANIFEST, PLAN, WORK_FOLDER, shard_file
from fastload.pack.files import TEMPORARY_PREFIX, new_file, sync_folder, write_all

SHARD_FILE = "shard-{:06d}.safetensors"

_SHARD = re.compile(r"shard-(\d{6,})\.safetensors")
_PATIENCE_SECONDS = 2.0


class OutputFolder:
    """Holds the folder for one run.

    From `begin` on it says that it is incomplete, until `commit`.

    Args:
        path: Of the folder; it need not exist.
        overwrite: A complete dataset in it may be replaced.

    Raises:
        FileExistsError: there is something else than an incomplete pack, or a complete one without
            `overwrite`, or another run is writing.

    Example:
        >>> folder = OutputFolder("data/train", overwrite=False)
        >>> folder.check()  # raises if there is something in the way
    """

    def __init__(self, path: AnyPath, *, overwrite: bool) -> None:
        self.path = absolute(path)
        self._overwrite = overwrite
        self._stack = contextlib.ExitStack()
        self.lock = -1

    def check(self, source: str | None = None) -> None:
        """Raises FileExistsError or ValueError unless the folder may be written; changes nothing.

        Args:
            source: A folder that is read, which must not hold this one.
        """
        if source is not None:
            real, above = os.path.realpath(self.path), os.path.realpath(source)
            if os.path.isdir(above) and os.path.commonpath([real, above]) == above:
                raise ValueError(f"{self.path}: the output lies inside the input {source}")
        if not os.path.lexists(self.path):
            return
        if not os.path.isdir(self.path):
            raise FileExistsError(errno.EEXIST, "the output must be a folder", self.path)
        if not is_packed(self.path):
            with os.scandir(self.path) as entries:
                if next(entries, None) is not None:
                    what = "the folder is not empty and holds no packed dataset; choose another"
                    raise FileExistsError(errno.ENOTEMPTY, what, self.path)
        elif os.path.lexists(os.path.join(self.path, MANIFEST)) and not self._overwrite:
            what = "the folder holds a packed dataset; --overwrite (overwrite=True) replaces it"
            raise FileExistsError(errno.EEXIST, what, self.path)

    def begin(self, plan: dict[str, Any]) -> None:
        """Takes the folder, marks it as incomplete and clears it of what earlier runs wrote."""
        os.makedirs(self.path, exist_ok=True)
        self._take()
        self.check()
        work = os.path.join(self.path, WORK_FOLDER)
        os.makedirs(work, exist_ok=True)
        with new_file(os.path.join(work, PLAN)) as descriptor:
            write_all(descriptor, memoryview(json.dumps(plan, indent=1).encode("ascii")))
        sync_folder(work)
        sync_folder(self.path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, MANIFEST))
        sync_folder(self.path)  # before its shards go
        self.clear_shards(0)
        self.clear_temporary()

    def shard(self, number: int) -> str:
        """The path of a shard."""
        return os.path.join(self.path, shard_file(SHARD_FILE, number))

    def clear_temporary(self) -> None:
        """Removes what was broken off."""
        for name in os.listdir(self.path):
            if name.startswith(TEMPORARY_PREFIX):
                os.unlink(os.path.join(self.path, name))

    def clear_shards(self, first: int) -> None:
        """Removes the shards from a number on."""
        for name in os.listdir(self.path):
            if (found := _SHARD.fullmatch(name)) and int(found[1]) >= first:
                os.unlink(os.path.join(self.path, name))

    def commit(self, manifest: bytes) -> None:
        """Makes the dataset complete."""
        sync_folder(self.path)
        with new_file(os.path.join(self.path, MANIFEST)) as descriptor:
            write_all(descriptor, memoryview(manifest))
        sync_folder(self.path)
        shutil.rmtree(os.path.join(self.path, WORK_FOLDER))

    def close(self) -> None:
        """Lets the folder go."""
        self._stack.close()

    def _take(self) -> None:
        self.lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(os.close, self.lock)
        # The processes of a run that was killed hold the lock, too, for the moment they need to
        # notice; nothing of theirs can appear after it is ours.
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    what = "another pack is writing to this folder"
                    raise FileExistsError(errno.EEXIST, what, self.path) from None
                time.sleep(0.02)
            except OSError:  # network file systems that cannot lock
                return
