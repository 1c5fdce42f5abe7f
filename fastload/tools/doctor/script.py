"""Runs a training script under a probe, alone or as one of several ranks."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fastload.tools.doctor import machine, verdict
from fastload.tools.doctor.phases import Finished, Probe

_PATIENCE = datetime.timedelta(seconds=60)  # wait for the figures of other ranks


def examine(path: str, arguments: Sequence[str], probe: Probe) -> dict[str, Any] | None:
    """Runs a script until the probe has finished; returns the report on rank 0, else None.

    Args:
        path: Path of the script.
        arguments: Arguments of the script.
        probe: A probe that is not yet installed.

    Raises:
        FileNotFoundError: the script does not exist.
        RuntimeError: the script loaded too few batches.
        Exception: any error of the script before that.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(2, "there is no such script", path)
    with _as_main(path, arguments):
        return watch(lambda: runpy.run_path(path, run_name="__main__"), probe)


def watch(run: Callable[[], Any], probe: Probe) -> dict[str, Any] | None:
    """Examines a training function; see `examine`."""
    shared = _Ranks(probe)
    with probe.installed():
        try:
            run()
        except Finished:
            pass
        except SystemExit as leave:
            if leave.code and not shared.told:
                raise
        except Exception as error:
            traceback.print_exc()  # the traceback names the line of the script
            if probe.phase in (None, "real") and not shared.told:
                raise
            probe.notes.append(
                f"with cached batches ({probe.phase}) the script raised {type(error).__name__}: "
                "what comes after is left out"
            )
    ranks = shared.collected()
    return None if ranks is None else verdict.diagnose(ranks, machine.facts())


class _Ranks:
    """Collects the figures of all ranks through the store of their rendezvous.

    Ranks send their figures before the script unwinds, which destroys its process group.

    Args:
        probe: Probe of this rank.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._others: list[dict[str, Any]] | None = []
        self.told = False
        probe.on_finish = self._exchange

    def collected(self) -> list[dict[str, Any]] | None:
        """Returns the figures of all ranks on rank 0; None on other ranks."""
        if not self.told and int(os.environ.get("RANK") or 0) > 0:
            return None
        return None if self._others is None else [self._own(0), *self._others]

    def _own(self, rank: int) -> dict[str, Any]:
        loader = self._probe.loader
        described = {} if loader is None else machine.describe_loader(loader)
        return verdict.figures(self._probe, rank, described)

    def _exchange(self) -> None:
        self.told = True
        dist = torch.distributed
        if not dist.is_available() or not dist.is_initialized():
            return
        rank, world = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        if rank > 0:
            self._others = None
            with contextlib.suppress(RuntimeError):  # rank 0 may have ended
                store.set(f"fastload/doctor/{rank}", json.dumps(self._own(rank)))
            return
        self._others = []
        for other in range(1, world):
            key = f"fastload/doctor/{other}"
            try:
                store.wait([key], _PATIENCE)
                self._others.append(json.loads(store.get(key)))
            except RuntimeError:
                self._probe.notes.append(f"rank {other} did not come to its end")


@contextlib.contextmanager
def _as_main(path: str, arguments: Sequence[str]) -> Iterator[None]:
    argv, folders = sys.argv, list(sys.path)
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = folders
