"""Writes the file names of encoded images."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from fastload.formats.fields import IMAGE
from fastload.formats.original_names import NAMES_FILE, Names
from fastload.packing.inputs.source import Source
from fastload.packing.output.files import new_file, write_all
from fastload.packing.output.folder import OutputFolder
from fastload.packing.shards import Outcome

_ROWS = 1 << 14  # number of names in memory at a time


def write_names(
    source: Source, outcome: Outcome, folder: OutputFolder, number: int
) -> tuple[Names, ...]:
    """Writes the original file names of the packed samples, in the order of the samples.

    Names are written only for encoded images, so that an image that cannot be decoded later can be
    named. Other values are checked while they are packed.

    Args:
        source: Source of the samples.
        outcome: Result of writing its shards.
        folder: Folder of the shards.
        number: Number of the file of names.

    Returns:
        One entry; none if the source has no names or no encoded images.

    Raises:
        OSError: the file cannot be written.
    """
    if not any(field.logical == IMAGE for field in source.fields) or not outcome.rows:
        return ()
    if source.names(np.zeros(0, np.int64)) is None:
        return ()
    file = NAMES_FILE.replace("{:06d}", f"{number:06d}")
    left_out = {skipped.path for skipped in outcome.skipped}
    written = 0
    path = folder.shard(NAMES_FILE, number)
    with new_file(path) as descriptor:
        row = 0
        for names in _names(source):
            kept = [
                name
                for index, name in enumerate(names, row)
                if name not in left_out and index not in outcome.left_out
            ]
            row += len(names)
            text = "".join(f"{json.dumps(name)}\n" for name in kept)
            write_all(descriptor, memoryview(text.encode("ascii")))
            written += len(kept)
    if written != outcome.rows:  # the input changed, so the names may be wrong
        return ()
    return (Names(outcome.rows, file),)


def _names(source: Source) -> Iterator[list[str]]:
    for start in range(0, source.rows, _ROWS):
        names = source.names(np.arange(start, min(start + _ROWS, source.rows)))
        yield list(names or ())
