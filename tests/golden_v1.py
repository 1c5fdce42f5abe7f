"""The input of tests/golden/v1/samples, which is read for ever and never written again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

ROWS = 19


def arrays() -> Any:
    """Every dtype, with values that are exact in it."""
    count = np.arange(ROWS)
    fields: dict[str, Any] = {
        "image": (count[:, None, None, None] + np.arange(18).reshape(2, 3, 3)).astype("u1"),
        "label": count * 10**12 - 5,
        "flag": count % 3 == 0,
        "pair": (count.astype("f2"), [count / 4, count.astype("f4") * 1.5]),
        "z": {"c64": (count + 2j).astype("c8"), "c128": np.stack([count - 1j, 1j * count], 1)},
        "bf16": torch.arange(ROWS, dtype=torch.bfloat16),
        "fp8": torch.arange(ROWS, dtype=torch.float32).to(torch.float8_e4m3fn),
        "empty": np.zeros((ROWS, 0), "u1"),
    }
    for name in ("u2", "u4", "u8", "i1", "i2", "i4"):
        fields[name] = np.array(np.iinfo(name).max, name) - count.astype(name)
    return fields
