"""Inputs of records that are read one by one."""

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
    """Locations of samples; pickled, for the rows of a part, to the process that reads them.

    Attributes:
        encoding: Encoding of the texts; None is UTF-8.
    """

    encoding: str | None = None

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, row: int, files: OpenFiles) -> Any:
        """Returns a sample: numbers, arrays, text and other leaves in containers.

        Raises:
            BadRecordError: the record cannot be read; it may be left out.
            FormatError, OSError: this record and those after it cannot be read.
        """

    @abc.abstractmethod
    def where(self, row: int) -> str:
        """Returns file and location of a sample, for errors."""

    @abc.abstractmethod
    def name(self, row: int) -> str:
        """Returns file and location of a sample relative to the input folder, as in `Skipped`."""

    @abc.abstractmethod
    def take(self, rows: Int64Array) -> Records:
        """Returns the records at `rows`, in that order."""

    @abc.abstractmethod
    def files(self) -> Sequence[str]:
        """Returns the files that are read."""

    def order(self) -> Int64Array | None:
        """Returns the order in which reading is fastest; None for the current order."""
        return None

    def describe(self) -> Any:
        """Returns names and sizes of the files in JSON types."""
        return [[os.path.basename(path), os.path.getsize(path)] for path in self.files()]


class Decoder(abc.ABC):
    """Decodes the bytes of a record; pickled to the process that reads it."""

    @abc.abstractmethod
    def decode(self, content: bytes) -> Any:
        """Returns the sample.

        Raises:
            BadRecordError: the bytes are invalid.
        """


@dataclass(frozen=True, eq=False)
class FileRecords(Records):
    """Records that are ranges of files.

    Attributes:
        folder: Input folder, or the folder of the only file.
        paths: Paths of the files.
        numbers: int64 (samples,), index of each sample's file in `paths`.
        offsets: int64 (samples,), offset of each sample in its file.
        sizes: int64 (samples,), size of each sample in bytes.
        counts: int64 (samples,), number of each sample in its file, for messages.
        decoder: Decoder of the bytes.
        unit: Word for a record in messages.
        encoding: As in `Records`.
        others: Decoders of files that need a different one, by path.
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
        ranges: Sequence[tuple[Int64Array, Int64Array]],
        decoder: Decoder,
        unit: str = "record",
        counts: Sequence[Int64Array] | None = None,
        encoding: str | None = None,
    ) -> FileRecords:
        """Returns the records of several files.

        Args:
            folder: As the attribute.
            paths: Paths of the files.
            ranges: For each file the offsets and sizes of its records, int64 (records,) each.
            decoder: As the attribute.
            unit: As the attribute.
            counts: For each file the numbers of its records; None numbers them from 0.
            encoding: As the attribute.
        """
        lengths = [len(offsets) for offsets, _ in ranges]
        if counts is None:
            counts = [np.arange(length) for length in lengths]
        empty = np.zeros(0, np.int64)
        return cls(
            folder,
            tuple(paths),
            np.repeat(np.arange(len(paths)), lengths),
            np.concatenate([empty, *(offsets for offsets, _ in ranges)]),
            np.concatenate([empty, *(sizes for _, sizes in ranges)]),
            np.concatenate([empty, *counts]),
            decoder,
            unit,
            encoding,
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, row: int, files: OpenFiles) -> Any:
        """Returns the sample as decoded by the decoder of its file."""
        path = self.paths[self.numbers[row]]
        content = files.read(path, int(self.offsets[row]), int(self.sizes[row]))
        return self.others.get(path, self.decoder).decode(content)

    def where(self, row: int) -> str:
        """Returns path, number and offset of a sample."""
        return os.path.join(self.folder, self.name(row))

    def name(self, row: int) -> str:
        """Returns relative path, number and offset of a sample."""
        path = os.path.relpath(self.paths[self.numbers[row]], self.folder)
        location = byte_of(path, self.offsets[row], self.encoding)
        return f"{path}: {self.unit} {self.counts[row]}, at {location}"

    def order(self) -> Int64Array | None:
        """Returns ascending offsets if files are compressed, since going back is slow."""
        if not any(is_unpacked(path, self.encoding) for path in self.paths):
            return None
        return np.lexsort((self.offsets, self.numbers))

    def take(self, rows: Int64Array) -> FileRecords:
        """Returns the records at `rows`, with only the files that they need."""
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
        """Returns the files."""
        return self.paths


@dataclass(frozen=True)
class RecordsPart(Part):
    """Some records of an input.

    Attributes:
        records: Records to read.
        indices: int64, their numbers in the input.
        schema: Schema of the samples.
        strict: True if a bad record raises.
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
        rows, left_out = samples.finish(), sorted(bad)
        if read != sorted(read):
            rows, read = rows.take(np.argsort(read)), sorted(read)
        return replace(
            rows,
            skipped=tuple(bad[row] for row in left_out),
            left_out=tuple(left_out),
            where=lambda row: self.records.where(read[row]),
        )


@dataclass(frozen=True, kw_only=True)
class RecordsSource(Source):
    """Source of records that are read one by one."""

    records: Records
    schema: Schema
    strict: bool
    shaping: dict[str, Any] = field(default_factory=dict)

    def part(self, start: int, stop: int) -> RecordsPart:
        """Returns the samples [start, stop)."""
        return self.take(np.arange(start, stop))

    def take(self, indices: Int64Array) -> RecordsPart:
        """Returns the samples at `indices`."""
        return RecordsPart(self.records.take(indices), indices, self.schema, self.strict)

    def names(self, indices: Int64Array) -> list[str]:
        """Returns file and location of each sample."""
        return [self.records.name(index) for index in indices.tolist()]

    def paths(self) -> Sequence[str]:
        """Returns the files."""
        return self.records.files()

    def inputs(self) -> Any:
        """Returns the description of the records."""
        return self.records.describe()

    def options(self) -> dict[str, Any]:
        """Returns the options that shape the samples."""
        return self.shaping

    def close(self) -> None:
        """Closes the files that threads keep open between parts."""
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
    """Opens records; the schema is that of up to 64 probed records.

    Args:
        kind: Input kind.
        records: All records.
        strict: True if a bad record raises.
        dtypes: Dtypes of numbers whose dtype the input does not define, by field name.
        ragged: Names of fields that are ragged even if the probed samples have equal lengths.
        images: Names of fields of decoded images, which must have equal sizes.
        names: Names of the fields, if the records do not name them.
        classes: As in `Source`.
        notices: As in `Source`.
        shaping: Options that shape the output, in JSON types.

    Raises:
        FormatError: there are no records, no probed record can be read, or they differ.
    """
    if not len(records):
        raise FormatError(f"{', '.join(records.files()[:1])}: there are no {kind} records")
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
            f"none of {len(bad)} probed {kind} records can be read; the first is {bad[0]}"
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
    """Returns a sample; None if it has none of the fields to read."""
    try:
        return records.read(row, files)
    except AbsentError:
        return None


def _misfit(where: str, error: Exception) -> FormatError:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return FormatError(f"{where}: {text}")
