"""The public surface as JSON: names, keyword names, command lines, keys of stats and states."""

from __future__ import annotations

import argparse
import contextlib
import inspect
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

import fastload
from fastload.cli import main

COMMANDS = ["pack", "info", "head", "append", "add-column", "merge", "export", "verify"]
COMMANDS += ["bench", "doctor", "report", "demo"]


def surface() -> dict[str, Any]:
    """Public names and parameters, command line options, keys of stats and states."""
    names = sorted({*fastload.__all__, "open"} - {"__version__"})
    loader = fastload.FastLoader(fastload.ArrayDataset(np.arange(8)), 2, num_workers=0)
    list(loader)
    return {
        "signatures": {
            key: parameters
            for name in names
            for key, parameters in _signatures(name, getattr(fastload, name)).items()
        },
        "commands": {command: _options(command) for command in COMMANDS},
        "stats": sorted(loader.stats()),
        "state": sorted(loader.state_dict()),
        "seeded state": sorted(fastload.FastLoader(range(8), seed=1).state_dict()),
    }


def _signatures(name: str, value: Any) -> dict[str, list[str]]:
    if inspect.isclass(value) and issubclass(value, Exception):
        return {name: [base.__name__ for base in value.__mro__[1:]]}
    found = {name: _parameters(value)}
    if inspect.isclass(value):
        for member, function in inspect.getmembers(value):
            own = "fastload" in (getattr(function, "__module__", None) or "")
            if own and not member.startswith("_") and inspect.isroutine(function):
                found[f"{name}.{member}"] = _parameters(function)
    return found


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names of parameters, with `=` if they have a default; keyword-only ones behind `*`."""
    found: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        found.append(name if parameter.default is parameter.empty else f"{name}=")
    return found


class _Parsed(Exception):
    pass


def _options(command: str) -> list[str]:
    found: list[argparse.ArgumentParser] = []

    def stop(parser: argparse.ArgumentParser, *_: Any) -> Any:
        found.append(parser)
        raise _Parsed

    with patch.object(argparse.ArgumentParser, "parse_args", stop), contextlib.suppress(_Parsed):
        main([command])
    subparsers = [
        action for action in found[0]._actions if isinstance(action, argparse._SubParsersAction)
    ]
    return sorted(
        name
        for action in subparsers[0].choices[command]._actions
        for name in (action.option_strings or [action.dest])
    )
