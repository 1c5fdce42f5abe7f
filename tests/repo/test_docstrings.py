"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fastload

# The others want a package that is not installed here, or are a program.
MODULES = [
    module.name
    for module in pkgutil.walk_packages(fastload.__path__, "fastload.")
    if not module.name.startswith(("fastload.integrations.", "fastload.__main__"))
]
NAMES = {name: getattr(fastload, name) for name in fastload.__all__}


def test_examples_in_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    attempted = 0
    runner = doctest.DocTestRunner(verbose=False)
    for name in MODULES:
        module = importlib.import_module(name)
        names = {**NAMES, "np": np, "torch": torch, "fastload": fastload, **vars(module)}
        finder = doctest.DocTestFinder()
        examples = finder.find(module, globs=names)
        for public in vars(module).values():  # classes of other modules by their __module__
            if isinstance(public, type) and public.__module__ == "fastload" != name:
                examples += finder.find(public, f"{name}.{public.__name__}", False, globs=names)
        for example in examples:
            attempted += len(example.examples)
            runner.run(example, out=told.append)
    assert not told, "".join(told)
    assert attempted > 10
