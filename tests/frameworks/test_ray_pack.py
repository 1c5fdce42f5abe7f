"""Packing on a cluster of Ray, whose processes are its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_checks import (
    Cluster,
    check_a_killed_worker,
    check_broken_off_and_resumed,
    check_same_files,
    started,
)

SCRIPT = """
import sys
import ray
ray.init(num_cpus=2, include_dashboard=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else a busy machine starves its workers
        with started(SCRIPT, folder) as address:
            yield Cluster("ray", "address", address, folder)


def test_the_same_files_as_alone(cluster: Cluster, tmp_path: Path) -> None:
    check_same_files(cluster, tmp_path)


def test_a_worker_that_is_killed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    check_a_killed_worker(cluster, monkeypatch)


def test_broken_off_and_resumed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    check_broken_off_and_resumed(cluster, monkeypatch)
