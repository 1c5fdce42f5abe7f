"""Raw binary files: samples of one dtype and shape, one after the other, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastload.errors import FormatError
from fastload.formats.dense import single_group
from fastload.formats.dtypes import dtype_name
from fastload.formats.extents import Extents
from fastload.formats.fields import Field
from fastload.formats.files import Paths, file_source
from fastload.formats.signatures import refuse_other_formats
from fastload.formats.structure import BARE_NAME
from fastload.formats.walk import with_suffix


def read_extents(paths: Paths, dtype: Any, shape: int | Sequence[int]) -> Extents:
    """Reads one raw file or several. A sample is a bare array, field `data`.

    Args:
        paths: A file, a folder of `.bin` files (in natural order) or a sequence of files.
        dtype: Dtype of the numbers, little-endian: a name such as "uint16", numpy's or torch's.
        shape: Shape of a sample, with or without a leading -1: `(3, 32, 32)`, `(-1, 1024)`,
            `1024`, `()` for samples that are single numbers.

    Raises:
        FormatError: the size of a file is no multiple of a sample's, or its first bytes are those
            of another format.
        ValueError: the dtype or shape is not supported.
        OSError: a file cannot be read.

    Example:
        >>> read_extents("tokens.bin", "uint16", (-1, 1024))  # doctest: +SKIP
    """
    field = Field(BARE_NAME, dtype_name(dtype), _sample_shape(shape))
    if field.row_bytes == 0:
        raise ValueError(f"samples of shape {field.shape} have no bytes to count in a raw file")
    sources = [file_source(path) for path in with_suffix(paths, ".bin")]
    for source in sources:
        refuse_other_formats(source, "raw numbers")
        if rest := source.size_bytes % field.row_bytes:
            raise FormatError(
                f"{source}: {source.size_bytes} bytes is not a multiple of {field.row_bytes}, the "
                f"size of a sample of {field}: {rest} bytes are left over"
            )
    rows = [source.size_bytes // field.row_bytes for source in sources]
    return single_group([field], rows, sources, [[0] * len(sources)], 0)


def _sample_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    lengths = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in lengths):
        raise ValueError(f"the shape of a sample must be integers, not {shape!r}")
    return tuple(int(n) for n in (lengths[1:] if lengths[:1] == (-1,) else lengths))
