"""LMDB environments: keys and values in the order of the keys."""

from __future__ import annotations

import functools
import importlib
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastload.errors import FormatError
from fastload.formats.extents import Int64Array
from fastload.pack.inventory import Inventory, Names
from fastload.pack.sources.images import BadRecordError
from fastload.pack.sources.kind import RAGGED, Kind, Option, library
from fastload.pack.sources.latest import latest, new_opening
from fastload.pack.sources.records import OpenFiles, Records, RecordsSource, open_records
from fastload.pack.sources.wanted import ALL, Wanted

_DATA = "data.mdb"
_LONGEST_NAME = 100
_MAGIC = slice(16, 20), b"\xde\xc0\xef\xbe"


@dataclass(frozen=True, eq=False)
class Entries(Records):
    """Entries of an environment.

    Attributes:
        path: Of the folder or file.
        keys: In their order.
        decoder: `module:function` of key and value, or None.
        opening: Of the environment.
        wanted: The fields of the decoder's samples that are read.
    """

    path: str
    keys: tuple[bytes, ...]
    decoder: str | None
    opening: str
    wanted: Wanted = ALL

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, row: int, files: OpenFiles) -> Any:
        """A dict of key and value, or what the decoder makes of them."""
        key = self.keys[row]
        lmdb = library("lmdb", "lmdb")
        try:
            with _environment(self.path, self.opening).begin() as transaction:
                value = transaction.get(key)
        except lmdb.Error as error:
            raise FormatError(f"{self.where(row)}: {error}") from error
        if value is None:
            raise FormatError(f"{self.where(row)}: the entry is gone")
        if self.decoder is None:
            return {"key": key, "value": value}
        try:
            sample = _decoder(self.decoder)(key, value)
        except Exception as error:  # whatever the user's function raises
            raise BadRecordError(f"{self.decoder}: {type(error).__name__}: {error}") from error
        return self.wanted.prune(sample)

    def where(self, row: int) -> str:
        """The environment and the key."""
        return f"{self.path}: {self.name(row)}"

    def name(self, row: int) -> str:
        """The key."""
        return f"key {self.keys[row]!r}"[:_LONGEST_NAME]

    def take(self, rows: Int64Array) -> Entries:
        """The entries at `rows`."""
        return replace(self, keys=tuple(self.keys[row] for row in rows.tolist()))

    def files(self) -> Sequence[str]:
        """The file of the data."""
        is_folder = os.path.isdir(self.path)
        return [os.path.join(self.path, _DATA) if is_folder else self.path]


@latest
def _environment(path: str, opening: str) -> Any:
    lmdb = library("lmdb", "lmdb")
    return lmdb.open(
        path, subdir=os.path.isdir(path), readonly=True, lock=False, readahead=False, create=False
    )


@functools.lru_cache(maxsize=1)
def _decoder(name: str) -> Callable[[bytes, bytes], Any]:
    module, _, path = name.partition(":")
    found: Any = operator.attrgetter(path)(importlib.import_module(module))
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}, not a function")
    made: Callable[[bytes, bytes], Any] = found
    return made


def open_lmdb(
    inventory: Inventory,
    *,
    decoder: str | None = None,
    ragged: Sequence[str] = (),
    strict: bool = False,
    wanted: Wanted = ALL,
) -> RecordsSource:
    """The entries of an environment, in the order of their keys.

    A sample is `{"key": bytes, "value": bytes}`, or what `decoder` makes of the two.

    Args:
        inventory: The folder of `data.mdb`, or a file.
        decoder: A function of key and value as `module:function`, found by each process.
        ragged: Fields that vary in length, though the entries that were looked at do not.
        strict: An entry for which the decoder raises is an error.
        wanted: The fields that are read.

    Raises:
        FormatError: the environment is damaged or truncated.
        ImportError, AttributeError: there is no such function, or lmdb is not installed.
    """
    lmdb = library("lmdb", "lmdb")
    full = inventory.path
    inventory.need_files()
    if decoder is not None:
        _decoder(decoder)
    opening = new_opening()
    try:
        environment = _environment(full, opening)
        _check_size(full, environment)
        with environment.begin() as transaction:
            with transaction.cursor() as cursor:
                keys = tuple(cursor.iternext(keys=True, values=False))
            count = transaction.stat()["entries"]
    except lmdb.Error as error:
        raise FormatError(f"{full}: no LMDB environment, or a damaged one: {error}") from error
    if len(keys) != count:
        raise FormatError(f"{full}: says that it has {count} entries, but {len(keys)} are there")
    shaping = {} if decoder is None else {"decoder": decoder}
    records = Entries(full, keys, decoder, opening, wanted)
    try:
        return open_records("lmdb", records, strict=strict, ragged=ragged, shaping=shaping)
    except BaseException:
        _environment.forget()
        environment.close()  # the error holds it, but a process can open an environment only once
        raise


def _check_size(path: str, environment: Any) -> None:
    """Raises FormatError for a file that ends before its last page: reading there is a crash."""
    file = os.path.join(path, _DATA) if os.path.isdir(path) else path
    needs = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    size = os.path.getsize(file)
    if size < needs:
        raise FormatError(f"{file}: truncated: {size} bytes, but its pages need {needs}")


def _detects(path: Inventory) -> bool:
    return path.is_folder or path.start[_MAGIC[0]] == _MAGIC[1]


KIND = Kind(
    "lmdb",
    "an LMDB environment: dicts of key and value, or what a --decoder makes of them",
    open_lmdb,
    _detects,
    (Option("decoder", "module:function of key and value"), RAGGED),
    ("lmdb",),
    "lmdb",
    Names(names=(_DATA,), companions=("lock.mdb",), nested=False),
)
