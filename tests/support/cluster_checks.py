"""What a pack on a cluster must come to, whichever cluster it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from packing import content, same_bytes
from slow_pack import finish
from small_inputs import inputs, patient
from waiting import wait_for

import fastload

SCRIPT = """
import sys
from pathlib import Path
import fastload
from fastload.packing.jobs.engines import connected
from small_inputs import inputs
here = Path(sys.argv[3])
with connected(sys.argv[1], **{sys.argv[2]: sys.argv[4]}) as executor:
    for name, (source, options) in inputs(here).items():
        fastload.pack(source, here / "cluster" / name, executor=executor, **options)
"""


@dataclass(frozen=True)
class Cluster:
    """A cluster of this host.

    Attributes:
        engine: Its name.
        option: Of `fastload pack`, which gives the address.
        address: Of the cluster.
        folder: From which its workers import.
    """

    engine: str
    option: str
    address: str
    folder: Path

    def pack(self, *options: str) -> subprocess.Popen[str]:
        """Starts `fastload pack` of the patient dataset."""
        command = [sys.executable, "-m", "fastload", "pack", "patient:Samples", "out"]
        command += ["--shard-size", "1024", *self.words(), *options]
        return subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, text=True)

    def words(self) -> list[str]:
        """Of the command line."""
        return ["--engine", self.engine, f"--{self.option}", self.address]


@contextmanager
def started(script: str, folder: Path) -> Iterator[str]:
    """Runs a script that starts a cluster, prints its address, and ends with its standard input."""
    (folder / "cluster.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, "cluster.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": _paths(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a worker that is killed is told of
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=240)


def _paths(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def check_same_files(cluster: Cluster, folder: Path) -> None:
    """Inputs of several kinds become the same files as without a cluster."""
    made = inputs(folder)
    environment = {**os.environ, "PYTHONPATH": _paths(Path(__file__).parent)}
    words = [cluster.engine, cluster.option, folder, cluster.address]
    command = [sys.executable, "-c", SCRIPT, *words]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=240)
    for name, (source, options) in made.items():
        fastload.pack(source, folder / "alone" / name, workers=1, **options)
        assert content(folder / "cluster" / name) == content(folder / "alone" / name)
        assert not (folder / "cluster" / name / ".fastload").exists()


def check_a_killed_worker(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job of a worker that is killed is done by another."""
    folder = cluster.folder
    name, out = patient(folder, monkeypatch), folder / "out"
    fastload.pack(name, folder / "alone", workers=1, shard_size=1024, overwrite=True)
    (folder / "waits").unlink(missing_ok=True)
    (folder / "wait").touch()
    process = cluster.pack("--overwrite")
    wait_for((folder / "waits").exists)
    os.kill(int((folder / "waits").read_text()), signal.SIGKILL)
    (folder / "wait").unlink()
    code, stderr = finish(process)
    assert code == 0, stderr
    assert same_bytes(out, folder / "alone")


def check_broken_off_and_resumed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends it, and another run goes on with the rest."""
    folder = cluster.folder
    name, out = patient(folder, monkeypatch), folder / "out"
    fastload.pack(name, folder / "alone", workers=1, shard_size=1024, overwrite=True)
    shutil.rmtree(out, ignore_errors=True)
    (folder / "wait").touch()
    process = cluster.pack()
    wait_for(lambda: len(list(out.glob("shard-*"))) > 5)
    process.send_signal(signal.SIGINT)
    code, stderr = finish(process)
    (folder / "wait").unlink()
    assert code == 130, stderr
    assert "to continue: fastload pack patient:Samples out" in stderr
    assert f" {' '.join(cluster.words())} --resume\n" in stderr
    # The journal counts: the interrupt may come between the name of a shard and its line.
    lines = (out / ".fastload/journal.jsonl").read_text().splitlines()
    names = [f"shard-{json.loads(line)['shard']:06d}.safetensors" for line in lines]
    kept = {name: (out / name).stat().st_ino for name in names}
    assert len(kept) >= 5
    code, stderr = finish(cluster.pack("--resume"))
    assert code == 0, stderr
    assert same_bytes(out, folder / "alone")
    assert kept.items() <= {path.name: path.stat().st_ino for path in out.glob("*")}.items()
