"""Runs that are broken off at a shard, or watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from fastload.packing.output.writer import ShardJob, Written


class Stop(Exception):
    pass


@contextlib.contextmanager
def stopped_at(monkeypatch: pytest.MonkeyPatch, shard: int) -> Iterator[list[int]]:
    """Breaks packs off when they come to a shard; gives the numbers of those that were written."""
    run, seen = ShardJob.run, []

    def stops(self: ShardJob, advance: Callable[[int], None]) -> Written:
        if self.shard == shard:
            raise Stop
        seen.append(self.shard)
        return run(self, advance)

    with monkeypatch.context() as patch:
        patch.setattr(ShardJob, "run", stops)
        with pytest.raises(Stop):
            yield seen


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Gives the numbers of the shards that are written."""
    run, seen = ShardJob.run, []

    def notes(self: ShardJob, advance: Callable[[int], None]) -> Written:
        seen.append(self.shard)
        return run(self, advance)

    with monkeypatch.context() as patch:
        patch.setattr(ShardJob, "run", notes)
        yield seen
