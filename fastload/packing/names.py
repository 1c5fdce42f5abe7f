"""Writes the names of the files that encoded images were packed from."""

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

_ROWS = 1 << 14  # whose names are in memory at once


def write_names(
    source: Source, outcome: Outcome, folder: OutputFolder, number: int
) -> tuple[Names, ...]:
    """Writes the names of the samples that were written, in their order.

    Only for encoded images: other values are checked while they are packed, but an image may turn
    out to be damaged when it is decoded.

    Args:
        source: Of the samples.
        outcome: What was written of them.
        folder: Of the shards.
        number: Of the file.

    Returns:
        One entry; none if the source does not know the names, or has no encoded images.

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
    if written != outcome.rows:  # the input changed, and no name is certain
        return ()
    return (Names(outcome.rows, file),)


def _names(source: Source) -> Iterator[list[str]]:
    for start in range(0, source.rows, _ROWS):
        names = source.names(np.arange(start, min(start + _ROWS, source.rows)))
        yield list(names or ())
