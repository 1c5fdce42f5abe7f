"""A few hundred of the mutations of tests/fuzz, without sanitizers."""

from __future__ import annotations

import importlib.util
import random
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from paths import TESTS

import fastload

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    path = TESTS / "fuzz/mutate_shards.py"
    spec = importlib.util.spec_from_file_location("mutate_shards", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_damaged_shards_are_refused_and_nothing_worse(fuzz: ModuleType) -> None:
    refused = fuzz.run(first=20_000, count=100, seed=1)
    assert refused > 50


def test_the_sound_seeds_are_read_in_every_way(fuzz: ModuleType, tmp_path: Path) -> None:
    for seed in fuzz.write_seeds(tmp_path):
        assert fuzz.read(seed, random.Random(0)) == 0


def test_mutated_manifests_are_believed_now_and_then(fuzz: ModuleType, tmp_path: Path) -> None:
    """The mutations get past the fingerprint; else they would test nothing but that."""
    fastload.pack({"x": np.arange(3), "text": ["a", "", "c"]}, tmp_path / "seed")
    opened = mistrusted = 0
    for number in range(200):
        choose = random.Random(number)
        case = Path(shutil.copytree(tmp_path / "seed", tmp_path / f"case{number}"))
        fuzz.mutate_manifest(case / "fastload.json", choose)
        try:
            fastload.open(case)
            opened += 1
        except fastload.FormatError as error:
            mistrusted += "fingerprint" in str(error)
    assert opened > 5
    assert mistrusted < 20
