"""Inputs of records that are read one by one, from wherever they lie."""

from __future__ import annotations

import abc
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.columns import Int64Array
from fastload.formats.manifest import Skipped
from fastload.packing.cast import parse_casts
from fastload.packing.inputs.compressed import byte_of, drop_half_read, is_unpacked
from fastload.packing.inputs.images import ADVICE, BadRecordError
from fastload.packing.inputs.open_files import OpenFiles as OpenFiles
from fastload.packing.inputs.samples import SampleCollector, Schema
from fastload.packing.inputs.source import Advance, Part, Rows, Source, probed
from fastload.packing.inputs.wanted import AbsentError

_SAMPLE = re.compile(r"sample (\d+)")


class Records(abc.ABC):
    """Where samples lie; a few of them travel to the process that reads them.

    Attributes:
        encoding: Of the texts that are read; None is UTF-8.
    """

    encoding: str | None = None

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, row: int, files: OpenFiles) -> Any:
        """A sample: numbers, arrays, text and the like in containers.

        Raises:
            BadRecordError: it cannot be read, which can be left out.
            FormatError, OSError: nothing can be read from here on.
        """

    @abc.abstractmethod
    def where(self, row: int) -> str:
        """The file of a sample, and the place in it."""

    @abc.abstractmethod
    def name(self, row: int) -> str:
        """The same below the input folder, for the list of what was left out."""

    @abc.abstractmethod
    def take(self, rows: Int64Array) -> Records:
        """The samples at `rows`, in that order."""

    @abc.abstractmethod
    def files(self) -> Sequence[str]:
        """The files that are read."""

    def order(self) -> Int64Array | None:
        """The order in which the samples are best read; None if that is theirs."""
        return None

    def describe(self) -> Any:
        """Names and sizes of the files, in JSON's types."""
        return [[os.path.basename(path), os.path.getsize(path)] for path in self.files()]


class Decoder(abc.ABC):
    """Makes a sample of the bytes of a record; pickled to the process that does it."""

    @abc.abstractmethod
    def decode(self, content: bytes) -> Any:
        """The sample.

        Raises:
            BadRecordError: the bytes are not what they should be.
        """


@dataclass(frozen=True, eq=False)
class FileRecords(Records):
    """Ranges of files.

    Attributes:
        folder: The input, or the folder of its only file.
        paths: Of the files.
        numbers: int64 (samples): the file of each.
        offsets: int64 (samples): where each begins.
        sizes: int64 (samples): the bytes of each.
        counts: int64 (samples): the number of each in its file, as people count.
        decoder: Makes samples of the bytes.
        unit: What a record is called.
        encoding: As in `Records`.
        others: The decoders of files that need another one, by path.
    """

    folder: str
    paths: tuple[str, ...]
    numbers: Int64Array
    offsets: Int64Array
    sizes: Int64Array
    counts: Int64Array
    decoder: Decoder
    unit: str = "record"
    encoding: str | None = None
    others: Mapping[str, Decoder] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        folder: str,
        paths: Sequence[str],
        places: Sequence[tuple[Int64Array, Int64Array]],
        decoder: Decoder,
        unit: str = "record",
        counts: Sequence[Int64Array] | None = None,
        encoding: str | None = None,
    ) -> FileRecords:
        """The records of several files; of each, offsets and sizes. They count from 0."""
        lengths = [len(offsets) for offsets, _ in places]
        if counts is None:
            counts = [np.arange(length) for length in lengths]
        empty = np.zeros(0, np.int64)
        return cls(
            folder,
            tuple(paths),
            np.repeat(np.arange(len(paths)), lengths),
            np.concatenate([empty, *(offsets for offsets, _ in places)]),
            np.concatenate([empty, *(sizes for _, sizes in places)]),
            np.concatenate([empty, *counts]),
            decoder,
            unit,
            encoding,
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, row: int, files: OpenFiles) -> Any:
        """The sample that the file's decoder makes."""
        path = self.paths[self.numbers[row]]
        content = files.read(path, int(self.offsets[row]), int(self.sizes[row]))
        return self.others.get(path, self.decoder).decode(content)

    def where(self, row: int) -> str:
        """File, number and offset."""
        return os.path.join(self.folder, self.name(row))

    def name(self, row: int) -> str:
        """The same below the input folder."""
        path = os.path.relpath(self.paths[self.numbers[row]], self.folder)
        place = byte_of(path, self.offsets[row], self.encoding)
        return f"{path}: {self.unit} {self.counts[row]}, at {place}"

    def order(self) -> Int64Array | None:
        """Upwards, if files are compressed: going back there is to begin again."""
        if not any(is_unpacked(path, self.encoding) for path in self.paths):
            return None
        return np.lexsort((self.offsets, self.numbers))

    def take(self, rows: Int64Array) -> FileRecords:
        """The same with fewer files, too."""
        used, numbers = np.unique(self.numbers[rows], return_inverse=True)
        return replace(
            self,
            paths=tuple(self.paths[number] for number in used.tolist()),
            numbers=numbers,
            offsets=self.offsets[rows],
            sizes=self.sizes[rows],
            counts=self.counts[rows],
        )

    def files(self) -> Sequence[str]:
        """The files."""
        return self.paths


@dataclass(frozen=True)
class RecordsPart(Part):
    """Some records.

    Attributes:
        records: To read.
        indices: Their numbers in the input.
        schema: Of the samples.
        strict: A bad record is an error.
    """

    records: Records
    indices: Int64Array
    schema: Schema
    strict: bool

    def read(self, advance: Advance) -> Rows:
        """Reads the records one by one; bad ones are skipped.

        Raises:
            FormatError: a record differs from the others, or is bad and `strict` is set.
            OSError: a file cannot be read.
        """
        schema = self.schema
        samples = SampleCollector(
            schema.fields, schema.structure, len(self.records), dtypes=schema.dtypes
        )
        order, read = self.records.order(), []
        bad: dict[int, Skipped] = {}
        with OpenFiles(self.records.encoding) as files:
            for row in range(len(self.indices)) if order is None else order.tolist():
                try:
                    samples.add(read_or_missing(self.records, row, files), int(self.indices[row]))
                    read.append(row)
                except BadRecordError as error:
                    if self.strict:
                        raise FormatError(f"{self.records.where(row)}: {error}") from error
                    bad[row] = Skipped(self.records.name(row), str(error))
                except FormatError:
                    raise
                except (ValueError, TypeError, KeyError) as error:
                    raise _misfit(self.records.where(row), error) from error
                advance(1)
            files.leave()
        rows, places = samples.finish(), sorted(bad)
        if read != sorted(read):
            rows, read = rows.take(np.argsort(read)), sorted(read)
        return replace(
            rows,
            skipped=tuple(bad[row] for row in places),
            places=tuple(places),
            where=lambda row: self.records.where(read[row]),
        )


@dataclass(frozen=True, kw_only=True)
class RecordsSource(Source):
    """Records that are read one by one."""

    records: Records
    schema: Schema
    strict: bool
    shaping: dict[str, Any] = field(default_factory=dict)

    def part(self, start: int, stop: int) -> RecordsPart:
        """The samples [start, stop)."""
        return self.take(np.arange(start, stop))

    def take(self, indices: Int64Array) -> RecordsPart:
        """The samples at `indices`."""
        return RecordsPart(self.records.take(indices), indices, self.schema, self.strict)

    def names(self, indices: Int64Array) -> list[str]:
        """File and place of each."""
        return [self.records.name(index) for index in indices.tolist()]

    def paths(self) -> Sequence[str]:
        """The files."""
        return self.records.files()

    def inputs(self) -> Any:
        """What the records say of themselves."""
        return self.records.describe()

    def options(self) -> dict[str, Any]:
        """What shapes the samples."""
        return self.shaping

    def close(self) -> None:
        """Closes the files that threads would have gone on in."""
        drop_half_read(frozenset(self.paths()))


def open_records(
    kind: str,
    records: Records,
    *,
    strict: bool,
    dtypes: Mapping[str, Any] | None = None,
    ragged: Sequence[str] = (),
    images: Sequence[str] = (),
    names: Sequence[str] = (),
    classes: Mapping[str, tuple[str, ...]] | None = None,
    notices: Sequence[str] = (),
    shaping: Mapping[str, Any] | None = None,
) -> RecordsSource:
    """Takes the schema of records from some of them.

    Args:
        kind: Of the input.
        records: All of them.
        strict: A bad record is an error.
        dtypes: The dtypes of numbers that the records do not fix, by the names of fields.
        ragged: The names of fields that vary in length, whether or not some samples show it.
        images: The names of fields of decoded images, which must be of one size.
        names: Of the fields, where the records do not name them.
        classes: As in `Source`.
        notices: As in `Source`.
        shaping: The options that shape the output, in JSON's types.

    Raises:
        FormatError: there is no record, none can be read, or they differ.
    """
    if not len(records):
        raise FormatError(f"{', '.join(records.files()[:1])}: no {kind} records in it")
    known = parse_casts("dtypes", dtypes)
    samples, indices, bad, absent = [], [], [], []
    with OpenFiles(records.encoding) as files:
        for row in probed(len(records)):
            try:
                samples.append(records.read(row, files))
                indices.append(row)
            except AbsentError as error:
                samples.append(None)
                indices.append(row)
                absent.append(error)
            except BadRecordError as error:
                bad.append(f"{records.where(row)}: {error}")
                if strict:
                    raise FormatError(bad[0]) from error
            except FormatError:
                raise
            except (ValueError, TypeError, KeyError) as error:
                raise _misfit(records.where(row), error) from error
    if absent and len(absent) == len(samples):
        raise _misfit(records.where(indices[0]), absent[0]) from None
    if not samples:
        raise FormatError(
            f"none of {len(bad)} {kind} records that were looked at can be read; the "
            f"first is {bad[0]}"
        )
    try:
        schema = Schema.of(samples, indices, known, ragged)
    except (ValueError, TypeError, KeyError) as error:
        named = _SAMPLE.match(str(error.args[0]))
        misfit = _misfit(records.where(int(named[1]) if named else indices[0]), error)
        if any(f"field {name!r} is uint8" in str(misfit) for name in images):
            raise FormatError(f"{misfit}: images differ in size; {ADVICE}") from error
        raise misfit from error
    for of in schema.fields:
        if of.name in images and of.ragged:
            raise FormatError(f"{records.files()[0]}: images {of.name!r} differ in size; {ADVICE}")
    if names:
        renamed = (replace(of, name=name) for of, name in zip(schema.fields, names, strict=True))
        of_names = dict(zip((of.name for of in schema.fields), names, strict=True))
        schema = replace(
            schema,
            fields=tuple(renamed),
            seen={of_names[name]: row for name, row in schema.seen.items()},
            unknown=frozenset(of_names[name] for name in schema.unknown),
        )
    return RecordsSource(
        kind=kind,
        fields=schema.fields,
        structure=schema.structure,
        rows=len(records),
        classes=dict(classes or {}),
        notices=tuple(notices),
        ragged_bytes=schema.ragged_bytes,
        nullable=True,
        seen={name: records.where(row) for name, row in schema.seen.items()},
        unknown=schema.unknown,
        records=records,
        schema=schema,
        strict=strict,
        shaping={
            **({"dtypes": known} if known else {}),
            **({"ragged": list(ragged)} if ragged else {}),
            **(shaping or {}),
        },
    )


def read_or_missing(records: Records, row: int, files: OpenFiles) -> Any:
    """A sample; None if it has none of the fields that are read."""
    try:
        return records.read(row, files)
    except AbsentError:
        return None


def _misfit(where: str, error: Exception) -> FormatError:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return FormatError(f"{where}: {text}")
