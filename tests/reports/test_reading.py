"""Files that are damaged, or are not what they are read as, are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
