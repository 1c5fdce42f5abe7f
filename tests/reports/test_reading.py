"""Files that are damaged, or are not what they are read as, are refused with the reason."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from prelude import put

import fastload
from fastload import FormatError


def test_bounds_that_leave_out_values_are_found_when_a_dataset_is_opened() -> None:
    fastload.pack([{"r": np.arange(3)}, {"r": np.arange(2)}], "out", workers=1)
    shard = Path("out/shard-000000.safetensors")
    bounds, cut = (np.array([0, 3, last]).tobytes() for last in (5, 4))
    content = shard.read_bytes()
    assert content.count(bounds) == 1
    shard.write_bytes(content.replace(bounds, cut))
    with pytest.raises(FormatError, match="field 'r': the first and the last bound are 0 and 4"):
        fastload.open("out", verify="open")


def test_a_compressed_file_is_no_raw_numbers_and_no_tokens() -> None:
    put("w.bin", gzip.compress(os.urandom(9999)))
    with pytest.raises(FormatError, match=r"w\.bin: is a gzip file"):
        fastload.open("w.bin", dtype="u1", shape=())
    with pytest.raises(FormatError, match=r"w\.bin: is a gzip file"):
        fastload.TokenDataset("w.bin", 8)
    with pytest.raises(FormatError, match=r"w\.bin: is a gzip file"):
        fastload.pack("w.bin", "out", kind="raw", dtype="u1", shape=())
