"""JSON that any reader takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fastload.formats import strict_json


def refuse(token: str) -> Any:
    raise AssertionError(f"{token} is not JSON")


def test_what_is_not_finite_is_null_at_any_depth() -> None:
    bad = (float("nan"), float("inf"), -float("inf"), np.float32("nan"), np.float64("inf"))
    text = strict_json.dumps({"a": list(bad), "b": {"c": bad}, "d": 0.5, "e": None, "f": "NaN"})
    found = json.loads(text, parse_constant=refuse)
    assert found == {"a": [None] * 5, "b": {"c": [None] * 5}, "d": 0.5, "e": None, "f": "NaN"}


def test_numbers_of_numpy_and_paths_are_written() -> None:
    values = {"i": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True), "p": Path("a")}
    assert json.loads(strict_json.dumps(values)) == {"i": 3, "f": 0.5, "b": True, "p": "a"}


def test_finite_values_are_written_as_json_does() -> None:
    value = {"x": [1, -0.0, 1e308, 5e-324, True, None, "é"], "y": {}, "z": []}
    for indent in (None, 1):
        assert strict_json.dumps(value, indent=indent) == json.dumps(value, indent=indent)
