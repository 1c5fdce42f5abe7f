"""Packs on a cluster of Dask, whose scheduler and workers are processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cluster_checks import (
    Cluster,
    check_a_killed_worker,
    check_broken_off_and_resumed,
    check_same_files,
    started,
)
from packing import column

pytestmark = pytest.mark.slow

pytest.importorskip("distributed", reason="pip install distributed")

SCRIPT = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with started(SCRIPT, folder) as address:
        yield Cluster("dask", "scheduler", address, folder)


def test_the_same_files_as_alone(cluster: Cluster, tmp_path: Path) -> None:
    check_same_files(cluster, tmp_path)


def test_a_worker_that_is_killed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    check_a_killed_worker(cluster, monkeypatch)


def test_broken_off_and_resumed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    check_broken_off_and_resumed(cluster, monkeypatch)


def test_the_scheduler_is_given_by_the_environment_too(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    command = [sys.executable, "-m", "fastload", "pack", "x.npy", "out", "--engine", "dask"]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    message = "fastload: error: --engine dask needs --scheduler ADDRESS, or DASK_SCHEDULER_ADDRESS"
    assert done.stderr == f"{message}\n"
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.address)
    subprocess.run(command, cwd=tmp_path, check=True)
    assert column(tmp_path / "out").tolist() == [0, 1, 2]
