"""What `suites.py` puts into the processes of other people's suites.

Each Python process calls `substitute` when it starts; pytest takes this module as a plugin, which
writes one line of JSON for each case that begins and for each that ends. It does not import pytest:
most of these processes are workers.
"""

from __future__ import annotations

import collections
import faulthandler
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

REPORT, LIMIT, LIBRARY = "SUITES_REPORT", "SUITES_LIMIT", "SUITES_LIBRARY"
PATIENCE = "SUITES_PATIENCE"


def substitute() -> None:
    """Puts FastLoader where programs look for a DataLoader."""
    if "resource_tracker" in " ".join(sys.orig_argv):
        return  # a helper process of multiprocessing, which loads nothing
    torch_data = importlib.import_module("torch.utils.data")
    loader = importlib.import_module("fastload.loader.loader").FastLoader
    if os.environ[LIBRARY] == "torchdata":
        importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader = _stateful(
            loader
        )
    torch_data.DataLoader = torch_data.dataloader.DataLoader = loader


def _stateful(loader: Any) -> type:
    class StatefulDataLoader(loader[Any]):  # type: ignore[misc]
        """Takes the one argument more that torchdata's has: snapshots cost nothing here."""

        def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    # Processes that unpickle one look here.
    StatefulDataLoader.__module__ = "torchdata.stateful_dataloader"
    StatefulDataLoader.__qualname__ = "StatefulDataLoader"
    return StatefulDataLoader


_iterators: collections.Counter[str] = collections.Counter()
_problems: dict[str, str] = {}
_skipped: dict[str, str] = {}


def pytest_configure() -> None:
    """Counts the iterators that are made in this process."""
    torch_data = importlib.import_module("torch.utils.data")
    native = importlib.import_module("fastload.loader.native_iterator")._NativeIterator
    assert torch_data.DataLoader is importlib.import_module("fastload.loader.loader").FastLoader
    native._set_up = _counted(native._set_up, "native")
    base = torch_data.dataloader._BaseDataLoaderIter
    base.__init__ = _counted(base.__init__, "torch")


def _counted(method: Callable[..., Any], kind: str) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        _iterators[kind] += 1
        return method(*args, **kwargs)

    return counted


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Gives torch's suite more seconds to wait for its processes, on a machine that is busy."""
    for module in {getattr(item, "module", None) for item in items}:
        if hasattr(module, "JOIN_TIMEOUT"):
            module.JOIN_TIMEOUT *= float(os.environ[PATIENCE])


def pytest_runtest_logstart(nodeid: str) -> None:
    """Notes that a case begins; one that takes too long ends the process."""
    _iterators.clear()
    _write({"case": nodeid})
    faulthandler.dump_traceback_later(float(os.environ[LIMIT]), exit=True, file=sys.__stderr__)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Notes how a case has ended."""
    faulthandler.cancel_dump_traceback_later()
    problem, skipped = _problems.pop(nodeid, None), _skipped.pop(nodeid, None)
    outcome = "failed" if problem else "skipped" if skipped is not None else "passed"
    _write({"case": nodeid, "outcome": outcome, "detail": problem or skipped or "", **_iterators})


def pytest_runtest_logreport(report: Any) -> None:
    """Remembers what went wrong in a case; several reports belong to one."""
    if report.failed:
        _problems[report.nodeid] = _problems.get(report.nodeid, "") + report.longreprtext
    elif report.skipped:
        where = report.longrepr
        _skipped[report.nodeid] = where[2] if isinstance(where, tuple) else str(where)


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be read is a case that fails."""
    if report.failed:
        case = {"case": report.nodeid, "outcome": "failed", "detail": report.longreprtext}
        _write(case)


def _write(line: dict[str, Any]) -> None:
    with open(os.environ[REPORT], "a") as file:
        file.write(json.dumps(line) + "\n")
