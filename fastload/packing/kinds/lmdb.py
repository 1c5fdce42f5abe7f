"""LMDB environments: keys and values in the order of the keys."""

from __future__ import annotations

import functools
import importlib
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.packing.inputs.half_read import latest, new_opening
from fastload.packing.inputs.images import BadRecordError
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.kind import RAGGED, Kind, Option, library
from fastload.packing.inputs.open_files import OpenFiles
from fastload.packing.inputs.records import Records, RecordsSource, open_records
from fastload.packing.inputs.wanted import ALL, Wanted

_DATA = "data.mdb"
_MAX_NAME_CHARS = 100
_MAX_DATABASES = 128  # that can be open; each costs a transaction some memory
_MAX_SHOWN = 20
_DEEPEST, _NO_PAGE = 32, 2**64 - 1
# How an environment describes a database in it.
_DATABASE = np.dtype(
    [("pad", "<u4"), ("flags", "<u2"), ("depth", "<u2"), ("pages", "<u8", 4), ("root", "<u8")]
)
_MAGIC = slice(16, 20), b"\xde\xc0\xef\xbe"


@dataclass(frozen=True, eq=False)
class Entries(Records):
    """Entries of an environment.

    Attributes:
        path: Path of the folder or file.
        keys: In their order.
        decoder: `module:function` of key and value, or None.
        opening: Identifies this opening of the environment, for caches of a process.
        database: The name of the one that is read; None for the main one.
        wanted: The fields of the decoder's samples that are read.
    """

    path: str
    keys: tuple[bytes, ...]
    decoder: str | None
    opening: str
    database: str | None
    wanted: Wanted = ALL

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, row: int, files: OpenFiles) -> Any:
        """Returns a dict of key and value, or the result of the decoder."""
        key = self.keys[row]
        lmdb = library("lmdb", "lmdb")
        try:
            with _opened(self.path, self.opening, self.database).begin() as transaction:
                value = transaction.get(key)
        except lmdb.Error as error:
            raise FormatError(f"{self.where(row)}: {error}") from error
        if value is None:
            raise FormatError(f"{self.where(row)}: the entry is gone")
        if self.decoder is None:
            return {"key": key, "value": value}
        try:
            sample = _decoder(self.decoder)(key, value)
        except Exception as error:  # the user's function may raise any exception
            raise BadRecordError(f"{self.decoder}: {type(error).__name__}: {error}") from error
        return self.wanted.prune(sample)

    def where(self, row: int) -> str:
        """The environment and the key."""
        return f"{self.path}: {self.name(row)}"

    def name(self, row: int) -> str:
        """The key."""
        return f"key {self.keys[row]!r}"[:_MAX_NAME_CHARS]

    def take(self, rows: Int64Array) -> Entries:
        """The entries at `rows`."""
        return replace(self, keys=tuple(self.keys[row] for row in rows.tolist()))

    def files(self) -> Sequence[str]:
        """The file of the data."""
        is_folder = os.path.isdir(self.path)
        return [os.path.join(self.path, _DATA) if is_folder else self.path]


@dataclass(frozen=True)
class _Opened:
    """An environment, and the handle of its database that is read (None: the main one)."""

    environment: Any
    handle: Any

    def begin(self) -> Any:
        """A transaction that reads the database."""
        return self.environment.begin(db=self.handle, buffers=False)


@latest
def _opened(path: str, opening: str, database: str | None) -> _Opened:
    """Raises ValueError if there is no such database."""
    lmdb = library("lmdb", "lmdb")
    environment = lmdb.open(
        path,
        subdir=os.path.isdir(path),
        readonly=True,
        lock=False,
        readahead=False,
        create=False,
        max_dbs=_MAX_DATABASES,
    )
    try:
        _check_size(path, environment)
        if database is None:
            return _Opened(environment, None)
        return _Opened(environment, environment.open_db(os.fsencode(database), create=False))
    except (lmdb.NotFoundError, lmdb.IncompatibleError):
        names = ", ".join(map(_shown, _named(lmdb, environment))) or "none"
        environment.close()
        raise ValueError(f"{path}: has no database {database!r}; there are: {names}") from None
    except BaseException:
        environment.close()
        raise


def _named(lmdb: Any, environment: Any) -> list[bytes]:
    """Returns the names of the databases in an environment."""
    last_page, found = environment.info()["last_pgno"], []
    with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
        for key, value in cursor:
            # The value describes a database, which only opening the database confirms.
            if len(value) == _DATABASE.itemsize:
                entry = np.frombuffer(value, _DATABASE)[0]
                root = int(entry["root"])
                if entry["depth"] <= _DEEPEST and (root <= last_page or root == _NO_PAGE):
                    found.append(bytes(key))
    named = []
    for name in found:
        try:
            environment.open_db(name, create=False)
        except (lmdb.IncompatibleError, lmdb.NotFoundError):
            continue
        except lmdb.DbsFullError:
            pass  # more than can be open, of a kind that could be opened so far
        named.append(name)
    return named


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _check_databases(
    lmdb: Any, opened: _Opened, inventory: Inventory, database: str | None
) -> None:
    """Notes the databases that are not read.

    Raises:
        FormatError: no database was chosen of several, or keys have more than one value.
    """
    named = _named(lmdb, opened.environment)
    names = list(map(_shown, named))
    if named and database is None:
        raise FormatError(
            f"{inventory.path}: holds named databases: {', '.join(names[:_MAX_SHOWN])}; "
            "--database NAME (database=) chooses one"
        )
    with opened.environment.begin() as transaction:
        handle = opened.handle or opened.environment.open_db(None)
        if handle.flags(transaction)["dupsort"]:
            raise FormatError(f"{inventory.path}: keys with several values (dupsort) are not read")
    if database is None:
        return
    file = _DATA if inventory.is_folder else os.path.basename(inventory.path)
    for name in names:
        if name != database:
            inventory.leave(f"{file}: {name}", "a database that was not chosen")
    known = set(named)
    with opened.environment.begin() as transaction, transaction.cursor() as cursor:
        for key in cursor.iternext(keys=True, values=False):
            if key not in known:
                shown = f"{file}: key {key!r}"[:_MAX_NAME_CHARS]
                inventory.leave(shown, "an entry outside of the chosen database")


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
    database: str | None = None,
    decoder: str | None = None,
    ragged: Sequence[str] = (),
    strict: bool = False,
    wanted: Wanted = ALL,
) -> RecordsSource:
    """Opens an environment; its entries are in the order of their keys.

    A sample is `{"key": bytes, "value": bytes}`, or what `decoder` makes of the two.

    Args:
        inventory: The folder of `data.mdb`, or a file.
        database: The name of one of the databases in it.
        decoder: A function of key and value as `module:function`, found by each process.
        ragged: Fields that vary in length, though the entries that were checked do not.
        strict: An entry for which the decoder raises is an error.
        wanted: The fields that are read.

    Raises:
        FormatError: the environment is damaged or truncated, holds named databases of which none
            was chosen, or keys with several values.
        ValueError: there is no database of this name.
        ImportError, AttributeError: there is no such function, or lmdb is not installed.
    """
    lmdb = library("lmdb", "lmdb")
    full = inventory.path
    inventory.need_files()
    if decoder is not None:
        _decoder(decoder)
    opening = new_opening()
    try:
        opened = _opened(full, opening, database)
        try:
            _check_databases(lmdb, opened, inventory, database)
        except BaseException:
            _close(opened)
            raise
        with opened.begin() as transaction:
            with transaction.cursor() as cursor:
                keys = tuple(cursor.iternext(keys=True, values=False))
            handle = (opened.handle,) if opened.handle is not None else ()
            count = transaction.stat(*handle)["entries"]
    except lmdb.Error as error:
        raise FormatError(f"{full}: no LMDB environment, or a damaged one: {error}") from error
    if len(keys) != count:
        raise FormatError(f"{full}: says that it has {count} entries, but {len(keys)} are there")
    shaping = {"database": database, "decoder": decoder}
    shaping = {name: value for name, value in shaping.items() if value is not None}
    records = Entries(full, keys, decoder, opening, database, wanted)
    try:
        return open_records("lmdb", records, strict=strict, ragged=ragged, shaping=shaping)
    except BaseException:
        _close(opened)
        raise


def _close(opened: _Opened) -> None:
    """Closes an environment after an error, since a process can open it only once."""
    _opened.forget()
    opened.environment.close()


def _check_size(path: str, environment: Any) -> None:
    """Raises FormatError for a file that ends before its last page; reading that would crash."""
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
    (
        Option("database", "name of a database in the LMDB environment"),
        Option("decoder", "module:function that turns key and value into a sample"),
        RAGGED,
    ),
    ("lmdb",),
    "lmdb",
    Names(names=(_DATA,), companions=("lock.mdb",), nested=False),
)
