"""Journal of the finished shards of a run, one flushed line for each."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from typing import Any

from fastload.errors import refuse_pipe
from fastload.formats.manifest import Skipped
from fastload.formats.missing import MissingCounts
from fastload.packing.output.files import errors_name, sync_folder, write_all
from fastload.packing.output.writer import Written

Key = tuple[str, int]
"""Name of a column set, and the number of a shard in it."""


class Journal:
    """Lines of `.fastload/journal.jsonl`.

    A line is written after its shard, and flushed to the disk before the run continues. A line that
    a crash left incomplete is ignored, and so are all lines after it.

    Args:
        path: Path of the file, which is created if it does not exist.

    Attributes:
        written: Finished shards, by column set and number.

    Example:
        >>> with contextlib.closing(Journal("out/.fastload/journal.jsonl")) as journal:
        ...     journal.add("main", 0, Written(1024, 1 << 20, 0x5B895897))  # doctest: +SKIP
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        sync_folder(os.path.dirname(path))
        self.written, size = replay(path)
        with errors_name(path):
            os.truncate(self._descriptor, size)

    def add(self, group: str, shard: int, written: Written) -> None:
        """Records a finished shard."""
        self._append({"group": group, "shard": shard, **asdict(written)})
        self.written[group, shard] = written

    def drop(self, group: str, first: int) -> None:
        """Records that the shards from `first` on will change and are no longer finished."""
        self._append({"group": group, "dropped_from": first})
        _forget(self.written, group, first)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def _append(self, entry: dict[str, object]) -> None:
        line = json.dumps(entry, separators=(",", ":"), allow_nan=False) + "\n"
        with errors_name(self._path):
            write_all(self._descriptor, memoryview(line.encode("ascii")))
            os.fdatasync(self._descriptor)


def replay(path: str) -> tuple[dict[Key, Written], int]:
    """Returns the finished shards of a journal, and the size of its complete lines in bytes.

    Raises:
        OSError: the journal cannot be read.
    """
    written: dict[Key, Written] = {}
    size = 0
    refuse_pipe(path)
    with open(path, "rb") as file, contextlib.suppress(ValueError, TypeError, KeyError):
        for line in file:
            if not line.endswith(b"\n"):
                break
            entry = json.loads(line)
            group = entry.pop("group")
            if "dropped_from" in entry:
                _forget(written, group, entry["dropped_from"])
            else:
                key = group, entry.pop("shard")
                written[key] = _written(entry)
            size += len(line)
    return written, size


def _forget(written: dict[Key, Written], group: str, first: int) -> None:
    for key in [key for key in written if key[0] == group and key[1] >= first]:
        del written[key]


def _written(entry: dict[str, Any]) -> Written:
    skipped = tuple(Skipped(**of) for of in entry.pop("skipped"))
    # Journals of versions without missing= do not have this key.
    missing = MissingCounts(**entry.pop("missing", {}))
    rest = {key: _tuples(value) for key, value in entry.items()}
    return Written(**rest, skipped=skipped, missing=missing)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(member) for member in value) if isinstance(value, list) else value
