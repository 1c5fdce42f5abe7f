"""Imports the package of an engine."""

from __future__ import annotations

import importlib
from types import ModuleType


def package(name: str, engine: str) -> ModuleType:
    """Imports and returns the package of an engine.

    Raises:
        ImportError: the package is not installed; the message names the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"--engine {engine} needs {name}, which is not installed: pip install {name}"
        ) from error
