"""Imports the package of an engine."""

from __future__ import annotations

import importlib
from types import ModuleType


def package(name: str, engine: str) -> ModuleType:
    """The package of an engine.

    Raises:
        ImportError: it is not there; the message says how to get it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"--engine {engine} needs {name}, which is not installed: pip install {name}"
        ) from error
