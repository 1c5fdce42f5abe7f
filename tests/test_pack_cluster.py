"""Packs on a cluster of Dask, whose scheduler and workers are processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from packing import column, content, same_bytes
from slow_pack import finish, wait_for
from small_inputs import inputs, patient

import fastload

pytest.importorskip("distributed", reason="pip install 'fastload[dask]'")

CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the scheduler, and a folder from which its workers import."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "cluster.py").write_text(CLUSTER)
    process = subprocess.Popen(
        [sys.executable, "cluster.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a worker that is killed is told of
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), folder
    finally:
        process.communicate(timeout=60)


def packing(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Starts `fastload pack` of the patient dataset with Dask."""
    command = [sys.executable, "-m", "fastload", "pack", "patient:Samples", "out"]
    command += ["--shard-size", "1024", "--engine", "dask", *options]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)


def test_the_same_files_as_alone(cluster: tuple[str, Path], tmp_path: Path) -> None:
    script = (
        "import sys, fastload\n"
        "from small_inputs import inputs\n"
        "from pathlib import Path\n"
        "from fastload.pack.engines import connected\n"
        "here = Path(sys.argv[2])\n"
        "with connected('dask', scheduler=sys.argv[1]) as executor:\n"
        "    for name, (source, options) in inputs(here).items():\n"
        "        fastload.pack(source, here / 'dask' / name, executor=executor, **options)\n"
    )
    made = inputs(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-c", script, cluster[0], tmp_path]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    for name, (source, options) in made.items():
        fastload.pack(source, tmp_path / "alone" / name, workers=1, **options)
        assert content(tmp_path / "dask" / name) == content(tmp_path / "alone" / name)
        assert not (tmp_path / "dask" / name / ".fastload").exists()


def test_a_worker_that_is_killed(
    cluster: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, folder = cluster
    name, out = patient(folder, monkeypatch), folder / "out"
    fastload.pack(name, folder / "alone", workers=1, shard_size=1024)
    (folder / "wait").touch()
    process = packing(folder, "--scheduler", scheduler)
    wait_for((folder / "waits").exists)
    os.kill(int((folder / "waits").read_text()), signal.SIGKILL)
    (folder / "wait").unlink()
    code, stderr = finish(process)
    assert code == 0, stderr
    assert same_bytes(out, folder / "alone")


def test_broken_off_and_resumed(cluster: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, folder = cluster
    name, out = patient(folder, monkeypatch), folder / "out"
    fastload.pack(name, folder / "alone", workers=1, shard_size=1024, overwrite=True)
    shutil.rmtree(out, ignore_errors=True)
    (folder / "wait").touch()
    process = packing(folder, "--scheduler", scheduler)
    wait_for(lambda: len(list(out.glob("shard-*"))) > 5)
    process.send_signal(signal.SIGINT)
    code, stderr = finish(process)
    (folder / "wait").unlink()
    assert code == 130, stderr
    assert "to continue: fastload pack patient:Samples out" in stderr
    assert stderr.endswith(f"--engine dask --scheduler {scheduler} --resume\n")
    kept = {path.name: path.stat().st_ino for path in out.glob("shard-*")}
    code, stderr = finish(packing(folder, "--scheduler", scheduler, "--resume"))
    assert code == 0, stderr
    assert same_bytes(out, folder / "alone")
    assert kept.items() <= {path.name: path.stat().st_ino for path in out.glob("*")}.items()


def test_the_scheduler_is_given_by_the_environment_too(
    cluster: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, _ = cluster
    patient(tmp_path, monkeypatch)
    code, stderr = finish(packing(tmp_path))
    assert code == 1
    assert stderr.endswith("--engine dask needs --scheduler ADDRESS, or DASK_SCHEDULER_ADDRESS\n")
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", scheduler)
    np.save(tmp_path / "x.npy", np.arange(3))
    command = [sys.executable, "-m", "fastload", "pack", "x.npy", "out", "--engine", "dask"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert column(tmp_path / "out").tolist() == [0, 1, 2]
