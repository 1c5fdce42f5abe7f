"""All tests of this folder need a GPU."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def device(real_gpu: torch.device) -> torch.device:
    """The GPU."""
    return real_gpu
